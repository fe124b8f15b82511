#!/usr/bin/env python3
"""Average fairseq checkpoints; see --help. The code is in realformer_nmt/tools/average.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from realformer_nmt.tools.average import main  # noqa: E402
from realformer_nmt.tools.files import run_main  # noqa: E402

if __name__ == "__main__":
    run_main(main)
