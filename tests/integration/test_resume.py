"""Interrupted training ends with the weights of uninterrupted training, bit for bit.  Budget: 150 s.

Float32, one process, dropout on, several epochs, interruptions in the middle of an epoch.
"""

import io
import os
import shutil
import signal

import pytest
from tiny_databin import write_databin
from train_tools import Background, Train, assert_same_weights, launcher, run, train

UPDATES = 60  # five epochs of 12
STEPS = ["--max-update", str(UPDATES), "--save-interval-updates", "10", "--no-epoch-checkpoints"]


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("resume") / "db")


@pytest.fixture(scope="module")
def in_one_go(databin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-go")
    train(folder, databin, folder / "s", *STEPS)
    return folder / "s" / "checkpoint_last.pt"


def lose_power(where, number):
    """Make the calling process die while it writes its *number*-th checkpoint.

    save: with half of the first file written (fairseq does that under a temporary name).
    copy: with half of checkpoint_last.pt written (fairseq copies the first file to it, in place).
    """
    import torch

    save, copyfile, seen = torch.save, shutil.copyfile, []

    def save_or_die(obj, f, *args, **kwargs):
        seen.append(1)
        if where == "save" and len(seen) == number:
            whole = io.BytesIO()
            save(obj, whole)
            f.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            f.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return save(obj, f, *args, **kwargs)

    def copy_or_die(source, target, **kwargs):
        if where == "copy" and len(seen) == number and target.endswith("checkpoint_last.pt"):
            with open(source, "rb") as i, open(target, "wb") as o:
                o.write(i.read(os.path.getsize(source) // 2))
                o.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return copyfile(source, target, **kwargs)

    torch.save, shutil.copyfile = save_or_die, copy_or_die


def test_three_pieces_with_kill_9_between(databin, in_one_go, tmp_path):
    save_dir = tmp_path / "s"
    first = Background(Train(databin, save_dir, *STEPS), tmp_path / "first.log")
    first.wait_for_update(24)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL

    # the second piece dies while its second checkpoint is half written
    status, second = train(tmp_path, databin, save_dir, *STEPS, ok=False, before=lambda: lose_power("save", 2))
    assert status == -signal.SIGKILL
    assert list(save_dir.glob("*.pt.tmp"))

    _, third = train(tmp_path, databin, save_dir, *STEPS)
    assert "Loaded checkpoint" in second and "Loaded checkpoint" in third
    assert_same_weights(save_dir / "checkpoint_last.pt", in_one_go)


def test_two_thousand_updates_in_three_pieces(databin, tmp_path):
    """Long enough for the learning rate to warm up and decay, and for rounding of a bad resume to grow."""
    steps = ["--max-update", "2000", "--save-interval-updates", "250", "--keep-interval-updates", "2", "--no-epoch-checkpoints"]
    steps += ["--log-interval", "50", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "400"]
    train(tmp_path, databin, tmp_path / "one", *steps)

    save_dir = tmp_path / "three"
    first = Background(Train(databin, save_dir, *steps), tmp_path / "first.log")
    first.wait_for_update(800)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    status, second = train(tmp_path, databin, save_dir, *steps, ok=False, before=lambda: lose_power("save", 3))
    assert status == -signal.SIGKILL and list(save_dir.glob("*.pt.tmp"))
    _, third = train(tmp_path, databin, save_dir, *steps)
    assert "Loaded checkpoint" in second and "Loaded checkpoint" in third
    assert "num_updates=50," not in second + third and "num_updates=2000," in third
    assert_same_weights(save_dir / "checkpoint_last.pt", tmp_path / "one" / "checkpoint_last.pt")


def test_killed_while_checkpoint_last_is_copied(databin, in_one_go, tmp_path):
    save_dir = tmp_path / "s"
    status, _ = train(tmp_path, databin, save_dir, *STEPS, ok=False, before=lambda: lose_power("copy", 3))
    assert status == -signal.SIGKILL
    last = save_dir / "checkpoint_last.pt"
    half = last.read_bytes()
    assert len(half) < os.path.getsize(save_dir / "checkpoint_3_30.pt")

    # plain fairseq-train stops with one line; it neither starts over nor touches the files
    status, log = train(tmp_path, databin, save_dir, *STEPS, ok=False)
    assert status != 0 and "damaged or truncated" in log.strip().splitlines()[-1]
    assert "No existing checkpoint found" not in log and "num_updates=1," not in log
    assert last.read_bytes() == half

    # what the launcher does before it starts the same training
    from realformer_nmt.launch.resume import prepare_resume

    note = prepare_resume(str(save_dir)).notes[-1]
    assert note.startswith("WARNING") and "checkpoint_3_30.pt" in note
    train(tmp_path, databin, save_dir, *STEPS)
    assert_same_weights(last, in_one_go)


def test_launcher_survives_damage_and_keeps_what_averaging_needs(databin, tmp_path):
    """Six epochs, averaging 3 up to epoch 5; checkpoint_last.pt is cut short after the first three."""
    flags = ["--average-last", "3", "--average-until", "5", "--global-batch", "400", "--max-epoch", "6"]
    save_dir = tmp_path / "s"
    stopped_early = [*flags, "--max-update", "9", "--save-interval", "1"]  # three updates an epoch
    run(launcher(databin, save_dir, *stopped_early))
    with open(save_dir / "checkpoint_last.pt", "r+b") as f:
        f.truncate(1000)
    done = run(launcher(databin, save_dir, *flags))
    assert "WARNING" in done.stdout and "going on from checkpoint3.pt" in done.stdout
    assert "num_updates=9," not in done.stdout and "num_updates=10," in done.stdout
    assert list(save_dir.glob("checkpoint_last.pt.damaged-*"))
    # averaging up to epoch 5 needs 3, 4 and 5, although epoch 6 has been trained since
    assert sorted(p.name for p in save_dir.glob("checkpoint?.pt")) == [f"checkpoint{n}.pt" for n in (3, 4, 5, 6)]
