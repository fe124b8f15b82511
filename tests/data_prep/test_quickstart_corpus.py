"""Tokens and BPE of the quickstart's corpus. Budget: 5 seconds."""
import os

import pytest
from sacremoses import MosesDetokenizer

from data_prep import quickstart_corpus

TEXT = {
    ("train", "en"): ["The well-known red house isn't \"old\".", "A red house & a [blue] one", "Redder houses"] * 4,
    ("train", "fr"): ["La maison rouge bien-aimée n'est pas \"vieille\".", "Une maison rouge & une [bleue]",
                      "Maisons plus rouges"] * 4,
    ("valid", "en"): ["zzzzzz zzzzzz"], ("valid", "fr"): ["zzzzzz zzzzzz"],
    ("test", "en"): ["The house"], ("test", "fr"): ["La maison"],
}


@pytest.fixture
def corpus(tmp_path):
    for (split, lang), lines in TEXT.items():
        (tmp_path / ("%s.%s" % (split, lang))).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return tmp_path


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_undoing_bpe_and_tokens_gives_the_text_back(corpus, tmp_path):
    assert quickstart_corpus.main(["--in", str(corpus), "--out", str(tmp_path / "o"), "--merges", "40"]) == 0
    split_words = 0
    for (split, lang), text in TEXT.items():
        encoded = lines(tmp_path / "o" / ("%s.bpe.%s" % (split, lang)))
        split_words += sum(line.count("@@ ") for line in encoded)
        detokenise = MosesDetokenizer(lang=lang).detokenize
        assert [detokenise((line + " ").replace("@@ ", "").split()) for line in encoded] == text
    assert split_words
    assert not [name for name in os.listdir(tmp_path / "o") if name.endswith(".tmp")]


def test_merges_are_learnt_on_both_sides_of_the_training_text_alone(corpus, tmp_path):
    assert quickstart_corpus.main(["--in", str(corpus), "--out", str(tmp_path / "o"), "--merges", "500"]) == 0
    merges = lines(tmp_path / "o" / "codes")
    assert merges[0].startswith("#version")
    assert "z z" not in merges and not any("zz" in merge for merge in merges)
    assert lines(tmp_path / "o" / "valid.bpe.en") == ["z@@ z@@ z@@ z@@ z@@ z z@@ z@@ z@@ z@@ z@@ z"]
    # Frequent words of either language became one unit.
    assert {"house", "maison"} <= set(" ".join(lines(tmp_path / "o" / "test.bpe.en")
                                               + lines(tmp_path / "o" / "test.bpe.fr")).split())


def test_missing_file_is_one_line(corpus, tmp_path, capsys):
    (corpus / "valid.fr").unlink()
    assert quickstart_corpus.main(["--in", str(corpus), "--out", str(tmp_path / "o")]) == 1
    error = capsys.readouterr().err
    assert "valid.fr" in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()
