"""Tokenised BLEU against its definition, fairseq's scorer and sacreBLEU. Budget: 5 s."""

import math
import os
import random
import subprocess

import pytest
import sacrebleu

from realformer_nmt.tools.multi_bleu import multi_bleu, split_compounds


def by_definition(hypotheses, references):
    """BLEU (Papineni et al. 2002) with plain lists and counts: score, precisions, BP; for tokens split by one space."""
    matches, totals = [0] * 4, [0] * 4
    hyp_len, ref_len = 0, 0
    for i, hypothesis in enumerate(hypotheses):
        words = hypothesis.split()
        refs = [reference[i].split() for reference in references]
        hyp_len += len(words)
        best = None
        for ref in refs:
            if best is None or abs(len(ref) - len(words)) < abs(best - len(words)):
                best = len(ref)
            elif abs(len(ref) - len(words)) == abs(best - len(words)):
                best = min(best, len(ref))
        ref_len += best
        for n in (1, 2, 3, 4):
            grams = [words[j : j + n] for j in range(len(words) - n + 1)]
            totals[n - 1] += len(grams)
            seen = []
            for gram in grams:
                if gram in seen:
                    continue
                seen.append(gram)
                in_refs = max(sum(ref[j : j + n] == gram for j in range(len(ref))) for ref in refs)
                matches[n - 1] += min(grams.count(gram), in_refs)
    precisions = [m / t if t else 0.0 for m, t in zip(matches, totals)]
    penalty = 1.0 if hyp_len >= ref_len else (math.exp(1 - ref_len / hyp_len) if hyp_len else 0.0)
    product = math.prod(precisions)
    return 100 * penalty * product**0.25, [100 * p for p in precisions], penalty


def random_corpus(seed, lists, lines=12, longest=14, words="the cat sat on a mat , and dog ."):
    generator = random.Random(seed)

    def line():
        return " ".join(generator.choice(words.split()) for _ in range(generator.randint(0, longest)))

    return [[line() for _ in range(lines)] for _ in range(lists)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("references", [1, 2, 3])
def test_equals_definition_on_random_text(seed, references):
    hypotheses, *refs = random_corpus(100 * references + seed, 1 + references)
    got = multi_bleu(hypotheses, refs)
    score, precisions, penalty = by_definition(hypotheses, refs)
    assert got.score == pytest.approx(score, abs=1e-9)
    assert got.precisions == pytest.approx(precisions, abs=1e-9)
    assert got.brevity_penalty == pytest.approx(penalty, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_equals_sacrebleu_without_tokeniser_and_smoothing(seed):
    hypotheses, first, second = random_corpus(seed, 3, lines=40)
    expected = sacrebleu.corpus_bleu(hypotheses, [first, second], smooth_method="none", tokenize="none", force=True)
    got = multi_bleu(hypotheses, [first, second])
    assert got.score == pytest.approx(expected.score, abs=1e-9)
    assert (got.hyp_len, got.ref_len) == (expected.sys_len, expected.ref_len)


def test_equals_fairseq_score():
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    hypotheses, reference = random_corpus(7, 2, lines=60)
    dictionary = Dictionary()
    scorer = Scorer(BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for hypothesis, target in zip(hypotheses, reference):
        scorer.add(dictionary.encode_line(target, add_if_not_exist=True), dictionary.encode_line(hypothesis, add_if_not_exist=True))
    assert multi_bleu(hypotheses, [reference]).score == pytest.approx(scorer.score(), abs=1e-4)


@pytest.mark.parametrize(
    "hypotheses, references, line",
    [
        # What multi-bleu.perl prints for these, by hand from its source.
        (["a b c d"], [["a b c d"]], "BLEU = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, hyp_len=4, ref_len=4)"),
        (["a"], [["a"]], "BLEU = 0.00, 100.0/0.0/0.0/0.0 (BP=1.000, ratio=1.000, hyp_len=1, ref_len=1)"),
        (["", "a b c d e"], [["x y", "a b c d e"]], "BLEU = 67.03, 100.0/100.0/100.0/100.0 (BP=0.670, ratio=0.714, hyp_len=5, ref_len=7)"),
        (["the the the the the the the"], [["the cat is on the mat"]], "BLEU = 0.00, 28.6/0.0/0.0/0.0 (BP=1.000, ratio=1.167, hyp_len=7, ref_len=6)"),
        (["a b c"], [["a b c d"], ["a b"]], "BLEU = 0.00, 100.0/100.0/100.0/0.0 (BP=1.000, ratio=1.500, hyp_len=3, ref_len=2)"),
        ([""], [[""]], "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"),
        (["  a  b c d "], [["a b c d"]], "BLEU = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, hyp_len=4, ref_len=4)"),
    ],
)  # fmt: skip
def test_edge_cases(hypotheses, references, line):
    assert str(multi_bleu(hypotheses, references)) == line


def test_all_hypotheses_empty_scores_zero():
    assert multi_bleu(["", ""], [["a", "b"]]).score == 0.0


def test_no_break_space_does_not_end_a_word():
    # Perl reads bytes and splits at ASCII white space only; Python's split() would make two words of it.
    assert multi_bleu(["a b c 10\u00a0000"], [["a b c 10 000"]]).precisions[0] == 75.0


def test_lists_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="2 hypotheses, but 1"):
        multi_bleu(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="at least one"):
        multi_bleu(["a"], [])


@pytest.mark.parametrize(
    "line, split",
    [
        ("ein E-Mail-Konto", "ein E ##AT##-##AT## Mail ##AT##-##AT## Konto"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the b is used up by the first match
        ("- a -b c- d", "- a -b c- d"),
        ("Übergrößen-träger", "Übergrößen ##AT##-##AT## träger"),
        ("--", "--"),
    ],
)
def test_compounds(line, split):
    assert split_compounds(line) == split


@pytest.mark.skipif("MULTI_BLEU" not in os.environ, reason="set MULTI_BLEU to Moses' multi-bleu.perl to compare with it")
@pytest.mark.parametrize("references", [1, 3])
def test_equals_the_perl_script(tmp_path, references):
    for seed in range(10):
        hypotheses, *refs = random_corpus(seed, 1 + references, words="a b é c\u00a0d - 1")
        for i, reference in enumerate(refs):
            (tmp_path / f"ref{i}").write_text("".join(line + "\n" for line in reference), encoding="utf-8")
        printed = subprocess.run(
            ["perl", os.environ["MULTI_BLEU"], str(tmp_path / "ref")],
            input="".join(line + "\n" for line in hypotheses), capture_output=True, text=True, encoding="utf-8", check=False,
        ).stdout  # fmt: skip
        assert str(multi_bleu(hypotheses, refs)) == printed.strip()
