"""From a recipe, the devices and the user's own flags to the command lines that train it."""

import contextlib
import io
import os
import shlex
import sys
from typing import List, Optional

from . import LaunchError
from .devices import Devices
from .recipes import Recipe

USER_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# fairseq flags that the launcher works out itself, with what to use instead
MANAGED = {
    "--save-dir": "it is an option of this command",
    "--update-freq": "it follows from --global-batch, --max-tokens and the number of devices; set one of those",
    "--user-dir": "it is always this project's plug-in",
    "--fp16": "use --precision fp16",
    "--bf16": "use --precision bf16",
    "--amp": "use --precision amp",
    "--memory-efficient-fp16": "use --precision mem-fp16",
    "--memory-efficient-bf16": "use --precision mem-bf16",
    "--distributed-world-size": "use --devices and --nodes",
    "--distributed-rank": "torchrun sets it",
    "--distributed-init-method": "use --rdzv-endpoint",
    "--distributed-port": "use --rdzv-endpoint",
    "--distributed-no-spawn": "torchrun starts the processes",
    "--device-id": "torchrun sets it",
}


def refuse_managed(extra: List[str]) -> None:
    """Refuse flags in *extra* that would contradict what the launcher computes.

    Raises:
        LaunchError: the first such flag, and what to use instead.
    """
    for word in extra:
        flag = word.split("=", 1)[0]
        if flag in MANAGED:
            raise LaunchError(f"{flag}: {MANAGED[flag]}")


def fairseq_arguments(
    recipe: Recipe,
    data: str,
    save_dir: str,
    devices: Devices,
    precision: List[str],
    max_tokens: int,
    update_freq: int,
    keep_last_epochs: int,
    tensorboard: bool,
    extra: List[str],
) -> List[str]:
    """The arguments of fairseq-train; *extra* comes last, so that the user's own flags win."""
    arguments = [
        data, "--user-dir", USER_DIR, "--task", "translation",
        "--source-lang", recipe.source_lang, "--target-lang", recipe.target_lang,
        "--arch", recipe.arch, *recipe.flags, *precision,
        "--max-tokens", str(max_tokens), "--update-freq", str(update_freq),
        "--save-dir", save_dir, "--keep-last-epochs", str(keep_last_epochs),
        "--log-format", "simple", "--log-interval", "100",
        # fairseq batches sentences with a seed that holds the epoch in which the process was started.  Without this
        # flag a run resumed in a later epoch sees other batches than one that was never interrupted.
        "--update-epoch-batch-itr", "True",
    ]  # fmt: skip
    if recipe.max_epoch:
        arguments += ["--max-epoch", str(recipe.max_epoch)]
    if recipe.max_update:
        arguments += ["--max-update", str(recipe.max_update)]
    if recipe.save_interval_updates:
        # an epoch of WMT'14 En-Fr takes hours; without these a crash would lose them
        arguments += ["--save-interval-updates", str(recipe.save_interval_updates), "--keep-interval-updates", "2"]
    if tensorboard:
        arguments += ["--tensorboard-logdir", os.path.join(save_dir, "tensorboard")]
    if devices.kind == "cpu":
        arguments.append("--cpu")
        if devices.world_size > 1:
            # fairseq hands torch's DistributedDataParallel a device number, which it refuses for CPU modules
            arguments += ["--ddp-backend", "legacy_ddp"]
    if devices.world_size > 1:
        # Every process reads the checkpoint itself.  By default rank 0 sends it to the others together with its
        # configuration objects, which torch's safe loader (the default since 2.6) does not take.
        arguments.append("--load-checkpoint-on-all-dp-ranks")
    return arguments + extra


def parse_with_fairseq(arguments: List[str]):
    """What fairseq-train makes of *arguments*, as a namespace.

    Raises:
        LaunchError: fairseq refuses a flag or a value; its one line, without the pages of usage before it.
    """
    from fairseq import options

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    except SystemExit:
        lines = [line for line in stderr.getvalue().splitlines() if line.strip()]
        message = lines[-1].split("error: ", 1)[-1] if lines else "unknown error"
        raise LaunchError(f"fairseq-train does not take these flags: {_shorten(message)}") from None
    except (ValueError, RuntimeError, ImportError, AttributeError) as error:
        raise LaunchError(f"fairseq-train does not take these flags: {error}") from error


def _shorten(message: str) -> str:
    """argparse lists every choice there is; hundreds for --arch."""
    return message if len(message) <= 200 else message[:197] + "..."


def needs_unused_parameters(args) -> bool:
    """LayerDrop leaves a skipped layer without gradients, which torch's wrapper must be told to expect."""
    dropped = max(getattr(args, "encoder_layerdrop", 0) or 0, getattr(args, "decoder_layerdrop", 0) or 0)
    return dropped > 0 and args.ddp_backend in ("c10d", "pytorch_ddp")


def worker_command(
    arguments: List[str], devices: Devices, node_rank: Optional[int], rdzv_endpoint: Optional[str], rdzv_id: str
) -> List[str]:
    """The command that this machine runs: the worker alone, or torchrun with one worker a device."""
    worker = ["-m", "realformer_nmt.launch.worker"]
    if devices.world_size == 1:
        return [sys.executable, *worker, *arguments]
    torchrun = [
        sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={devices.nodes}", f"--nproc-per-node={devices.per_node}",
    ]  # fmt: skip
    if devices.nodes == 1:
        torchrun.append("--standalone")
    else:
        # not torchrun's c10d meeting, which numbers the nodes as it likes: the first node is the one that checks the
        # checkpoint before training, and the one whose log has the losses
        torchrun += ["--rdzv-backend=static", f"--rdzv-endpoint={rdzv_endpoint}", f"--rdzv-id={rdzv_id}"]
        torchrun.append(f"--node-rank={node_rank}")
    return [*torchrun, *worker, *arguments]


def quote(command: List[str]) -> str:
    """*command* as one line to paste into a shell."""
    return " ".join(shlex.quote(word) for word in command)
