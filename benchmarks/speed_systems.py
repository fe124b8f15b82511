"""The systems that the speed benchmark compares, their sizes, and made-up batches of many shapes."""

import argparse
import os
import sys

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

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


def build_all(names, size, device):
    """Build the systems with the weights of the first, so that all that have the same formula do the same work.

    Returns:
        tuple: name -> model in evaluation mode, and the task
    """
    task = _Task()
    models = {name: build(name, size, task)[0] for name in names}
    shared = models[names[0]].state_dict()
    for model in models.values():
        missing, unexpected = model.load_state_dict({**model.state_dict(), **shared}, strict=False)
        assert not missing and not unexpected
        model.to(device)
    return models, task


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


def make_batch(task, tokens, length, seed=None, device="cpu"):
    """One training batch of about ``tokens`` padded source tokens.

    With a seed, the shape is one of many: the longest source has 3/4 to 5/4 of ``length`` tokens and the longest target
    3/4 to 5/4 of that. Without, both have ``length``. Other sentences have half of that to all of it. Sources are
    padded on the left and targets on the right, as fairseq pads them.

    Returns:
        dict: a sample as fairseq's criteria take it
    """
    generator = torch.Generator().manual_seed(1 if seed is None else seed)

    def about(n):
        return n if seed is None else int(torch.randint(max(3 * n // 4, 1), 5 * n // 4 + 1, (1,), generator=generator))

    src_len = about(length)
    tgt_len = about(src_len)
    sentences = max(tokens // src_len, 1)
    dictionary = task.source_dictionary

    def side(longest):
        lengths = torch.randint(max(longest // 2, 1), longest + 1, (sentences,), generator=generator)
        lengths[0] = longest
        words = torch.randint(dictionary.nspecial, len(dictionary), (sentences, longest), generator=generator)
        words[torch.arange(sentences), lengths - 1] = dictionary.eos()
        words[torch.arange(longest)[None] >= lengths[:, None]] = dictionary.pad()
        return words, lengths

    target, _ = side(tgt_len)
    words, lengths = side(src_len)
    previous = torch.cat([torch.full((sentences, 1), dictionary.eos()), target[:, :-1]], dim=1)
    previous[target.eq(dictionary.pad())] = dictionary.pad()
    source = torch.full_like(words, dictionary.pad())
    for row, n in enumerate(lengths.tolist()):
        source[row, src_len - n :] = words[row, :n]
    return {
        "id": torch.arange(sentences, device=device),
        "nsentences": sentences,
        "ntokens": int(target.ne(dictionary.pad()).sum()),
        "net_input": {
            "src_tokens": source.to(device),
            "src_lengths": lengths.to(device),
            "prev_output_tokens": previous.to(device),
        },
        "target": target.to(device),
    }
