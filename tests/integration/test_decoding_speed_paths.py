"""fairseq's ways of searching on the shared decoding cache, against the same search that hands the decoder whole
prefixes and no cache.  Budget: 30 s."""

import contextlib

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from toys import ToyTask, build, collate, scramble

from realformer_nmt import decoding

SENTENCES = [[5, 6, 7, 8, 2], [9, 2], [11, 12, 13, 14, 15, 16, 2], [20, 21, 2], [4, 4, 30, 2]]
EOS, PAD = 2, 1


def model_of(seed=7, ending=0.3, **flags):
    """A model whose second choice is always to end the sentence (``ending`` below the first), so that hypotheses end at
    many different steps; made ready as fairseq-generate does."""
    model = scramble(build(admin_init="analytic", **flags), seed=seed).eval()

    def second_best(module, args, logits):
        others = logits.clone()
        others[..., EOS] = float("-inf")
        logits = others.clone()
        logits[..., EOS] = others.max(dim=-1).values - ending
        return logits

    model.decoder.output_projection.register_forward_hook(second_best)
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 5, "print_alignment": "hard"}}))
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


@contextlib.contextmanager
def uncached(models):
    """Decoders are called without a state; how often each was called is told."""
    calls = []

    def plain(decoder):
        forward = decoder.forward

        def run(tokens, encoder_out=None, incremental_state=None):
            calls.append(tokens.size(1))
            return forward(tokens, encoder_out=encoder_out)

        return run

    for one in models:
        one.decoder.forward = plain(one.decoder)
    try:
        yield calls
    finally:
        for one in models:
            del one.decoder.forward


def translate(models, sentences, prefix=None, seed=3, strategy=None, **settings):
    """Hypotheses a sentence, best first."""
    tokens = collate(sentences, left_pad=True)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}}
    dictionary = ToyTask().target_dictionary
    if strategy is not None:
        settings["search_strategy"] = strategy(dictionary)
    settings = {"beam_size": 5, "max_len_a": 1, "max_len_b": 12, **settings}
    generator = SequenceGenerator(models, dictionary, **settings)
    torch.manual_seed(seed)
    return generator.generate(models, sample, prefix_tokens=prefix)


def assert_paths_agree(models, sentences=SENTENCES, **settings):
    """Both searches find the same hypotheses with the same scores; returns them.

    Where scores tie, rounding may decide which of two hypotheses is found: one in ten may be another of equal score.
    """
    ours = translate(models, sentences, **settings)
    with uncached(models) as calls:
        plain = translate(models, sentences, **settings)
    assert calls and max(calls) > 1  # whole prefixes were handed over
    tied, every = 0, 0
    for mine, other in zip(ours, plain):
        assert len(mine) == len(other) > 0
        for h, g in zip(mine, other):
            every += 1
            torch.testing.assert_close(h["score"], g["score"], rtol=1e-4, atol=1e-4)
            if h["tokens"].tolist() != g["tokens"].tolist():
                tied += 1
                continue
            torch.testing.assert_close(h["positional_scores"], g["positional_scores"], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(h["attention"], g["attention"], rtol=1e-4, atol=1e-4)
    assert 10 * tied <= every
    return ours


def lengths(hypotheses):
    return {len(h["tokens"]) for several in hypotheses for h in several}


@pytest.mark.parametrize("groups", [2, 3])
def test_diverse_beams(model, groups):
    found = assert_paths_agree(
        [model], beam_size=6, strategy=lambda dictionary: search.DiverseBeamSearch(dictionary, groups, 0.5)
    )
    assert len(lengths(found)) > 1
    free = translate([model], SENTENCES, beam_size=6)
    assert any([h["tokens"].tolist() for h in a] != [h["tokens"].tolist() for h in b] for a, b in zip(found, free))


def test_diverse_siblings(model):
    assert_paths_agree([model], strategy=lambda dictionary: search.DiverseSiblingsSearch(dictionary, 0.5))


@pytest.mark.parametrize("topk, topp", [(-1, -1.0), (8, -1.0), (-1, 0.8)])
def test_sampling(model, topk, topp):
    found = [
        assert_paths_agree(
            [model], seed=seed, beam_size=3, strategy=lambda dictionary: search.Sampling(dictionary, topk, topp)
        )
        for seed in (3, 4)
    ]
    first, second = ([[h["tokens"].tolist() for h in several] for several in one] for one in found)
    assert first != second


@pytest.mark.parametrize(
    "prefix",
    [
        [[7], [8], [9], [10], [11]],
        [[7, 12, 13], [8, PAD, PAD], [9, 9, PAD], [10, 20, 21], [11, PAD, PAD]],  # of several lengths
        [[7, EOS, PAD], [8, 9, 10], [9, 9, EOS], [10, 20, 21], [8, 9, PAD]],  # some end the sentence
    ],
    ids=["one", "ragged", "ending"],
)
@pytest.mark.parametrize("beam", [1, 4])
def test_forced_prefixes(model, prefix, beam):
    found = assert_paths_agree([model], prefix=torch.tensor(prefix), beam_size=beam)
    for several, forced in zip(found, prefix):
        forced = [token for token in forced if token != PAD]
        assert several[0]["tokens"].tolist()[: len(forced)] == forced


def test_ensembles(model):
    """Two models of different kinds and depths, each with a state of its own; and one model twice."""
    other = model_of(seed=9, residual_attention="mean", encoder_layers=1, decoder_layers=3)
    third = model_of(seed=10, residual_attention="none")
    assert_paths_agree([model, other, third])
    alone = translate([model], SENTENCES)
    for mine, twice in zip(alone, translate([model, model], SENTENCES)):
        assert [h["tokens"].tolist() for h in mine] == [h["tokens"].tolist() for h in twice]


@pytest.mark.parametrize(
    "limits",
    [
        dict(max_len_a=0, max_len_b=1),
        dict(max_len_a=0, max_len_b=2),
        dict(min_len=6),
        dict(min_len=10, max_len_a=0, max_len_b=10),
        dict(max_len=3),
        dict(match_source_len=True),
        dict(max_len_a=1, max_len_b=60, min_len=50),  # the cache grows past its first capacity
    ],
    ids=str,
)
def test_limits_of_length(model, limits):
    found = assert_paths_agree([model], **limits)
    if "min_len" in limits:
        assert min(lengths(found)) > limits["min_len"]


@pytest.mark.parametrize("settings", [dict(len_penalty=0.2), dict(normalize_scores=False), dict(unk_penalty=3.0),
                                      dict(temperature=2.0), dict(no_repeat_ngram_size=2)], ids=str)  # fmt: skip
def test_what_moves_the_beams(model, settings):
    assert_paths_agree([model], **settings)


@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
@pytest.mark.parametrize("every", [1, 3])
def test_folding_the_common_past(mode, every, monkeypatch):
    """However often entries are folded, nothing changes; and they are folded."""
    monkeypatch.setattr(decoding, "FOLD_EVERY", every)
    folded = []
    fold = decoding.DecodingState._fold_shared

    def watched(state):
        fold(state)
        folded.append(state.shared)
        assert state.entries == state.shared + state.ancestors.size(2) * state.beam

    monkeypatch.setattr(decoding.DecodingState, "_fold_shared", watched)
    one = model_of(residual_attention=mode, ending=2.0)
    forced = torch.arange(8).repeat(len(SENTENCES), 1) + 4  # all beams go on from one hypothesis after these
    assert_paths_agree([one], prefix=forced, max_len_b=20, min_len=16)
    assert max(folded) >= 7


def test_a_mixed_up_order_after_folding():
    """Rows of different sentences change places: each gets its own cache from folded and later entries."""
    model = model_of(ending=2.0)
    source = collate(SENTENCES[:2], left_pad=True)
    with torch.no_grad():
        encoded = model.encoder(source, src_lengths=source.ne(PAD).sum(1))
        encoded = model.encoder.reorder_encoder_out(encoded, torch.tensor([0, 0, 1, 1]))
        state = {}
        tokens = torch.full((4, 1), EOS)
        for step in range(12):
            model.decoder(tokens, encoder_out=encoded, incremental_state=state)
            if step == 5:  # both hypotheses of a sentence go on from one
                order = torch.tensor([1, 1, 2, 2])
                model.decoder.reorder_incremental_state_scripting(state, order)
                tokens = tokens[order]
            tokens = torch.cat([tokens, torch.arange(4)[:, None] + 4 + step], dim=1)
        shared = [value.shared for value in state.values() if isinstance(value, decoding.DecodingState)]
        assert shared == [5] or shared == [6]
        order = torch.tensor([3, 0, 1])
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoded = model.encoder.reorder_encoder_out(encoded, order)
        tokens = tokens[order]
        step, _ = model.decoder(tokens, encoder_out=encoded, incremental_state=state)
        full, _ = model.decoder(tokens, encoder_out=encoded)
    torch.testing.assert_close(step[:, -1], full[:, -1], rtol=1e-4, atol=1e-4)


def test_an_empty_batch_and_a_lone_sentence(model):
    assert_paths_agree([model], sentences=[[2]])
    assert_paths_agree([model], sentences=[[5, 6, 7, 2]], beam_size=1)
