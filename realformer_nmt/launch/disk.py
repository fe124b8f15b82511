"""How large the checkpoints will be, and whether they fit."""

import os
import shutil
from dataclasses import dataclass

from . import LaunchError


def transformer_parameters(args, source_types: int, target_types: int) -> int:
    """Parameters of an encoder-decoder Transformer with fairseq's arguments *args* (weights, biases, layer norms).

    Residual attention adds none; ADMIN's vectors (one a sub-layer) are counted.
    """
    enc, dec = args.encoder_embed_dim, args.decoder_embed_dim

    def attention(d, kv):
        return d * d * 2 + kv * d * 2 + 4 * d

    def ffn(d, hidden):
        return 2 * d * hidden + d + hidden

    layer_norm_and_omega = 3
    encoder = args.encoder_layers * (
        attention(enc, enc) + ffn(enc, args.encoder_ffn_embed_dim) + 2 * layer_norm_and_omega * enc
    )
    decoder = args.decoder_layers * (
        attention(dec, dec) + attention(dec, enc) + ffn(dec, args.decoder_ffn_embed_dim) + 3 * layer_norm_and_omega * dec
    )
    if getattr(args, "share_all_embeddings", False):
        embeddings = target_types * dec
    elif getattr(args, "share_decoder_input_output_embed", False):
        embeddings = source_types * enc + target_types * dec
    else:
        embeddings = source_types * enc + 2 * target_types * dec
    return encoder + decoder + embeddings


@dataclass(frozen=True)
class Needed:
    """Bytes of one checkpoint, how many lie on disk at the worst moment, and bytes free."""

    checkpoint: int
    count: int
    free: int

    @property
    def total(self) -> int:
        return self.checkpoint * self.count

    def __str__(self) -> str:
        return (
            f"about {gb(self.checkpoint)} a checkpoint, up to {self.count} at once: {gb(self.total)};"
            f" {gb(self.free)} free"
        )


def gb(size: float) -> str:
    """*size* bytes in GB; in MB where those would read 0.0."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def check_disk(save_dir: str, parameters: int, half: bool, keep_epochs: int, keep_updates: int) -> Needed:
    """Estimate the room that checkpoints need and compare it with what is free beside *save_dir*.

    A checkpoint holds the weights (2 bytes each in half precision, else 4) and two float32 moments a parameter.
    On disk at the worst moment: the kept epochs and updates, best, last, and one being written.

    Raises:
        LaunchError: less free than needed beyond what the folder already holds.
    """
    checkpoint = parameters * ((2 if half else 4) + 8)
    count = keep_epochs + keep_updates + 3
    folder = os.path.abspath(save_dir)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    needed = Needed(checkpoint, count, free)
    there = 0
    if os.path.isdir(save_dir):
        there = sum(e.stat().st_size for e in os.scandir(save_dir) if e.is_file() and e.name.endswith(".pt"))
    if needed.total - there > free:
        raise LaunchError(
            f"{folder}: {gb(free)} free, but the checkpoints kept need {gb(needed.total - there)} more"
            f" ({count} of {gb(checkpoint)}); free some, choose another --save-dir, or lower --average-last"
        )
    return needed
