"""Skip work already done: a stamp file beside a result says from what it was made."""

import json
from pathlib import Path

from realformer_nmt.tools.files import write_json


def fingerprint(path):
    """Path, size and time of a file: changes when the file does, without reading it."""
    status = Path(path).stat()
    return [str(Path(path).resolve()), status.st_size, status.st_mtime_ns]


def is_current(stamp, made_from):
    """Whether ``stamp`` exists and holds ``made_from`` (any JSON value)."""
    try:
        return json.loads(Path(stamp).read_text(encoding="utf-8")) == json.loads(json.dumps(made_from))
    except (OSError, ValueError):
        return False


def write_stamp(stamp, made_from):
    """Record that the result beside ``stamp`` was made from ``made_from``."""
    write_json(stamp, made_from)
