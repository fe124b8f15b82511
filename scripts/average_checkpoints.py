#!/usr/bin/env python3
"""Average fairseq checkpoints; see --help. The code is in realformer_nmt/tools/average.py."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# One of fairseq's dependencies is behind torch; nothing that a user can act on.
warnings.filterwarnings("ignore", category=FutureWarning, module="fairscale")

try:
    from realformer_nmt.tools.average import main
    from realformer_nmt.tools.files import run_main
except ModuleNotFoundError as error:
    sys.exit(f"average_checkpoints.py: error: {error} in {sys.executable}; run scripts/setup.sh and use .venv/bin/python")

if __name__ == "__main__":
    run_main(main)
