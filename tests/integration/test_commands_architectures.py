"""The named architectures' sizes, and that fairseq's own flags win over them.  Budget: 15 s."""

import argparse

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import realformer_nmt  # noqa: F401  registers the architectures
from realformer_nmt.attention import ResidualMultiheadAttention
from realformer_nmt.errors import RealFormerError
from realformer_nmt.model import RealFormerModel

# encoder and decoder layers, d_model, ffn, heads, residual attention, one embedding, dropout
SIZES = {
    "realformer": (6, 6, 512, 2048, 8, "sum", False, 0.1),
    "realformer_tiny": (2, 2, 64, 128, 4, "sum", False, 0.1),
    "realformer_small": (3, 3, 256, 1024, 4, "sum", False, 0.1),
    "realformer_iwslt_de_en": (6, 6, 512, 1024, 4, "sum", False, 0.1),
    "realformer_wmt_en_de": (6, 6, 512, 2048, 8, "sum", False, 0.1),
    "realformer_wmt_en_fr": (6, 6, 512, 2048, 8, "sum", True, 0.1),
    "realformer_wmt_en_fr_60l_12l": (60, 12, 512, 2048, 8, "mean", True, 0.1),
    "realformer_vaswani_wmt_en_de_big": (6, 6, 1024, 4096, 16, "sum", False, 0.3),
}


def parse(arch, *flags):
    """Arguments as fairseq-train makes them from the command line."""
    return options.parse_args_and_arch(options.get_training_parser(), ["databin", "--arch", arch, *flags])


def build(args):
    """The model without memory for its weights."""
    dictionary = Dictionary()
    for number in range(96):
        dictionary.add_symbol(f"w{number}")
    args.max_source_positions = args.max_target_positions = 1024
    with torch.device("meta"):
        return RealFormerModel.build_model(
            args, argparse.Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
        )


def test_all_are_registered():
    assert {name for name in ARCH_MODEL_REGISTRY if ARCH_MODEL_REGISTRY[name] is RealFormerModel} == set(SIZES)
    assert set(SIZES) <= set(ARCH_CONFIG_REGISTRY)


@pytest.mark.parametrize("arch", SIZES)
def test_sizes(arch):
    encoder_layers, decoder_layers, dim, ffn, heads, mode, shared, dropout = SIZES[arch]
    args = parse(arch)
    assert args.dropout == dropout and args.share_all_embeddings is shared
    assert args.residual_attention == mode and args.residual_attention_sites == "encoder,decoder,cross"
    assert args.admin_init == "profile"
    assert not args.encoder_normalize_before and not args.decoder_normalize_before
    if "wmt_en_fr" in arch:
        assert args.attention_dropout == args.activation_dropout == 0.1
    model = build(args)
    for stack, count in ((model.encoder, encoder_layers), (model.decoder, decoder_layers)):
        assert len(stack.layers) == count
        for layer in stack.layers:
            assert layer.self_attn.embed_dim == dim and layer.self_attn.num_heads == heads
            assert layer.fc1.out_features == ffn and layer.fc2.out_features == dim
            assert layer.self_attn.mode == mode
    assert len(model.omegas()) == 2 * encoder_layers + 3 * decoder_layers
    assert (model.encoder.embed_tokens is model.decoder.embed_tokens) is shared


def test_flags_win_over_the_architecture():
    args = parse(
        "realformer_wmt_en_fr_60l_12l", "--encoder-layers", "1", "--decoder-layers", "3", "--encoder-embed-dim", "24",
        "--decoder-embed-dim", "32", "--encoder-ffn-embed-dim", "40", "--decoder-attention-heads", "2",
        "--decoder-learned-pos", "--activation-fn", "gelu", "--layernorm-embedding", "--dropout", "0.25",
        "--residual-attention", "sum", "--residual-attention-sites", "cross,encoder", "--admin-init", "analytic",
    )  # fmt: skip
    # the architecture joins all embeddings, which cannot be of two sizes
    args.share_all_embeddings = False
    args.share_decoder_input_output_embed = True
    model = build(args)
    (layer,) = model.encoder.layers
    assert layer.fc1.weight.shape == (40, 24) and layer.activation_fn.__name__ == "gelu"
    assert len(model.decoder.layers) == 3
    decoder_layer = model.decoder.layers[0]
    assert decoder_layer.encoder_attn.kdim == 24 and decoder_layer.encoder_attn.embed_dim == 32
    assert decoder_layer.encoder_attn.num_heads == 2 and decoder_layer.encoder_attn.mode == "sum"
    assert type(decoder_layer.self_attn) is not ResidualMultiheadAttention  # not among the sites
    assert type(decoder_layer.encoder_attn) is ResidualMultiheadAttention
    assert type(model.decoder.embed_positions).__name__ == "LearnedPositionalEmbedding"
    assert type(model.encoder.embed_positions).__name__ == "SinusoidalPositionalEmbedding"
    assert model.encoder.layernorm_embedding is not None
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert model.encoder.dropout_module.p == 0.25


def test_more_of_the_stock_flags():
    model = build(parse("realformer_tiny", "--no-token-positional-embeddings", "--share-decoder-input-output-embed"))
    assert model.encoder.embed_positions is None and model.decoder.embed_positions is None
    model = build(parse("realformer_tiny", "--encoder-normalize-before", "--decoder-normalize-before"))
    assert model.cfg.admin_init == "none" and model.omegas() == []
    assert model.encoder.layer_norm is not None and model.decoder.layer_norm is not None
    model = build(parse("realformer_tiny", "--encoder-layerdrop", "0.2"))
    assert model.encoder.layers.p == 0.2 and model.decoder.layers.p == 0
    model = build(parse("realformer_tiny", "--residual-attention", "none", "--admin-init", "none"))
    assert not any("omega" in name for name in model.state_dict())


def test_contradictions_are_refused():
    with pytest.raises(RealFormerError, match="Post-LN"):
        build(parse("realformer_tiny", "--encoder-normalize-before", "--admin-init", "profile"))
    with pytest.raises(RealFormerError, match="residual-attention-sites"):
        build(parse("realformer_tiny", "--residual-attention-sites", "encoder,self"))
