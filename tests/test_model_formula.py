"""The whole model against the float64 reference: modes, sites, padding, normalisation, gradients, LayerDrop."""

import numpy as np
import pytest
import torch
from toys import build, collate, scramble, shifted
from reference import reference_of

SITES = ("encoder", "decoder", "cross")
# fairseq keeps its sinusoidal positions in float32, which bounds what a float64 model can agree to
CLOSE = dict(rtol=1e-5, atol=2e-5)


def double_model(**flags):
    flags.setdefault("share_all_embeddings", True)
    model = scramble(build(encoder_layers=3, decoder_layers=3, **flags).double())
    return model.eval()


def logits_of(model, source, target, left_pad_source=False, left_pad_target=False):
    """Model logits, one (T, vocabulary) array a sentence, padding cut off."""
    previous = shifted(target)
    src, prev = collate(source, left_pad_source), collate(previous, left_pad_target)
    lengths = torch.tensor([len(s) for s in source])
    with torch.no_grad():
        out = model(src, lengths, prev)[0]
    rows = [o[-len(t) :] if left_pad_target else o[: len(t)] for o, t in zip(out, previous)]
    return [row.double().numpy() for row in rows]


@pytest.mark.parametrize("pre_ln", [False, True], ids=["post-ln", "pre-ln"])
@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
def test_logits_equal_the_formula(batch, mode, pre_ln):
    source, target = batch
    model = double_model(
        residual_attention=mode, admin_init="none", encoder_normalize_before=pre_ln, decoder_normalize_before=pre_ln
    )
    want = reference_of(model, mode)
    for pads in [(False, False), (True, False), (True, True)]:
        got = logits_of(model, source, target, *pads)
        for sentence, (s, t) in enumerate(zip(source, shifted(target))):
            np.testing.assert_allclose(got[sentence], want.logits(s, t), **CLOSE)


@pytest.mark.parametrize("sites", ["encoder", "decoder", "cross", "encoder,cross", "cross,decoder"])
def test_only_the_chosen_sites_pass_scores(batch, sites):
    source, target = batch
    model = double_model(residual_attention="sum", residual_attention_sites=sites, admin_init="none")
    want = reference_of(model, "sum", sites.split(","))
    everywhere = reference_of(model, "sum")
    got = logits_of(model, source, target)
    for sentence, (s, t) in enumerate(zip(source, shifted(target))):
        np.testing.assert_allclose(got[sentence], want.logits(s, t), **CLOSE)
        assert np.abs(everywhere.logits(s, t) - got[sentence]).max() > 1e-3


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_probabilities_of_every_head_and_scores_equal_the_formula(batch, mode):
    from realformer_nmt.attention import record_attention

    source, target = batch
    model = double_model(residual_attention=mode, admin_init="none")
    previous = shifted(target)
    with record_attention(model) as records, torch.no_grad():
        model(collate(source), None, collate(previous))
    assert sorted(records) == [(site, layer) for site in sorted(SITES) for layer in range(3)]
    for sentence, (s, t) in enumerate(zip(source, previous)):
        want = reference_of(model, mode)
        want.logits(s, t)
        for where, probs in want.probs.items():
            got = records[where][sentence, :, : probs.shape[1], : probs.shape[2]].numpy()
            np.testing.assert_allclose(got, probs, rtol=1e-4, atol=1e-6)


def test_recording_works_on_the_stock_transformer_and_leaves_it_as_it_was(batch):
    from realformer_nmt.attention import record_attention

    source, target = batch
    stock = build("transformer_tiny", share_all_embeddings=True, decoder_embed_dim=64, encoder_embed_dim=64).double()
    stock.eval()
    args = (collate(source), None, collate(shifted(target)))
    with torch.no_grad():
        before = stock(*args)[0]
        with record_attention(stock) as records:
            during = stock(*args)[0]
        after = stock(*args)[0]
    torch.testing.assert_close(before, during, rtol=1e-5, atol=1e-5)  # stock softmax is float32
    assert torch.equal(before, after)
    want = reference_of(stock, "none")
    want.logits(source[1], shifted(target)[1])
    for where, probs in want.probs.items():
        got = records[where][1, :, : probs.shape[1], : probs.shape[2]].numpy()
        np.testing.assert_allclose(got, probs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("admin", ["profile", "analytic"])
def test_omega_scales_the_residual(batch, admin):
    source, target = batch
    model = double_model(residual_attention="sum", admin_init=admin)
    if admin == "profile":
        model.train().profile_omega(collate(source), None, collate(shifted(target)))
        model.eval()
    assert all(omega.delta.abs().max() > 0 for omega in model.omegas())  # scrambled: the learnt part counts, too
    got = logits_of(model, source, target)
    want = reference_of(model, "sum")
    for sentence, (s, t) in enumerate(zip(source, shifted(target))):
        np.testing.assert_allclose(got[sentence], want.logits(s, t), **CLOSE)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("fused", [True, False])
def test_gradient_equals_finite_differences_of_the_reference(batch, mode, fused):
    """d/dtheta of a random projection of the logits, along a random direction through all parameters."""
    source, target = batch
    model = double_model(residual_attention=mode, admin_init="analytic")
    if fused:
        model.train()
        for module in model.modules():
            if hasattr(module, "p") and not isinstance(module, torch.nn.ModuleList):
                module.p = 0.0
    else:
        model.eval()  # asks for weights in cross-attention, hence the composed path there
    previous = shifted(target)
    rng = np.random.default_rng(3)
    vocabulary = model.decoder.output_projection.out_features
    coefficients = [rng.standard_normal((len(t), vocabulary)) for t in previous]
    out = model(collate(source), None, collate(previous))[0]
    loss = sum((o[: len(c)] * torch.from_numpy(c)).sum() for o, c in zip(out, coefficients))
    loss.backward()

    names = {id(p): n for n, p in model.named_parameters()}
    direction = {names[id(p)]: rng.standard_normal(p.shape) for p in model.parameters()}
    slope = sum((p.grad.numpy() * direction[names[id(p)]]).sum() for p in model.parameters() if p.grad is not None)

    def value(step):
        ref = reference_of(model, mode)
        tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"}
        for name, d in direction.items():
            for target_name in tied if name in tied else [name.replace("_omega.delta", "_omega")]:
                move = d.copy()
                if "embed_tokens" in target_name:
                    move[1] = 0  # the padding row takes no part in a lookup
                ref.p[target_name] = ref.p[target_name] + step * move
        return sum((ref.logits(s, t) * c).sum() for s, t, c in zip(source, previous, coefficients))

    eps = 1e-6
    numeric = (value(eps) - value(-eps)) / (2 * eps)
    # the padding row of the shared table is moved in the output projection only, and has its gradient there
    assert slope == pytest.approx(numeric, rel=2e-5)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_dropped_layer_passes_scores_and_is_not_counted(batch, mode, monkeypatch):
    source, target = batch
    model = double_model(
        residual_attention=mode, admin_init="none", encoder_layerdrop=0.4, decoder_layerdrop=0.4,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    model.train()
    draws = iter([torch.tensor([0.9, 0.1, 0.9]), torch.tensor([0.1, 0.9, 0.9])])  # below p: dropped

    class Fixed:
        def uniform_(self):
            return next(draws)

    import fairseq.modules.layer_drop as layer_drop

    previous = shifted(target)
    with monkeypatch.context() as patch, torch.no_grad():
        real = torch.empty
        patch.setattr(layer_drop.torch, "empty", lambda *a, **k: Fixed() if a == (3,) else real(*a, **k))
        got = model(collate(source), None, collate(previous))[0]
    want = reference_of(model, mode, dropped={("encoder", 1), ("decoder", 0)})
    for sentence, (s, t) in enumerate(zip(source, previous)):
        np.testing.assert_allclose(got[sentence, : len(t)].numpy(), want.logits(s, t), **CLOSE)


@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
def test_a_sentence_does_not_depend_on_its_batch(batch, mode):
    source, target = batch
    model = scramble(build(residual_attention=mode, admin_init="analytic", share_all_embeddings=True)).eval()
    alone = [logits_of(model, [s], [t])[0] for s, t in zip(source, target)]
    for order in [(0, 1, 2), (2, 0, 1), (1, 2)]:
        together = logits_of(model, [source[i] for i in order], [target[i] for i in order])
        for place, i in enumerate(order):
            np.testing.assert_allclose(together[place], alone[i], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("mode", ["sum", "mean", "none"])
def test_incremental_decoding_equals_the_full_forward_at_every_step(batch, mode, beam):
    source, target = batch
    model = double_model(residual_attention=mode, admin_init="analytic")
    order = torch.arange(len(source)).repeat_interleave(beam)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        once = model.encoder.forward_torchscript({"src_tokens": collate(source), "src_lengths": None})
        memory = model.encoder.reorder_encoder_out(once, order)
        tokens = torch.full((len(order), 1), 2)
        state = {}
        for step in range(7):
            got = model.decoder(tokens, encoder_out=memory, incremental_state=state)[0][:, -1]
            full = model.decoder(tokens, encoder_out=memory)[0][:, -1]
            close = 1e-5 if mode == "none" else 1e-7  # fairseq's own attention takes its softmax in float32
            torch.testing.assert_close(got, full, rtol=close, atol=close)
            for row in (0, len(order) - 1):
                want = reference_of(model, mode).logits(source[order[row]], tokens[row].tolist())[-1]
                np.testing.assert_allclose(got[row].numpy(), want, **CLOSE)
            # beams change places within their sentence, as beam search moves them, and every row goes its own way
            sentences = len(order) // beam
            shuffle = torch.cat([s * beam + torch.randint(beam, (beam,), generator=generator) for s in range(sentences)])
            model.decoder.reorder_incremental_state_scripting(state, shuffle)
            tokens = torch.cat([tokens[shuffle], torch.randint(4, 40, (len(order), 1), generator=generator)], dim=1)
            if step == 4:  # the middle sentence is finished and leaves the batch
                kept = torch.cat([torch.arange(beam), torch.arange(2 * beam, 3 * beam)])
                model.decoder.reorder_incremental_state_scripting(state, kept)
                memory = model.encoder.reorder_encoder_out(memory, kept)
                tokens, order = tokens[kept], order[kept]


def test_stock_parameters_load_strictly_and_give_the_same_numbers(batch):
    source, target = batch
    sizes = dict(
        encoder_embed_dim=64, decoder_embed_dim=64, encoder_ffn_embed_dim=128, decoder_ffn_embed_dim=128,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_layers=2, decoder_layers=2,
        share_all_embeddings=True,
    )  # fmt: skip
    stock = scramble(build("transformer", **sizes))
    ours = build("realformer_tiny", seed=99, residual_attention="none", admin_init="none", share_all_embeddings=True)
    assert set(ours.state_dict()) == set(stock.state_dict())
    ours.load_state_dict(stock.state_dict(), strict=True)
    args = (collate(source), None, collate(shifted(target)))
    for training in (False, True):
        stock.train(training), ours.train(training)
        torch.manual_seed(3)
        a = stock(*args)[0]
        torch.manual_seed(3)
        b = ours(*args)[0]
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_residual_attention_adds_no_parameters():
    stock = build("transformer_tiny", share_all_embeddings=True, encoder_embed_dim=64, decoder_embed_dim=64)
    ours = build(
        "realformer_tiny", share_all_embeddings=True, admin_init="none", encoder_ffn_embed_dim=stock.args.encoder_ffn_embed_dim,
        decoder_ffn_embed_dim=stock.args.decoder_ffn_embed_dim,
    )  # fmt: skip
    assert set(ours.state_dict()) == set(stock.state_dict())


def test_the_fused_encoder_of_fairseq_0_12_2_is_never_taken(batch, monkeypatch):
    """That release calls it in evaluation once a state dict was loaded; without scores, without omega."""
    model = build(share_all_embeddings=True)
    fresh = build(share_all_embeddings=True, seed=4)
    fresh.load_state_dict(model.state_dict())
    fresh.eval()
    for layer in fresh.encoder.layers:
        layer.can_use_fastpath = True
        assert layer.can_use_fastpath is False

    def refuse(*args, **kwargs):
        raise AssertionError("fused encoder layer called")

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", refuse)
    with torch.no_grad():
        got = logits_of(fresh, *batch)
    assert np.isfinite(got[0]).all()


def test_retain_dropout_modules_takes_the_stock_names():
    from fairseq.modules import FairseqDropout

    def names(model):
        return sorted(m.module_name for m in model.modules() if isinstance(m, FairseqDropout))

    assert names(build("realformer_tiny")) == names(build("transformer_tiny", encoder_layers=2, decoder_layers=2))
