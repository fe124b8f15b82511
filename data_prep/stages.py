"""Stages that are done once: outputs appear whole or not at all, and a stamp says what they were made from.

A stage writes its outputs under temporary names. When all are written and flushed to disk they are renamed, and
only then the stamp is: a JSON file with a key (a hash of the stage's inputs, flags and code version), the sizes
of the outputs and the counts for the manifest. A run killed anywhere leaves a stage either stamped or to be done
again from its inputs, and gives the same bytes either way.
"""
import errno
import fcntl
import hashlib
import json
import os
import sys
import time

from data_prep.errors import DataPrepError

#: Goes into every key. Raise it when a stage's output changes for the same input.
CODE_VERSION = 1


def identity(path):
    """What a stage's key holds of a file it did not make: path, size, time of change (nanoseconds)."""
    info = os.stat(path)
    return [os.path.abspath(path), info.st_size, info.st_mtime_ns]


def write_json(path, value):
    """Writes `value` at `path` in one step: never half a file."""
    temporary = path + ".tmp"
    with open(temporary, "w", encoding="utf-8", newline="\n") as out:
        json.dump(value, out, indent=1, sort_keys=True, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def read_json(path):
    """The JSON at `path`, or None where there is none or it cannot be read."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


class Stages:
    """The stages of one output folder.

    root: folder of the intermediate files; stamps lie in root/stamps. Raises DataPrepError where another run
    holds the folder.
    """

    def __init__(self, root):
        self.root = root
        self.stamps = os.path.join(root, "stamps")
        os.makedirs(self.stamps, exist_ok=True)
        # pylint: disable-next=consider-using-with
        self._lock = open(os.path.join(root, "lock"), "w", encoding="utf-8")
        for patience in range(6, -1, -1):  # the workers of a run that was just killed hold it a moment longer
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    print("%s: this file system has no locks (%s); do not start a second run there"
                          % (root, error.strerror), file=sys.stderr)
                    break
                if not patience:
                    raise DataPrepError("%s: another run is preparing this folder; wait for it or give another "
                                        "--out" % root) from None
                time.sleep(0.5)

    def path(self, *names):
        """A path under the root, its folder made."""
        path = os.path.join(self.root, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def run(self, name, params, inputs, outputs, action):
        """Does stage `name` unless a stamp says that it is done; returns its stamp (a dict).

        params: JSON-able flags. inputs: JSON-able identities (stamps' keys, `identity` of files). outputs: final
        paths. action: called with a list of temporary paths, one an output, and returns a dict of counts. It may
        write a folder at a temporary path.
        """
        key = hashlib.sha256(json.dumps([CODE_VERSION, name, params, inputs], sort_keys=True)
                             .encode("utf-8")).hexdigest()
        stamp_path = os.path.join(self.stamps, name.replace("/", "-") + ".json")
        stamp = read_json(stamp_path)
        if stamp and stamp.get("key") == key and stamp.get("sizes") == _sizes(outputs):
            print("%s: already done" % name, file=sys.stderr)
            return stamp
        if os.path.exists(stamp_path):
            os.remove(stamp_path)
        print("%s: start" % name, file=sys.stderr, flush=True)
        temporary = [path + ".tmp" for path in outputs]
        for path in temporary:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            remove(path)
        try:
            counts = action(temporary)
        except (OSError, DataPrepError):
            # A full disk most often: give the half-written space back, so that the message can be acted on.
            for path in temporary:
                remove(path)
            raise
        for path, final in zip(temporary, outputs):
            _flush(path)
            if os.path.isdir(final):
                remove(final)
            os.replace(path, final)
        stamp = {"key": key, "stage": name, "params": params, "sizes": _sizes(outputs), "counts": counts or {}}
        write_json(stamp_path, stamp)
        return stamp


def remove(path):
    """Removes a file or a folder; nothing happens where there is none."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.remove(path)


def files_under(path):
    """The files at or under `path`, sorted."""
    if not os.path.isdir(path):
        return [path]
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


def _sizes(outputs):
    try:
        return [[os.path.basename(name), os.path.getsize(name)]
                for path in outputs for name in files_under(path)]
    except OSError:
        return None


def _flush(path):
    for name in files_under(path):
        with open(name, "rb") as handle:
            os.fsync(handle.fileno())
