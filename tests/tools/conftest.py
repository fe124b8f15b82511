"""Models made once for all tests of the tools."""

import pytest
from tiny_models import TinyData


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return TinyData(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def residual_model(tiny):
    """Checkpoints of ``--arch realformer_tiny``: checkpoint_*_{2,4,6}.pt."""
    return tiny.train("residual", "--arch", "realformer_tiny")


@pytest.fixture(scope="session")
def stock_model(tiny):
    """Checkpoints of fairseq's own ``transformer`` of the same size."""
    sizes = [flag for side in ("encoder", "decoder") for flag in (
        f"--{side}-layers=2", f"--{side}-embed-dim=64", f"--{side}-ffn-embed-dim=128", f"--{side}-attention-heads=4")]
    return tiny.train("stock", "--arch", "transformer", *sizes, updates=4)
