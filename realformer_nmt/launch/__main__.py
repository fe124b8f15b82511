"""Command line of the launcher; ``scripts/train_*.sh --help`` shows it."""

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from typing import List, Optional, Tuple

from . import LaunchError
from .apex import WRONG, detect_apex
from .batch import accumulate
from .command import (
    USER_DIR,
    fairseq_arguments,
    needs_unused_parameters,
    parse_with_fairseq,
    quote,
    refuse_managed,
    worker_command,
)
from .databin import check_databin
from .devices import PRECISIONS, bf16_supported, choose_devices, cuda_names, precision_flags
from .disk import check_disk, transformer_parameters
from .recipes import RECIPES, get_recipe
from .resume import LAST, check_restore_file, prepare_resume


def build_parser(corpus: Optional[str] = None) -> argparse.ArgumentParser:
    sizes = ", ".join(RECIPES[corpus]) if corpus else "see the corpus' own script"
    parser = argparse.ArgumentParser(
        prog=f"scripts/train_{corpus}.sh" if corpus else "python -m realformer_nmt.launch",
        allow_abbrev=False,
        description="Train with the published recipe on one or many devices: checks first, resumes by itself,"
        " stops on SIGUSR1 or SIGTERM with a checkpoint. Any other flag goes to fairseq-train and wins over the recipe.",
        epilog="Exit status: 0 finished, 1 failed, 2 bad flags or a failed check, 75 stopped on request"
        " (run the same command again to go on).",
    )
    parser.add_argument("--corpus", required=corpus is None, default=corpus, choices=list(RECIPES), help=argparse.SUPPRESS if corpus else "recipe")
    parser.add_argument("--data-bin", required=True, metavar="DIR", help="what fairseq-preprocess wrote; more shards after colons")
    parser.add_argument("--save-dir", required=True, metavar="DIR", help="checkpoints, logs and tensorboard files")
    parser.add_argument("--size", metavar="SIZE", default=None, help=f"one of: {sizes}; the first if not given")
    parser.add_argument("--devices", type=int, metavar="N", default=None, help="processes on each node; all CUDA devices if not given")
    parser.add_argument("--cpu", action="store_true", help="CPU processes, also where CUDA is there")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines taking part; start this command on each")
    parser.add_argument("--node-rank", type=int, default=None, metavar="R", help="this machine's number, 0 to N-1 (needed with --nodes)")
    parser.add_argument("--rdzv-endpoint", default=None, metavar="HOST:PORT", help="where the nodes meet; HOST is node 0 (needed with --nodes)")
    parser.add_argument("--rdzv-id", default="realformer", metavar="ID", help="name of the run at the meeting point")
    parser.add_argument("--precision", default="auto", choices=("auto",) + PRECISIONS, help="auto: fp16 on CUDA (as published), fp32 on the CPU")
    parser.add_argument("--max-tokens", type=int, default=None, metavar="N", help="tokens a batch and device; the recipe's if not given")
    parser.add_argument("--global-batch", type=int, default=None, metavar="N", help="tokens an update, all devices together; the recipe's if not given")
    parser.add_argument("--average-last", type=int, default=None, metavar="N", help="epoch checkpoints that averaging will need; never pruned (recipe: 10)")
    parser.add_argument("--average-until", type=int, default=None, metavar="EPOCH", help="last epoch to average; the last one trained if not given")
    parser.add_argument("--dry-run", action="store_true", help="check, print the command on standard output, start nothing")
    return parser


class Report:
    """Collects what the checks say.  A dry run lists every problem; a real one stops at the first."""

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run
        self.problems: List[str] = []
        self.resumes_last = True  # from checkpoint_last.pt, not from a --restore-file of the user's

    def line(self, name: str, text) -> None:
        print(f"{name:>12}: {text}", file=sys.stderr)

    def check(self, name: str, function, *args, **kwargs):
        """Run a check of this machine and report its result; in a dry run a failed one only counts."""
        try:
            result = function(*args, **kwargs)
        except LaunchError as error:
            if not self.dry_run:
                raise
            self.problems.append(str(error))
            self.line(name, f"WOULD STOP: {error}")
            return None
        self.line(name, result)
        return result


def plan(options, extra: List[str]) -> Tuple[List[str], List[str], Report]:
    """Check everything and return the command to run, fairseq-train's arguments, and the report.

    Raises:
        LaunchError: the first problem (only bad flags in a dry run).
    """
    report = Report(options.dry_run)
    refuse_managed(extra)
    recipe = get_recipe(options.corpus, options.size)
    if options.nodes > 1 and not options.rdzv_endpoint:
        raise LaunchError("--nodes needs --rdzv-endpoint HOST:PORT, the same on every node (HOST is node 0)")
    if options.nodes > 1 and options.node_rank not in range(options.nodes):
        raise LaunchError(f"--nodes {options.nodes} needs --node-rank R, 0 on the machine of --rdzv-endpoint and up to {options.nodes - 1}")
    devices, notes = choose_devices(options.devices, options.nodes, options.cpu, cuda_names(), options.dry_run)
    precision = options.precision
    if precision == "auto":
        precision = "fp16" if devices.kind == "cuda" else "fp32"
    bf16_ok = bf16_supported() if devices.kind == "cuda" and devices.names else True
    flags, more = precision_flags(precision, devices, bf16_ok)
    notes += more
    batch = accumulate(
        devices.world_size,
        recipe.max_tokens if options.max_tokens is None else options.max_tokens,
        recipe.global_batch if options.global_batch is None else options.global_batch,
    )
    if abs(batch.deviation) > 0.05:
        notes.append("the batch is more than 5 % off the published one; see --max-tokens and --global-batch")

    average_last = recipe.average_last if options.average_last is None else options.average_last
    tensorboard = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))
    if not tensorboard:
        notes.append("no tensorboard files: pip install tensorboardX to have them")

    def arguments(keep: int) -> List[str]:
        return fairseq_arguments(
            recipe, options.data_bin, options.save_dir, devices, flags, batch.max_tokens, batch.update_freq, keep,
            tensorboard, extra,
        )  # fmt: skip

    # max-epoch may come from the user's own flags, so fairseq's parser has to run before pruning is settled
    parsed = parse_with_fairseq(arguments(average_last))
    keep = keep_last_epochs(average_last, options.average_until, parsed.max_epoch)
    if not any(word.split("=")[0] == "--keep-last-epochs" for word in extra):
        parsed = parse_with_fairseq(arguments(keep))
    refuse_bad_pruning(parsed, keep, average_last)
    if devices.kind == "cpu" and devices.world_size > 1 and parsed.ddp_backend in ("c10d", "pytorch_ddp"):
        raise LaunchError(f"--ddp-backend {parsed.ddp_backend} needs CUDA devices in fairseq; on the CPU leave it out (legacy_ddp)")
    if (parsed.memory_efficient_fp16 or parsed.memory_efficient_bf16) and parsed.optimizer == "radam":
        raise LaunchError(f"--precision {precision} keeps no float32 weights, which RAdam needs; use fp16 or bf16, or --optimizer adam")
    if parsed.ddp_backend == "fully_sharded" and devices.kind == "cpu":
        raise LaunchError("--ddp-backend fully_sharded: fairscale's wrapper runs on CUDA devices only")
    if parsed.ddp_backend == "fully_sharded" and importlib.util.find_spec("fairscale") is None:
        raise LaunchError("--ddp-backend fully_sharded needs fairscale: pip install fairscale")
    if parsed.optimizer == "radam" and parsed.max_update == 0 and parsed.max_epoch == 0:
        notes.append("neither --max-epoch nor --max-update is set: training goes on until it is stopped")
    unused = ["--find-unused-parameters"] if needs_unused_parameters(parsed) else []
    final = arguments(keep) + unused

    report.line("recipe", f"{recipe.name}, --arch {parsed.arch}")
    report.line("devices", devices)
    report.line("precision", precision)
    report.line("batch", batch)
    apex = detect_apex()
    report.line("apex", apex)
    if apex.kind == WRONG:
        notes.append("the wrong apex is installed; fairseq runs without it, but remove it")
    found = report.check("data", check_databin, options.data_bin, parsed.source_lang, parsed.target_lang, getattr(parsed, "share_all_embeddings", False))
    report.line("averaging", f"last {average_last} epochs; --keep-last-epochs {parsed.keep_last_epochs}" if parsed.keep_last_epochs > 0 else f"last {average_last} epochs; every epoch is kept")
    if found is not None:
        parameters = transformer_parameters(parsed, found.source_types, found.target_types)
        report.line("parameters", f"about {parameters / 1e6:.0f} million")
        if parsed.keep_last_epochs > 0:
            epochs = parsed.keep_last_epochs
        else:
            epochs = parsed.max_epoch or average_last
        report.check("disk", check_disk, options.save_dir, parameters, parsed.fp16 or parsed.bf16, epochs, max(0, parsed.keep_interval_updates))
    report.resumes_last = parsed.restore_file == LAST
    if report.resumes_last and (options.node_rank or 0) == 0:
        resumed = report.check("resume", lambda: _Resume(prepare_resume(options.save_dir, plan_only=True)))
        if resumed is not None and resumed.found.notes:
            notes += resumed.found.notes
    elif not report.resumes_last:
        report.check("resume", check_restore_file, parsed.restore_file, options.save_dir)
    for note in notes:
        report.line("note", note)
    command = worker_command(final, devices, options.node_rank, options.rdzv_endpoint, options.rdzv_id)
    return command, final, report


class _Resume:
    def __init__(self, found):
        self.found = found

    def __str__(self):
        return f"from {self.found.path}" if self.found.path else "no checkpoint there: starting at update 0"


def keep_last_epochs(average_last: int, average_until: Optional[int], max_epoch: int) -> int:
    """How many epoch checkpoints pruning must leave so that those averaging needs are there at the end.

    Raises:
        LaunchError: averaging is to end at an epoch that is never trained, or over fewer than one checkpoint.
    """
    if average_last < 1:
        raise LaunchError(f"--average-last must be at least 1, got {average_last}")
    if average_until is None:
        return average_last
    if average_until < average_last:
        raise LaunchError(f"--average-until {average_until}: there are not {average_last} epochs up to it")
    if max_epoch and average_until > max_epoch:
        raise LaunchError(f"--average-until {average_until} is after the last epoch trained, {max_epoch}")
    # epochs trained after the bound push older ones out; without an end nothing may be pruned
    return average_last + max_epoch - average_until if max_epoch else -1


def refuse_bad_pruning(parsed, keep: int, average_last: int) -> None:
    """Refuse fairseq flags that would delete, or never write, the checkpoints that averaging needs."""
    if parsed.no_epoch_checkpoints or parsed.no_save:
        flag = "--no-save" if parsed.no_save else "--no-epoch-checkpoints"
        raise LaunchError(f"{flag}: averaging needs the last {average_last} epoch checkpoints; leave it out")
    if parsed.no_last_checkpoints:
        raise LaunchError("--no-last-checkpoints: resuming needs checkpoint_last.pt; leave it out")
    if parsed.no_save_optimizer_state:
        raise LaunchError("--no-save-optimizer-state: a run could not be resumed; leave it out")
    if 0 < parsed.keep_last_epochs and (keep < 0 or parsed.keep_last_epochs < keep):
        wanted = "-1 (all)" if keep < 0 else str(keep)
        raise LaunchError(f"--keep-last-epochs {parsed.keep_last_epochs}: averaging needs {wanted}; raise it, or lower --average-last")
    written = parsed.max_epoch // max(1, parsed.save_interval)
    if parsed.save_interval > 1 and written < average_last <= parsed.max_epoch:
        raise LaunchError(
            f"--save-interval {parsed.save_interval}: {parsed.max_epoch} epochs write {written} checkpoints, averaging needs {average_last};"
            " lower it, or lower --average-last"
        )


def make_save_dir(save_dir: str) -> None:
    """Create *save_dir* with its folder for logs.

    Raises:
        LaunchError: it cannot be created, or not be written to.
    """
    logs = os.path.join(save_dir, "logs")
    try:
        os.makedirs(logs, exist_ok=True)
        # what is written later is checkpoints: better to know now than hours into the first epoch
        for folder in (save_dir, logs):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise LaunchError(f"--save-dir {save_dir}: cannot be written to ({error.strerror or error}); choose another") from error


def launch(options, extra: List[str]) -> int:
    command, arguments, report = plan(options, extra)
    if options.dry_run:
        if report.problems:
            print(f"train: dry run: {len(report.problems)} problem(s) above would stop the run here", file=sys.stderr)
        print(quote(command))
        if "--bf16" in arguments or "--memory-efficient-bf16" in arguments:
            print("(fairseq-train itself takes --bf16 for a TPU; only the command above trains in bfloat16)", file=sys.stderr)
        else:
            print("the same with fairseq's own command, on one machine:", file=sys.stderr)
            print("  " + quote(["fairseq-train", *arguments]), file=sys.stderr)
        return 0

    from .lock import lock_save_dir
    from .supervise import supervise

    make_save_dir(options.save_dir)
    lock_fd = None
    if (options.node_rank or 0) == 0:
        lock_fd = lock_save_dir(options.save_dir)
        if report.resumes_last:
            for note in prepare_resume(options.save_dir).notes:
                report.line("resume", note)
    log_path = os.path.join(options.save_dir, "logs", f"train{options.node_rank or ''}.log")
    environ = dict(os.environ)
    root = os.path.dirname(USER_DIR)
    environ["PYTHONPATH"] = root + (os.pathsep + environ["PYTHONPATH"] if environ.get("PYTHONPATH") else "")
    environ["PYTHONUNBUFFERED"] = "1"
    report.line("log", log_path)
    with open(log_path, "a") as log:
        log.write(f"\n+ {quote(command)}\n")
    ending = supervise(command, environ, log_path, lock_fd)
    print(f"train: {ending.line}", file=sys.stderr)
    return ending.status


def main(argv: Optional[List[str]] = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    # the scripts name the corpus, so that --help can list its sizes
    corpus = argv[argv.index("--corpus") + 1] if "--corpus" in argv[:-1] else None
    parser = build_parser(corpus if corpus in RECIPES else None)
    options, extra = parser.parse_known_args(argv)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    extra = [word for word in extra if word != "--"]
    try:
        return launch(options, extra)
    except LaunchError as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
