"""Makes tests/tiny_databin.py and tests/train_tools.py importable; a corpus shared by the tests of the commands."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of train, valid and test text, plain and in BPE units (command_corpus.py)."""
    from command_corpus import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def corpus_databin(corpus):
    """What fairseq-preprocess makes of the corpus."""
    from stock_commands import forked, preprocess

    return preprocess(forked, corpus, corpus / "databin")


@pytest.fixture(scope="session")
def trained(corpus_databin, tmp_path_factory):
    """Folder with the last three epoch checkpoints of a realformer_tiny that has learnt the corpus."""
    from stock_commands import TINY, forked

    folder = tmp_path_factory.mktemp("trained")
    done = forked(
        "train", corpus_databin, *TINY, "--max-epoch", 20, "--keep-last-epochs", 3, "--save-dir", folder / "ckpt"
    )
    (folder / "log").write_text(done.text)
    return folder / "ckpt"
