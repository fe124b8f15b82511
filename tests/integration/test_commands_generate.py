"""fairseq-generate's ways of searching, on a small model that has learnt its corpus.  Budget: 45 s."""

import math
import re

import pytest
import torch
from stock_commands import bleu, forked, hypotheses, numbered, omega_lines, unchanged

import realformer_nmt  # noqa: F401  lets the safe loader read fairseq's checkpoints
from realformer_nmt import linear

PAIRS = 24


@pytest.fixture(scope="module")
def model_path(trained):
    return trained / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def generate(corpus_databin, model_path):
    """Run fairseq-generate with more flags on the test split; the checkpoint must come out as it went in."""

    def run(*flags, path=None):
        with unchanged(model_path):
            # without this flag fairseq leaves out a last batch that is not a multiple of 8
            whole = ["--required-batch-size-multiple", 1]
            done = forked("generate", corpus_databin, "--path", path or model_path, *whole, *flags)
        assert omega_lines(done.text) == []
        return done.text

    return run


@pytest.fixture(scope="module")
def plain(generate):
    """Default batches, beam 5."""
    text = generate("--beam", 5)
    assert bleu(text) > 50, text[-300:]
    return text


def assert_same_translations(text, reference, tolerance=1e-4):
    found, expected = hypotheses(text), hypotheses(reference)
    assert sorted(found) == sorted(expected) == list(range(PAIRS))
    for number, several in expected.items():
        assert [sentence for _, sentence in found[number]] == [sentence for _, sentence in several], number
        for (score, _), (other, _) in zip(found[number], several):
            assert score == pytest.approx(other, abs=tolerance), number


def positional(text):
    """``{sentence number: [log2 probability of each target token]}``."""
    return {number: [float(p) for p in line.split()] for number, line in numbered(text, "P").items()}


@pytest.mark.parametrize("flags", [["--batch-size", 1], ["--batch-size", 7], ["--max-tokens", 60]], ids=str)
def test_batches_do_not_matter(generate, plain, flags):
    """A sentence's translation and score do not depend on the padding that its neighbours bring."""
    assert_same_translations(generate("--beam", 5, *flags), plain)


def test_greedy(generate, plain):
    text = generate("--beam", 1)
    assert_same_translations(generate("--beam", 1, "--batch-size", 1), text)
    assert bleu(text) > 50
    for number, found in hypotheses(text).items():
        assert hypotheses(plain)[number][0][0] >= found[0][0] - 1e-4 or hypotheses(plain)[number][0][1] != found[0][1]


def test_nbest_and_length_penalty(generate, plain):
    text = generate("--beam", 5, "--nbest", 5)
    for number, several in hypotheses(text).items():
        scores = [score for score, _ in several]
        assert len(several) == 5 and scores == sorted(scores, reverse=True)
        assert several[0] == hypotheses(plain)[number][0]
        assert len({sentence for _, sentence in several}) == 5
    # lenpen changes how a sum is normalised, not the sum
    text = generate("--beam", 5, "--lenpen", 0.8)
    for number, probabilities in positional(text).items():
        expected = sum(probabilities) / len(probabilities) ** 0.8
        assert hypotheses(text)[number][0][0] == pytest.approx(expected, abs=2e-3)


def test_no_early_stop_and_unnormalized(generate):
    """With --no-early-stop, kept as an ignored flag by fairseq, or --unnormalized the search still ends."""
    text = generate("--beam", 5, "--no-early-stop", "--unnormalized")
    for number, probabilities in positional(text).items():
        assert hypotheses(text)[number][0][0] == pytest.approx(sum(probabilities), abs=2e-3)


def test_ensemble(generate, plain, model_path, trained, corpus_databin):
    """a:a is a; a:b averages the probabilities of both."""
    assert_same_translations(generate("--beam", 5, path=f"{model_path}:{model_path}"), plain)
    other = trained / "checkpoint18.pt"
    text = generate("--score-reference", path=f"{model_path}:{other}")
    one, two = (positional(generate("--score-reference", path=path)) for path in (model_path, other))
    assert one != two
    for number, joint in positional(text).items():
        for position, probability in enumerate(joint):
            expected = math.log2((2 ** one[number][position] + 2 ** two[number][position]) / 2)
            assert probability == pytest.approx(expected, abs=2e-4)


def test_prefix(generate, plain):
    text = generate("--beam", 5, "--prefix-size", 3)
    for number, reference in numbered(text, "T").items():
        assert hypotheses(text)[number][0][1].split()[:3] == reference.split()[:3]
    # Where the model begins so anyway, greedy search is not changed by forcing it. A beam may be: all of its hypotheses
    # then share the prefix, so that others survive; but a translation that both find has one score.
    compared = 0
    for beam in (1, 5):
        free, forced = hypotheses(generate("--beam", beam)), hypotheses(generate("--beam", beam, "--prefix-size", 3))
        for number, reference in numbered(text, "T").items():
            (score, found), (forced_score, forced_found) = free[number][0], forced[number][0]
            if found.split()[:3] != reference.split()[:3]:
                continue
            if beam == 1:
                assert forced_found == found
            if forced_found == found:
                compared += 1
                assert forced_score == pytest.approx(score, abs=1e-4)
    assert compared > PAIRS // 2


def test_score_reference(generate, plain, model_path, corpus_databin):
    """Scores of the references are the model's own log probabilities, one forward pass a sentence."""
    from fairseq import checkpoint_utils

    text = generate("--score-reference")
    references = numbered(text, "T")
    assert {n: found[0][1] for n, found in hypotheses(text).items()} == references
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(model_path)], arg_overrides={"data": str(corpus_databin)}
    )
    model.eval()
    for number, source in list(numbered(text, "S").items())[:8]:
        src = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()[None]
        tgt = task.target_dictionary.encode_line(references[number], add_if_not_exist=False).long()[None]
        shifted = torch.cat([tgt[:, -1:], tgt[:, :-1]], dim=1)
        with torch.no_grad():
            log_probs = model.get_normalized_probs(
                model(src, torch.tensor([src.size(1)]), shifted), log_probs=True, sample=None
            )
        expected = log_probs.gather(2, tgt[..., None])[0, :, 0] / math.log(2)
        assert positional(text)[number] == pytest.approx(expected.tolist(), abs=2e-4)
        assert hypotheses(text)[number][0][0] == pytest.approx(expected.mean().item(), abs=2e-4)
    # a translation equal to the reference got this very score from the search, step by step
    equal = [n for n, found in hypotheses(plain).items() if found[0][1] == references[n]]
    assert len(equal) > PAIRS // 3
    for number in equal:
        assert hypotheses(plain)[number][0][0] == pytest.approx(hypotheses(text)[number][0][0], abs=1e-4)


def test_alignment(generate, plain):
    """Cross-attention of the searched sentence, in either format."""
    hard, soft = (generate("--beam", 5, "--print-alignment", kind) for kind in ("hard", "soft"))
    assert_same_translations(hard, plain)
    assert_same_translations(soft, plain)
    sources, found = numbered(hard, "S"), hypotheses(hard)
    for number, line in numbered(soft, "A").items():
        rows = [[float(p) for p in row.split(",")] for row in line.split()]
        assert len(rows) == len(found[number][0][1].split()) + 1  # eos
        for row in rows:
            assert len(row) == len(sources[number].split()) + 1 and sum(row) == pytest.approx(1, abs=1e-3)
    for number, line in numbered(hard, "A").items():
        for pair in line.split():
            source, target = map(int, pair.split("-"))
            assert 0 <= source <= len(sources[number].split()) and 0 <= target <= len(found[number][0][1].split())


def test_diverse_beam(generate):
    text = generate("--beam", 6, "--diverse-beam-groups", 3, "--diverse-beam-strength", 2, "--nbest", 6)
    assert all(len(several) == 6 for several in hypotheses(text).values())
    assert all(len({sentence for _, sentence in several}) > 1 for several in hypotheses(text).values())


def test_sampling(generate, plain):
    flags = ["--beam", 2, "--nbest", 2, "--sampling", "--sampling-topk", 8, "--temperature", 1.5]
    first, again, other = (generate(*flags, "--seed", seed) for seed in (5, 5, 6))
    assert hypotheses(first) == hypotheses(again) != hypotheses(other)
    assert hypotheses(generate("--beam", 1, "--sampling", "--sampling-topp", 0.9)).keys() == hypotheses(plain).keys()


def test_half_precision(generate, plain):
    """--fp16 halves the model; a search over probabilities rounded to 3 digits finds nearly the same."""
    text = generate("--beam", 5, "--fp16")
    same = sum(found[0][1] == hypotheses(plain)[number][0][1] for number, found in hypotheses(text).items())
    assert same >= PAIRS - 3
    for number, found in hypotheses(text).items():
        if found[0][1] == hypotheses(plain)[number][0][1]:
            assert found[0][0] == pytest.approx(hypotheses(plain)[number][0][0], abs=0.03)


def test_results_path_and_overrides(generate, plain, tmp_path):
    """The flags are settings of the checkpoint: leaving residual attention out is another model."""
    generate("--beam", 5, "--results-path", tmp_path)
    assert_same_translations((tmp_path / "generate-test.txt").read_text(encoding="utf-8"), plain)
    scores = {}
    for mode in ("sum", "mean", "none"):
        text = generate("--score-reference", "--model-overrides", f"{{'residual_attention': '{mode}'}}")
        scores[mode] = re.findall(r"^H-\d+\t(\S+)", text, re.M)
    assert scores["sum"] == re.findall(r"^H-\d+\t(\S+)", generate("--score-reference"), re.M)
    assert scores["sum"] != scores["mean"] != scores["none"] != scores["sum"]
    # pruning, made for LayerDrop: omegas go with their layers; fairseq wants both sides named
    keep = "{'encoder_layers_to_keep': '0,1', 'decoder_layers_to_keep': '1'}"
    generate("--beam", 2, "--max-len-b", 10, "--model-overrides", keep)


def test_the_linear_layers_library_is_a_setting(generate, plain, corpus_databin, model_path):
    """--model-overrides chooses it for one command; a wrong name is one line."""
    if not linear._works("int8"):
        pytest.skip("this torch has no int8 product")
    exact = generate("--beam", 5, "--model-overrides", "{'cpu_linear': 'torch'}")
    assert_same_translations(exact, plain)
    rounded = generate("--beam", 5, "--model-overrides", "{'cpu_linear': 'int8'}")
    pairs = [(found[0], hypotheses(exact)[number][0]) for number, found in hypotheses(rounded).items()]
    assert max(abs(score - other) for (score, _), (other, _) in pairs) > 0
    same = [(score, other) for (score, text), (other, text_of_torch) in pairs if text == text_of_torch]
    assert len(same) >= PAIRS - 4 and all(score == pytest.approx(other, abs=0.1) for score, other in same)
    done = forked("generate", corpus_databin, "--path", model_path, "--model-overrides", "{'cpu_linear': 'fp8'}", ok=False)
    assert done.rc and "cpu_linear 'fp8' in the model's settings: choose one of auto, torch" in done.last_line()
