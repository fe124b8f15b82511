"""A tiny corpus and a few updates of real models, for the tests of the tools."""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORDS = {
    "the": "le", "a": "un", "dog": "chien", "cat": "chat", "man": "homme", "sees": "voit", "eats": "mange",
    "red": "rouge", "small": "petit", "house": "logis", "bread": "pain", "and": "et", "runs": "court",
}  # fmt: skip


def call(*command, **kwargs):
    """Run a program with this checkout importable; its output is in the error when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **kwargs.pop("env", {})}
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment, **kwargs
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


class TinyData:
    """``data_bin`` of 11 test sentences, the raw text beside it, and models trained for a few updates."""

    def __init__(self, directory):
        self.directory = directory
        self.data_bin = directory / "bin"
        generator = random.Random(5)
        for subset, count in (("train", 120), ("valid", 9), ("test", 11)):
            lines = [" ".join(generator.choices(list(WORDS), k=generator.randint(2, 9))) for _ in range(count)]
            (directory / f"{subset}.en").write_text("".join(line + " .\n" for line in lines))
            french = [" ".join(WORDS[word] for word in line.split()) + " ." for line in lines]
            if subset == "test":
                french[3] = "l&apos; " + french[3]  # a word that the dictionary lacks, and Moses' escape
            (directory / f"{subset}.fr").write_text("".join(line + "\n" for line in french))
        flags = [f"--{name}pref={directory / name}" for name in ("train", "valid", "test")]
        call(sys.executable, "-m", "fairseq_cli.preprocess", "-s", "en", "-t", "fr", *flags,
             "--destdir", self.data_bin, "--joined-dictionary")  # fmt: skip

    def train(self, name, *flags, updates=6):
        save_dir = self.directory / name
        call(sys.executable, "-m", "fairseq_cli.train", self.data_bin, "--user-dir", ROOT / "realformer_nmt",
             "--save-dir", save_dir, "--share-all-embeddings", "--optimizer", "adam", "--lr", "0.003",
             "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "3", "--criterion", "label_smoothed_cross_entropy",
             "--max-tokens", "150", "--max-update", updates, "--save-interval-updates", "2", "--cpu", "--seed", "2",
             "--log-interval", "2", "--log-format", "json", "--no-epoch-checkpoints", "--num-workers", "0",
             "--log-file", save_dir.with_suffix(".log"), *flags)  # fmt: skip
        return save_dir
