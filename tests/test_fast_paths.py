"""Fast paths against plain ones: oneDNN linear layers against float64, shared-cache decoding against no cache at all.

Budget: 15 seconds.
"""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from toys import ToyTask, build, collate, scramble

from realformer_nmt import linear as fast


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (2, 13, 33), (0, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_float64_forward_and_gradient(shape, bias, monkeypatch):
    monkeypatch.setattr(fast, "ONEDNN", fast._works())
    rows, inner, outer = shape
    generator = torch.Generator().manual_seed(3)
    x, w, b, g = (
        torch.randn(size, generator=generator) for size in ((2, rows, inner), (outer, inner), (outer,), (2, rows, outer))
    )
    results = []
    for dtype, function in ((torch.float32, fast.linear), (torch.float64, torch.nn.functional.linear)):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (x, w, b)]
        y = function(leaves[0], leaves[1], leaves[2] if bias else None)
        y.backward(g.to(dtype))
        results.append([y.detach()] + [leaf.grad for leaf in leaves[: 3 if bias else 2]])
    for ours, exact in zip(*results):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_linear_layers_keep_their_parameters_and_names():
    model = build(admin_init="none")
    assert type(model.decoder.layers[0].fc1) is fast.Linear
    stock = build("transformer", encoder_embed_dim=64, decoder_embed_dim=64, encoder_layers=2, decoder_layers=2,
                  encoder_ffn_embed_dim=128, decoder_ffn_embed_dim=128)  # fmt: skip
    assert set(stock.state_dict()) == set(model.state_dict())


class Uncached:
    """A decoder that is handed whole prefixes and no state, which the generator then calls each step."""

    def __init__(self, decoder):
        self.decoder, self.plain = decoder, decoder.forward

    def __enter__(self):
        self.decoder.forward = lambda tokens, encoder_out=None, incremental_state=None: self.plain(
            tokens, encoder_out=encoder_out
        )

    def __exit__(self, *exc):
        del self.decoder.forward


def translate(model, sentences, beam, **settings):
    tokens = collate(sentences, left_pad=True)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(1)}}
    kwargs = dict(beam_size=beam, max_len_a=1, max_len_b=8, **settings)
    return SequenceGenerator([model], ToyTask().target_dictionary, **kwargs).generate([model], sample)


def assert_same(ours, plain):
    for mine, other in zip(ours, plain):
        assert [h["tokens"].tolist() for h in mine] == [h["tokens"].tolist() for h in other]
        for h, g in zip(mine, other):
            torch.testing.assert_close(h["positional_scores"], g["positional_scores"], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(h["attention"], g["attention"], rtol=1e-4, atol=1e-4)


SENTENCES = [[5, 6, 7, 8, 2], [9, 2], [11, 12, 13, 14, 15, 16, 2], [20, 21, 2], [4, 4, 30, 2]]


@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
def test_decoding_equals_decoding_without_a_cache(mode):
    model = scramble(build(residual_attention=mode, admin_init="analytic")).eval()
    lengths = set()
    for beam in (1, 5, 2, 5):  # one model, changing beams
        ours = translate(model, SENTENCES, beam)
        with Uncached(model.decoder):
            plain = translate(model, SENTENCES, beam)
        assert_same(ours, plain)
        lengths |= {len(h["tokens"]) for hypotheses in ours for h in hypotheses}
    assert len(lengths) > 1  # hypotheses ended at different steps


def test_decoding_in_the_middle_of_training():
    model = scramble(build(admin_init="none"))
    before = translate(model.eval(), SENTENCES, 3)
    model.train()
    source = collate(SENTENCES, left_pad=True)
    logits, _ = model(source, source.ne(1).sum(1), collate(SENTENCES))
    logits.sum().backward()
    assert_same(translate(model.eval(), SENTENCES, 3), before)


def test_a_mixed_up_order_gives_every_row_its_own_cache():
    model = scramble(build(admin_init="none")).eval()
    source = collate(SENTENCES[:2], left_pad=True)
    encoded = model.encoder(source, src_lengths=source.ne(1).sum(1))
    encoded = model.encoder.reorder_encoder_out(encoded, torch.tensor([0, 0, 1, 1]))
    prefix = torch.tensor([[2, 5], [2, 6], [2, 7], [2, 8]])
    state = {}
    for n in (1, 2):
        model.decoder(prefix[:, :n], encoder_out=encoded, incremental_state=state)
    order = torch.tensor([3, 0, 1])  # mixes sentences and drops a row
    model.decoder.reorder_incremental_state_scripting(state, order)
    encoded = model.encoder.reorder_encoder_out(encoded, order)
    prefix = torch.cat([prefix[order], torch.tensor([[9], [10], [11]])], dim=1)
    step, _ = model.decoder(prefix, encoder_out=encoded, incremental_state=state)
    full, _ = model.decoder(prefix, encoder_out=encoded)
    torch.testing.assert_close(step[:, -1], full[:, -1], rtol=1e-4, atol=1e-4)
