"""Scores against sacrebleu called directly, and the checks on lines. Budget: 15 s."""

import random

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER

from realformer_nmt.tools.files import ToolError
from realformer_nmt.tools.scores import (
    check_lines,
    check_no_bpe_marks,
    compare_systems,
    detokenize,
    score_detokenized,
    score_tokenized,
)

REFERENCES = ["Le chat est sur le tapis.", "Il pleut, aujourd'hui.", "Bonjour !", "Deux hommes parlent."]
HYPOTHESES = ["Le chat est sur un tapis.", "Il pleut aujourd'hui.", "", "Deux hommes."]


def test_detokenised_scores_are_sacrebleus():
    got = score_detokenized(HYPOTHESES, [REFERENCES])
    for name, metric in (("BLEU", BLEU()), ("chrF2", CHRF()), ("TER", TER())):
        assert got[name]["score"] == metric.corpus_score(HYPOTHESES, [REFERENCES]).score
        assert f"version:{sacrebleu.__version__}" in got[name]["signature"]
    assert "tok:13a" in got["BLEU"]["signature"] and "nrefs:1" in got["BLEU"]["signature"]
    assert "nrefs:2" in score_detokenized(HYPOTHESES, [REFERENCES, HYPOTHESES])["BLEU"]["signature"]


def test_tokenised_scores_with_compounds():
    hypotheses, reference = ["das E-Mail Konto ist gut"], ["das E-Mail Konto ist sehr gut"]
    got = score_tokenized(hypotheses, [reference], compounds=True)
    assert set(got) == {"multi-bleu", "multi-bleu, compounds split"}
    split = score_tokenized(
        ["das E ##AT##-##AT## Mail Konto ist gut"], [["das E ##AT##-##AT## Mail Konto ist sehr gut"]]
    )
    assert got["multi-bleu, compounds split"] == split["multi-bleu"] != got["multi-bleu"]


def test_detokenise_undoes_moses():
    lines = ["l&apos; homme vient de Saint @-@ Denis , n&apos; est @-@ ce pas ?", "", "10 &amp; 20"]
    assert detokenize(lines, "fr") == ["l'homme vient de Saint-Denis, n'est-ce pas ?", "", "10 & 20"]


def noisy(seed, rate):
    generator = random.Random(seed)
    lines = [" ".join(generator.choice("abcdefghijkl") * 3 for _ in range(12)) for _ in range(60)]
    noise = random.Random(seed + rate)
    return lines, [" ".join(w if noise.random() * 100 > rate else "zzz" for w in line.split()) for line in lines]


def test_significance_finds_a_large_difference_and_none_between_equals():
    reference, good = noisy(1, 5)
    bad = [" ".join(word if i % 2 else "yyy" for i, word in enumerate(line.split())) for line in good]
    table = compare_systems(good, bad, [reference], resamples=200, trials=200)
    assert set(table) == {"BLEU", "chrF2", "TER"}
    assert table["BLEU"]["system"] == BLEU().corpus_score(good, [reference]).score
    assert table["BLEU"]["baseline"] == BLEU().corpus_score(bad, [reference]).score
    for row in table.values():
        assert row["bootstrap"]["p_value"] < 0.01 and row["randomisation"]["p_value"] < 0.01
    same = compare_systems(good, list(good), [reference], resamples=200, trials=200)
    for row in same.values():
        assert row["bootstrap"]["p_value"] == row["randomisation"]["p_value"] == 1.0
    # As many errors, in other places.
    table = compare_systems(noisy(1, 6)[1], good, [reference], resamples=200, trials=200)
    assert table["BLEU"]["randomisation"]["p_value"] > 0.05


def test_significance_equals_sacrebleus_own_run():
    from sacrebleu.significance import PairedTest

    reference, system = noisy(2, 10)
    _, baseline = noisy(2, 14)
    got = compare_systems(system, baseline, [reference], resamples=100, trials=300)
    for key, kind, count in (("bootstrap", "bs", 100), ("randomisation", "ar", 300)):
        test = PairedTest(
            [("b", baseline), ("s", system)], {"BLEU": BLEU(references=[reference])}, None, test_type=kind, n_samples=count
        )
        assert got["BLEU"][key]["p_value"] == test()[1]["BLEU"][1].p_value


def test_line_counts():
    check_lines(["a"], [["b"]], ["r"])
    with pytest.raises(ToolError, match="ref.fr: has 2 lines, but there are 1 hypotheses"):
        check_lines(["a"], [["b", "c"]], ["ref.fr"])
    with pytest.raises(ToolError, match="no hypotheses"):
        check_lines([], [], [])


@pytest.mark.parametrize("line", ["un mot cou@@ pé", "fin@@", "\u2581un \u2581mot"])
def test_bpe_marks_are_found(line):
    with pytest.raises(ToolError, match="hyp, line 2: BPE marks"):
        check_no_bpe_marks(["bien", line], "hyp")


def test_text_that_only_looks_like_bpe_passes():
    check_no_bpe_marks(["a@b.fr", "x@@y", "Saint @-@ Denis", ""], "hyp")
