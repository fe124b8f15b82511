"""One training at a time in a save-dir."""

import fcntl
import os

from . import LaunchError


def lock_save_dir(save_dir: str) -> int:
    """Take the lock of *save_dir* and return its open file; it is held until every process that has it open ends.

    Raises:
        LaunchError: another training holds it.
    """
    path = os.path.join(save_dir, ".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 64).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise LaunchError(f"{save_dir}: another training (launcher process {holder}) writes there; end it or choose another --save-dir") from None
    except OSError:
        return fd  # a file system without locks: go on unprotected
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
