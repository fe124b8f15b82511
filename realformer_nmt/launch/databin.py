"""Checks of a fairseq data-bin that need no fairseq: is it there, is it whole, is it the recipe's kind?

Reads the documented layout of fairseq's mmap format: an ``.idx`` of magic, version, type code, count, sizes and
pointers, and a ``.bin`` of that many tokens back to back.
"""

import os
import struct
from dataclasses import dataclass
from typing import List, Tuple

import numpy as np

from . import LaunchError

_MAGIC = b"MMIDIDX\x00\x00"
# fairseq.data.indexed_dataset.dtypes: type code -> bytes a token
_ITEM_SIZE = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2}
_SPECIAL_TOKENS = 4  # <s> <pad> </s> <unk>, which no dictionary file lists


@dataclass(frozen=True)
class DataBin:
    """What was found: sentence pairs by split, and dictionary sizes with the special tokens counted."""

    folders: Tuple[str, ...]
    train_pairs: int
    valid_pairs: int
    source_types: int
    target_types: int

    def __str__(self) -> str:
        return (
            f"{':'.join(self.folders)}: {self.train_pairs:,} training and {self.valid_pairs:,} validation pairs,"
            f" dictionaries of {self.source_types:,} and {self.target_types:,} types"
        )


def check_split(prefix: str) -> int:
    """Number of sentences in the mmap data set *prefix*.idx / *prefix*.bin.

    Raises:
        LaunchError: a file is missing, empty, cut short, or not of fairseq's mmap format.
    """
    idx, data = prefix + ".idx", prefix + ".bin"
    for path in (idx, data):
        if not os.path.isfile(path):
            raise LaunchError(f"{path} is missing: is this the folder that fairseq-preprocess wrote?")
    with open(idx, "rb") as f:
        header = f.read(len(_MAGIC) + 17)
        if not header.startswith(_MAGIC):
            raise LaunchError(f"{idx} is not in fairseq's mmap format; prepare it with --dataset-impl mmap")
        if len(header) < len(_MAGIC) + 17:
            raise LaunchError(f"{idx} is cut short; prepare the data again")
        _, code, count = struct.unpack("<QBQ", header[len(_MAGIC) :])
        expected = len(header) + count * (4 + 8)
        actual = os.path.getsize(idx)
        if code not in _ITEM_SIZE or actual != expected:
            raise LaunchError(f"{idx} has {actual:,} bytes where {expected:,} belong; prepare the data again")
        if count == 0:
            raise LaunchError(f"{idx} holds no sentence; prepare the data again")
        f.seek(len(header) + (count - 1) * 4)
        (last_size,) = struct.unpack("<i", f.read(4))
        f.seek(expected - 8)
        (last_pointer,) = struct.unpack("<q", f.read(8))
    wanted, there = last_pointer + last_size * _ITEM_SIZE[code], os.path.getsize(data)
    if there != wanted:
        raise LaunchError(f"{data} has {there:,} bytes where its index asks for {wanted:,}; prepare the data again")
    return count


def split_tokens(prefix: str) -> int:
    """Tokens in the data set *prefix* (end-of-sentence marks included), from its index alone."""
    with open(prefix + ".idx", "rb") as f:
        f.seek(len(_MAGIC) + 9)
        (count,) = struct.unpack("<Q", f.read(8))
        return int(np.fromfile(f, dtype="<i4", count=count).sum(dtype=np.int64))


def _dictionary(path: str) -> List[str]:
    if not os.path.isfile(path):
        raise LaunchError(f"{path} is missing: is this the folder that fairseq-preprocess wrote, and are the languages right?")
    with open(path, encoding="utf-8", newline="\n") as f:
        return [line.rsplit(" ", 1)[0] for line in f if line.strip() and not line.startswith("#fairseq:")]


def check_databin(data: str, source_lang: str, target_lang: str, joined: bool) -> DataBin:
    """Check every folder of *data* (fairseq's colon-separated list; later folders hold training shards only).

    Raises:
        LaunchError: in one line, the first thing wrong.
    """
    folders = tuple(part for part in data.split(":") if part)
    if not folders:
        raise LaunchError("no data-bin given; pass --data-bin DIR")
    for folder in folders:
        if not os.path.isdir(folder):
            raise LaunchError(f"data-bin {folder} is not a folder; prepare one with data_prep/")
    first = folders[0]
    source = _dictionary(os.path.join(first, f"dict.{source_lang}.txt"))
    target = _dictionary(os.path.join(first, f"dict.{target_lang}.txt"))
    if joined and source != target:
        raise LaunchError(
            f"{first}: dict.{source_lang}.txt and dict.{target_lang}.txt differ, but the recipe shares all embeddings;"
            " prepare the data with --joined-dictionary"
        )
    pairs = {"train": 0, "valid": 0}
    for number, folder in enumerate(folders):
        for split in ("train", "valid") if number == 0 else ("train",):
            prefix = _pair_prefix(folder, split, source_lang, target_lang)
            counts = [check_split(f"{prefix}.{lang}") for lang in (source_lang, target_lang)]
            if counts[0] != counts[1]:
                raise LaunchError(
                    f"{prefix}: {counts[0]:,} {source_lang} sentences against {counts[1]:,} {target_lang} ones;"
                    " the sides do not belong together, prepare the data again"
                )
            pairs[split] += counts[0]
    return DataBin(
        folders, pairs["train"], pairs["valid"], len(source) + _SPECIAL_TOKENS, len(target) + _SPECIAL_TOKENS
    )


def _pair_prefix(folder: str, split: str, source_lang: str, target_lang: str) -> str:
    """fairseq accepts either order of the languages in file names."""
    for pair in (f"{source_lang}-{target_lang}", f"{target_lang}-{source_lang}"):
        prefix = os.path.join(folder, f"{split}.{pair}")
        if os.path.isfile(f"{prefix}.{source_lang}.idx"):
            return prefix
    raise LaunchError(
        f"{folder} has no {split}.{source_lang}-{target_lang}.{source_lang}.idx:"
        " is this the right data-bin, and is it finished?"
    )
