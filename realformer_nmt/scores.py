"""The arithmetic of residual attention on tensors alone: scores, softmax, dropout, product, and their gradient.

Two paths compute the same numbers. The *composed* path is ordinary torch operations. The *fused* path is one autograd
function that keeps only the probabilities, the dropout mask and its inputs for the backward pass, and works in place
where it owns the memory; it is used in training when nobody asks for the probabilities.
"""

from typing import Optional

import torch
from torch import Tensor

# Finite, so that a row with every key masked gives a uniform distribution and not NaN; in float32 any score below 1e22
# vanishes against it, so that a masked key's probability is exactly 0 wherever one key is left.
MASKED = -1e30


def score_dtype(dtype):
    """The dtype of R: float32, or float64 for float64 input."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def additive_mask(key_padding_mask: Optional[Tensor], attn_mask: Optional[Tensor], num_heads: int, dtype):
    """Join both masks into one finite tensor to add to the scores.

    Args:
        key_padding_mask: `(batch, src_len)`, true (or nonzero) at padding, or None
        attn_mask: `(tgt_len, src_len)`, or one per head and sentence `(batch * heads, tgt_len, src_len)`; floating to
            be added (-inf allowed), bool to exclude; or None
        num_heads (int): heads, to fold a per-head mask
        dtype: dtype of the queries

    Returns:
        Tensor or None: `(batch or 1, heads or 1, tgt_len or 1, src_len)`, in the dtype of the scores
    """
    dtype = score_dtype(dtype)
    mask = None
    if key_padding_mask is not None and key_padding_mask.dim() > 0:
        padding = key_padding_mask.to(torch.bool)[:, None, None, :]
        mask = torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding, MASKED)
    if attn_mask is not None:
        if attn_mask.is_floating_point():
            extra = attn_mask.to(dtype).clamp(min=MASKED)
        else:
            extra = torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device)
            extra.masked_fill_(attn_mask.to(torch.bool), MASKED)
        extra = extra[None, None] if extra.dim() == 2 else extra.view(-1, num_heads, *extra.shape[-2:])
        mask = extra if mask is None else mask + extra
    return mask


def residual_attention(q, k, v, prev_scores, mask, *, num_heads, scale, divisor=1, dropout=0.0, need_probs=False):
    """Residual attention over folded heads (formula at the top of attention.py).

    Args:
        q: `(batch * heads, tgt_len, head_dim)`
        k, v: `(batch * heads, src_len, head_dim)`
        prev_scores: R_{l-1}, `(batch * heads, tgt_len, src_len)`, float32 (float64 for float64 input), or None
        mask: from :func:`additive_mask`, or None
        num_heads (int): heads folded into the first dimension
        scale (float): 1 / sqrt(head_dim)
        divisor (int): 1 for mode "sum", the number of layers summed in R_l for mode "mean"
        dropout (float): probability of dropping an entry of P; 0 outside training
        need_probs (bool): also return P

    Returns:
        tuple: out `(batch * heads, tgt_len, head_dim)` in the dtype of v; R_l like ``prev_scores``; P (before dropout)
        `(batch * heads, tgt_len, src_len)` in the dtype of R, or None
    """
    # autocast would push R through half-precision products; the dtypes are chosen here, by hand
    if torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            k, v = k.to(q.dtype), v.to(q.dtype)
            return residual_attention(
                q, k, v, prev_scores, mask, num_heads=num_heads, scale=scale, divisor=divisor, dropout=dropout,
                need_probs=need_probs,
            )  # fmt: skip
    grad = torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or (prev_scores is not None and prev_scores.requires_grad)
    )
    if grad and not need_probs:
        out, scores = _FusedResidualAttention.apply(
            q, k, v, prev_scores, mask, num_heads, scale, 1.0 / divisor, dropout
        )
        return out, scores, None
    scores = _raw_scores(q, k, prev_scores, scale)
    probs = _softmax(scores, mask, num_heads, 1.0 / divisor)
    weights = probs.to(v.dtype)
    if dropout > 0:
        weights = torch.nn.functional.dropout(weights, dropout, training=True)
    return torch.bmm(weights, v), scores, probs if need_probs else None


def _raw_scores(q, k, prev_scores, scale):
    """R_l = scale * q k^T + R_{l-1}, unmasked, in the dtype of R."""
    keys = k.transpose(1, 2)
    if q.dtype in (torch.float32, torch.float64) and prev_scores is not None:
        # one pass: the product is accumulated onto R_{l-1}
        return torch.baddbmm(prev_scores, q, keys, alpha=scale)
    scores = torch.bmm(q * scale, keys)
    if prev_scores is not None:
        return prev_scores + scores  # float32 + half gives float32 without a copy of the half scores
    return scores.to(score_dtype(q.dtype))


def _softmax(scores, mask, num_heads, factor):
    """softmax(factor * R + mask) over keys; R `(batch * heads, tgt_len, src_len)`."""
    if mask is None:
        return torch.softmax(scores if factor == 1.0 else scores * factor, dim=-1)
    # the batch is not left to view to find: an empty target has no elements to find it from
    folded = scores.view(scores.size(0) // num_heads, num_heads, scores.size(1), scores.size(2))
    return torch.softmax(torch.add(mask, folded, alpha=factor), dim=-1).view_as(scores)


class _FusedResidualAttention(torch.autograd.Function):
    """Scores, residual, mask, softmax, dropout and product in one node.

    With D = dropout(P) and G = dL/dout: dL/dV = D^T G, dL/dD = G V^T, and since sum_j P_j dL/dP_j = G . out row by row
    (dropout included), the softmax's gradient is D * dL/dD - P * (G . out). R needs no storage: R_l's gradient is that
    term (times 1/l in mode "mean") plus what the next layer sends back, and it is passed on to R_{l-1} as it is.
    """

    @staticmethod
    def forward(ctx, q, k, v, prev_scores, mask, num_heads, scale, factor, dropout):
        scores = _raw_scores(q, k, prev_scores, scale)
        probs = _softmax(scores, mask, num_heads, factor).to(v.dtype)
        keep = None
        weights = probs
        if dropout > 0:
            weights, keep = torch.native_dropout(probs, dropout, True)
        out = torch.bmm(weights, v)
        ctx.save_for_backward(q, k, v, probs, keep, out)
        ctx.scale, ctx.factor, ctx.dropout = scale, factor, dropout
        ctx.has_prev = prev_scores is not None
        ctx.set_materialize_grads(False)
        return out, scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out, grad_scores):
        q, k, v, probs, keep, out = ctx.saved_tensors
        grad_v = None
        if grad_out is None:
            grad = grad_scores
            if grad is None:
                return (None,) * 9
        else:
            weights = probs
            if keep is not None:
                # the factor is 0 where everything is dropped (p = 1)
                weights = (probs * keep).mul_(1 / (1 - ctx.dropout) if ctx.dropout < 1 else 0.0)
            grad_v = torch.bmm(weights.transpose(1, 2), grad_out)
            row = (grad_out.to(score_dtype(v.dtype)) * out).sum(dim=-1, keepdim=True)
            grad = torch.bmm(grad_out, v.transpose(1, 2)).to(row.dtype)
            grad.mul_(weights).addcmul_(probs.to(row.dtype), row, value=-1)
            if ctx.factor != 1.0:
                grad.mul_(ctx.factor)
            if grad_scores is not None:
                grad.add_(grad_scores)
        low = grad.to(q.dtype)
        grad_q = torch.bmm(low, k).mul_(ctx.scale)
        grad_k = torch.bmm(low.transpose(1, 2), q).mul_(ctx.scale)
        return grad_q, grad_k, grad_v, grad if ctx.has_prev else None, None, None, None, None, None
