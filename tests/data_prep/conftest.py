"""Fixtures for the tests of data_prep; what they are made of is in prep_support.py."""
import hashlib
import os
import sys

import pytest

from prep_support import Server, published


@pytest.fixture(scope="session")
def archives():
    return published()


@pytest.fixture
def server(archives):
    result = Server(dict(archives))
    yield result
    result.close()


@pytest.fixture
def environ(server, tmp_path):
    """The environment for a run against `server`: its address, and the sums of its small archives."""
    sums = tmp_path / "sums"
    sums.write_text("".join("%s  %s\n" % (hashlib.sha256(data).hexdigest(), name)
                            for name, data in server.files.items()))
    return dict(os.environ, DATA_PREP_MIRROR=server.url, DATA_PREP_CHECKSUMS=str(sums), DATA_PREP_PAUSE="0.01",
                DATA_PREP_RETRIES="3", PYTHON=sys.executable, OMP_NUM_THREADS="1")
