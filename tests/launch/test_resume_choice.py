"""Which checkpoint a run goes on from.  Budget: 2 s."""

import os
import time

import pytest
import torch

from realformer_nmt.launch import LaunchError
from realformer_nmt.launch.resume import candidates, check_restore_file, is_whole, prepare_resume


def save(path, value, age):
    torch.save({"model": {"w": torch.full((500,), float(value))}, "n": value}, path)
    then = time.time() - age
    os.utime(path, (then, then))


def value(path):
    return torch.load(path, weights_only=True)["n"]


@pytest.fixture
def save_dir(tmp_path):
    save(tmp_path / "checkpoint1.pt", 1, 300)
    save(tmp_path / "checkpoint_2_150.pt", 2, 200)
    save(tmp_path / "checkpoint2.pt", 3, 100)
    save(tmp_path / "checkpoint_last.pt", 3, 90)
    return tmp_path


def truncate(path, keep):
    with open(path, "r+b") as f:
        f.truncate(keep)


def test_a_whole_last_checkpoint_is_left_alone(save_dir):
    before = (save_dir / "checkpoint_last.pt").read_bytes()
    found = prepare_resume(str(save_dir))
    assert found.path == str(save_dir / "checkpoint_last.pt") and found.notes == ()
    assert (save_dir / "checkpoint_last.pt").read_bytes() == before


def damages():
    size = 3000
    yield "empty", lambda p: truncate(p, 0)
    yield "half", lambda p: truncate(p, size // 2)
    yield "last byte", lambda p: truncate(p, os.path.getsize(p) - 1)
    yield "not a checkpoint", lambda p: p.write_bytes(b"hello" * 500)

    def flip(p):  # a bit of a weight: the archive's directory is whole, its contents are not
        data = bytearray(p.read_bytes())
        at = data.index(torch.full((4,), 3.0).numpy().tobytes())
        data[at + 1] ^= 0x10
        p.write_bytes(data)

    yield "a flipped bit", flip


@pytest.mark.parametrize("name, damage", list(damages()), ids=[n for n, _ in damages()])
def test_a_damaged_one_is_set_aside_and_the_newest_whole_one_used(save_dir, name, damage):
    last = save_dir / "checkpoint_last.pt"
    damage(last)
    broken = last.read_bytes()
    assert not is_whole(str(last))

    planned = prepare_resume(str(save_dir), plan_only=True)
    assert planned.path == str(save_dir / "checkpoint2.pt") and last.read_bytes() == broken

    found = prepare_resume(str(save_dir))
    assert value(last) == 3
    assert "WARNING" in found.notes[-1] and "checkpoint2.pt" in found.notes[-1]
    aside = [p for p in save_dir.iterdir() if ".damaged-" in p.name]
    assert len(aside) == 1 and aside[0].read_bytes() == broken
    # an overwrite of checkpoint_last.pt in place, as fairseq does it, must not reach the epoch's own file
    assert os.stat(last).st_ino != os.stat(save_dir / "checkpoint2.pt").st_ino


def test_damaged_fallbacks_are_passed_over(save_dir):
    for name in ("checkpoint_last.pt", "checkpoint2.pt"):
        truncate(save_dir / name, 700)
    prepare_resume(str(save_dir))
    assert value(save_dir / "checkpoint_last.pt") == 2


def test_missing_last_with_others_there_never_starts_over(save_dir):
    os.remove(save_dir / "checkpoint_last.pt")
    found = prepare_resume(str(save_dir))
    assert value(save_dir / "checkpoint_last.pt") == 3 and "is missing" in found.notes[-1]


def test_nothing_whole_stops_with_one_line(save_dir):
    for path in save_dir.iterdir():
        truncate(path, 100)
    with pytest.raises(LaunchError, match="nothing to go on from") as caught:
        prepare_resume(str(save_dir))
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in save_dir.iterdir()) == ["checkpoint1.pt", "checkpoint2.pt", "checkpoint_2_150.pt", "checkpoint_last.pt"]


def test_fresh_folder_and_left_over_tmp(tmp_path):
    assert prepare_resume(str(tmp_path / "none")).path is None
    (tmp_path / "checkpoint_best.pt.tmp").write_bytes(b"half")
    found = prepare_resume(str(tmp_path))
    assert found.path is None and "interrupted save" in found.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_candidates_are_newest_first_and_exclude_averages(save_dir):
    save(save_dir / "averaged.pt", 9, 1)
    save(save_dir / "crash.pt", 9, 1)
    assert [os.path.basename(p) for p in candidates(str(save_dir))] == ["checkpoint2.pt", "checkpoint_2_150.pt", "checkpoint1.pt"]


def test_a_restore_file_never_leads_back_to_the_start(save_dir, tmp_path):
    new, given = str(tmp_path / "new"), save_dir / "checkpoint1.pt"
    assert check_restore_file(str(given), new) == f"from {given}"
    with pytest.raises(LaunchError, match="would go back behind .*checkpoint_last.pt: leave it out"):
        check_restore_file(str(given), str(save_dir))
    for keep in (700, 0):
        truncate(given, keep)
        with pytest.raises(LaunchError, match="checkpoint1.pt is damaged"):
            check_restore_file(str(given), new)
    with pytest.raises(LaunchError, match="none.pt is not there; fairseq would start again"):
        check_restore_file(str(tmp_path / "none.pt"), new)
    old = tmp_path / "old.pt"
    torch.save({"n": 1}, old, _use_new_zipfile_serialization=False)
    assert check_restore_file(str(old), new) == f"from {old}"
