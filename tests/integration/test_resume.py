"""Interrupted training ends with the weights of uninterrupted training, bit for bit.  Budget: 75 s.

Float32, one process, dropout on, several epochs, an interruption in the middle of an epoch.
"""

import os
import pathlib
import signal
import sys

import pytest
from tiny_databin import write_databin
from train_tools import Background, assert_same_weights, fairseq_train, launcher, run

HERE = pathlib.Path(__file__).parent
UPDATES = 60
STEPS = ["--max-update", str(UPDATES), "--save-interval-updates", "10", "--no-epoch-checkpoints"]


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("resume") / "db")


@pytest.fixture(scope="module")
def in_one_go(databin, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("one-go")
    run(fairseq_train(databin, save_dir, *STEPS))
    return save_dir / "checkpoint_last.pt"


def dying(where, number, command):
    """*command* of fairseq-train, run so that it is killed while writing."""
    assert command[1:3] == ["-m", "fairseq_cli.train"]
    return [sys.executable, str(HERE / "die_writing.py"), where, str(number), *command[3:]]


def test_three_pieces_with_kill_9_between(databin, in_one_go, tmp_path):
    command = fairseq_train(databin, tmp_path / "s", *STEPS)
    first = Background(command, tmp_path / "first.log")
    first.wait_for_update(24)
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL

    # the second piece dies while its second checkpoint is half written
    second = run(dying("save", 2, command), ok=False)
    assert second.returncode == -signal.SIGKILL
    assert list((tmp_path / "s").glob("*.pt.tmp"))

    third = run(command)
    assert "Loaded checkpoint" in second.stdout and "Loaded checkpoint" in third.stdout
    assert_same_weights(tmp_path / "s" / "checkpoint_last.pt", in_one_go)


def test_killed_while_checkpoint_last_is_copied(databin, in_one_go, tmp_path):
    save_dir = tmp_path / "s"
    command = fairseq_train(databin, save_dir, *STEPS)
    assert run(dying("copy", 3, command), ok=False).returncode == -signal.SIGKILL
    last = save_dir / "checkpoint_last.pt"
    half = last.read_bytes()
    assert len(half) < os.path.getsize(save_dir / "checkpoint_3_30.pt")

    # plain fairseq-train stops; it neither starts over nor touches the files
    plain = run(command, ok=False)
    assert plain.returncode != 0 and "damaged or truncated" in plain.stdout.strip().splitlines()[-1]
    assert "No existing checkpoint found" not in plain.stdout and "num_updates=1," not in plain.stdout
    assert last.read_bytes() == half

    # what the launcher does before it starts the same training
    from realformer_nmt.launch.resume import prepare_resume

    note = prepare_resume(str(save_dir)).notes[-1]
    assert note.startswith("WARNING") and "checkpoint_3_30.pt" in note
    run(command)
    assert_same_weights(last, in_one_go)


def test_launcher_survives_damage_and_keeps_what_averaging_needs(databin, tmp_path):
    """Six epochs with the last three to be averaged; checkpoint_last.pt is cut short after the first three."""
    flags = ["--average-last", "3", "--average-until", "5", "--global-batch", "400"]
    whole = tmp_path / "whole"
    run(launcher(databin, whole, *flags, "--max-epoch", "6"))
    # averaging up to epoch 5 needs 3, 4 and 5, although epoch 6 has been trained since
    assert sorted(p.name for p in whole.glob("checkpoint?.pt")) == [f"checkpoint{n}.pt" for n in (3, 4, 5, 6)]

    cut = tmp_path / "cut"
    run(launcher(databin, cut, "--average-last", "3", "--global-batch", "400", "--max-epoch", "3"))
    with open(cut / "checkpoint_last.pt", "r+b") as f:
        f.truncate(1000)
    done = run(launcher(databin, cut, *flags, "--max-epoch", "6"))
    assert "WARNING" in done.stdout and "going on from checkpoint3.pt" in done.stdout
    assert list(cut.glob("checkpoint_last.pt.damaged-*"))
    assert_same_weights(cut / "checkpoint6.pt", whole / "checkpoint6.pt")
    assert "num_updates=1," not in (cut / "logs" / "train.log").read_text().split("going on from")[-1].split("+ ")[-1]

    for path in cut.glob("*.pt"):
        with open(path, "r+b") as f:
            f.truncate(1000)
    refused = run(launcher(databin, cut, *flags, "--max-epoch", "7"), ok=False)
    assert refused.returncode == 2
    assert "nothing to go on from" in refused.stdout.strip().splitlines()[-1]
