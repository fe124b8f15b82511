"""Makes the package and the test helpers importable; fixtures used by more than one file."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture
def batch():
    """Toy sentence pairs of different lengths: two lists of token id lists, each ending with eos (2)."""
    source = [[4, 9, 17, 2], [22, 5, 6, 7, 30, 41, 2], [12, 2]]
    target = [[8, 33, 2], [14, 4, 25, 9, 2], [40, 21, 11, 5, 18, 2]]
    return source, target
