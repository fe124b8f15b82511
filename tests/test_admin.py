"""ADMIN: profiled omegas against the formula in float64, when they are measured, and that they survive."""

import logging
import math

import numpy as np
import pytest
import torch
from reference import reference_of
from toys import build, collate, shifted

QUIET = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, share_all_embeddings=True)


def profiled(batch, mode="sum", **flags):
    source, target = batch
    model = build(residual_attention=mode, encoder_layers=3, decoder_layers=3, **{**QUIET, **flags})
    model.train()
    args = (collate(source), None, collate(shifted(target)))
    model(*args)
    return model, args


def chain(reference, stack, source, previous):
    """omega_1 = 1; omega_{i+1} = sqrt(Var(omega_i x_i) + Var(f_i(x_i))), layer by layer with the omegas so far.

    Each omega shapes what the next sub-layer sees, so that the reference is run again for every sub-layer.
    """
    order = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}[stack]
    names = [f"{stack}.layers.{layer}.{part}_omega" for layer in range(reference.layers[stack]) for part in order]
    omegas = [1.0]
    for index, name in enumerate(names[:-1]):
        reference.p[name] = np.full(64, omegas[index])
        xs, fs = [], []
        for s, t in zip(source, previous):
            reference.branches[stack] = []
            reference.logits(s, t)
            x, f = reference.branches[stack][index]
            xs.append(x.ravel())
            fs.append(f.ravel())
        x, f = np.concatenate(xs), np.concatenate(fs)
        omegas.append(math.sqrt(np.var(omegas[index] * x) + np.var(f)))
    return omegas


@pytest.mark.parametrize("left_pad", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
def test_profiled_omegas_equal_the_formula(batch, mode, left_pad):
    source, target = batch
    previous = shifted(target)
    model = build(residual_attention=mode, encoder_layers=3, decoder_layers=3, **QUIET).train()
    model(collate(source, left_pad), None, collate(previous))
    got = [float(omega.init) for omega in model.omegas()]
    reference = reference_of(model, mode)
    for name in list(reference.p):
        if name.endswith("_omega"):
            reference.p[name] = np.ones(64)
    want = chain(reference, "encoder", source, previous)
    for name, omega in zip([n for n in reference.p if n.startswith("encoder") and n.endswith("_omega")], want):
        reference.p[name] = np.full(64, omega)
    encoder_names = [f"encoder.layers.{layer}.{part}_omega" for layer in range(3) for part in ("self_attn", "ffn")]
    for name, omega in zip(encoder_names, want):
        reference.p[name] = np.full(64, omega)
    want += chain(reference, "decoder", source, previous)
    assert got == pytest.approx(want, rel=1e-4)
    assert len(got) == 3 * 2 + 3 * 3 and got[0] == got[6] == 1.0
    assert all(omega.delta.abs().max() == 0 for omega in model.omegas())


def test_analytic_omega_is_the_published_formula():
    model = build(admin_init="analytic", encoder_layers=4, decoder_layers=2, share_all_embeddings=True)
    encoder = math.sqrt(9 / math.log(9) - 1)  # 4 layers of 2 sub-layers
    decoder = math.sqrt(7 / math.log(7) - 1)  # 2 layers of 3
    assert [float(o.init) for o in model.omegas()] == pytest.approx([encoder] * 8 + [decoder] * 6, rel=1e-6)


def test_profiling_happens_once_in_training_only_and_says_so(batch, caplog):
    caplog.set_level(logging.INFO)
    source, target = batch
    model = build(**QUIET)
    args = (collate(source), None, collate(shifted(target)))
    model.eval()
    model(*args)
    assert "ADMIN" not in caplog.text and all(float(o.init) == 1 for o in model.omegas())
    model.train()
    model(*args)
    first = [float(o.init) for o in model.omegas()]
    assert caplog.text.count("ADMIN omega, encoder") == caplog.text.count("ADMIN omega, decoder") == 1
    model(args[0].flip(0)[:1], None, args[2].flip(0)[:1])
    assert [float(o.init) for o in model.omegas()] == first
    assert caplog.text.count("ADMIN omega, encoder") == 1


def test_profile_then_load_equals_profiling(batch, caplog):
    """Two passes: the omegas of one run, carried by its state dict, serve a model that never profiles."""
    model, args = profiled(batch)
    other = build(seed=5, encoder_layers=3, decoder_layers=3, **QUIET)
    other.load_state_dict(model.state_dict(), strict=True)
    caplog.clear()
    other.train()
    different = (args[0][:1], None, args[2][:1])
    torch.testing.assert_close(other(*different)[0], model(*different)[0], rtol=0, atol=0)
    assert "ADMIN" not in caplog.text
    assert [float(o.init) for o in other.omegas()] == [float(o.init) for o in model.omegas()]


def test_profiling_leaves_the_random_state_alone(batch):
    """With dropout the step that profiles draws the same masks as a step that finds its omegas in place."""
    source, target = batch
    model = build(dropout=0.3, share_all_embeddings=True).train()
    args = (collate(source), None, collate(shifted(target)))
    torch.manual_seed(11)
    first = model(*args)[0]
    torch.manual_seed(11)
    torch.testing.assert_close(model(*args)[0], first, rtol=0, atol=0)


def test_layerdrop_does_not_hide_a_layer_from_profiling(batch):
    source, target = batch
    model = build(encoder_layerdrop=0.9, decoder_layerdrop=0.9, encoder_layers=4, decoder_layers=4, **QUIET).train()
    model(collate(source), None, collate(shifted(target)))
    inits = [float(o.init) for o in model.omegas()]
    assert len(inits) == 4 * 5 and sum(value != 1.0 for value in inits) == 4 * 5 - 2
    assert model.encoder.layers.p == model.decoder.layers.p == 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_omega_survives_master_weights(batch, dtype):
    """Master copies are taken when the optimiser is built, before profiling, and written back after each step."""
    source, target = batch
    model = build(**QUIET).to(dtype).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    masters = [torch.nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = torch.optim.RAdam(masters, lr=1e-2)
    model.profile_omega(collate(source), None, collate(shifted(target)))
    before = [o.value().clone() for o in model.omegas()]
    for master in masters:
        master.grad = torch.full_like(master, 1e-3)
    optimizer.step()
    with torch.no_grad():
        for p, master in zip(parameters, masters):
            p.copy_(master)
    for old, omega in zip(before, model.omegas()):
        moved = (omega.value() - old).detach()
        assert moved.abs().max() < 0.05 and moved.abs().min() > 0  # still the profiled number, one small step on
        assert omega.value().max() > 0.9


def test_padding_does_not_count(batch):
    source, target = batch
    previous = shifted(target)
    wide = [torch.nn.functional.pad(collate(x), (0, 5), value=1) for x in (source, previous)]
    narrow, _ = profiled(batch)
    model = build(residual_attention="sum", encoder_layers=3, decoder_layers=3, **QUIET).train()
    model(wide[0], None, wide[1])
    assert [float(o.init) for o in model.omegas()] == pytest.approx([float(o.init) for o in narrow.omegas()], rel=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_admin_with_pre_ln_is_refused(side):
    from realformer_nmt.errors import RealFormerError

    with pytest.raises(RealFormerError, match="Post-LN") as caught:
        build(admin_init="profile", **{f"{side}_normalize_before": True})
    assert "\n" not in str(caught.value)
    assert build(**{f"{side}_normalize_before": True}).admin_init == "none"  # not asked for: simply off


def test_omega_is_learnt(batch):
    model, args = profiled(batch)
    model(*args)[0].square().mean().backward()
    assert all(o.delta.grad is not None and o.delta.grad.abs().max() > 0 for o in model.omegas())
    assert all(o.delta.shape == (64,) for o in model.omegas())


@pytest.mark.parametrize("flags, words", [
    (dict(encoder_layers_to_keep="0"), "give both"),
    (dict(decoder_layers_to_keep="0"), "give both"),
    (dict(quant_noise_pq=0.1), "analytic"),
    (dict(residual_attention_sites="encoder,sideways"), "sideways"),
])  # fmt: skip
def test_flags_that_cannot_work_together_are_refused_in_one_line(flags, words):
    from realformer_nmt.errors import RealFormerError

    with pytest.raises(RealFormerError, match=words) as caught:
        build(**flags)
    assert "\n" not in str(caught.value)
