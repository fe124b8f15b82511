"""Small helpers shared by the command-line tools: atomic writes and one-line errors."""

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path


class ToolError(Exception):
    """A mistake of the caller's (a bad file, flag or input), told in one line."""


@contextlib.contextmanager
def atomic_path(path):
    """Yield a temporary path beside ``path``; rename it to ``path`` on success, delete it on failure.

    A reader therefore sees the old file or the whole new one, never a part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: matplotlib and others choose the format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path, text):
    """Write ``text`` (UTF-8, ``\\n`` line ends) to ``path`` atomically."""
    with atomic_path(path) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as handle:
            handle.write(text)


def write_lines(path, lines):
    """Write one line an item to ``path`` atomically."""
    write_text(path, "".join(line + "\n" for line in lines))


def write_json(path, value):
    """Write ``value`` as indented JSON to ``path`` atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_lines(path):
    """Lines of a UTF-8 text file without their ends, split at ``\\n`` only (Unicode has other separators).

    Raises:
        ToolError: the file is missing, unreadable or not UTF-8.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as handle:
            lines = handle.read().split("\n")
    except OSError as error:
        raise ToolError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ToolError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    if lines and lines[-1] == "":
        lines.pop()
    return [line.rstrip("\r") for line in lines]


def quiet_libraries():
    """Show warnings only: some of fairseq's imports set the root logger to show everything, matplotlib's too.

    To be called after those imports.
    """
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def run_main(main, argv=None, program=None):
    """Call ``main(argv)``; print an expected failure as one line on stderr and exit with status 1.

    ``program`` is what the user typed, where it is not Python's own script.
    """
    # Imported late: its module pulls in torch, which not every tool needs.
    expected = [ToolError, OSError]
    with contextlib.suppress(ImportError):
        from realformer_nmt.checkpoints import CheckpointError

        expected.append(CheckpointError)
    program = program or Path(sys.argv[0]).name

    def stop(number, frame):
        raise KeyboardInterrupt

    # As if interrupted by hand: temporary files are removed and children stopped.
    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        status = main(argv)
    except BrokenPipeError:
        # The reader (head, less) left early: not an error of ours, and nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except tuple(expected) as error:
        print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        status = 130
    finally:
        signal.signal(signal.SIGTERM, earlier)
    sys.exit(status or 0)
