"""A run that dies anywhere, and is started again, leaves the same bytes as one that never died."""
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from data_prep import cli, download, progress, stages
from data_prep.text import process_text
from prep_support import ROOT, run_script, tree

ARGS = ["wmt14_en_fr", "--bpe-merges", "120", "--valid-every", "30", "--keep-raw"]
STEPS = (("rename", os, "replace"), ("remove", os, "remove"), ("flush", stages, "_flush"),
         ("progress", progress.Progress, "add"))


@pytest.fixture
def small(environ):
    for lang in ("en", "fr"):
        process_text("\x01a.\n", lang, True, True, False)  # the tables are built once, before the forks
    return environ


class Result:
    """What a forked run came to: returncode (negative: the signal it died of), its standard error as text, steps."""

    def __init__(self, status, log):
        self.returncode = os.waitstatus_to_exitcode(status)
        self.stderr = log.read_text()
        #: {stage: number of the first step in it}, and how many there were in all under "".
        self.steps = json.loads(self.stderr.strip().split("steps ")[-1]) if self.returncode == 0 else None

    def stage(self):
        """The stage that was under way at the end."""
        return [line for line in self.stderr.split("\n") if line.endswith(": start")][-1][:-len(": start")]


def attempt(number, out, env, workers=1, prepare=None):
    """Runs the command in a forked process that dies by SIGKILL at its `number`-th step that writes.

    A step is a rename, a removal, a flush to disk or a block of lines done. A fork of this process has everything
    imported already. prepare: called in it first.
    """
    log = pathlib.Path(str(out) + ".log")
    child = os.fork()
    if child:
        return Result(os.waitpid(child, 0)[1], log)
    code = 99
    try:
        done = [0]
        os.environ.update(env)
        handle = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)

        def deadly(function):
            def call(*args, **kwargs):
                done[0] += 1
                if done[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)
            return call

        for _, owner, name in STEPS:
            setattr(owner, name, deadly(getattr(owner, name)))
        first, run = {}, stages.Stages.run

        def noting(self, name, *args):
            first[name] = done[0] + 1
            return run(self, name, *args)

        stages.Stages.run = noting
        if prepare:
            prepare()
        code = cli.main([*ARGS, "--out", str(out), "--workers", str(workers)])
        if code == 0:
            print("steps", json.dumps(dict(first, **{"": done[0]})), file=sys.stderr)
    finally:
        os._exit(code)


def test_killed_again_and_again(small, tmp_path):
    """Each run gets a little further than the last before it is killed, until one gets through."""
    whole = attempt(10 ** 6, tmp_path / "whole", small)
    assert whole.returncode == 0, whole.stderr
    cut_in = set()
    for number in range(1, 200):
        result = attempt(number, tmp_path / "cut", small)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
        started = [line for line in result.stderr.split("\n") if line.endswith(": start")]
        cut_in.update(started[-1:])
    assert result.returncode == 0
    assert len(cut_in) >= 3 and number > 10, (number, cut_in)
    assert tree(tmp_path / "cut") == tree(tmp_path / "whole")


def test_killed_once_in_every_stage(small, tmp_path):
    """Killed in the middle of each: the rerun, with another number of workers, gives the same."""
    whole = attempt(10 ** 6, tmp_path / "whole", small)
    names = [name for name in whole.steps if name]
    kinds = {"extract", "tokenise", "words", "learn-bpe", "encode", "references", "binarise"}
    assert {name.split("/")[0] for name in names} == kinds and len(names) > 15
    for place, (name, following) in enumerate(zip(names, [*names[1:], ""])):
        middle = (whole.steps[name] + whole.steps[following]) // 2
        killed = attempt(middle, tmp_path / "cut", small, workers=1 + place % 2)
        assert killed.returncode == -signal.SIGKILL
        assert killed.stage() == name
        again = attempt(10 ** 6, tmp_path / "cut", small, workers=2 - place % 2)
        assert again.returncode == 0, again.stderr
        assert tree(tmp_path / "cut") == tree(tmp_path / "whole"), name
        shutil.rmtree(tmp_path / "cut")


def run(env, out, *more, monkeypatch=None):
    for name in ("DATA_PREP_MIRROR", "DATA_PREP_CHECKSUMS", "DATA_PREP_PAUSE", "DATA_PREP_RETRIES"):
        monkeypatch.setitem(os.environ, name, env[name])
    return cli.main([*ARGS, "--out", str(out), *map(str, more)])


def test_any_number_of_workers_gives_the_same_bytes(small, tmp_path, monkeypatch):
    from data_prep import chunks
    for name, workers, lines in (("one", 1, 4000), ("three", 3, 37), ("two", 2, 1000)):
        monkeypatch.setattr(chunks, "BLOCK_LINES", lines)
        assert run(small, tmp_path / name, "--workers", workers, monkeypatch=monkeypatch) == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two") == tree(tmp_path / "three")


def test_changed_flags_redo_only_what_depends_on_them(small, tmp_path, monkeypatch, capsys):
    run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch)
    first = tree(tmp_path / "out")
    capsys.readouterr()
    run(small, tmp_path / "out", "--workers", 1, "--bpe-merges", 60, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert "tokenise/train-un: already done" in said and "learn-bpe: start" in said and "binarise: start" in said
    run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch)
    assert tree(tmp_path / "out") == first


def test_damaged_output_is_made_again(small, tmp_path, monkeypatch):
    run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch)
    first = tree(tmp_path / "out")
    os.truncate(tmp_path / "out" / "bpe.codes", 10)
    os.remove(tmp_path / "out" / "data-bin" / "dict.fr.txt")
    run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch)
    assert tree(tmp_path / "out") == first


def test_damaged_archive_without_a_known_sum_is_fetched_again(small, server, tmp_path, monkeypatch, capsys):
    data = server.files["test-full.tgz"]
    known = download.expected_sum
    monkeypatch.setattr(download, "expected_sum",
                        lambda archive, sums: None if archive.name == "test-full.tgz" else known(archive, sums))
    server.swap["test-full.tgz"] = [data[:-30]]
    assert run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch) == 0
    assert "damaged archive" in capsys.readouterr().err
    assert [name for name, _, _ in server.log].count("test-full.tgz") == 2
    server.swap["test-full.tgz"] = [data[:-30], data[:-30]]
    assert run(small, tmp_path / "out2", "--workers", 1, monkeypatch=monkeypatch) == 1
    assert "damaged archive" in capsys.readouterr().err and not (tmp_path / "out2" / "manifest.json").exists()


def test_limit(small, server, tmp_path, monkeypatch):
    """--limit reads that many training pairs, and fetches only the archives that hold them."""
    assert run(small, tmp_path / "out", "--limit", 60, "--workers", 1, monkeypatch=monkeypatch) == 0
    assert {name for name, _, _ in server.log} == {"training-parallel-europarl-v7.tgz", "test-full.tgz"}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    counts = {stage["stage"]: stage["counts"] for stage in manifest["stages"]}["tokenise/train-europarl-v7"]
    assert counts["pairs_in"] == 60 and counts["pairs_valid"] == 2


def test_two_runs_at_once(tmp_path, monkeypatch, small, capsys):
    from data_prep.stages import Stages
    held = Stages(str(tmp_path / "out" / "work"))
    assert run(small, tmp_path / "out", monkeypatch=monkeypatch) == 1
    assert "another run" in capsys.readouterr().err
    del held


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(tmp_path, monkeypatch, capsys, code):
    """Some network file systems have none: that is no other run."""
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(stages.fcntl, "flock", flock)
    stages.Stages(str(tmp_path / "work"))
    assert "no locks" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_whatever_way_python_starts_processes(tmp_path, method):
    """Python 3.14 starts workers by a server, whose children have another parent."""
    script = ("import multiprocessing\nfrom data_prep.chunks import ordered_map\nif __name__ == '__main__':\n"
              "    multiprocessing.set_start_method('%s')\n"
              "    print(list(ordered_map(abs, range(-9, 9), 2)))\n" % method)
    (tmp_path / "script.py").write_text(script)
    result = subprocess.run([sys.executable, str(tmp_path / "script.py")], env=dict(os.environ, PYTHONPATH=str(ROOT)),
                            stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert result.stdout == "%s\n" % [(item, abs(item)) for item in range(-9, 9)]


def _full_disk(small, out, prepare):
    result = attempt(10 ** 6, out, small, prepare=prepare)
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().split("\n")[-1]
    assert last.startswith("data_prep: error: no room left") and "Traceback" not in result.stderr
    assert not (out / "manifest.json").exists() and not (out / "data-bin").exists()


def test_full_disk(small, tmp_path):
    """On a tmpfs too small for the text: one clear line; with room made, the rerun gives the usual bytes."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mount)], check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if done.returncode:
        pytest.skip("mounting a tmpfs is not allowed here; test_file_size_limit stands in")
    try:
        _full_disk(small, mount / "out", None)
        subprocess.run(["mount", "-o", "remount,size=100m", str(mount)], check=True)
        assert attempt(10 ** 6, mount / "out", small).returncode == 0
        assert attempt(10 ** 6, tmp_path / "whole", small).returncode == 0
        assert tree(mount / "out") == tree(tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_file_size_limit(small, tmp_path):
    """The same where no file may grow over a limit: whatever needs root or a tmpfs is not needed here."""
    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    _full_disk(small, tmp_path / "out", prepare)
    assert attempt(10 ** 6, tmp_path / "out", small).returncode == 0
    assert attempt(10 ** 6, tmp_path / "whole", small).returncode == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_interrupt_is_one_line(small, tmp_path, monkeypatch, capsys):
    from data_prep import progress

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.Progress, "add", interrupt)
    assert run(small, tmp_path / "out", "--workers", 1, monkeypatch=monkeypatch) == 130
    assert "rerun" in capsys.readouterr().err.strip().split("\n")[-1]


def test_missing_packages_are_named(tmp_path):
    """A Python without the requirements gets a line, not a traceback, from the entry point and from the module."""
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexec %s -S \"$@\"\n" % sys.executable)
    bare.chmod(0o755)
    result = run_script("prepare", "--help", env=dict(os.environ, PYTHON=str(bare)), check=False)
    assert result.returncode == 1 and "requirements.txt" in result.stderr and result.stderr.count("\n") == 1
    module = subprocess.run([str(bare), "-m", "data_prep", "prepare", "--help"], cwd=ROOT, stderr=subprocess.PIPE,
                            text=True, check=False)
    assert module.returncode == 1 and module.stderr.count("\n") == 1
    assert "has no package" in module.stderr and "pip install -r requirements.txt" in module.stderr
