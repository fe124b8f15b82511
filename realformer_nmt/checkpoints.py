"""Reading fairseq checkpoints with torch's safe loader.

A checkpoint is data from elsewhere: reading one must never run code that it carries. torch.load has refused everything
but tensors and plain containers since torch 2.6; a fairseq checkpoint also holds an ``argparse.Namespace`` and, in its
meters, numpy scalars and arrays (--eval-bleu keeps its n-gram counts), so exactly those are added to the allow-list
here. Nothing in this project passes ``weights_only=False``.
"""

import argparse
import pickle
import re
import sys

import numpy as np
import torch

from .errors import RealFormerError


class CheckpointError(RealFormerError):
    """A checkpoint file that cannot or must not be read; the message is one line that names the file and the reason."""


def allow_fairseq_globals():
    """Add to torch's safe loader what a fairseq checkpoint holds besides tensors. Calling it again changes nothing.

    Allowed: ``argparse.Namespace`` and numpy's scalar and array constructors, ``dtype`` and the numeric dtype classes.
    None of them can call anything else.
    """
    multiarray = (getattr(np, "_core", None) or np.core).multiarray  # numpy 2 renamed numpy.core
    constructors = {"scalar": multiarray.scalar, "_reconstruct": multiarray._reconstruct}
    numeric = [type(np.dtype(code)) for code in "?bBhHiIlLqQefd"]
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            np.dtype,
            np.ndarray,
            *numeric,
            # files written under the other numpy major version name them by the other path
            *(
                (function, f"numpy.{core}.multiarray.{name}")
                for name, function in constructors.items()
                for core in ("core", "_core")
            ),
        ]
    )


def describe_load_failure(error, path):
    """One line that says why ``torch.load`` gave up on ``path`` (str) with ``error`` (an exception)."""
    text = str(error)
    if isinstance(error, FileNotFoundError) or text.startswith("Model file not found"):
        return f"checkpoint {path}: no such file"
    if isinstance(error, pickle.UnpicklingError) and "Weights only load failed" in text:
        found = re.search(r"(?:Unsupported global: GLOBAL|GLOBAL) ([\w.]+)", text)
        if found:
            return (
                f"checkpoint {path}: refused, it asks to load {found.group(1)!r}, which could run code; "
                "use a file that holds only tensors and settings"
            )
        return f"checkpoint {path}: refused, it is not a plain tensor file (damaged, or it carries code)"
    first = text.strip().splitlines()[0][:160] if text.strip() else type(error).__name__
    if isinstance(error, (KeyError, TypeError, AttributeError, IndexError)) or first.startswith("Neither args nor cfg"):
        return f"checkpoint {path}: not a whole fairseq checkpoint ({type(error).__name__}: {first}); use another file"
    return f"checkpoint {path}: damaged or truncated ({first}); use another checkpoint"


def load_checkpoint(path, mmap=None):
    """Read a checkpoint file onto the CPU without ever running code from it.

    Args:
        path (str): file written by fairseq or by scripts/average_checkpoints.py
        mmap (bool, optional): map tensor storages from disk instead of reading them

    Returns:
        dict: the checkpoint's content ("model", "cfg", "args", ...)

    Raises:
        CheckpointError: missing, damaged, truncated, or holding anything that the safe loader does not allow
    """
    allow_fairseq_globals()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises many types for a damaged file; each becomes one clear line
        raise CheckpointError(describe_load_failure(error, path)) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path}: holds a {type(state).__name__}, not a checkpoint's dictionary")
    return state


def _path_being_loaded(traceback):
    """The file that fairseq was reading or looking for where ``traceback`` ends, or None."""
    path = None
    while traceback is not None:
        frame, last = traceback.tb_frame, traceback.tb_next is None
        if frame.f_code.co_name == "load_checkpoint_to_cpu":
            path = frame.f_locals.get("path")
        elif frame.f_code.co_name == "load_model_ensemble_and_task" and last:  # not: a mistake in building the model
            path = frame.f_locals.get("filename")
        traceback = traceback.tb_next
    return path


def install_one_line_errors():
    """Make the commands end with one clear line, not a stack trace, for a refused checkpoint or a refused flag.

    fairseq's commands let exceptions reach the interpreter; this wraps ``sys.excepthook`` (once) for
    :class:`RealFormerError` and for errors raised inside fairseq's checkpoint reader. All else is shown as before. The
    exit status stays 1.
    """
    if getattr(sys.excepthook, "_realformer", False):
        return
    previous = sys.excepthook

    def hook(kind, error, traceback):
        path = _path_being_loaded(traceback)
        if isinstance(error.__context__, RealFormerError) and str(error).startswith("Cannot load model parameters"):
            # the trainer's own words name the file, and the error behind it says what does not fit
            print(f"realformer_nmt: {str(error).split(';')[0]}: {error.__context__}", file=sys.stderr)
        elif isinstance(error, RealFormerError):
            print(f"realformer_nmt: {error}", file=sys.stderr)
        elif path is not None and isinstance(error, Exception):
            print(f"realformer_nmt: {describe_load_failure(error, path)}", file=sys.stderr)
        else:
            previous(kind, error, traceback)

    hook._realformer = True
    sys.excepthook = hook
