"""The systems that the speed benchmark compares, their sizes, and made-up batches of a fixed shape."""

import argparse
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from fairseq.data import Dictionary  # noqa: E402
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY  # noqa: E402

import realformer_nmt  # noqa: E402,F401  registers --arch realformer

VOCABULARY = 8000

SIZES = {
    # name: (encoder layers, decoder layers, d_model, ffn, heads)
    "small": (3, 3, 256, 1024, 4),
    "base": (6, 6, 512, 2048, 8),
    "deep": (18, 6, 256, 1024, 4),
}

SYSTEMS = {
    # name: (arch, flags); the first one is what all others are divided by
    "transformer": ("transformer", {}),
    "realformer none": ("realformer", {"residual_attention": "none", "admin_init": "none"}),
    "realformer sum": ("realformer", {"residual_attention": "sum", "admin_init": "none"}),
    "realformer mean": ("realformer", {"residual_attention": "mean", "admin_init": "none"}),
    "realformer none + ADMIN": ("realformer", {"residual_attention": "none", "admin_init": "profile"}),
    "realformer sum + ADMIN": ("realformer", {"residual_attention": "sum", "admin_init": "profile"}),
}


class _Task:
    """As much of fairseq's translation task as a model's build_model asks for: one joined dictionary."""

    def __init__(self, words=VOCABULARY):
        self.source_dictionary = Dictionary()
        for index in range(words - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{index}")
        self.target_dictionary = self.source_dictionary


def build(system, size, task=None, seed=1):
    """Build one system on the CPU, in evaluation mode.

    Args:
        system (str): a key of SYSTEMS
        size (str): a key of SIZES

    Returns:
        tuple: the model and its task
    """
    arch, flags = SYSTEMS[system]
    encoder_layers, decoder_layers, dim, ffn, heads = SIZES[size]
    args = argparse.Namespace(
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_embed_dim=dim,
        decoder_embed_dim=dim,
        encoder_ffn_embed_dim=ffn,
        decoder_ffn_embed_dim=ffn,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        share_all_embeddings=True,
        **flags,
    )
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    task = task or _Task()
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return model.eval(), task


def make_batch(task, sentences, length, seed=1, device="cpu"):
    """One training batch: sources of length/2 .. length tokens (padded left, as fairseq pads), targets as long.

    Returns:
        dict: a sample as fairseq's criteria take it
    """
    generator = torch.Generator().manual_seed(seed)
    dictionary = task.source_dictionary
    lengths = torch.randint(max(length // 2, 1), length + 1, (sentences,), generator=generator)
    lengths[0] = length
    words = torch.randint(dictionary.nspecial, len(dictionary), (sentences, length), generator=generator)
    positions = torch.arange(length)
    target = words.clone()
    target[torch.arange(sentences), lengths - 1] = dictionary.eos()
    padding = positions[None] >= lengths[:, None]
    target[padding] = dictionary.pad()
    previous = torch.cat([torch.full((sentences, 1), dictionary.eos()), target[:, :-1]], dim=1)
    previous[padding] = dictionary.pad()
    source = torch.full_like(target, dictionary.pad())
    for row, n in enumerate(lengths.tolist()):
        source[row, length - n :] = target[row, :n]
    return {
        "id": torch.arange(sentences, device=device),
        "nsentences": sentences,
        "ntokens": int(lengths.sum()),
        "net_input": {
            "src_tokens": source.to(device),
            "src_lengths": lengths.to(device),
            "prev_output_tokens": previous.to(device),
        },
        "target": target.to(device),
    }
