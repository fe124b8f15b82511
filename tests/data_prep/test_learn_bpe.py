"""BPE: the merges are subword-nmt's own, from the same text, and so is the encoding."""
import io
import random

import pytest
from subword_nmt import apply_bpe, learn_bpe

from data_prep import bpe
from data_prep.learn_bpe import learn
from prep_support import sentences


def theirs(lines, merges):
    out = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("".join(line + "\n" for line in lines)), out, merges)
    return out.getvalue()


def ours(lines, merges, tmp_path, workers=1):
    text, words, codes = tmp_path / "text", tmp_path / "words", tmp_path / "codes"
    text.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
    counts = bpe.count_words("words", [str(text)], str(words), workers)
    assert counts["tokens"] == sum(len(line.split()) for line in lines)
    bpe.learn_codes("learn", str(words), str(codes), merges)
    return codes.read_bytes().decode("utf-8")


def repetitive(number, seed):
    """Words in which the same string arises in more than one way, and runs of one letter: the awkward cases."""
    rng = random.Random(seed)
    return [" ".join("".join(rng.choice(["a", "b", "ab", "aa", "aba", "he", "the", "t", "\xe9"])
                             for _ in range(rng.randint(1, 9))) for _ in range(8)) for _ in range(number)]


@pytest.mark.parametrize("merges", [1, 50, 400, 5000])
@pytest.mark.parametrize("lines", [sentences("en", 400) + sentences("fr", 400), repetitive(150, 1), repetitive(60, 2)],
                         ids=["sentences", "repetitive", "short"])
def test_same_codes_as_subword_nmt(lines, merges, tmp_path, capsys):
    assert ours(lines, merges, tmp_path) == theirs(lines, merges)
    capsys.readouterr()


def test_workers_do_not_matter(tmp_path):
    lines = sentences("en", 300) + sentences("fr", 300)
    assert ours(lines, 300, tmp_path, 1) == ours(lines, 300, tmp_path, 3)


def test_encoding_is_subword_nmts(tmp_path):
    lines = sentences("en", 200) + repetitive(100, 3)
    codes = ours(lines, 150, tmp_path)
    reference = apply_bpe.BPE(io.StringIO(codes))
    encoder = bpe.Encoder(str(tmp_path / "codes"))
    for line in lines + sentences("de", 50):
        assert encoder.line(line) == reference.process_line(line)


def test_cache_limit_changes_nothing(tmp_path, monkeypatch):
    lines = sentences("en", 100)
    ours(lines, 50, tmp_path)
    free = bpe.Encoder(str(tmp_path / "codes"))
    monkeypatch.setattr(bpe, "CACHE_WORDS", 3)
    tight = bpe.Encoder(str(tmp_path / "codes"))
    assert [free.line(line) for line in lines] == [tight.line(line) for line in lines]
    assert len(tight) <= 3


def test_no_words():
    out = io.StringIO()
    assert learn([], out, 10) == 0 and out.getvalue() == "#version: 0.2\n"
    assert learn(["a 5\n"], io.StringIO(), 10) == 0
