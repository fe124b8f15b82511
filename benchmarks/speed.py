"""Speed and memory against stock fairseq, side by side in one process and in turn; a Markdown table.

    python benchmarks/speed.py --quick --output speed.md
    python benchmarks/speed.py --output speed.md
    python benchmarks/speed.py --parts command --command DATA-BIN CHECKPOINT --output speed.md

Parts: "models" (training step, peak memory of it, validation, beam search; every size and length), "attention" (the
attention stack alone, also x-transformers where installed), "growth" (the attention stack against length and depth)
and "command" (whole fairseq-generate commands on a trained stock transformer, and their outputs compared).

Figures are medians (smallest - largest) and ratios of medians to the stock system: below 1 is faster or smaller. Every
repeat has a batch of a new shape. Beam search (beam 5, outputs as long as the longest source) and memory have no spread
of their own beyond that. With --output every measured cell is kept in FILE.json too: run again, with the same or other
sizes and lengths, and only what is missing is measured.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys

import fairseq
import speed_attention
import speed_command
import speed_steps
import torch
from speed_systems import SIZES, SYSTEMS

from realformer_nmt import linear

PARTS = ("models", "attention", "growth", "command")
GROWTH = [(256, 4, 6, n) for n in (32, 64, 128, 256, 512)] + [(256, 4, n, 64) for n in (3, 12, 24, 48)]


class Results:
    """Cells by key, kept in a JSON file, and the report made of them."""

    def __init__(self, output):
        self.output, self.cells = output, {}
        if output and os.path.exists(output + ".json"):
            with open(output + ".json", encoding="utf-8") as handle:
                self.cells = json.load(handle)

    def add(self, key, cell):
        self.cells[key] = cell
        if self.output:
            _write(self.output + ".json", json.dumps(self.cells))
            _write(self.output, report(self.cells))


def _write(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as handle:
        handle.write(text)
    os.replace(path + ".tmp", path)


def processor():
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as handle:
            return re.search(r"model name\s*:\s*(.*)", handle.read()).group(1)
    except (OSError, AttributeError):
        return platform.processor() or platform.machine()


def where(threads):
    return (
        f"{processor()}, {os.cpu_count()} cores, {threads} thread(s) used; Python {platform.python_version()}, "
        f"torch {torch.__version__}, fairseq {fairseq.__version__}; generation's linear layers: {linear.chosen()}"
    )


def spread(values, scale=1.0, digits=1):
    low, middle, high = (f(values) * scale for f in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"


def ratio(ours, stock):
    return f"{statistics.median(ours) / statistics.median(stock):.2f}"


def report(cells):
    """Markdown of all cells."""
    lines = ["# Speed and memory against stock fairseq", ""]
    for machine in dict.fromkeys(cell["where"] for cell in cells.values()):
        lines += [machine, ""]
    parts = {part: [cell for key, cell in cells.items() if key.startswith(part + "/")] for part in PARTS}
    if parts["models"]:
        lines += ["## Whole models", "", *models_table(parts["models"])]
    if parts["attention"]:
        lines += ["## Attention stack alone, forward and gradient", "", *attention_table(parts["attention"])]
    if parts["growth"]:
        lines += ["## Attention stack (d 256, 4 heads) against length and depth", "", *growth_table(parts["growth"])]
    for cell in parts["command"]:
        lines += ["## The command fairseq-generate", "", *command_table(cell)]
    return "\n".join(lines) + "\n"


def models_table(cells):
    yield "train, validate: milliseconds a 1,000 padded tokens; generate: target tokens a second; memory: MB at the peak of"
    yield "a training step (parameters, gradients, activations). Ratios are of time or memory: below 1 is better."
    yield ""
    yield (
        "| size | length | system | train, ms | ratio | memory, MB | ratio | validate, ms | ratio | generate, tokens/s | "
        "time ratio | same output |"
    )
    yield "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for cell in cells:
        found = cell["found"]
        first = next(iter(found["train"]))
        for name in found["train"]:
            row = [cell["size"], str(cell["length"]), name]
            row += [spread(found["train"][name], 1000), ratio(found["train"][name], found["train"][first])]
            row += [f"{found['memory'][name] / 1e6:.0f}", f"{found['memory'][name] / found['memory'][first]:.2f}"]
            row += [spread(found["validate"][name], 1000), ratio(found["validate"][name], found["validate"][first])]
            speeds = [1000 / seconds for seconds in found["generate"][name]]
            row += [spread(speeds, digits=0), ratio(found["generate"][name], found["generate"][first])]
            row += [f"{100 * found['same output'][name]:.0f}%" if name == "realformer none" else ""]
            yield "| " + " | ".join(row) + " |"
    yield ""
    fewest = min(len(seconds) for cell in cells for seconds in cell["found"]["train"].values())
    sizes = sorted({f"{cell['tokens']} padded source tokens a batch at {cell['size']}" for cell in cells})
    yield f"Medians of {fewest} or more batches; {', '.join(sizes)}"
    yield ""


def attention_table(cells):
    yield "| size | length | depth | system | ms a step | / fairseq |"
    yield "|---|--:|--:|---|--:|--:|"
    for cell in cells:
        for name, seconds in cell["found"].items():
            yield (
                f"| {cell['size']} | {cell['length']} | {cell['depth']} | {name} | {spread(seconds, 1000)} | "
                f"{ratio(seconds, cell['found']['fairseq'])} |"
            )
    yield ""
    missing = [cell["peer_missing"] for cell in cells if cell.get("peer_missing")]
    if missing:
        yield missing[0]
        yield ""


def growth_table(cells):
    yield (
        "| length | depth | sentences | realformer sum, ms | fairseq, ms | ratio | GFLOP by the formula | "
        "realformer ms / GFLOP |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    for cell in sorted(cells, key=lambda cell: (cell["depth"] != 6, cell["depth"], cell["length"])):
        ours, stock = cell["found"]["realformer sum"], cell["found"]["fairseq"]
        work = cell["operations"] / 1e9
        yield (
            f"| {cell['length']} | {cell['depth']} | {cell['batch']} | {spread(ours, 1000)} | {spread(stock, 1000)} | "
            f"{ratio(ours, stock)} | {work:.2f} | {1000 * statistics.median(ours) / work:.2f} |"
        )
    yield ""


def command_table(cell):
    yield f"`fairseq-generate` with {cell['flags']}; {cell['sentences']} sentences."
    yield ""
    yield (
        "| system | whole command, s | search, s | tokens/s | time ratio of search | BLEU | translations as stock's | "
        "largest score difference there |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    stock = cell["found"]["transformer"]
    for name, runs in cell["found"].items():
        seconds = [run["seconds"] for run in runs]
        yield (
            f"| {name} | {spread([run['whole'] for run in runs])} | {spread(seconds)} | "
            f"{statistics.median(run['tokens'] / run['seconds'] for run in runs):.0f} | "
            f"{ratio(seconds, [run['seconds'] for run in stock])} | {runs[0]['bleu']:.2f} | {runs[0]['same']} of "
            f"{cell['sentences']} | {runs[0]['difference']:.4f} |"
        )
    yield ""


def run_models(results, args, device):
    for size in args.sizes:
        for length in args.lengths:
            key = f"models/{size}/{length}"
            if key in results.cells:
                continue
            found = speed_steps.measure(
                size, length, args.systems, args.tokens, args.repeats, device,
                lambda what: print(f"{size} {length}: {what} done", file=sys.stderr, flush=True),
            )  # fmt: skip
            cell = {"where": where(args.threads), "size": size, "length": length, "tokens": args.tokens, "found": found}
            results.add(key, cell)
            print("\n".join(models_table([cell])), flush=True)


def run_attention(results, args, device):
    for size in args.sizes:
        encoder_layers, _, dim, _, heads = SIZES[size]
        for length in args.lengths:
            key = f"attention/{size}/{length}"
            if key in results.cells:
                continue
            found = speed_attention.compare(dim, heads, encoder_layers, length, args.tokens, args.repeats, device)
            cell = {"where": where(args.threads), "size": size, "length": length, "depth": encoder_layers}
            cell.update(found=found, peer_missing=speed_attention.peer_missing())
            results.add(key, cell)
            print("\n".join(attention_table([cell])), flush=True)


def run_growth(results, args, device):
    for dim, heads, depth, length in GROWTH:
        key = f"growth/{depth}/{length}"
        if key in results.cells:
            continue
        batch = 4
        found = speed_attention.compare(dim, heads, depth, length, batch * length, args.repeats, device)
        cell = {"where": where(args.threads), "length": length, "depth": depth, "batch": batch, "found": found}
        cell["operations"] = speed_attention.operations(dim, depth, length, batch)
        results.add(key, cell)
        print("\n".join(growth_table([cell])), flush=True)


def run_command(results, args):
    databin, checkpoint = args.command
    key = f"command/{os.path.basename(checkpoint)}/{' '.join(args.flags)}"
    if key in results.cells:
        return
    found = speed_command.compare(databin, checkpoint, args.libraries, args.repeats, args.flags)
    stock = found["transformer"][0]["hypotheses"]
    for runs in found.values():
        for run in runs:
            ours = run.pop("hypotheses") if run is not found["transformer"][0] else stock
            equal = [number for number in stock if ours[number][1] == stock[number][1]]
            run["same"] = len(equal)
            run["difference"] = max((abs(ours[n][0] - stock[n][0]) for n in equal), default=0.0)
    del found["transformer"][0]["hypotheses"]
    flags = " ".join(["--beam 5", *args.flags])
    cell = {"where": where(args.threads), "flags": flags, "sentences": len(stock), "found": found}
    results.add(key, cell)
    print("\n".join(command_table(cell)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all, command only if given")
    parser.add_argument("--quick", action="store_true", help="small, lengths 16 and 64, three systems: minutes")
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--lengths", nargs="+", type=int, help="source tokens")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="stock is always measured")
    parser.add_argument("--tokens", type=int, default=1024, help="padded source tokens in a batch")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--command", nargs=2, metavar=("DATA-BIN", "CHECKPOINT"), help="a trained --arch transformer")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="more flags for fairseq-generate; at the end")
    parser.add_argument("--libraries", nargs="+", choices=linear.CHOICES, default=["auto", "torch", "float16", "int8"],
                        help="values of REALFORMER_CPU_LINEAR for the command")  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write the report here, and cells to FILE.json to go on from")
    args = parser.parse_args()
    args.sizes = args.sizes or (["small"] if args.quick else list(SIZES))
    args.lengths = args.lengths or ([16, 64] if args.quick else [16, 64, 256])
    args.repeats = args.repeats or (3 if args.quick else 5)
    names = args.systems or (["realformer none", "realformer sum"] if args.quick else list(SYSTEMS))
    args.systems = ["transformer", *(name for name in names if name != "transformer")]
    args.parts = args.parts or [*PARTS[:3], *(["command"] if args.command else [])]
    if min(args.lengths) < 2 or args.repeats < 1 or args.tokens < 1 or args.threads < 1:
        parser.error("--lengths must be 2 or more, --repeats, --tokens and --threads 1 or more")
    if "command" in args.parts and not args.command:
        parser.error("--parts command needs --command DATA-BIN CHECKPOINT (a trained --arch transformer)")
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = Results(args.output)
    print(where(args.threads) + "\n", flush=True)
    if "models" in args.parts:
        run_models(results, args, device)
    if "attention" in args.parts:
        if speed_attention.peer_missing():
            print(speed_attention.peer_missing(), file=sys.stderr)
        run_attention(results, args, device)
    if "growth" in args.parts:
        run_growth(results, args, device)
    if "command" in args.parts:
        run_command(results, args)


if __name__ == "__main__":
    main()
