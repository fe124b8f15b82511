"""Running fairseq's commands in tests, with this project's plug-in.

``command`` starts the installed program as a shell would. ``forked`` runs the same entry point in a new process forked
from one that has torch and fairseq imported already: what happens inside is the same, 4 seconds of imports are saved.
"""

import contextlib
import hashlib
import importlib
import logging
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
USER_DIR = ROOT / "realformer_nmt"
# all that takes long to import; fairseq_cli's own modules are left out, because importing them sets up logging
PRELOADED = ["fairseq.options", "fairseq.trainer", "fairseq.sequence_generator", "sacrebleu"]


class Done:
    """A finished command: ``rc``, ``out`` (stdout), ``err`` (stderr), ``text`` (both, one after the other)."""

    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err
        self.text = out + err

    def last_line(self):
        """The last line that was written to stderr."""
        return self.err.rstrip("\n").rsplit("\n", 1)[-1]


def argv_of(name, *args):
    """``("train", databin, ...)`` to the argument vector of fairseq-train with the plug-in."""
    ours = () if name in ("preprocess", "score") else ("--user-dir", str(USER_DIR), "--cpu")
    return [f"fairseq-{name}", *map(str, args), *ours]


def installed(program):
    """Path of a console script beside the running interpreter."""
    return os.path.join(os.path.dirname(sys.executable), program)


def environment():
    """The shell's environment for a program: this interpreter's tools, one thread, no GPU."""
    environ = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", CUDA_VISIBLE_DEVICES="")
    environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ["PATH"]
    return environ


def weights(path):
    """The model's weights in a checkpoint, read with torch's safe loader."""
    from realformer_nmt.checkpoints import load_checkpoint

    return load_checkpoint(str(path))["model"]


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
    context.set_forkserver_preload(PRELOADED)
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
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, stream) for stream in ("in", "out", "err")]
        with open(paths[0], "w", encoding="utf-8") as handle:
            handle.write(stdin)
        for number, path in enumerate(paths):
            descriptor = os.open(path, os.O_RDONLY if number == 0 else os.O_CREAT | os.O_WRONLY)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
        os.chdir(ROOT)
        sys.argv = argv
        logging.root.handlers.clear()
        # a child of the fork server would start data loader workers through it; a plain process forks them
        multiprocessing.set_start_method("fork", force=True)
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


# one tiny model and schedule that learns the corpus of command_corpus.py in 300 updates
TINY = [
    "--arch", "realformer_tiny", "--share-all-embeddings", "--optimizer", "radam", "--adam-betas", "(0.9, 0.98)",
    "--lr", "0.005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "60", "--max-tokens", "400",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--dropout", "0.05", "--seed", "1",
    "--log-format", "simple", "--log-interval", "10", "--num-workers", "0",
]  # fmt: skip


def preprocess(run, corpus, databin):
    """Make ``databin`` from write_corpus's folder with fairseq-preprocess; ``run`` is command or forked."""
    run(
        "preprocess", "--source-lang", "en", "--target-lang", "fr", "--joined-dictionary", "--workers", 1,
        "--trainpref", corpus / "train", "--validpref", corpus / "valid", "--testpref", corpus / "test",
        "--destdir", databin,
    )  # fmt: skip
    return databin


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
