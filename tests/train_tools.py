"""Running fairseq-train and the launcher in tests: as real processes where they are killed, else in this process."""

import logging
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
USER_DIR = str(ROOT / "realformer_nmt")
LAUNCHER = str(ROOT / "scripts" / "train_wmt14_en_fr.sh")

# one tiny model and schedule for all tests of training; dropout is left on unless a test turns it off
MODEL = ["--arch", "realformer_tiny", "--optimizer", "radam", "--lr", "0.001", "--max-tokens", "100", "--seed", "7", "--num-workers", "0"]
QUIET = ["--log-format", "simple", "--log-interval", "1", "--disable-validation", "--cpu", "--save-interval", "1000"]
# without it fairseq makes other batches in a process that resumes in a later epoch
EXACT = ["--update-epoch-batch-itr", "True"]


def environment(**extra):
    """The test's own interpreter and tree; one thread, so that sums are always taken in the same order."""
    environ = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONPATH=str(ROOT))
    environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ["PATH"]
    environ.setdefault("VIRTUAL_ENV", sys.prefix)  # the launcher's shell part then takes "python" from PATH
    environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environ.pop(name, None)
    environ.update(extra)
    return environ


def launcher(databin, save_dir, *flags):
    """Command line of scripts/train_wmt14_en_fr.sh with the tiny model."""
    return [
        "bash", LAUNCHER, "--data-bin", str(databin), "--save-dir", str(save_dir), "--cpu", "--max-tokens", "100",
        "--global-batch", "200", *MODEL[:2], "--lr", "0.001", "--warmup-updates", "1", "--seed", "7",
        "--log-interval", "1", "--disable-validation", "--num-workers", "0", *flags,
    ]  # fmt: skip


def run(command, ok=True, timeout=300, **extra):
    """Run *command* to its end; returns the finished process with its output joined."""
    done = subprocess.run(
        command, env=environment(**extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    if ok:
        assert done.returncode == 0, done.stdout[-6000:]
    return done


class Background:
    """A training process whose log can be waited for.

    *command* is a command line, or a function to run in a fork of this process: fairseq takes seconds to import.
    """

    def __init__(self, command, log, **extra):
        self.log = pathlib.Path(log)
        self.log.touch()
        self.pid = _fork(command, self.log) if callable(command) else _spawn(command, self.log, extra)
        self.status = None

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_for_update(self, number, timeout=240):
        """Wait until the log shows *number* updates or more."""
        end = time.time() + timeout
        while time.time() < end:
            seen = [int(n) for n in re.findall(r"num_updates=(\d+)", self.text())]
            if seen and max(seen) >= number:
                return
            if self.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"update {number} was not reached:\n{self.text()[-6000:]}")

    def poll(self):
        """Exit status, negative for a signal, or None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, timeout=900):
        end = time.time() + timeout
        while self.poll() is None:
            assert time.time() < end, f"still running after {timeout} s:\n{self.text()[-6000:]}"
            time.sleep(0.02)
        return self.status


def _spawn(command, log, extra):
    with open(log, "wb") as out:
        return subprocess.Popen(
            command, env=environment(**extra), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ).pid


def _fork(function, log):
    import fairseq_cli.train  # noqa: F401  imported once, here, and shared by every fork

    import realformer_nmt  # noqa: F401

    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
        # an earlier test in this process may have quietened fairseq's loggers; a real command starts with none
        logging.disable(logging.NOTSET)
        for name in list(logging.root.manager.loggerDict):
            logging.getLogger(name).setLevel(logging.NOTSET)
            logging.getLogger(name).disabled = False
            logging.getLogger(name).propagate = True
        logging.basicConfig(format="%(asctime)s | %(levelname)s | %(name)s | %(message)s", level="INFO", stream=sys.stdout, force=True)
        function()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)


class Train:
    """The stock fairseq-train command with this project's plug-in, to be run in a fork or printed as a command line."""

    def __init__(self, databin, save_dir, *flags, before=None):
        self.arguments = [
            str(databin), "--user-dir", USER_DIR, "--save-dir", str(save_dir), *MODEL, *QUIET, *EXACT, *flags,
        ]  # fmt: skip
        self.before = before

    def __call__(self):
        from fairseq_cli.train import cli_main

        import torch

        torch.set_num_threads(1)
        sys.argv = ["fairseq-train", *self.arguments]
        if self.before:
            self.before()
        cli_main()


def train(tmp_path, databin, save_dir, *flags, ok=True, before=None):
    """Run fairseq-train to its end in a fork; returns its exit status and log."""
    job = Background(Train(databin, save_dir, *flags, before=before), tmp_path / "train.log")
    status = job.wait()
    if ok:
        assert status == 0, job.text()[-6000:]
    return status, job.text()


def losses(text):
    """Training loss by update, as fairseq prints it."""
    return re.findall(r"train_inner \| .*? loss=([\d.]+).*?num_updates=(\d+)", text)


def weights(path):
    """Model weights of a checkpoint, read with torch's safe loader."""
    from realformer_nmt.checkpoints import load_checkpoint

    return load_checkpoint(str(path))["model"]


def assert_same_weights(first, second, atol=0.0):
    """Equal bit for bit, or within *atol*."""
    import torch

    a, b = weights(first), weights(second)
    assert a.keys() == b.keys()
    for name in a:
        if atol == 0.0:
            assert torch.equal(a[name], b[name]), name
        else:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol, msg=lambda m: f"{name}: {m}")
