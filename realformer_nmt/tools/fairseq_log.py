"""Read the figures in the logs of fairseq-train: ``--log-format simple`` and ``json``, screen output or ``--log-file``."""

import json
import re
from typing import Dict, List, NamedTuple

from realformer_nmt.tools.files import read_lines

# "2026-01-31 12:00:00 | INFO | valid | ", which --log-file leaves out.
_PREFIX = re.compile(r"^[\d-]+ [\d:,]+ \| [A-Z]+ \| (?P<name>[\w.]+) \| ")
_INNER = re.compile(r"^epoch (\d+):\s+\d+ / \d+ (?P<rest>\S+=.*)$")
_SUMMARY = re.compile(r"^epoch (\d+) \|\s*(?:valid on '(?P<subset>[^']*)' subset \| )?(?P<rest>.*)$")
_DEVICE_MEMORY = re.compile(r"total memory = ([\d.]+) GB")


class Point(NamedTuple):
    """Figures logged at one time.

    kind: "train_inner" (one interval of updates), "train" (one epoch) or the validation subset's name.
    update: number of updates done (``num_updates``).
    values: e.g. loss and nll_loss (base 2), ppl, gnorm, lr, ups (updates/s), bleu; NaN where fairseq printed one.
    """

    kind: str
    epoch: int
    update: int
    values: Dict[str, float]


def parse_line(line):
    """The Point in one line of a log, or None where it holds no figures."""
    prefix = _PREFIX.match(line)
    name = prefix.group("name") if prefix else None
    text = (line[prefix.end() :] if prefix else line).strip()
    if text.startswith("{"):
        return _parse_json(text, name)
    inner = _INNER.match(text)
    if inner:
        pairs = [item.strip().partition("=")[::2] for item in inner.group("rest").split(",")]
        return _point("train_inner", int(inner.group(1)), pairs)
    summary = _SUMMARY.match(text)
    if summary:
        pairs = [item.strip().partition(" ")[::2] for item in summary.group("rest").split("|")]
        return _point(summary.group("subset") or "train", int(summary.group(1)), pairs)
    return None


def _parse_json(text, name):
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict) or "epoch" not in record:
        return None
    epoch = int(record.pop("epoch"))
    record.pop("update", None)  # the epoch with a fraction; simple logs do not have it
    if "num_updates" in record:
        return _point("train_inner", epoch, record.items())
    updates = [key for key in record if key.endswith("_num_updates")]
    if not updates:
        return None
    # The summaries' keys start with the subset's name: "valid_loss", "train_loss".
    kind = updates[0][: -len("_num_updates")]
    start = len(kind) + 1
    return _point(kind, epoch, [(key[start:], value) for key, value in record.items() if key.startswith(kind + "_")])


def _point(kind, epoch, pairs):
    values = {}
    for key, value in pairs:
        try:
            values[key] = float(value)
        except (TypeError, ValueError):
            continue  # "best_loss None" and the like
    update = values.pop("num_updates", None)
    return None if update is None else Point(kind, epoch, int(update), values)


def read_log(path) -> List[Point]:
    """All points of a log in order of their updates.

    After a resume fairseq logs some updates a second time; the later line counts.

    Raises:
        ToolError: the file cannot be read.
    """
    latest = {}
    for line in read_lines(path):
        point = parse_line(line)
        if point:
            latest[point.kind, point.update] = point
    return sorted(latest.values(), key=lambda point: point.update)


def series(points, kind, key):
    """Updates and values of one figure, e.g. ``series(points, "valid", "nll_loss")``."""
    found = [(point.update, point.values[key]) for point in points if point.kind == kind and key in point.values]
    return [update for update, _ in found], [value for _, value in found]


def device_memory_gb(path):
    """Total memory of the GPU that the log names, in GB, or None."""
    for line in read_lines(path):
        match = _DEVICE_MEMORY.search(line)
        if match:
            return float(match.group(1))
    return None
