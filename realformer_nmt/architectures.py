"""Named sizes: what each ``--arch realformer*`` stands for. A flag on the command line always wins."""

from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import (
    base_architecture,
    transformer_iwslt_de_en,
    transformer_vaswani_wmt_en_de_big,
)


def _default(args, **values):
    for name, value in values.items():
        setattr(args, name, getattr(args, name, value))


@register_model_architecture("realformer", "realformer")
def realformer(args):
    """Base size: 6+6 layers, d 512, ffn 2048, 8 heads; Post-LN, residual scores summed everywhere, omega profiled."""
    base_architecture(args)
    pre_ln = args.encoder_normalize_before or args.decoder_normalize_before
    _default(
        args,
        residual_attention="sum",
        residual_attention_sites="encoder,decoder,cross",
        # ADMIN is defined for Post-LN only
        admin_init="none" if pre_ln else "profile",
    )


@register_model_architecture("realformer", "realformer_tiny")
def realformer_tiny(args):
    """For tests: 2+2 layers, d 64, ffn 128, 4 heads."""
    _default(
        args,
        encoder_layers=2,
        decoder_layers=2,
        encoder_embed_dim=64,
        decoder_embed_dim=64,
        encoder_ffn_embed_dim=128,
        decoder_ffn_embed_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    realformer(args)


@register_model_architecture("realformer", "realformer_small")
def realformer_small(args):
    """For a CPU: 3+3 layers, d 256, ffn 1024, 4 heads."""
    _default(
        args,
        encoder_layers=3,
        decoder_layers=3,
        encoder_embed_dim=256,
        decoder_embed_dim=256,
        encoder_ffn_embed_dim=1024,
        decoder_ffn_embed_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    realformer(args)


@register_model_architecture("realformer", "realformer_iwslt_de_en")
def realformer_iwslt_de_en(args):
    """fairseq's transformer_iwslt_de_en: 6+6 layers, d 512, ffn 1024, 4 heads."""
    transformer_iwslt_de_en(args)
    realformer(args)


@register_model_architecture("realformer", "realformer_wmt_en_de")
def realformer_wmt_en_de(args):
    """fairseq's transformer_wmt_en_de: the base size."""
    realformer(args)


@register_model_architecture("realformer", "realformer_vaswani_wmt_en_de_big")
def realformer_vaswani_wmt_en_de_big(args):
    """fairseq's transformer_vaswani_wmt_en_de_big: 6+6 layers, d 1024, ffn 4096, 16 heads."""
    transformer_vaswani_wmt_en_de_big(args)
    realformer(args)


@register_model_architecture("realformer", "realformer_wmt_en_fr")
def realformer_wmt_en_fr(args):
    """6L-6L of the published WMT'14 En-Fr recipe: base size, one embedding, dropout 0.1 everywhere."""
    _default(args, share_all_embeddings=True, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
    realformer(args)


@register_model_architecture("realformer", "realformer_wmt_en_fr_60l_12l")
def realformer_wmt_en_fr_60l_12l(args):
    """60L-12L of the published recipe; scores are averaged over layers, as its authors do from 30 layers on."""
    _default(args, encoder_layers=60, decoder_layers=12, residual_attention="mean")
    realformer_wmt_en_fr(args)
