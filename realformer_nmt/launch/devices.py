"""What the run will compute on: CUDA devices or CPU processes, and in which precision."""

from dataclasses import dataclass
from typing import List, Optional, Tuple

from . import LaunchError

PRECISIONS = ("fp32", "fp16", "bf16", "amp", "mem-fp16", "mem-bf16")

# The recipe's loss-scale settings mean something to fairseq's fp16 optimiser only.
_FP16_SCALE = ("--fp16-scale-window", "256", "--threshold-loss-scale", "0.03125")


@dataclass(frozen=True)
class Devices:
    """``per_node`` processes on each of ``nodes`` machines; ``kind`` is "cuda" or "cpu"."""

    kind: str
    per_node: int
    nodes: int
    names: Tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return self.per_node * self.nodes

    def __str__(self) -> str:
        what = "CPU process(es)" if self.kind == "cpu" else "CUDA device(s)"
        names = f" ({', '.join(sorted(set(self.names)))})" if self.names else ""
        return f"{self.nodes} node(s) x {self.per_node} {what}{names}"


def cuda_names() -> List[str]:
    """Names of the CUDA devices torch sees; empty without any."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def choose_devices(
    requested: Optional[int], nodes: int, cpu: bool, names: List[str], plan_only: bool = False
) -> Tuple[Devices, List[str]]:
    """Settle the devices and the notes to print about them.

    Args:
        requested: processes on each node; None takes every visible CUDA device, or one CPU process without any.
        nodes: machines taking part.
        cpu: train on the CPU even where a CUDA device is visible.
        names: the CUDA devices of this machine (:func:`cuda_names`).
        plan_only: a dry run may plan for devices this machine does not have.

    Raises:
        LaunchError: more devices asked for than this machine has, or none where they are needed.
    """
    if nodes < 1 or (requested is not None and requested < 1):
        raise LaunchError("--devices and --nodes must be at least 1")
    if cpu or (not names and requested is None and nodes == 1):
        notes = [] if cpu else ["no CUDA device is visible: training on the CPU"]
        return Devices("cpu", requested or 1, nodes), notes
    if not names:
        if plan_only:
            note = "this machine has no CUDA device; planning for those asked for"
            return Devices("cuda", requested or 1, nodes), [note]
        raise LaunchError(
            f"{requested or nodes} CUDA device(s) asked for, but torch sees none here;"
            " check nvidia-smi and that torch is a CUDA build, or give --cpu for CPU processes"
        )
    if requested is not None and requested > len(names) and not plan_only:
        raise LaunchError(f"--devices {requested}: torch sees only {len(names)} here ({', '.join(names)})")
    return Devices("cuda", requested or len(names), nodes, tuple(names)), []


def bf16_supported() -> bool:
    """Whether this machine's CUDA devices have bfloat16 units (Ampere and newer)."""
    import torch

    return all(torch.cuda.get_device_capability(i)[0] >= 8 for i in range(torch.cuda.device_count()))


def precision_flags(precision: str, devices: Devices, bf16_ok: bool = True) -> Tuple[List[str], List[str]]:
    """fairseq's flags for *precision*, and notes to print.

    Raises:
        LaunchError: an unknown precision, or bf16 on CUDA devices without it.
    """
    if precision not in PRECISIONS:
        raise LaunchError(f"--precision {precision}: choose one of auto, {', '.join(PRECISIONS)}")
    notes = []
    if precision in ("bf16", "mem-bf16") and devices.kind == "cuda" and not bf16_ok:
        raise LaunchError(f"--precision {precision}: these CUDA devices have no bfloat16; use fp16 or amp")
    flags = {
        "fp32": [],
        "fp16": ["--fp16", *_FP16_SCALE],
        "mem-fp16": ["--memory-efficient-fp16", *_FP16_SCALE],
        "bf16": ["--bf16"],
        "mem-bf16": ["--memory-efficient-bf16"],
        "amp": ["--amp"],
    }[precision]
    if devices.kind == "cpu" and precision != "fp32":
        if precision == "amp":
            notes.append("amp on the CPU is plain float32 (torch.cuda.amp does nothing there)")
        else:
            notes.append(f"{precision} on the CPU is for tests only: it is far slower than fp32")
        if precision == "fp16":
            # fairseq flattens fp16 gradients into one buffer on torch.cuda.current_device()
            flags = flags + ["--fp16-no-flatten-grads"]
    return flags, notes
