"""Train several systems on the same data, seeds and budget, and print a table of what came out."""

import argparse
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from realformer_nmt.tools import comparison_table
from realformer_nmt.tools.fairseq_log import device_memory_gb, read_log, series
from realformer_nmt.tools.files import ToolError, run_main, write_json, write_text
from realformer_nmt.tools.stamps import fingerprint, is_current, write_stamp
from realformer_nmt.tools.systems import DEFAULT_SYSTEMS, SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = Path(__file__).resolve().parents[1]

DESCRIPTION = """\
Train named systems on one data-bin with the same seeds, batches and number of updates,
translate the test set, look at the attention, and print a table.

The order is seed by seed, so a table of a part is fair. A second call goes on where the
first stopped; finished runs are not repeated. Further flags of fairseq-train go after '--'.
"""


def get_parser():
    parser = argparse.ArgumentParser(
        prog="compare.sh",
        usage="%(prog)s DATA_BIN --output DIR [flags] [-- flags of fairseq-train]",
        description=DESCRIPTION,
        epilog="systems: " + ", ".join(SYSTEMS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("data_bin", metavar="DATA_BIN", help="directory made by fairseq-preprocess")
    add("--output", required=True, metavar="DIR", help="directory of the runs and the table")
    add("--systems", nargs="+", default=DEFAULT_SYSTEMS, metavar="NAME", help="systems, in order (see below)")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="seeds (default: 1 2 3)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at once, each on one core or GPU (default: 1)")
    add("--table-only", action="store_true", help="train nothing, print the table of what there is")
    add("--target-loss", type=float, metavar="X", help="valid nll_loss for 'updates to reach' (default: the first system's final mean)")

    group = parser.add_argument_group("budget and size")
    group.add_argument("--max-update", type=int, default=600, metavar="N", help="updates a run (default: 600)")
    group.add_argument("--validate-every", type=int, default=100, metavar="N", help="updates (default: 100)")
    group.add_argument("--max-tokens", type=int, default=2048, metavar="N", help="tokens a batch (default: 2048)")
    group.add_argument("--encoder-layers", type=int, default=6, metavar="N", help="(default: 6)")
    group.add_argument("--decoder-layers", type=int, default=6, metavar="N", help="(default: 6)")
    group.add_argument("--embed-dim", type=int, default=128, metavar="N", help="(default: 128)")
    group.add_argument("--ffn-embed-dim", type=int, default=256, metavar="N", help="(default: 256)")
    group.add_argument("--attention-heads", type=int, default=4, metavar="N", help="(default: 4)")
    group.add_argument("--lr", type=float, default=1e-3, metavar="X", help="peak learning rate (default: 1e-3)")
    group.add_argument("--warmup-updates", type=int, default=200, metavar="N", help="(default: 200)")
    group.add_argument("--dropout", type=float, default=0.1, metavar="X", help="(default: 0.1)")

    group = parser.add_argument_group("evaluation")
    group.add_argument("--gen-subset", default="test", metavar="NAME", help="subset to translate (default: test)")
    group.add_argument("--beam", type=int, default=5, metavar="N", help="(default: 5)")
    group.add_argument("--lenpen", type=float, default=0.8, metavar="X", help="(default: 0.8)")
    group.add_argument("--reference", metavar="FILE", help="raw reference of the subset, for sacreBLEU")
    group.add_argument(
        "--attention-sentences", type=int, default=100, metavar="N", help="valid sentences for entropies (default: 100; 0: none)"
    )
    group.add_argument("--cpu", action="store_true", help="do not use GPUs")
    return parser


def parse_args(argv=None):
    """The command line; what follows ``--`` is kept for fairseq-train as ``train_flags``."""
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if "--" in argv else len(argv)
    args = get_parser().parse_args(argv[:end])
    args.train_flags = argv[end + 1 :]
    unknown = [name for name in args.systems if name not in SYSTEMS]
    if unknown:
        raise ToolError(f"no system '{unknown[0]}' (--systems); there are: {', '.join(SYSTEMS)}")
    if args.jobs < 1 or args.max_update < 1 or args.validate_every < 1:
        raise ToolError("--jobs, --max-update and --validate-every must be 1 or more")
    if not (Path(args.data_bin) / "preprocess.log").exists() and not list(Path(args.data_bin).glob("dict.*.txt")):
        raise ToolError(f"{args.data_bin}: is not a directory made by fairseq-preprocess")
    return args


def train_flags(args, system, seed):
    """Flags of fairseq-train for one run, without the directories."""
    flags = ["--arch", "realformer", *SYSTEMS[system], "--seed", str(seed)]
    for side, layers in (("encoder", args.encoder_layers), ("decoder", args.decoder_layers)):
        flags += [f"--{side}-layers", str(layers), f"--{side}-embed-dim", str(args.embed_dim)]
        flags += [f"--{side}-ffn-embed-dim", str(args.ffn_embed_dim)]
        flags += [f"--{side}-attention-heads", str(args.attention_heads)]
    flags += ["--share-all-embeddings", "--dropout", str(args.dropout)]
    flags += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    flags += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0.0", "--lr", str(args.lr)]
    flags += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", str(args.warmup_updates)]
    flags += ["--warmup-init-lr", "1e-7", "--max-tokens", str(args.max_tokens)]
    flags += ["--max-update", str(args.max_update)]
    every = str(args.validate_every)
    flags += ["--validate-interval-updates", every, "--save-interval-updates", every, "--keep-interval-updates", "1"]
    interval = str(min(20, max(1, args.validate_every // 5)))
    flags += ["--no-epoch-checkpoints", "--log-format", "json", "--log-interval", interval, "--num-workers", "0"]
    return flags + (["--cpu"] if args.cpu else []) + args.train_flags


class Comparison:
    """All runs of one call: where they lie, what is done, and the figures so far."""

    def __init__(self, args, gpus):
        self.args, self.gpus = args, gpus
        self.output = Path(args.output)
        self.lock = threading.Lock()
        self.processes = set()
        self.stopping = False

    def directory(self, system, seed):
        return self.output / system / f"seed{seed}"

    def say(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def run(self, system, seed, slot):
        """Train, translate and analyse one system with one seed; whatever is done already is kept."""
        directory = self.directory(system, seed)
        directory.mkdir(parents=True, exist_ok=True)
        flags = train_flags(self.args, system, seed)
        made_from = {"flags": flags, "data": data_fingerprint(self.args.data_bin)}
        settings = directory / "settings.json"
        if settings.exists() and not is_current(settings, made_from):
            raise ToolError(f"{directory}: holds a run with other flags or data; choose another --output, or delete it")
        write_stamp(settings, made_from)
        self.train(system, seed, slot, directory, flags)
        self.evaluate(system, seed, slot, directory)
        self.analyse(system, seed, slot, directory)

    def train(self, system, seed, slot, directory, flags):
        updates, _ = series(read_log_if_any(directory), "valid", "nll_loss")
        if updates and updates[-1] >= self.args.max_update:
            return
        self.say(f"{system}, seed {seed}: training" + (f" (resuming after update {updates[-1]})" if updates else ""))
        command = [sys.executable, "-m", "fairseq_cli.train", str(self.args.data_bin), "--user-dir", str(USER_DIR)]
        command += ["--save-dir", str(directory), "--log-file", str(directory / "train.log"), *flags]
        start = time.monotonic()
        memory = self.call(command, slot, directory / "train.out", append=True)
        path = directory / "resources.json"
        earlier = json.loads(path.read_text())["peak_rss_mb"] if path.exists() else 0
        write_json(path, {"peak_rss_mb": max(memory, earlier)})
        self.say(f"{system}, seed {seed}: trained in {time.monotonic() - start:.0f} s")

    def evaluate(self, system, seed, slot, directory):
        report = directory / "evaluate" / "report.json"
        checkpoint = directory / "checkpoint_last.pt"
        if report.exists() and report.stat().st_mtime >= checkpoint.stat().st_mtime:
            return
        command = [sys.executable, "-m", "realformer_nmt.tools.evaluate", str(self.args.data_bin)]
        command += ["--path", str(checkpoint), "--output", str(directory / "evaluate"), "--processes", "1"]
        command += ["--gen-subset", self.args.gen_subset, "--beam", str(self.args.beam)]
        command += ["--lenpen", str(self.args.lenpen)] + (["--cpu"] if self.args.cpu else [])
        command += ["--reference", self.args.reference] if self.args.reference else []
        self.call(command, slot, directory / "evaluate.out")

    def analyse(self, system, seed, slot, directory):
        path = directory / "attention" / "summary.json"
        checkpoint = directory / "checkpoint_last.pt"
        if self.args.attention_sentences < 1:
            return
        if path.exists() and path.stat().st_mtime >= checkpoint.stat().st_mtime:
            return
        command = [sys.executable, "-m", "realformer_nmt.tools.analyse", str(self.args.data_bin)]
        command += ["--path", str(checkpoint), "--output", str(directory / "attention"), "--subset", "valid"]
        command += ["--sentences", str(self.args.attention_sentences), "--numbers-only"]
        command += ["--cpu"] if self.args.cpu else []
        self.call(command, slot, directory / "attention.out")

    def call(self, command, slot, log, append=False):
        """Run a program with its output in ``log``; returns its peak memory (MB).

        Raises:
            ToolError: it failed; its last words are quoted.
        """
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpus[slot % len(self.gpus)])
        elif self.args.jobs > 1:
            environment["OMP_NUM_THREADS"] = "1"
        with open(log, "ab" if append else "wb") as handle:
            with self.lock:
                if self.stopping:
                    raise ToolError("stopped")
                process = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT, env=environment)
                self.processes.add(process)
            # wait4 rather than wait: it also tells this one child's peak memory.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            with self.lock:
                self.processes.discard(process)
        if process.returncode != 0:
            raise ToolError(f"{Path(command[2]).name} failed (status {process.returncode}): {last_words(log)}")
        return usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)

    def stop(self):
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()

    def records(self):
        """What is known of each run, finished or not, for the table."""
        found = []
        for seed in self.args.seeds:
            for system in self.args.systems:
                record = read_run(self.directory(system, seed))
                if record:
                    found.append({"system": system, "seed": seed, **record})
        return found

    def write_table(self):
        """Write table.md and table.json of all runs so far; returns the Markdown."""
        with self.lock:
            records = self.records()
            args = self.args
            table = comparison_table.summarise(records, args.systems, args.max_update, args.validate_every, args.target_loss)
            page = comparison_table.markdown(table, len(args.seeds))
            write_json(self.output / "table.json", {**table, "runs": records})
            write_text(self.output / "table.md", page)
        return page


def data_fingerprint(data_bin):
    # Sizes only: a data-bin that was made again from the same text is the same data.
    names = sorted(Path(data_bin).glob("*.bin")) + sorted(Path(data_bin).glob("dict.*.txt"))
    return [[path.name, fingerprint(path)[1]] for path in names]


def read_log_if_any(directory):
    path = Path(directory) / "train.log"
    return read_log(path) if path.exists() else []


def read_run(directory):
    """Figures of one run's directory, or None before its first validation."""
    directory = Path(directory)
    points = read_log_if_any(directory)
    updates, losses = series(points, "valid", "nll_loss")
    if not updates:
        return None
    record = {"valid_updates": updates, "valid_nll_loss": losses}
    _, speeds = series(points, "train_inner", "ups")
    # The first interval holds start-up, and the short ones after a validation say little: the median sees neither.
    seconds = [1 / ups for ups in speeds if ups > 0]
    record["seconds_per_update"] = statistics.median(seconds) if seconds else None
    _, free = series(points, "train_inner", "gb_free")
    total = device_memory_gb(directory / "train.out") if free and (directory / "train.out").exists() else None
    record["peak_gpu_mb"] = (total - min(free)) * 1024 if total else None
    resources = read_json(directory / "resources.json") or {}
    record["peak_rss_mb"] = resources.get("peak_rss_mb")
    report = read_json(directory / "evaluate" / "report.json")
    record["bleu"] = report["scores"].get("multi-bleu", {}).get("score") if report else None
    record["sacrebleu"] = report["scores"].get("BLEU", {}).get("score") if report else None
    attention = read_json(directory / "attention" / "summary.json")
    record["entropy"] = attention["models"][0]["mean_normalised_entropy"] if attention else None
    return record


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def last_words(path):
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines[-40:] if re.match(r"[\w.]*(Error|Exception)\b|.*error:|realformer_nmt: ", line)]
    return f"{(errors or lines or ['no output'])[-1]} (whole output: {path})"


def main(argv=None):
    from realformer_nmt.tools.evaluate import find_gpus

    args = parse_args(argv)
    comparison = Comparison(args, [] if args.table_only else find_gpus(args.cpu))
    comparison.output.mkdir(parents=True, exist_ok=True)
    failures = []
    if not args.table_only:
        # One worker a slot, so that a GPU is never given to two runs while another is idle.
        slots = list(range(args.jobs))

        def work(system, seed):
            with comparison.lock:
                slot = slots.pop(0)
            try:
                comparison.run(system, seed, slot)
            finally:
                with comparison.lock:
                    slots.append(slot)
            comparison.write_table()

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            # Seed by seed: were it system by system, a table of a part would compare different seeds.
            futures = {
                pool.submit(work, system, seed): (system, seed) for seed in args.seeds for system in args.systems
            }
            try:
                for future in concurrent.futures.as_completed(futures):
                    if future.exception():
                        system, seed = futures[future]
                        failures.append(f"{system}, seed {seed}: {future.exception()}")
                        comparison.say(failures[-1])
            except KeyboardInterrupt:
                comparison.stop()
                raise
    print(comparison.write_table())
    if failures:
        raise ToolError(f"{len(failures)} runs failed; the first: {failures[0]}")


if __name__ == "__main__":
    run_main(main, program="compare.sh")
