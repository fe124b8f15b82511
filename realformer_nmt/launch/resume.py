"""Which checkpoint a run goes on from, decided before fairseq opens any.

fairseq writes ``checkpoint_last.pt`` by copying the checkpoint it has just saved, and a copy is not atomic: a machine
that dies at that moment leaves a truncated ``checkpoint_last.pt``.  fairseq then stops with a traceback; with the file
deleted by hand it starts again from nothing without a word.  Here the damaged file is set aside, under another name,
and the newest whole checkpoint takes its place.
"""

import logging
import os
import re
import shutil
import time
import zipfile
from dataclasses import dataclass
from typing import List, Optional, Tuple

from . import LaunchError

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
_EPOCH = re.compile(r"checkpoint(\d+)\.pt$")
_UPDATE = re.compile(r"checkpoint_(\d+)_(\d+)\.pt$")


def is_whole(path: str) -> bool:
    """Whether the torch archive at *path* is complete and every part of it matches its CRC-32.

    Nothing is unpickled.  Reading a 3 GB file takes seconds; losing weeks of training takes longer.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            return any(name.endswith("/data.pkl") for name in names) and archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError):
        return False


@dataclass(frozen=True)
class Found:
    """The checkpoint to go on from (None: a fresh start) and what to tell the user."""

    path: Optional[str]
    notes: Tuple[str, ...] = ()


def candidates(save_dir: str) -> List[str]:
    """Checkpoints other than the last one that training can go on from, newest first."""
    found = []
    with os.scandir(save_dir) as entries:
        for entry in entries:
            if entry.is_file() and (_EPOCH.match(entry.name) or _UPDATE.match(entry.name)):
                found.append((entry.stat().st_mtime_ns, entry.path))
    best = os.path.join(save_dir, "checkpoint_best.pt")
    if os.path.isfile(best):
        found.append((os.stat(best).st_mtime_ns, best))
    return [path for _, path in sorted(found, reverse=True)]


def check_restore_file(path: str, save_dir: str) -> str:
    """What a ``--restore-file`` of the user's will do, in words.

    fairseq takes a file that is not there for a fresh start, without a word.  And it takes the file at every start: a job
    that is stopped and started again would go back to it each time.

    Raises:
        LaunchError: *path* is missing or damaged, or *save_dir* has a checkpoint_last.pt that would be left behind.
    """
    if not os.path.isfile(path):
        raise LaunchError(f"--restore-file {path} is not there; fairseq would start again from update 0")
    with open(path, "rb") as file:
        start = file.read(2)
    # torch before 1.6 wrote another format, which has no checksums to check
    if start in (b"", b"PK") and not is_whole(path):
        raise LaunchError(f"--restore-file {path} is damaged (cut short, or its checksums do not match)")
    last = os.path.join(save_dir, LAST)
    if os.path.exists(last):
        raise LaunchError(
            f"--restore-file {path} would go back behind {last}: leave it out to go on from there,"
            " or choose another --save-dir (to go back, move the newer checkpoints away)"
        )
    return f"from {path}"


def prepare_resume(save_dir: str, plan_only: bool = False) -> Found:
    """Make sure that ``checkpoint_last.pt`` in *save_dir* is whole, or replace it by the newest checkpoint that is.

    A damaged ``checkpoint_last.pt`` is renamed, never deleted.  Left-over ``.tmp`` files of an interrupted save are
    removed.  With *plan_only* nothing is changed.

    Raises:
        LaunchError: there are checkpoints, but none is whole: the run would start over.
    """
    if not os.path.isdir(save_dir):
        return Found(None)
    last = os.path.join(save_dir, LAST)
    notes = []
    if not plan_only:
        for name in os.listdir(save_dir):
            # two kinds of half-written file: fairseq's own and ours
            if name.endswith(".pt.tmp"):
                os.remove(os.path.join(save_dir, name))
                notes.append(f"removed {name}, left by an interrupted save")
    if os.path.isfile(last) and is_whole(last):
        return Found(last, tuple(notes))

    others = candidates(save_dir)
    if not os.path.exists(last) and not others:
        return Found(None, tuple(notes))
    good = next((path for path in others if is_whole(path)), None)
    what = "is missing" if not os.path.exists(last) else "is damaged (cut short, or its checksums do not match)"
    if good is None:
        raise LaunchError(
            f"{last} {what} and no other checkpoint there is whole: nothing to go on from."
            f" Restore one from a backup, or move {save_dir} away to start again from update 0"
        )
    if plan_only:
        return Found(good, (f"WARNING: {last} {what}; would go on from {os.path.basename(good)}",))
    if os.path.exists(last):
        aside = f"{last}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
        os.replace(last, aside)
        what += f" and was renamed {os.path.basename(aside)}"
    # A copy, not a link: fairseq later overwrites checkpoint_last.pt in place, which would reach through a hard link.
    shutil.copyfile(good, last + ".tmp")
    os.replace(last + ".tmp", last)
    notes.append(f"WARNING: {last} {what}; going on from {os.path.basename(good)}")
    return Found(last, tuple(notes))
