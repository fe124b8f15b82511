"""Small models over a toy dictionary, built as fairseq builds them, and padded batches for them."""

import argparse

import torch

import realformer_nmt  # noqa: F401  registers the architectures


def toy_dictionary(words=40):
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for index in range(words):
        dictionary.add_symbol(f"w{index}")
    dictionary.finalize()
    return dictionary


class ToyTask:
    """All that a model's build_model asks of a task."""

    def __init__(self, words=40):
        self.source_dictionary = self.target_dictionary = toy_dictionary(words)


def build(arch="realformer_tiny", seed=1, words=40, **flags):
    """A model as fairseq-train would build it from ``--arch`` and flags (underscored names)."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    torch.manual_seed(seed)
    args = argparse.Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, ToyTask(words))


def scramble(model, seed=7, scale=0.2):
    """Move every parameter off its initial value, so that no zero bias or unit gain hides an error."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise.to(parameter.dtype))
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model


def collate(sentences, left_pad=False, pad=1):
    """Token lists to a padded LongTensor `(batch, len)`."""
    width = max(map(len, sentences))
    rows = []
    for sentence in sentences:
        padding = [pad] * (width - len(sentence))
        rows.append(padding + sentence if left_pad else sentence + padding)
    return torch.tensor(rows)


def shifted(sentences):
    """Teacher-forcing input: eos moved to the front."""
    return [[sentence[-1], *sentence[:-1]] for sentence in sentences]
