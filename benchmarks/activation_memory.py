#!/usr/bin/env python3
"""Training memory by depth and length: residual attention none, sum and mean.

    benchmarks/activation_memory.py [--layers 3 6 12] [--lengths 64 128 256] [--out table.md]

For each size, a fresh process builds the model (d 512, ffn 2048, 8 heads, N encoder and N decoder layers), takes one
step with RAdam so that gradients and moments exist, and measures the second step:

    saved   what the forward pass keeps for the backward pass: every distinct tensor that autograd stores
    peak    the highest resident memory during the step, less that before the model was built (on CUDA: the highest
            allocated memory); weights, gradients and moments included

A batch holds --tokens source and as many target tokens, all sentences of the same length.
"""

import argparse
import json
import os
import platform
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]

MODES = ("none", "sum", "mean")


def status(field):
    """A size in bytes from /proc/self/status."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


def measure(mode, layers, length, options):
    """Bytes saved and peak bytes of one training step."""
    import torch
    from toys import build

    torch.set_num_threads(options.threads)
    cuda = options.device == "cuda"
    before = 0 if cuda else status("VmRSS")
    flags = {"checkpoint_activations": True} if options.checkpoint_activations else {}
    model = build(
        "realformer", words=8000, residual_attention=mode, admin_init="none", encoder_layers=layers, decoder_layers=layers,
        dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, share_all_embeddings=True, **flags,
    ).to(options.device)  # fmt: skip
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-4)
    batch = max(1, options.tokens // length)
    source = torch.randint(4, 8000, (batch, length), device=options.device)
    source[0, : length // 8] = model.encoder.padding_idx  # so that the padding mask is there, as in real batches
    target = torch.randint(4, 8000, (batch, length), device=options.device)
    lengths = torch.full((batch,), length, device=options.device)

    def forward():
        logits, _ = model(source, lengths, target)
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), target.view(-1))

    model.train()
    saved, owned = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = forward()
    step(loss)
    del loss
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # forget the highest resident size so far
    step(forward())
    peak = torch.cuda.max_memory_allocated() if cuda else status("VmHWM") - before
    return {"saved": sum(saved.values()), "peak": peak}


def in_a_fork(mode, layers, length, options):
    """measure() in a process of its own, so that nothing is left over from the size before."""
    import subprocess

    arguments = ["--one", mode, str(layers), str(length), "--tokens", str(options.tokens), "--device", options.device]
    if options.checkpoint_activations:
        arguments.append("--checkpoint-activations")
    # large blocks go back to the system when freed, so that resident memory is what is in use
    environ = dict(os.environ, MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, env=environ)
    if done.returncode:
        sys.exit(f"{mode}, {layers} layers, length {length}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[3, 6, 12])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--checkpoint-activations", action="store_true")
    parser.add_argument("--repeat", type=int, default=1, help="take the median of this many")
    parser.add_argument("--out", help="also write the table here")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        mode, layers, length = options.one
        print(json.dumps(measure(mode, int(layers), int(length), options)))
        return

    import torch

    lines = [
        f"{platform.machine()}, {options.device}, torch {torch.__version__}, {options.tokens} + {options.tokens} tokens a batch, float32"
        + (", --checkpoint-activations" if options.checkpoint_activations else ""),
        "",
        "| layers | length | saved none (MB) | sum | mean | peak none (MB) | sum | mean | peak sum/none | peak mean/none |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for layers in options.layers:
        for length in options.lengths:
            rows = {}
            for mode in MODES:
                runs = sorted((in_a_fork(mode, layers, length, options) for _ in range(options.repeat)), key=lambda r: r["peak"])
                rows[mode] = runs[len(runs) // 2]
            saved = [f"{rows[m]['saved'] / 1e6:.0f}" for m in MODES]
            peak = [f"{rows[m]['peak'] / 1e6:.0f}" for m in MODES]
            ratio = [f"{rows[m]['peak'] / rows['none']['peak']:.3f}" for m in MODES[1:]]
            lines.append(f"| {layers}+{layers} | {length} | " + " | ".join(saved + peak + ratio) + " |")
            print(lines[-1], flush=True)
    if options.out:
        with open(options.out + ".tmp", "w") as f:
            f.write("\n".join(lines) + "\n")
        os.replace(options.out + ".tmp", options.out)


if __name__ == "__main__":
    main()
