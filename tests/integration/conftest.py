"""tests/tiny_databin.py and tests/train_tools.py are shared by the tests of training."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
