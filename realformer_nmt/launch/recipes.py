"""The published training recipes, as data.

Sources: the ADMIN authors' public recipes for WMT'14 En-Fr, WMT'14 En-De and IWSLT'14 De-En (Liu et al. 2020,
arXiv 2004.08249 and 2008.07772).  A recipe holds what defines the experiment; everything that depends on the machine
(devices, precision, update-freq, folders) is worked out by the launcher.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from . import LaunchError


@dataclass(frozen=True)
class Recipe:
    """One published training set-up.

    ``published_devices * max_tokens * published_update_freq`` is the global batch, in target tokens an update
    (source or target tokens, whichever side is longer, as fairseq's ``--max-tokens`` counts).
    """

    name: str
    arch: str
    source_lang: str
    target_lang: str
    max_tokens: int
    published_devices: int
    published_update_freq: int
    flags: Tuple[str, ...]
    max_epoch: Optional[int] = None
    max_update: Optional[int] = None
    average_last: int = 10
    save_interval_updates: int = 0
    shared_embeddings: bool = True

    @property
    def global_batch(self) -> int:
        """Tokens an update, all devices together."""
        return self.published_devices * self.max_tokens * self.published_update_freq


_COMMON = (
    "--share-all-embeddings",
    "--optimizer", "radam", "--adam-betas", "(0.9, 0.98)",
    "--lr-scheduler", "inverse_sqrt", "--warmup-init-lr", "1e-07",
    "--clip-norm", "0.0", "--attention-dropout", "0.1", "--activation-dropout", "0.1",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--seed", "1111",
)  # fmt: skip
_EN_FR = _COMMON + (
    "--lr", "0.0007", "--warmup-updates", "8000", "--dropout", "0.1", "--weight-decay", "0.0",
)  # fmt: skip
_EN_DE = _COMMON + (
    "--lr", "0.001", "--warmup-updates", "8000", "--dropout", "0.1", "--weight-decay", "0.0",
)  # fmt: skip
_IWSLT = _COMMON + (
    "--lr", "0.0007", "--warmup-updates", "6000", "--dropout", "0.3", "--weight-decay", "0.0001",
)  # fmt: skip

_DEEP_60_12 = ("--encoder-layers", "60", "--decoder-layers", "12")

RECIPES: Dict[str, Dict[str, Recipe]] = {
    "wmt14_en_fr": {
        "6l": Recipe(
            "wmt14_en_fr/6l", "realformer_wmt_en_fr", "en", "fr",
            max_tokens=8000, published_devices=8, published_update_freq=10,
            flags=_EN_FR, max_epoch=50, save_interval_updates=500,
        ),
        "60l-12l": Recipe(
            "wmt14_en_fr/60l-12l", "realformer_wmt_en_fr_60l_12l", "en", "fr",
            max_tokens=5000, published_devices=16, published_update_freq=16,
            flags=_EN_FR, max_epoch=50, save_interval_updates=250,
        ),
    },
    "wmt14_en_de": {
        "6l": Recipe(
            "wmt14_en_de/6l", "realformer_wmt_en_de", "en", "de",
            max_tokens=8192, published_devices=4, published_update_freq=1,
            flags=_EN_DE, max_update=500000, save_interval_updates=2000,
        ),
        "12l": Recipe(
            "wmt14_en_de/12l", "realformer_wmt_en_de", "en", "de",
            max_tokens=8192, published_devices=4, published_update_freq=1,
            flags=_EN_DE + ("--encoder-layers", "12", "--decoder-layers", "12"),
            max_update=500000, save_interval_updates=2000,
        ),
        "18l": Recipe(
            "wmt14_en_de/18l", "realformer_wmt_en_de", "en", "de",
            max_tokens=8192, published_devices=4, published_update_freq=1,
            flags=_EN_DE + ("--encoder-layers", "18", "--decoder-layers", "18"),
            max_update=500000, save_interval_updates=2000,
        ),
    },
    "iwslt14_de_en": {
        "6l": Recipe(
            "iwslt14_de_en/6l", "realformer_iwslt_de_en", "de", "en",
            max_tokens=4096, published_devices=1, published_update_freq=1,
            flags=_IWSLT, max_update=100000,
        ),
    },
}  # fmt: skip


def get_recipe(corpus: str, size: Optional[str] = None) -> Recipe:
    """The recipe of *corpus* at *size* (its first size when None).

    Raises:
        LaunchError: no such corpus or size; the message lists those there are.
    """
    if corpus not in RECIPES:
        raise LaunchError(f"no recipe for corpus '{corpus}'; there are: {', '.join(RECIPES)}")
    sizes = RECIPES[corpus]
    size = size or next(iter(sizes))
    if size not in sizes:
        raise LaunchError(f"{corpus} has no size '{size}'; --size takes: {', '.join(sizes)}")
    return sizes[size]
