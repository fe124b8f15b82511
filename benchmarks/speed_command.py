"""Whole fairseq-generate commands on a trained model, in turn: transformer, and realformer with the same weights."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import torch
from speed_systems import ROOT

USER_DIR = os.path.join(ROOT, "realformer_nmt")


def with_arch(path, to, folder):
    """A copy of a Post-LN or Pre-LN transformer checkpoint that names ``to`` ("transformer" or "realformer")."""
    from realformer_nmt.checkpoints import load_checkpoint

    state = load_checkpoint(path)
    for settings in (state["cfg"]["model"], state.get("args")):
        if settings is None:
            continue
        settings = settings if isinstance(settings, dict) else vars(settings)
        if settings.get("residual_attention", "none") != "none" or settings.get("admin_init", "none") != "none":
            raise SystemExit(f"{path}: not a stock model (residual attention or ADMIN); give one of --arch transformer")
        settings["_name"] = settings["arch"] = to
        if to == "realformer":
            settings.update(residual_attention="none", admin_init="none")
            settings["residual_attention_sites"] = "encoder,decoder,cross"
    state["last_optimizer_state"] = None
    copy = os.path.join(folder, f"{to}.pt")
    torch.save(state, copy)
    return copy


def generate(databin, path, flags, library=None):
    """Run fairseq-generate on the CPU.

    Returns:
        dict: seconds of the whole command, seconds and tokens/s that fairseq counts, BLEU, hypotheses
    """
    environment = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()))
    environment.pop("REALFORMER_CPU_LINEAR", None)
    if library:
        environment["REALFORMER_CPU_LINEAR"] = library
    program = shutil.which("fairseq-generate", path=os.path.dirname(sys.executable)) or "fairseq-generate"
    argv = [program, databin, "--user-dir", USER_DIR, "--path", path, "--cpu", "--beam", "5", "--remove-bpe",
            "--required-batch-size-multiple", "1", *flags]  # fmt: skip
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    text = done.stdout + done.stderr
    counted = re.search(r"Translated [\d,]+ sentences \(([\d,]+) tokens\) in ([\d.]+)s", text)
    return {
        "whole": seconds,
        "seconds": float(counted.group(2)),
        "tokens": int(counted.group(1).replace(",", "")),
        "bleu": float(re.findall(r"BLEU\d? = ([\d.]+)", text)[-1]),
        "hypotheses": {
            number: (float(score), words) for number, score, words in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", text, re.M)
        },
    }


def compare(databin, checkpoint, libraries, repeats, flags):
    """Alternate the commands ``repeats`` times.

    Returns:
        dict: system -> list of :func:`generate`'s results
    """
    with tempfile.TemporaryDirectory() as folder:
        stock, ours = with_arch(checkpoint, "transformer", folder), with_arch(checkpoint, "realformer", folder)
        systems = {"transformer": (stock, None), **{f"realformer, {name}": (ours, name) for name in libraries}}
        found = {name: [] for name in systems}
        for _ in range(repeats):
            for name, (path, library) in systems.items():
                found[name].append(generate(databin, path, flags, library))
    return found
