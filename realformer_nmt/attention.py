"""Multi-head attention whose raw scores run on to the next layer (RealFormer, arXiv 2012.11747, section 3).

For layer l of a stack::

    S_l   = Q_l K_l^T / sqrt(d_head)
    R_l   = S_l + R_{l-1},  R_0 = 0          passed on unmasked, float32 or wider
    P_l   = softmax(R_l + mask)              mode "sum"
    P_l   = softmax(R_l / l + mask)          mode "mean"
    out_l = dropout(P_l) V_l

The arithmetic is in scores.py; this module adds projections, the incremental cache and fairseq's calling convention.
"""

from contextlib import contextmanager
from typing import Dict, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from . import decoding, linear
from .errors import RealFormerError
from .scores import additive_mask, residual_attention

MODES = ("sum", "mean", "none")
SITES = ("encoder", "decoder", "cross")


class ScoreLink:
    """Carries residual scores into one call of an attention module and out of it.

    fairseq's layers call ``self.self_attn(...)`` deep inside ``forward`` with a fixed argument list. The layer opens a
    link around that call instead of copying the method.

    Attributes:
        prev_scores (Tensor, optional): R_{l-1}, float, `(batch * heads, tgt_len, src_len)`; None in the first layer
        prev_layers (int): how many layers R_{l-1} is the sum of
        scores (Tensor, optional): R_l, same shape; set by the attention module
    """

    __slots__ = ("prev_scores", "prev_layers", "scores")

    def __init__(self, prev_scores=None, prev_layers=0):
        self.prev_scores = prev_scores
        self.prev_layers = prev_layers
        self.scores = None


class ResidualMultiheadAttention(MultiheadAttention):
    """fairseq's multi-head attention plus the residual scores; same parameters, names and cache layout.

    Args:
        mode (str): "sum" or "mean"; all others as in :class:`fairseq.modules.MultiheadAttention`

    Raises:
        RealFormerError: for an unknown mode, or options whose scores cannot be passed on (xFormers attention,
            add_bias_kv, add_zero_attn)
    """

    carries_scores = True

    def __init__(self, *args, mode="sum", **kwargs):
        if mode not in ("sum", "mean"):
            raise RealFormerError(f"--residual-attention {mode}: choose one of {', '.join(MODES)}")
        if kwargs.get("xformers_att_config"):
            raise RealFormerError("xFormers attention cannot pass scores on; drop it or use --residual-attention none")
        if kwargs.get("add_bias_kv") or kwargs.get("add_zero_attn"):
            raise RealFormerError("add_bias_kv and add_zero_attn do not work with residual attention")
        super().__init__(*args, **kwargs)
        self.mode = mode
        self._link = None
        self._fused = None

    @contextmanager
    def linked(self, prev_scores=None, prev_layers=0):
        """Within the context, one call of :meth:`forward` adds ``prev_scores`` and leaves its own in the link."""
        self._link = link = ScoreLink(prev_scores, prev_layers)
        try:
            yield link
        finally:
            self._link = None

    def forward(
        self,
        query,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ):
        """Attend; without an open link this is the first layer of a stack (R_0 = 0).

        Args:
            query: `(tgt_len, batch, embed_dim)`
            key, value: `(src_len, batch, kdim)`; ignored where static keys are cached
            key_padding_mask: `(batch, src_len)`, true at padding
            attn_mask: `(tgt_len, src_len)`, added to the scores (floating) or excluded where true (bool)
            need_weights: also return P averaged over heads, `(batch, tgt_len, src_len)`
            need_head_weights: return P of every head instead, `(heads, batch, tgt_len, src_len)`

        Returns:
            tuple: output `(tgt_len, batch, embed_dim)`, weights or None
        """
        if before_softmax:
            raise RealFormerError("before_softmax is not supported with residual attention")
        link = self._link if self._link is not None else ScoreLink()
        state = incremental_state.get(decoding.ACTIVE) if incremental_state is not None else None
        if state is not None:
            return self._step(query, key, state, link, need_weights, need_head_weights)
        tgt_len, bsz, _ = query.size()

        if self._fused is not None and incremental_state is None and self._fused.suits(query):
            q, k, v = (self._heads_first(x) for x in self._fused(query).chunk(3, dim=-1))
        else:
            q = self._heads_first(self.q_proj(query))
            k, v, key_padding_mask = self._keys_and_values(
                query, key, value, key_padding_mask, incremental_state, static_kv
            )
        depth = link.prev_layers + 1
        out, link.scores, probs = residual_attention(
            q,
            k,
            v,
            link.prev_scores,
            additive_mask(key_padding_mask, attn_mask, self.num_heads, q.dtype),
            num_heads=self.num_heads,
            scale=self.scaling,
            divisor=depth if self.mode == "mean" else 1,
            dropout=self._dropout_p(),
            need_probs=need_weights or need_head_weights,
        )
        out = self.out_proj(out.transpose(0, 1).reshape(tgt_len, bsz, self.embed_dim))
        weights = None
        if probs is not None:
            weights = probs.view(bsz, self.num_heads, tgt_len, -1).transpose(0, 1)
            if not need_head_weights:
                weights = weights.mean(dim=0)
        return out, weights

    def _step(self, query, key, state, link, need_weights, need_head_weights):
        """One step of incremental decoding on a shared :class:`decoding.DecodingState`.

        To the arithmetic, the W rows of a sentence are W target positions: scores are `(S * heads, W, entries)`.
        """
        if self.encoder_decoder_attention:
            q = self.q_proj(query)
            k, v = state.source(self, key)
            mask = state.cross_mask
        else:
            if self._fused is not None and self._fused.suits(query):
                q, k, v = self._fused(query).chunk(3, dim=-1)
            else:
                q, k, v = self.q_proj(query), self.k_proj(query), self.v_proj(query)
            k, v = state.append(self, k, v)
            mask = state.self_mask
        q = state.fold(q, self.num_heads)
        depth = link.prev_layers + 1
        out, scores, probs = residual_attention(
            q,
            k,
            v,
            link.prev_scores,
            mask,
            num_heads=self.num_heads,
            scale=self.scaling,
            divisor=depth if self.mode == "mean" else 1,
            need_probs=need_weights or need_head_weights,
        )
        link.scores = scores if self.carries_scores else None
        out = self.out_proj(state.unfold(out))
        if probs is None:
            return out, None
        weights = state.source_weights(probs) if self.encoder_decoder_attention else state.own_weights(probs)
        return out, weights if need_head_weights else weights.mean(dim=0)

    def make_generation_fast_(self, **kwargs):
        """fairseq calls this when the model will only generate: self-attention then projects in one product."""
        if self.self_attention:
            self._fused = linear.fuse(self.q_proj, self.k_proj, self.v_proj)

    def __getstate__(self):
        return {**self.__dict__, "_fused": None}  # a library's own layout cannot be copied

    def _dropout_p(self):
        drop = self.dropout_module
        return drop.p if self.training or drop.apply_during_inference else 0.0

    def _heads_first(self, x):
        """`(len, batch, embed_dim)` to `(batch * heads, len, head_dim)`, a view."""
        length, bsz, _ = x.size()
        return x.contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)

    def _keys_and_values(self, query, key, value, key_padding_mask, incremental_state, static_kv):
        """Project keys and values, or take and extend the cached ones.

        Returns:
            tuple: k and v `(batch * heads, src_len, head_dim)`, and the padding mask of the whole key length or None
        """
        cache = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        cached = "prev_key" in cache
        bsz = query.size(1)
        k = v = None
        if not (static_kv and cached):
            key = query if self.self_attention else key
            value = query if self.self_attention else value
            k = self._heads_first(self.k_proj(key))
            v = self._heads_first(self.v_proj(value))
        if incremental_state is None:
            return k, v, key_padding_mask

        if cached:
            prev_k = cache["prev_key"].view(bsz * self.num_heads, -1, self.head_dim)
            prev_v = cache["prev_value"].view(bsz * self.num_heads, -1, self.head_dim)
            k = prev_k if static_kv else torch.cat([prev_k, k], dim=1)
            v = prev_v if static_kv else torch.cat([prev_v, v], dim=1)
        key_padding_mask = self._append_prev_key_padding_mask(
            key_padding_mask=key_padding_mask,
            prev_key_padding_mask=cache.get("prev_key_padding_mask"),
            batch_size=bsz,
            src_len=k.size(1),
            static_kv=static_kv,
        )
        cache["prev_key"] = k.contiguous().view(bsz, self.num_heads, -1, self.head_dim)
        cache["prev_value"] = v.contiguous().view(bsz, self.num_heads, -1, self.head_dim)
        cache["prev_key_padding_mask"] = key_padding_mask
        self._set_input_buffer(incremental_state, cache)
        return k, v, key_padding_mask


class PlainMultiheadAttention(ResidualMultiheadAttention):
    """fairseq's multi-head attention without residual scores, on this project's cache.

    Same numbers as :class:`fairseq.modules.MultiheadAttention`, which it calls for everything but the steps of this
    project's decoder.
    """

    carries_scores = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mode = "none"

    def forward(self, query, key, value, key_padding_mask=None, incremental_state=None, need_weights=True,
                static_kv=False, attn_mask=None, before_softmax=False, need_head_weights=False):  # fmt: skip
        """As fairseq's; see :meth:`ResidualMultiheadAttention.forward`."""
        if incremental_state is not None and decoding.ACTIVE in incremental_state:
            return super().forward(query, key, value, incremental_state=incremental_state, need_weights=need_weights,
                                   need_head_weights=need_head_weights)  # fmt: skip
        return MultiheadAttention.forward(
            self, query, key, value, key_padding_mask, incremental_state, need_weights, static_kv, attn_mask,
            before_softmax, need_head_weights,
        )  # fmt: skip


def attention_sites(model):
    """Yield ``(site, layer_index, module)`` for every attention module of an encoder-decoder transformer.

    ``site`` is "encoder", "decoder" or "cross". Works for this project's models and for fairseq's own.
    """
    for index, layer in enumerate(model.encoder.layers):
        yield "encoder", index, layer.self_attn
    for index, layer in enumerate(model.decoder.layers):
        if getattr(layer, "self_attn", None) is not None:
            yield "decoder", index, layer.self_attn
        if getattr(layer, "encoder_attn", None) is not None:
            yield "cross", index, layer.encoder_attn


@contextmanager
def record_attention(model):
    """Collect the attention probabilities of every head during forward calls inside the context.

    Args:
        model: an encoder-decoder transformer, residual or stock, in evaluation mode

    Yields:
        dict: ``{(site, layer_index): P}``, P `(batch, heads, tgt_len, src_len)`, of the latest forward call
    """
    records = {}
    handles = []
    skipped = []

    def ask_for_heads(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "need_head_weights": True}

    def keep(where):
        def hook(module, args, kwargs, output):
            records[where] = output[1].detach().transpose(0, 1)

        return hook

    try:
        for site, index, module in attention_sites(model):
            # torch's own attention can only average over heads; this sends stock modules down fairseq's path
            skipped.append((module, module.skip_embed_dim_check))
            module.skip_embed_dim_check = True
            handles.append(module.register_forward_pre_hook(ask_for_heads, with_kwargs=True))
            handles.append(module.register_forward_hook(keep((site, index)), with_kwargs=True))
        yield records
    finally:
        for handle in handles:
            handle.remove()
        for module, value in skipped:
            module.skip_embed_dim_check = value
