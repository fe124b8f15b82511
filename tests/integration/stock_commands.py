"""Running fairseq's commands in tests, with this project's plug-in.

``command`` starts the installed program as a shell would. ``forked`` runs the same entry point in a new process forked
from one that has torch and fairseq imported already: what happens inside is the same, 4 seconds of imports are saved.
"""

import contextlib
import hashlib
import importlib
import multiprocessing
import os
import re
import subprocess
import sys

from train_tools import ROOT, USER_DIR, environment

ENTRY_POINTS = ("preprocess", "train", "validate", "generate", "interactive", "score")


class Done:
    """A finished command: ``rc``, ``out`` (stdout), ``err`` (stderr)."""

    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err

    def last_line(self):
        """The last line that was written to stderr."""
        return self.err.rstrip("\n").rsplit("\n", 1)[-1]


def argv_of(name, *args):
    """``("train", databin, ...)`` to the argument vector of fairseq-train with the plug-in."""
    user_dir = () if name in ("preprocess", "score") else ("--user-dir", USER_DIR)
    return [f"fairseq-{name}", *map(str, args), *user_dir]


def installed(program):
    """Path of a console script beside the running interpreter."""
    return os.path.join(os.path.dirname(sys.executable), program)


def command(name, *args, stdin=None, ok=True, timeout=120):
    """Run fairseq-``name`` as its own program; with ``ok`` it must succeed."""
    argv = argv_of(name, *args)
    return program([installed(argv[0]), *argv[1:]], stdin, ok, timeout)


def program(argv, stdin=None, ok=True, timeout=120):
    """Run any program to its end."""
    got = subprocess.run(
        list(map(str, argv)), env=environment(), input=stdin, capture_output=True, text=True, timeout=timeout, cwd=ROOT
    )
    return _check(Done(got.returncode, got.stdout, got.stderr), argv, ok)


def forked(name, *args, stdin="", ok=True, timeout=120):
    """Run fairseq-``name`` in a process forked with the imports done; as :func:`command` otherwise."""
    context = multiprocessing.get_context("forkserver")
    os.environ["OMP_NUM_THREADS"] = "1"  # the fork server inherits it when it starts, at the first call
    context.set_forkserver_preload([f"fairseq_cli.{entry}" for entry in ENTRY_POINTS])
    argv = argv_of(name, *args)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_entry_point, args=(name, argv, stdin, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise AssertionError(f"no result within {timeout} s: {' '.join(argv)}")
        done = Done(*ours.recv())
    finally:
        process.kill()
        process.join()
    return _check(done, argv, ok)


def _check(done, argv, ok):
    if ok:
        assert done.rc == 0, f"{' '.join(map(str, argv))}\n{done.out[-3000:]}\n{done.err[-6000:]}"
    return done


def _run_entry_point(name, argv, stdin, pipe):
    """In the forked process: what the console script and the interpreter's exit do, with the streams kept apart."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, stream) for stream in ("in", "out", "err")]
        with open(paths[0], "w", encoding="utf-8") as handle:
            handle.write(stdin)
        for number, (path, mode) in enumerate(zip(paths, (os.O_RDONLY, os.O_CREAT | os.O_WRONLY, os.O_CREAT | os.O_WRONLY))):
            descriptor = os.open(path, mode)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
        os.chdir(ROOT)
        sys.argv = argv
        rc = 0
        try:
            importlib.import_module(f"fairseq_cli.{name}").cli_main()
        except SystemExit as stop:
            rc = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            rc = 1
        sys.stdout.flush()
        sys.stderr.flush()
        texts = []
        for path in paths[1:]:
            with open(path, encoding="utf-8", errors="replace") as handle:
                texts.append(handle.read())
        pipe.send((rc, *texts))


def hypotheses(text):
    """``{sentence number: [(score, translation), ...]}`` from fairseq-generate's or -interactive's H- lines."""
    found = {}
    for number, score, sentence in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", text, re.M):
        found.setdefault(int(number), []).append((float(score), sentence))
    return found


def numbered(text, letter):
    """``{sentence number: text}`` from the lines ``letter-number<tab>text`` (the first of each number)."""
    found = {}
    for number, value in re.findall(rf"^{letter}-(\d+)\t(.*)$", text, re.M):
        found.setdefault(int(number), value)
    return found


def bleu(text):
    """The BLEU score that fairseq-generate or fairseq-score prints last."""
    return float(re.findall(r"BLEU\d? = ([\d.]+)", text)[-1])


def omega_lines(text):
    """The log lines that tell omegas, without their time stamps."""
    return [line.split("ADMIN omega, ")[1] for line in text.splitlines() if "ADMIN omega, " in line]


def digest(path):
    """SHA-256 of a file."""
    with open(path, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()


@contextlib.contextmanager
def unchanged(*paths):
    """The files must be the same, byte for byte, after the block."""
    before = [digest(path) for path in paths]
    yield
    assert [digest(path) for path in paths] == before
