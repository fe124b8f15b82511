"""Fast paths against plain ones: linear layers of generation against float64, shared caches against no cache at all.

Budget: 15 seconds.
"""

import copy

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from toys import ToyTask, build, collate, scramble

from realformer_nmt import linear as fast
from realformer_nmt.errors import RealFormerError


def ready(model):
    """What fairseq-generate does with a model."""
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 5, "print_alignment": None}}))
    return model


# largest error of a product of unit normal numbers, relative to the standard deviation of the result
ERRORS = {"torch": 1e-5, "onednn": 1e-5, "float16": 1e-2, "int8": 0.15}


@pytest.fixture(params=["onednn", "float16", "int8"])
def library(request, monkeypatch):
    if not fast._works(request.param):
        pytest.skip(f"this torch has no {request.param} product")
    monkeypatch.setenv(fast.VARIABLE, request.param)
    return request.param


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (2, 13, 33), (0, 4, 3), (40, 64, 130)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_equal_float64(shape, bias, library):
    rows, inner, outer = shape
    torch.manual_seed(3)
    plain = torch.nn.Sequential(torch.nn.Linear(inner, outer, bias=bias))
    torch.nn.init.normal_(plain[0].weight)
    x = torch.randn(2, rows, inner)
    exact = torch.nn.functional.linear(x.double(), plain[0].weight.double(), plain[0].bias.double() if bias else None)
    fast.replace_linear_layers(plain)
    assert plain[0].packed is None and plain(x).requires_grad
    plain[0].make_generation_fast_()
    with torch.no_grad():
        y = plain(x)
    assert y.shape == exact.shape and y.dtype == torch.float32
    assert (y - exact).abs().max() <= ERRORS[library] * inner**0.5 if rows else True
    # changed weights are laid out anew; a gradient goes through torch; other dtypes too
    with torch.no_grad():
        plain[0].weight.mul_(-1)
        torch.testing.assert_close(plain(x) - 2 * (plain[0].bias if bias else 0), -y, rtol=1e-3, atol=1e-3 * inner)
    assert plain(x).requires_grad
    with torch.no_grad():
        assert plain.double()(x.double()).dtype == torch.float64
    assert copy.deepcopy(plain)[0].packed is None


def test_fused_projections_equal_three(library):
    torch.manual_seed(3)
    layers = [fast.Linear(24, 24) for _ in range(3)]
    fused = fast.fuse(*layers)
    x = torch.randn(5, 7, 24)
    with torch.no_grad():
        assert fused.suits(x)
        for ours, layer in zip(fused(x).chunk(3, dim=-1), layers):
            exact = torch.nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
            assert (ours - exact).abs().max() < ERRORS[library]
    assert not fused.suits(x)  # gradients are on
    assert fast.fuse(layers[0], torch.nn.Linear(24, 24)) is None


def test_few_row_counts_reach_the_library():
    """Rows are rounded up to few numbers, and little is computed in vain."""
    found = [fast.rounded_up(n) for n in range(1, 5000)]
    assert all(bucket >= n for n, bucket in enumerate(found, 1)) and found == sorted(found)
    assert len(set(found)) < 60
    assert all(bucket - n < max(16, n / 4) for n, bucket in enumerate(found, 1))
    assert fast.rounded_up(1) == 1


def test_an_unknown_library_is_one_clear_line(monkeypatch):
    monkeypatch.setenv(fast.VARIABLE, "fp8")
    with pytest.raises(RealFormerError, match="REALFORMER_CPU_LINEAR=fp8: choose one of auto, torch"):
        ready(build(admin_init="none"))


def test_a_model_setting_comes_before_the_variable(monkeypatch):
    """Also in the fused projections; a model without the setting follows the variable; a wrong name is one clear line."""
    if not fast._works("int8"):
        pytest.skip("this torch has no int8 product")
    monkeypatch.setenv(fast.VARIABLE, "torch")
    model, other = (ready(build(admin_init="none", **flags)) for flags in ({"cpu_linear": "int8"}, {}))
    attention = model.decoder.layers[1].self_attn
    assert model.encoder.layers[0].fc1.packed.name == "int8" and other.encoder.layers[0].fc1.packed is None
    assert fast.fuse(attention.q_proj, attention.k_proj, attention.v_proj).name == "int8"
    monkeypatch.setenv(fast.VARIABLE, "int8")
    assert ready(build(admin_init="none")).encoder.layers[0].fc1.packed.name == "int8"
    assert ready(build(admin_init="none", cpu_linear="torch")).encoder.layers[0].fc1.packed is None
    with pytest.raises(RealFormerError, match="cpu_linear 'fp8' in the model's settings: choose one of auto, torch"):
        build(admin_init="none", cpu_linear="fp8")


def test_auto_leaves_intel_and_narrow_processors_alone(monkeypatch):
    monkeypatch.delenv(fast.VARIABLE, raising=False)
    monkeypatch.setattr(fast, "_works", lambda name: True)
    for vendor, wide, expected in (
        ("AuthenticAMD", True, "onednn"), ("AuthenticAMD", False, "torch"), ("GenuineIntel", True, "torch"),
        ("", True, "torch"),
    ):  # fmt: skip
        monkeypatch.setattr(fast, "_vendor", lambda: vendor)
        monkeypatch.setattr(fast, "_wide_vectors", lambda: wide)
        assert fast.chosen() == expected


def test_linear_layers_keep_their_parameters_and_names():
    model = build(admin_init="none")
    assert type(model.decoder.layers[0].fc1) is fast.Linear
    stock = build("transformer", encoder_embed_dim=64, decoder_embed_dim=64, encoder_layers=2, decoder_layers=2,
                  encoder_ffn_embed_dim=128, decoder_ffn_embed_dim=128)  # fmt: skip
    assert set(stock.state_dict()) == set(model.state_dict())
    assert set(ready(model).state_dict()) == set(stock.state_dict())


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


def tempt(model):
    """Make the end of the sentence every step's second choice, so that a beam's hypotheses end at different steps."""

    def second_best(module, args, logits):
        eos = 2
        others = logits.clone()
        others[..., eos] = float("-inf")
        logits = others
        logits[..., eos] = others.max(dim=-1).values - 0.3
        return logits

    model.decoder.output_projection.register_forward_hook(second_best)
    return model


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
    model = tempt(scramble(build(residual_attention=mode, admin_init="analytic"))).eval()
    lengths = set()
    for beam in (1, 5, 2, 5):  # one model, changing beams
        ours = translate(model, SENTENCES, beam)
        with Uncached(model.decoder):
            plain = translate(model, SENTENCES, beam)
        assert_same(ours, plain)
        lengths |= {len(h["tokens"]) for hypotheses in ours for h in hypotheses}
    assert len(lengths) > 1  # hypotheses ended at different steps


def test_decoding_in_the_middle_of_training():
    model = tempt(scramble(build(admin_init="none")))
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
