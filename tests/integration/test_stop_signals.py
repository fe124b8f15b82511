"""SIGUSR1 and SIGTERM save a checkpoint and end the run; the next start goes on as if nothing had been.  Budget: 60 s."""

import os
import signal
import stat

import pytest
from tiny_databin import write_databin
from train_tools import ROOT, Background, assert_same_weights, environment, launcher, run

# enough updates that the signal always comes before the end, few enough to finish soon after resuming
STEPS = ["--max-update", "120", "--average-last", "1"]


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("stop") / "db", pairs=1500)


@pytest.fixture(scope="module")
def in_one_go(databin, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("one-go")
    run(launcher(databin, save_dir, *STEPS))
    return save_dir / "checkpoint_last.pt"


def test_sigusr1_to_the_launcher(databin, in_one_go, tmp_path):
    job = Background(launcher(databin, tmp_path / "s", *STEPS), tmp_path / "log")
    job.wait_for_update(20)
    os.kill(job.pid, signal.SIGUSR1)
    assert job.wait() == 75
    assert "stopped on SIGUSR1 with its checkpoint saved" in job.text().strip().splitlines()[-1]
    assert (tmp_path / "s" / "checkpoint_last.pt").exists()
    done = run(launcher(databin, tmp_path / "s", *STEPS))
    assert "training finished" in done.stdout
    assert_same_weights(tmp_path / "s" / "checkpoint_last.pt", in_one_go)


FAKE_SRUN = """#!/usr/bin/env bash
# one node; as srun does, passes signals on to the task
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=0 "$@" & task=$!
trap 'kill -USR1 $task' USR1
trap 'kill -TERM $task' TERM
while kill -0 $task 2>/dev/null; do s=0; wait $task || s=$?; done
exit $s
"""
FAKE_SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo localhost; else echo "$@" >>"$SCONTROL_CALLS"; fi
"""


def test_slurm_job_queues_again_on_preemption_and_finishes(databin, in_one_go, tmp_path):
    """The batch file itself, with srun and scontrol replaced by stand-ins on PATH; SIGTERM as preemption sends it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    slurm = {
        "PATH": f"{tools}{os.pathsep}{environment()['PATH']}",
        "SCONTROL_CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_SUBMIT_DIR": str(ROOT),
    }
    command = launcher(databin, tmp_path / "s", *STEPS)
    command = ["bash", str(ROOT / "scripts" / "slurm" / "train.sbatch"), "wmt14_en_fr", *command[2:]]
    job = Background(command, tmp_path / "log", **slurm)
    job.wait_for_update(20)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 0
    assert (tmp_path / "calls").read_text() == "requeue 4711\n"

    done = run(command, SLURM_RESTART_COUNT="1", **slurm)
    assert "train.sbatch: finished" in done.stdout
    assert (tmp_path / "calls").read_text() == "requeue 4711\n"
    assert_same_weights(tmp_path / "s" / "checkpoint_last.pt", in_one_go)

    failed = run([*command[:3], "--data-bin", str(tmp_path), "--save-dir", str(tmp_path / "s")], ok=False, **slurm)
    assert failed.returncode == 2 and "not queued again" in failed.stdout
    assert run(command, ok=False, SLURM_RESTART_COUNT="101", **slurm).returncode == 1
