"""Pairs of lines in blocks, and an ordered parallel map over them whose memory does not grow."""
import collections
import concurrent.futures
import gzip
import multiprocessing
import os
import sys
import threading
import time
import zlib
from concurrent.futures.process import BrokenProcessPool

from data_prep.errors import DataPrepError

#: Lines a block at most.
BLOCK_LINES = 4000
#: Bytes a side of a block at most (reached only by unusually long lines).
BLOCK_BYTES = 4 << 20
#: A line longer than this many bytes is no sentence; its pair is emptied.
MAX_LINE_BYTES = 1 << 16


def open_bytes(path):
    """`path` for reading as bytes, through gzip where its first two bytes say so."""
    handle = open(path, "rb")
    if handle.peek(2)[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=handle)
    return handle


def _line(handle):
    """The next line with its ``\\n``; b"" at the end; None for one that is longer than MAX_LINE_BYTES."""
    line = handle.readline(MAX_LINE_BYTES + 1)
    if line.endswith(b"\n") or not line:
        return line
    if len(line) <= MAX_LINE_BYTES:
        return line + b"\n"  # the file's last line has no end
    while line and not line.endswith(b"\n"):
        line = handle.readline(MAX_LINE_BYTES)
    return None


def read_pairs(source, target, limit=None):
    """Yields blocks (source bytes, target bytes, number of pairs, over-long pairs, bytes of the files read).

    Lines end with ``\\n`` only. An over-long pair is empty on both sides. Stops after `limit` pairs. Raises
    DataPrepError where the two files have different numbers of lines or one is broken gzip.
    """
    try:
        with open_bytes(source) as src, open_bytes(target) as tgt:
            raw = [handle.fileobj if isinstance(handle, gzip.GzipFile) else handle for handle in (src, tgt)]
            total = position = 0
            while limit is None or total < limit:
                block = BLOCK_LINES if limit is None else min(BLOCK_LINES, limit - total)
                sides, size, too_long, ended = ([], []), 0, 0, False
                while len(sides[0]) < block and size < BLOCK_BYTES:
                    first, second = _line(src), _line(tgt)
                    if first == b"" or second == b"":
                        if first != second:
                            _mismatch(source, target, total + len(sides[0]), (src, first), (tgt, second))
                        ended = True
                        break
                    if first is None or second is None:
                        too_long += 1
                        first = second = b"\n"
                    sides[0].append(first)
                    sides[1].append(second)
                    size += len(first) + len(second)
                total += len(sides[0])
                now = sum(handle.tell() for handle in raw)
                if sides[0]:
                    yield b"".join(sides[0]), b"".join(sides[1]), len(sides[0]), too_long, now - position
                position = now
                if ended:
                    return
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataPrepError("%s or %s: broken gzip file (%s); fetch it again" % (source, target, error)) from None


def _mismatch(source, target, total, *sides):
    counts = []
    for handle, line in sides:
        count = total
        while line != b"":
            count += 1
            line = _line(handle)
        counts.append(count)
    raise DataPrepError("%s has %d lines but %s has %d: the sides do not pair up; give files with equal numbers"
                        % (source, counts[0], target, counts[1]))


def read_blocks(paths, block_bytes=BLOCK_BYTES):
    """Yields the files' text in blocks of whole lines of about `block_bytes` bytes."""
    for path in paths:
        with open_bytes(path) as handle:
            rest = b""
            while True:
                data = handle.read(block_bytes)
                if not data:
                    break
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield rest + data[:cut]
                    rest = data[cut:]
                else:
                    rest += data
            if rest:
                yield rest + b"\n"


def size_of(paths):
    """Bytes on disk of the files together."""
    return sum(os.path.getsize(path) for path in paths)


def _die_with(parent):
    """Ends this worker soon after its parent is gone: killed outright, it could not tell its workers itself."""
    def watch():
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ordered_map(function, items, workers):
    """Yields (item, function(item)) in the order of `items`, computed by `workers` processes.

    At most two items a worker are under way or waiting, so that memory stays flat whatever the input's size.
    `function` must be picklable. With one worker everything runs in this process. Raises DataPrepError where a
    worker is killed (for memory, most often).
    """
    if workers <= 1:
        for item in items:
            yield item, function(item)
        return
    # Forked on Linux, whatever Python's default (forkserver from 3.14 on): workers share the tables built before, and
    # have this process as their parent. macOS only takes spawn.
    context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with,
                                                initargs=(os.getpid(),)) as pool:
        waiting = collections.deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) >= 2 * workers + 1:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        except BrokenProcessPool:
            raise DataPrepError("a worker process was killed (out of memory?); rerun with fewer --workers to go "
                                "on from the last finished stage") from None
        finally:
            for _, future in waiting:
                future.cancel()
