"""Two processes on the CPU (gloo, torchrun) train as one does with twice the update-freq.  Budget: 120 s.

Float32, dropout off: both sum the same gradients, in another order.  Stated tolerance: 1e-6 on weights, the printed
losses equal.  Fully sharded wrapping runs fairscale's own code on CPU tensors, see cpu_sharding.py.
"""

import importlib.util
import os
import pathlib
import re
import signal
import socket
import sys
import time

import pytest
import torch
from tiny_databin import write_databin
from train_tools import ROOT, Background, assert_same_weights, launcher, losses, run

SCRIPT = str(pathlib.Path(__file__).parent / "rank_script.py")
UPDATES = 6


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("ddp") / "db", pairs=400)


def fairscale_folder():
    """Where scripts/test.sh puts fairscale, or None if the environment itself has it; skips the test without either."""
    if importlib.util.find_spec("fairscale"):
        return None
    folder = pathlib.Path(sys.prefix, "test-packages")
    if not (folder / "fairscale").is_dir():
        pytest.skip("--ddp-backend fully_sharded is fairscale's, which isn't installed (tests/requirements.txt)")
    return folder


def ranks(databin, out, backend, processes, packages=None):
    """Run rank_script.py and return what each rank stored. *packages*: one more folder to import from."""
    out.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    arguments = [SCRIPT, databin, str(out), backend, str(UPDATES), str(2 // processes)]
    path = os.pathsep.join(str(folder) for folder in (ROOT, packages) if folder)
    run([sys.executable, *torchrun, *arguments], PYTHONPATH=path)
    return [torch.load(out / f"rank{r}.pt", weights_only=True) for r in range(processes)]


@pytest.fixture(scope="module")
def one_process(databin, tmp_path_factory):
    return ranks(databin, tmp_path_factory.mktemp("one") / "out", "none", 1)[0]


@pytest.mark.parametrize("backend", ["legacy_ddp", "c10d", "fully_sharded"])
def test_two_processes_equal_one_with_update_freq_2(databin, one_process, tmp_path, backend):
    results = ranks(databin, tmp_path / "out", backend, 2, fairscale_folder() if backend == "fully_sharded" else None)
    assert results[0]["first"] != results[1]["first"]  # each profiles a batch of its own ...
    for rank, result in enumerate(results):
        torch.testing.assert_close(result["losses"], one_process["losses"], rtol=1e-5, atol=0)
        if backend == "fully_sharded" and rank > 0:
            continue  # fairseq gathers the shards' whole state on rank 0 alone
        assert result["weights"].keys() == one_process["weights"].keys()
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, one_process["weights"][name], rtol=0, atol=1e-6, msg=lambda m: f"{name}: {m}")
    omegas = one_process["omegas"]
    assert len(omegas) == 10 and len({float(omega) for omega in omegas}) > 5
    for result in results:
        assert all(map(torch.equal, result["omegas"], results[0]["omegas"]))  # ... yet all have the very same omega
        torch.testing.assert_close(result["omegas"], omegas, rtol=1e-6, atol=0)


STEPS = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0", "--average-last", "1"]


def test_launcher_on_two_processes_survives_the_loss_of_one(databin, tmp_path):
    """The launcher under torchrun: parity with one process, then one rank killed and the same command again."""
    one, two = tmp_path / "one", tmp_path / "two"
    steps = [*STEPS, "--global-batch", "200", "--max-update", "40", "--save-interval-updates", "10"]
    run(launcher(databin, one, *steps))
    command = launcher(databin, two, *steps, "--devices", "2")
    job = Background(command, tmp_path / "log")
    job.wait_for_update(12)
    os.kill(worker_pid(two, rank=1), signal.SIGKILL)
    start = time.time()
    assert job.wait() == 1
    assert time.time() - start < 90
    last = job.text().strip().splitlines()[-1]
    assert re.search(r"process 1 was ended by SIGKILL.*The same command resumes from the last checkpoint", last), last

    done = run(command)
    assert "Loaded checkpoint" in done.stdout and "training finished" in done.stdout
    assert_same_weights(one / "checkpoint_last.pt", two / "checkpoint_last.pt", atol=1e-6)
    text = (one / "logs" / "train.log").read_text(), (two / "logs" / "train.log").read_text()
    assert dict(map(reversed, losses(text[0]))) == dict(map(reversed, losses(text[1])))


def test_launcher_on_two_nodes(databin, tmp_path):
    """The same command once a node, as on two machines with one file system; then one node is lost and comes back."""
    steps = [*STEPS, "--global-batch", "200", "--max-update", "40", "--save-interval-updates", "10"]
    run(launcher(databin, tmp_path / "one", *steps))

    def nodes(attempt):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = ["--nodes", "2", "--devices", "1", "--rdzv-endpoint", f"127.0.0.1:{free.getsockname()[1]}"]
        for rank in (0, 1):
            command = launcher(databin, tmp_path / "two", *steps, *meeting, "--node-rank", str(rank))
            yield Background(command, tmp_path / f"log{attempt}{rank}")

    jobs = list(nodes(1))
    jobs[0].wait_for_update(12)
    os.kill(worker_pid(tmp_path / "two", rank=1), signal.SIGKILL)
    start = time.time()
    assert [job.wait() for job in jobs] == [1, 1]
    assert time.time() - start < 150
    assert "process 0 was ended by SIGKILL" in jobs[1].text().strip().splitlines()[-1]  # its only process, on its own node
    assert "the same command resumes from the last checkpoint" in jobs[0].text().strip().splitlines()[-1]

    jobs = list(nodes(2))
    assert [job.wait() for job in jobs] == [0, 0], jobs[0].text()[-3000:] + jobs[1].text()[-3000:]
    assert "Loaded checkpoint" in jobs[0].text() and "training finished" in jobs[0].text()
    assert_same_weights(tmp_path / "one" / "checkpoint_last.pt", tmp_path / "two" / "checkpoint_last.pt", atol=1e-6)


def worker_pid(save_dir, rank):
    """Process id of a training process, found by its environment."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = pathlib.Path("/proc", pid, "cmdline").read_bytes().decode().split("\0")
            environ = pathlib.Path("/proc", pid, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if "realformer_nmt.launch.worker" in command and "torch.distributed.run" not in command:
            if str(save_dir) in command and f"RANK={rank}".encode() in environ:
                return int(pid)
    raise AssertionError("no such process")
