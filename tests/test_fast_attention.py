"""Both paths of residual_attention against the formula in float64, forward and gradient.  Budget: 10 s."""

import math

import pytest
import torch

from realformer_nmt.scores import additive_mask, residual_attention

NAMES = ("q", "k", "v")
# heads, batch, tgt_len, src_len, head_dim
SHAPES = {
    "plain": (2, 3, 5, 7, 8),
    "length 1": (2, 3, 1, 1, 8),
    "one head": (1, 2, 4, 6, 8),
    "head size 5": (3, 2, 6, 4, 5),
    "head size 1": (2, 1, 3, 3, 1),
    "one query": (4, 2, 1, 9, 16),
    "empty target": (2, 3, 0, 7, 8),
    "empty batch": (2, 0, 5, 7, 8),
}


def formula(layers, excluded, heads, mode, dropouts, p):
    """The definition, head by head: R_l = q k^T / sqrt(d) + R_{l-1}; softmax over what is not excluded; product.

    Args:
        layers: per layer dict of q, k, v `(batch * heads, len, dim)`, float64
        excluded: `(batch, tgt_len, src_len)` bool
        dropouts: per layer bool mask of what is kept, or None

    Returns: outputs and R of every layer
    """
    outs, scores, previous = [], [], None
    for number, (layer, keep) in enumerate(zip(layers, dropouts), 1):
        rows, total = [], []
        for index in range(layer["q"].size(0)):
            q, k, v = (layer[name][index] for name in NAMES)
            r = q @ k.T / math.sqrt(q.size(1))
            if previous is not None:
                r = r + previous[index]
            total.append(r)
            logits = r / number if mode == "mean" else r
            e = torch.exp(logits - logits.max(dim=1, keepdim=True).values) * ~excluded[index // heads]
            probs = e / e.sum(dim=1, keepdim=True)
            if keep is not None:
                probs = probs * keep[index] / (1 - p)
            rows.append(probs @ v)
        previous = total
        outs.append(torch.stack(rows))
        scores.append(torch.stack(total))
    return outs, scores


def inputs(shape, layers=3, seed=5):
    heads, batch, tgt_len, src_len, dim = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = {"q": tgt_len, "k": src_len, "v": src_len}
    return [
        {n: torch.randn(batch * heads, sizes[n], dim, generator=generator, dtype=torch.float64) for n in NAMES}
        for _ in range(layers)
    ]


def masks(shape, padding, causal):
    """The masks as fairseq gives them, and the excluded positions they stand for."""
    _, batch, tgt_len, src_len, _ = shape
    excluded = torch.zeros(batch, tgt_len, src_len, dtype=torch.bool)
    key_padding_mask = attn_mask = None
    if padding:
        key_padding_mask = torch.zeros(batch, src_len, dtype=torch.bool)
        for row in range(batch):
            key_padding_mask[row, src_len - min(row, src_len - 1) :] = True
        excluded = excluded | key_padding_mask[:, None]
    if causal:
        future = torch.ones(tgt_len, src_len, dtype=torch.bool).triu(1)
        attn_mask = torch.zeros(tgt_len, src_len).masked_fill(future, float("-inf"))
        excluded = excluded | future
    return key_padding_mask, attn_mask, excluded


def stack(layers, shape, padding_mask, attn_mask, mode, p, need_probs):
    """The project's functions over a stack; a copy of ``layers`` with gradients is returned too."""
    heads, dim = shape[0], shape[-1]
    leaves = [{n: t.clone().requires_grad_() for n, t in layer.items()} for layer in layers]
    scores, outs, every = None, [], []
    mask = additive_mask(padding_mask, attn_mask, heads, layers[0]["q"].dtype)
    for number, layer in enumerate(leaves, 1):
        out, scores, _ = residual_attention(
            *(layer[n] for n in NAMES), scores, mask, num_heads=heads, scale=dim**-0.5,
            divisor=number if mode == "mean" else 1, dropout=p, need_probs=need_probs,
        )  # fmt: skip
        outs.append(out)
        every.append(scores)
    return leaves, outs, every


def backward(outs, scores):
    """A loss to which every output counts, and the last R itself."""
    total = sum((out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum() for out in outs)
    (total + (scores[-1] * 0.1).sin().sum()).backward()


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("need_probs", [False, True], ids=["fused", "composed"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding, causal", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", SHAPES)
def test_every_path_equals_the_formula(name, padding, causal, mode, need_probs, p):
    shape = SHAPES[name]
    heads, batch, tgt_len, src_len, _ = shape
    layers = inputs(shape)
    padding_mask, attn_mask, excluded = masks(shape, padding, causal)

    # the dropout masks that this seed draws, one a layer
    torch.manual_seed(11)
    ones = torch.ones(batch * heads, tgt_len, src_len)
    dropouts = [torch.nn.functional.dropout(ones, p) > 0 if p else None for _ in layers]

    exact = [{n: t.clone().requires_grad_() for n, t in layer.items()} for layer in layers]
    if batch:
        expected, expected_scores = formula(exact, excluded, heads, mode, dropouts, p)
        backward(expected, expected_scores)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
        torch.manual_seed(11)
        low = [{n: t.to(dtype) for n, t in layer.items()} for layer in layers]
        leaves, outs, scores = stack(low, shape, padding_mask, attn_mask, mode, p, need_probs)
        assert all(s.shape == (batch * heads, tgt_len, src_len) and s.dtype == dtype for s in scores)
        assert all(out.shape == leaf["q"].shape for out, leaf in zip(outs, leaves))
        backward(outs, scores)
        if not batch:
            continue
        for ours, true in zip(outs + scores, expected + expected_scores):
            torch.testing.assert_close(ours.double(), true, rtol=tolerance, atol=tolerance)
        for ours, true in zip(leaves, exact):
            for n in NAMES:
                torch.testing.assert_close(ours[n].grad.double(), true[n].grad, rtol=tolerance, atol=tolerance)


def test_no_copy_of_the_mask_gets_into_the_scores():
    """R is passed on unmasked: finite, and the same with any mask."""
    shape = SHAPES["plain"]
    layers = inputs(shape)
    found = [stack(layers, shape, *masks(shape, on, on)[:2], "sum", 0.0, False)[2] for on in (False, True)]
    for free, masked in zip(*found):
        torch.testing.assert_close(free, masked, rtol=0, atol=0)


def test_gradient_of_scores_alone_or_of_outputs_alone():
    """The next layer may use R and not the output, or the other way round."""
    shape = SHAPES["head size 5"]
    layers = inputs(shape, layers=1)
    _, _, excluded = masks(shape, False, False)
    for part in (0, 1):
        exact = [{n: t.clone().requires_grad_() for n, t in layer.items()} for layer in layers]
        formula(exact, excluded, shape[0], "sum", [None], 0.0)[part][0].cos().sum().backward()
        leaves, *results = stack(layers, shape, None, None, "sum", 0.0, False)
        results[part][0].cos().sum().backward()
        for n in NAMES:
            if exact[0][n].grad is None:
                assert leaves[0][n].grad is None or not leaves[0][n].grad.any()
            else:
                torch.testing.assert_close(leaves[0][n].grad, exact[0][n].grad, rtol=1e-10, atol=1e-10)


def test_autocast_is_asked_without_a_deprecated_call(recwarn):
    shape = SHAPES["plain"]
    layers = [{n: t.float() for n, t in layer.items()} for layer in inputs(shape)]
    plain = stack(layers, shape, None, None, "sum", 0.0, False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = stack(layers, shape, None, None, "sum", 0.0, False)
    for ours, other in zip(plain[1] + plain[2], cast[1] + cast[2]):
        torch.testing.assert_close(ours, other)  # q, k, v are float32: products stay in it
    assert not [w for w in recwarn if "deprecated" in str(w.message)]
