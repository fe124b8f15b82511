"""A tiny fairseq data-bin made in milliseconds: random sentences over a toy alphabet, target = source reversed.

Written with fairseq's own data set builder and dictionary, so that it is exactly what fairseq-preprocess writes.
"""

import os

import numpy as np


def write_databin(
    folder, pairs=120, valid_pairs=12, types=20, min_len=2, max_len=9, seed=0, source="en", target="fr", joined=True
):
    """Write train and valid splits into *folder* and return its path as a string.

    Args:
        folder: created if missing.
        pairs, valid_pairs: sentence pairs in each split.
        types: words in the dictionary, special tokens not counted.
        min_len, max_len: words in a sentence, drawn uniformly.
        joined: one dictionary for both languages; otherwise the target's has one word more.
    """
    import torch
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_builder

    folder = str(folder)
    os.makedirs(folder, exist_ok=True)
    rng = np.random.RandomState(seed)
    dictionary = Dictionary()
    for i in range(types):
        dictionary.add_symbol(f"w{i}", n=1000 - i)
    dictionary.save(os.path.join(folder, f"dict.{source}.txt"))
    if not joined:
        dictionary.add_symbol("only-target", n=1)
    dictionary.save(os.path.join(folder, f"dict.{target}.txt"))
    for split, count in (("train", pairs), ("valid", valid_pairs)):
        prefix = os.path.join(folder, f"{split}.{source}-{target}")
        builders = {
            lang: make_builder(f"{prefix}.{lang}.bin", impl="mmap", vocab_size=len(dictionary))
            for lang in (source, target)
        }
        for _ in range(count):
            words = rng.randint(dictionary.nspecial, dictionary.nspecial + types, rng.randint(min_len, max_len + 1))
            for lang, sentence in ((source, words), (target, words[::-1])):
                builders[lang].add_item(torch.tensor(np.append(sentence, dictionary.eos())))
        for lang, builder in builders.items():
            builder.finalize(f"{prefix}.{lang}.idx")
    return folder
