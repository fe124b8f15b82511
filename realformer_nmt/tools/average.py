"""Average the parameters of several fairseq checkpoints into one.

Flags and result are those of fairseq's own ``scripts/average_checkpoints.py``. What differs: sums are kept in
float32 for half-precision files too, tied parameters stay tied in the file (fairseq's script writes each of them
out in full), files are read with torch's safe loader, and the result is written atomically.
"""

import argparse
import os
import re
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch

from realformer_nmt.checkpoints import load_checkpoint
from realformer_nmt.tools.files import ToolError, atomic_path, run_main

EPOCH_NAME = re.compile(r"checkpoint(\d+)\.pt")
UPDATE_NAME = re.compile(r"checkpoint_\d+_(\d+)\.pt")


def find_checkpoints(directory, count, update_based=False, upper_bound=None):
    """Paths of the last ``count`` epoch (or update) checkpoints in ``directory``, newest first.

    Args:
        update_based: look for ``checkpoint_<epoch>_<update>.pt`` rather than ``checkpoint<epoch>.pt``.
        upper_bound: ignore checkpoints after this epoch (or update), as in fairseq.

    Raises:
        ToolError: not a directory, or fewer than ``count`` such checkpoints.
    """
    directory = Path(directory)
    if count < 1:
        raise ToolError(f"the number of checkpoints to average must be 1 or more, not {count}")
    if not directory.is_dir():
        raise ToolError(f"{directory}: is not a directory of checkpoints")
    pattern = UPDATE_NAME if update_based else EPOCH_NAME
    found = []
    for name in os.listdir(directory):
        match = pattern.fullmatch(name)
        if match and (upper_bound is None or int(match.group(1)) <= upper_bound):
            found.append((int(match.group(1)), name))
    if len(found) < count:
        kind = "update" if update_based else "epoch"
        limit = "" if upper_bound is None else f" up to {kind} {upper_bound}"
        raise ToolError(f"{directory}: holds {len(found)} {kind} checkpoints{limit}, but {count} were asked for")
    return [directory / name for _, name in sorted(found, reverse=True)[:count]]


# Settings that leave names and shapes of parameters as they are and change what a model computes with them.
COMPUTING = (
    "residual_attention", "residual_attention_sites", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_normalize_before", "decoder_normalize_before", "activation_fn", "no_scale_embedding",
)  # fmt: skip


def computing_settings(checkpoint):
    """Those of :data:`COMPUTING` that a checkpoint (dict) holds."""
    cfg = checkpoint.get("cfg")
    settings = (cfg.get("model") if isinstance(cfg, dict) else None) or checkpoint.get("args")
    settings = settings if isinstance(settings, dict) else getattr(settings, "__dict__", {})
    found = {name: settings[name] for name in COMPUTING if name in settings}
    if isinstance(found.get("residual_attention_sites"), str):
        found["residual_attention_sites"] = ",".join(sorted(set(found["residual_attention_sites"].split(","))))
    return found


def check_same_settings(first, first_path, settings, path):
    """Compare two models' :func:`computing_settings`.

    Raises:
        ToolError: both have a setting, and it differs.
    """
    for name in first:
        if settings.get(name, first[name]) != first[name]:
            flag = "--" + name.replace("_", "-")
            raise ToolError(
                f"{path}: is another model than {first_path}: {flag} was {settings[name]} in its training, not {first[name]}"
            )


def tied_groups(parameters):
    """Map each parameter's name to the first name that shares its very memory (itself where untied)."""
    first_name, owner = {}, {}
    for name, tensor in parameters.items():
        memory = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        # Tensors without elements have no memory of their own to share.
        owner[name] = first_name.setdefault(memory, name) if tensor.numel() else name
    return owner


class ParameterAverage:
    """Running sum of models' parameters; memory is one model's, however many are added.

    Floating-point parameters are summed in float32 (float64 ones in float64) and divided once at the end;
    integers are summed in int64 and divided rounding down, as fairseq does; booleans must be equal in all files.
    """

    def __init__(self):
        self.count = 0
        self.sums = OrderedDict()  # one entry a group of tied parameters
        self.owner = {}  # parameter name -> name in self.sums
        self.dtypes = {}
        self.first = None

    def add(self, parameters, path):
        """Add one model's parameters (a mapping of names to tensors), read from ``path``.

        Raises:
            ToolError: names, shapes, types or tied parameters differ from the first model's, or a value is NaN.
                Nothing is changed then.
        """
        for name, tensor in parameters.items():
            if not torch.is_tensor(tensor):
                raise ToolError(f"{path}: entry {name} of the model is a {type(tensor).__name__}, not a tensor")
        if self.count == 0:
            self.first = path
            self.owner = tied_groups(parameters)
            self.dtypes = {name: tensor.dtype for name, tensor in parameters.items()}
        else:
            self._check_same_model(parameters, path)
        for name, tensor in parameters.items():
            if self.owner[name] == name and tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
                raise ToolError(f"{path}: parameter {name} holds NaN: training had diverged, leave this file out")
        for name, tensor in parameters.items():
            if self.owner[name] != name:
                continue
            if self.count == 0:
                # A contiguous copy: the file's tensor may be a view of a much larger storage, or memory-mapped.
                self.sums[name] = torch.empty(tensor.shape, dtype=_sum_dtype(tensor.dtype)).copy_(tensor)
            elif tensor.dtype != torch.bool:
                self.sums[name] += tensor.to(self.sums[name].dtype)
        self.count += 1

    def _check_same_model(self, parameters, path):
        if parameters.keys() != self.owner.keys():
            extra = sorted(parameters.keys() - self.owner.keys())
            missing = sorted(self.owner.keys() - parameters.keys())
            parts = [f"{word} {_some(names)}" for word, names in (("lacks", missing), ("has also", extra)) if names]
            raise ToolError(f"{path}: is another model than {self.first}: it {' and '.join(parts)}")
        owner = tied_groups(parameters)
        for name, tensor in parameters.items():
            expected = self.sums[self.owner[name]]
            if tensor.shape != expected.shape:
                raise ToolError(
                    f"{path}: parameter {name} has shape {tuple(tensor.shape)}, but {tuple(expected.shape)} in {self.first}"
                )
            if tensor.dtype != self.dtypes[name]:
                raise ToolError(f"{path}: parameter {name} is {tensor.dtype}, but {self.dtypes[name]} in {self.first}")
            if tensor.dtype == torch.bool and not torch.equal(tensor, expected):
                raise ToolError(f"{path}: parameter {name} is boolean and differs from that in {self.first}")
            tied_to = self.owner[name]
            if owner[name] != owner[tied_to] and not torch.equal(tensor, parameters[tied_to]):
                raise ToolError(f"{path}: {name} and {tied_to} differ, but are one tied parameter in {self.first}")

    def result(self):
        """The averaged parameters in the first model's order, types and ties. Empties this object.

        Raises:
            ToolError: no model was added.
        """
        if self.count == 0:
            raise ToolError("no checkpoint to average")
        averaged = {}
        for name in list(self.sums):
            total, dtype = self.sums.pop(name), self.dtypes[name]
            if total.is_floating_point() or total.is_complex():
                total.div_(self.count)
            elif dtype != torch.bool:
                total.div_(self.count, rounding_mode="floor")
            averaged[name] = total.to(dtype)
        return OrderedDict((name, averaged[tied_to]) for name, tied_to in self.owner.items())


def _sum_dtype(dtype):
    if dtype == torch.bool or dtype == torch.float64 or dtype.is_complex:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


def _some(names, shown=3):
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def average_checkpoints(paths, progress=None):
    """Average checkpoint files; everything but the parameters is taken from the first, as in fairseq.

    The state of the optimiser is left out: it belongs to one of the files, not to their mean, and only training,
    never generation, reads it.

    Args:
        paths: checkpoint files of one model, read one at a time.
        progress: called as ``progress(index, total, path)`` before each file is read, or None.

    Returns:
        A fairseq checkpoint as a dictionary.

    Raises:
        ToolError, CheckpointError: a file is unreadable, truncated, carries code, or holds another model.
    """
    average, state, first = ParameterAverage(), None, {}
    for index, path in enumerate(paths):
        if progress:
            progress(index, len(paths), path)
        # Mapped, the optimiser's state (two thirds of a file) is never read. Files from before torch 1.6 cannot be.
        checkpoint = load_checkpoint(path, mmap=zipfile.is_zipfile(path))
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
            raise ToolError(f"{path}: is not a fairseq checkpoint (it has no 'model' entry)")
        settings = computing_settings(checkpoint)
        if state is not None:
            check_same_settings(first, paths[0], settings, path)
        average.add(checkpoint["model"], path)
        if state is None:
            first = settings
            state = {key: value for key, value in checkpoint.items() if key not in ("model", "last_optimizer_state")}
            state["last_optimizer_state"] = None
        # Freed before the next is read, so that at most one file is in memory.
        del checkpoint
    parameters = average.result()
    return {**state, "model": parameters}


def save_checkpoint(state, path):
    """Write a checkpoint atomically: ``path`` is the old file or the whole new one, never a part.

    Raises:
        ToolError: the file cannot be written (no space, no permission).
    """
    try:
        with atomic_path(path) as temporary:
            with open(temporary, "wb") as handle:
                torch.save(state, handle)
                handle.flush()
                os.fsync(handle.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise ToolError(f"{path}: cannot be written ({' '.join(str(error).split())})") from error


def get_parser():
    parser = argparse.ArgumentParser(
        prog="average_checkpoints.py",
        description="Average the parameters of fairseq checkpoints into one file that fairseq-generate loads.",
    )
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="checkpoint files; or one directory, with --num-epoch-checkpoints or --num-update-checkpoints",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="file to write (replaced in one step)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--num-epoch-checkpoints", type=int, metavar="N", help="average the last N of checkpoint<epoch>.pt"
    )
    group.add_argument(
        "--num-update-checkpoints", type=int, metavar="N", help="average the last N of checkpoint_<epoch>_<update>.pt"
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="N", help="leave out checkpoints after this epoch (or update)"
    )
    return parser


def select_inputs(args):
    """The files named by the command line, in the order they are averaged (the first gives the settings).

    Raises:
        ToolError: flags that do not go together, or no such files.
    """
    count = args.num_epoch_checkpoints if args.num_epoch_checkpoints is not None else args.num_update_checkpoints
    if count is None:
        if args.checkpoint_upper_bound is not None:
            raise ToolError("--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints")
        for path in args.inputs:
            if not Path(path).is_file():
                hint = "; give --num-epoch-checkpoints N for a directory" if Path(path).is_dir() else ""
                raise ToolError(f"{path}: is not a file{hint}")
        return [Path(path) for path in args.inputs]
    if len(args.inputs) != 1:
        raise ToolError("--num-epoch-checkpoints and --num-update-checkpoints take one directory in --inputs")
    return find_checkpoints(
        args.inputs[0], count, args.num_update_checkpoints is not None, args.checkpoint_upper_bound
    )


def main(argv=None):
    args = get_parser().parse_args(argv)
    paths = select_inputs(args)
    if not Path(args.output).name or Path(args.output).is_dir():  # said before the work, not after it
        raise ToolError(f"--output {args.output!r}: is not the name of a file")
    start = time.monotonic()

    def progress(index, total, path):
        print(f"[{index + 1}/{total}] {path}", file=sys.stderr, flush=True)

    state = average_checkpoints(paths, progress)
    save_checkpoint(state, args.output)
    seconds = time.monotonic() - start
    print(f"averaged {len(paths)} checkpoints into {args.output} ({seconds:.1f} s)")


if __name__ == "__main__":
    run_main(main)
