"""One training process: fairseq's own command line and ``main``, with the process's place filled in.

Run as ``python -m realformer_nmt.launch.worker FAIRSEQ-TRAIN-ARGUMENTS``, alone or under torchrun.  It differs from
``fairseq-train`` in four points, none of which changes what is computed:

- the rank comes from torchrun's environment also without CUDA, where fairseq divides by its zero devices, and gloo is
  then the backend;
- ``--bf16`` means bfloat16 on the device at hand, where fairseq's command line takes it to mean a TPU;
- SIGUSR1 and SIGTERM save a checkpoint and end the run (:mod:`realformer_nmt.launch.stop`);
- an error ends in one line with the rank, after its traceback in the log.
"""

import json
import logging
import os
import sys
import traceback
from typing import List

from ..errors import RealFormerError

REPORT_VARIABLE = "REALFORMER_STOP_REPORT"


def distributed_arguments(environ, cuda: bool) -> List[str]:
    """fairseq's flags for the place in the group that torchrun wrote into *environ*; none outside torchrun."""
    if "WORLD_SIZE" not in environ or int(environ["WORLD_SIZE"]) == 1:
        # fairseq would otherwise start one process for every visible CUDA device
        return ["--distributed-world-size", "1"]
    arguments = [
        "--distributed-world-size", environ["WORLD_SIZE"],
        "--distributed-rank", environ["RANK"],
        "--device-id", environ["LOCAL_RANK"],
        "--distributed-init-method", "env://",
        "--distributed-no-spawn",
    ]  # fmt: skip
    if not cuda:
        arguments += ["--distributed-backend", "gloo"]
    return arguments


def first_line(error: BaseException) -> str:
    """The first line of *error*'s message with its type, for one line on the terminal."""
    text = str(error).strip().splitlines()
    cause = error.__cause__ or error.__context__
    line = f"{type(error).__name__}: {text[0] if text else '(no message)'}"
    # fairseq hides the reason why weights do not load behind a general exception
    if cause is not None and type(error) is Exception:
        line += f" ({first_line(cause)})"
    return line


def run(arguments: List[str]) -> int:
    """Train with fairseq's *arguments*; the exit status is 0 after a finished run and after a requested stop."""
    # fairseq_cli.train sets up the root logger when imported, so it comes first
    from fairseq_cli import train as fairseq_train

    import torch
    import torch.distributed as dist
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed_utils

    from .stop import STOP_FILE_VARIABLE, StopRequest

    cuda = torch.cuda.is_available() and "--cpu" not in arguments
    arguments = arguments + distributed_arguments(os.environ, cuda)
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, input_args=arguments)
    if args.bf16 and "--tpu" not in arguments:
        args.tpu = False
    cfg = convert_namespace_to_omegaconf(args)
    stop = StopRequest(cfg, os.environ.get(STOP_FILE_VARIABLE)).install()
    try:
        distributed_utils.call_main(cfg, fairseq_train.main)
        if stop.acted and os.environ.get("LOCAL_RANK", "0") == "0":
            _report(stop, cfg)  # every node has a launcher that wants to know
    finally:
        stop.remove()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    return 0


def _report(stop, cfg) -> None:
    """Tell the launcher that the run was stopped rather than finished."""
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        with open(path + ".tmp", "w") as f:
            json.dump({"reason": stop.reason or "another process's request", "save_dir": cfg.checkpoint.save_dir}, f)
        os.replace(path + ".tmp", path)


def main() -> int:
    rank = os.environ.get("RANK", "0")
    try:
        return run(sys.argv[1:])
    except SystemExit:
        raise
    except BaseException as error:
        if not isinstance(error, (RealFormerError, FileNotFoundError)):
            logging.getLogger("realformer_nmt.launch").error(traceback.format_exc())
        sys.stdout.flush()
        print(f"train: rank {rank}: {first_line(error)}", file=sys.stderr, flush=True)
        # no clean-up: a peer may hang in a collective, and torchrun ends it once this process is gone
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
