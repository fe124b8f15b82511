"""Encoder and decoder layers: fairseq's own, with residual attention and ADMIN's omega hooked in.

The layers take fairseq's arguments plus the residual scores, and return fairseq's results followed by the new scores:

    encoder layer: (x, [fc_result,] scores)
    decoder layer: (x, attn, self_attn_state, self_scores, cross_scores)

Scores are None for a site without residual attention.
"""

from contextlib import nullcontext

from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase

from .admin import Omega
from .attention import PlainMultiheadAttention, ResidualMultiheadAttention, ScoreLink


def _sites(cfg):
    return () if cfg.residual_attention == "none" else tuple(cfg.residual_attention_sites.split(","))


def keep_dropout_names(module, stock):
    """Give a module's own dropouts the name that the ``stock`` class has for --retain-dropout-modules."""
    for child in module.children():
        if isinstance(child, FairseqDropout):
            child.module_name = stock


class ResidualLayerMixin:
    """What both kinds of layer share: opening score links, and omega in the residual connections."""

    @property
    def can_use_fastpath(self):
        """Always false. fairseq 0.12.2 asks this before it calls torch's fused encoder layer for inference, which knows
        neither scores nor omega (and which fails on torch >= 2 the way that release calls it)."""
        return False

    @can_use_fastpath.setter
    def can_use_fastpath(self, value):
        pass  # that release computes a value of its own in __init__

    def _init_omegas(self, cfg, names):
        """Build one omega a residual connection; ``names`` in the order in which forward visits them."""
        self.omegas = names if cfg.admin_init != "none" else ()
        for name in self.omegas:
            self.add_module(f"{name}_omega", Omega(self.embed_dim, cfg.admin_omega.get(type(self).stack, 1.0)))
        self._pending = None
        self._profiler = None

    def set_profiler(self, profiler):
        """Let an :class:`OmegaProfiler` see this layer's residual connections, or None to stop."""
        self._profiler = profiler

    def residual_connection(self, x, residual):
        """omega * residual + x (arXiv 2004.08249, section 4); x is the sub-layer's output after dropout."""
        if not self.omegas:
            return super().residual_connection(x, residual)
        omega = getattr(self, f"{next(self._pending)}_omega")
        if self._profiler is not None:
            self._profiler.visit(omega, residual, x)
        return omega(residual) + x


def _link(attention, prev_scores, prev_layers):
    if isinstance(attention, ResidualMultiheadAttention):
        return attention.linked(prev_scores, prev_layers)
    return nullcontext(ScoreLink())


def _build_attention(site, cfg, stock, embed_dim, **kwargs):
    """An attention module with the settings of fairseq's, which ``stock`` builds: residual where the site is.

    fairseq's own module is used for what only it can do (xFormers, extra key-value biases).
    """
    side = cfg.encoder if site == "encoder" else cfg.decoder
    xformers = getattr(side, "xformers_att_config", None)
    kind, settings = ResidualMultiheadAttention, {"mode": cfg.residual_attention, "xformers_att_config": xformers}
    if site not in _sites(cfg):
        if xformers or kwargs.get("add_bias_kv") or kwargs.get("add_zero_attn"):
            return stock()
        kind, settings = PlainMultiheadAttention, {}
    attention = kind(
        embed_dim,
        side.attention_heads,
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
        **settings,
        **kwargs,
    )
    keep_dropout_names(attention, "MultiheadAttention")
    return attention


class RealFormerEncoderLayer(ResidualLayerMixin, TransformerEncoderLayerBase):
    """fairseq's encoder layer with residual self-attention and omega.

    Args: as :class:`fairseq.modules.transformer_layer.TransformerEncoderLayerBase`; cfg also holds
        ``residual_attention``, ``residual_attention_sites``, ``admin_init`` and ``admin_omega``.
    """

    stack = "encoder"
    carries_scores = True

    def __init__(self, cfg, return_fc=False):
        super().__init__(cfg, return_fc)
        keep_dropout_names(self, "TransformerEncoderLayerBase")
        self._init_omegas(cfg, ("self_attn", "ffn"))

    def build_self_attention(self, embed_dim, cfg):
        return _build_attention(
            "encoder", cfg, lambda: super(RealFormerEncoderLayer, self).build_self_attention(embed_dim, cfg),
            embed_dim, self_attention=True,
        )  # fmt: skip

    def forward(self, x, encoder_padding_mask, attn_mask=None, prev_scores=None, prev_layers=0):
        """
        Args:
            x: `(seq_len, batch, embed_dim)`
            encoder_padding_mask: `(batch, seq_len)`, true at padding, or None
            attn_mask: `(seq_len, seq_len)`, nonzero where attention is excluded, or None
            prev_scores: R_{l-1}, `(batch * heads, seq_len, seq_len)`, or None in the first layer
            prev_layers (int): layers summed in ``prev_scores``

        Returns:
            tuple: x `(seq_len, batch, embed_dim)`, the feed-forward result if built with return_fc, and R_l or None
        """
        self._pending = iter(self.omegas)
        with _link(self.self_attn, prev_scores, prev_layers) as link:
            out = super().forward(x, encoder_padding_mask, attn_mask)
        return (*out, link.scores) if isinstance(out, tuple) else (out, link.scores)


class RealFormerDecoderLayer(ResidualLayerMixin, TransformerDecoderLayerBase):
    """fairseq's decoder layer with residual self- and cross-attention and omega; args as the encoder layer's."""

    stack = "decoder"
    carries_scores = True

    def __init__(self, cfg, no_encoder_attn=False, add_bias_kv=False, add_zero_attn=False):
        super().__init__(cfg, no_encoder_attn, add_bias_kv, add_zero_attn)
        keep_dropout_names(self, "TransformerDecoderLayerBase")
        self._init_omegas(cfg, ("self_attn", "ffn") if no_encoder_attn else ("self_attn", "encoder_attn", "ffn"))

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        return _build_attention(
            "decoder", cfg,
            lambda: super(RealFormerDecoderLayer, self).build_self_attention(
                embed_dim, cfg, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn
            ),
            embed_dim, self_attention=not cfg.cross_self_attention, add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
        )  # fmt: skip

    def build_encoder_attention(self, embed_dim, cfg):
        return _build_attention(
            "cross", cfg, lambda: super(RealFormerDecoderLayer, self).build_encoder_attention(embed_dim, cfg),
            embed_dim, kdim=cfg.encoder.embed_dim, vdim=cfg.encoder.embed_dim, encoder_decoder_attention=True,
        )  # fmt: skip

    def forward(self, x, encoder_out=None, *args, prev_self_scores=None, prev_self_layers=0, prev_cross_scores=None,
                prev_cross_layers=0, **kwargs):  # fmt: skip
        """
        Args:
            x: `(tgt_len, batch, embed_dim)`
            encoder_out: `(src_len, batch, encoder_embed_dim)`, or None
            prev_self_scores, prev_cross_scores: R_{l-1} of each kind, `(batch * heads, tgt_len, key_len)`, or None
            prev_self_layers, prev_cross_layers (int): layers summed in each
            args, kwargs: as fairseq's decoder layer

        Returns:
            tuple: x `(tgt_len, batch, embed_dim)`, attention weights or None, self-attention state or None (ONNX only),
            then R_l of self-attention and of cross-attention, each or None
        """
        cross = getattr(self, "encoder_attn", None) if encoder_out is not None else None
        self._pending = iter([name for name in self.omegas if name != "encoder_attn" or cross is not None])
        with _link(self.self_attn, prev_self_scores, prev_self_layers) as own:
            with _link(cross, prev_cross_scores, prev_cross_layers) as other:
                out = super().forward(x, encoder_out, *args, **kwargs)
        return (*out, own.scores, other.scores)


