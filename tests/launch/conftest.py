"""tests/tiny_databin.py is shared by the tests of training, wherever they lie."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
