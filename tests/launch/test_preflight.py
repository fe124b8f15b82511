"""Checks before training: apex, devices, precision, data-bin, disk, lock.  Budget: 8 s (fairseq's import)."""

import importlib.machinery
import os
import shutil
import types

import pytest
from tiny_databin import write_databin

from realformer_nmt.launch import LaunchError
from realformer_nmt.launch import apex as apex_module
from realformer_nmt.launch import disk as disk_module
from realformer_nmt.launch.apex import detect_apex
from realformer_nmt.launch.databin import check_databin, check_split, split_tokens
from realformer_nmt.launch.devices import Devices, choose_devices, precision_flags
from realformer_nmt.launch.disk import check_disk
from realformer_nmt.launch.lock import lock_save_dir


# --- apex


def finder(root):
    def find_spec(name):
        return importlib.machinery.PathFinder.find_spec(name, [str(root)])

    return find_spec


def make_package(root, *folders, poison=True):
    for folder in ("",) + folders:
        where = root / "apex" / folder
        where.mkdir(parents=True, exist_ok=True)
        # importing it at all would fail the test
        (where / "__init__.py").write_text("raise SystemExit('apex was imported')" if poison else "")


def test_apex_absent(tmp_path):
    assert detect_apex(finder(tmp_path)).kind == apex_module.ABSENT


def test_apex_wrong_package_is_named(tmp_path):
    make_package(tmp_path, "lib", "models")  # as PyPI's toolkit for Pyramid
    found = detect_apex(finder(tmp_path))
    assert found.kind == apex_module.WRONG
    assert "WRONG" in str(found) and "pip uninstall apex" in str(found)


def test_apex_wrong_single_module(tmp_path):
    (tmp_path / "apex.py").write_text("raise SystemExit('apex was imported')")
    assert detect_apex(finder(tmp_path)).kind == apex_module.WRONG


def test_apex_nvidia_with_and_without_cuda_parts(tmp_path):
    make_package(tmp_path, "optimizers", "normalization", "multi_tensor_apply")
    assert detect_apex(finder(tmp_path)).kind == apex_module.NVIDIA_PYTHON_ONLY
    (tmp_path / "amp_C.py").write_text("")
    assert detect_apex(finder(tmp_path)).kind == apex_module.NVIDIA


# --- devices and precision


def test_devices():
    h100 = ["H100"] * 8
    assert choose_devices(None, 1, False, h100)[0].world_size == 8
    assert choose_devices(4, 2, False, h100)[0].world_size == 8
    devices, notes = choose_devices(None, 1, False, [])
    assert devices.kind == "cpu" and devices.world_size == 1 and "no CUDA device" in notes[0]
    assert choose_devices(2, 1, True, h100)[0] == Devices("cpu", 2, 1)
    with pytest.raises(LaunchError, match="torch sees only 8"):
        choose_devices(9, 1, False, h100)
    with pytest.raises(LaunchError, match="torch sees none here"):
        choose_devices(8, 1, False, [])
    assert choose_devices(8, 2, False, [], plan_only=True)[0].world_size == 16
    with pytest.raises(LaunchError, match="at least 1"):
        choose_devices(0, 1, False, h100)


def test_precision_flags():
    cuda, cpu = Devices("cuda", 8, 1), Devices("cpu", 1, 1)
    fp16 = ["--fp16", "--fp16-scale-window", "256", "--threshold-loss-scale", "0.03125"]
    assert precision_flags("fp16", cuda) == (fp16, [])
    assert precision_flags("bf16", cuda) == (["--bf16"], [])
    assert precision_flags("fp32", cpu) == ([], [])
    flags, notes = precision_flags("fp16", cpu)
    assert "--fp16-no-flatten-grads" in flags and "tests only" in notes[0]
    with pytest.raises(LaunchError, match="no bfloat16; use fp16"):
        precision_flags("bf16", cuda, bf16_ok=False)


# --- data-bin


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("whole") / "db")


@pytest.fixture
def databin(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "db")


def test_databin_is_described(databin):
    found = check_databin(str(databin), "en", "fr", joined=True)
    assert (found.train_pairs, found.valid_pairs, found.source_types) == (120, 12, 24)
    # either order of the languages, as fairseq does
    assert check_databin(str(databin), "fr", "en", joined=True).train_pairs == 120
    assert check_databin(f"{databin}:{databin}", "en", "fr", joined=True).train_pairs == 240


def test_split_tokens_counts_what_fairseq_reads(databin):
    from fairseq.data import indexed_dataset

    prefix = str(databin / "train.en-fr.en")
    dataset = indexed_dataset.make_dataset(prefix, impl="mmap")
    assert split_tokens(prefix) == sum(len(dataset[i]) for i in range(len(dataset)))
    assert check_split(prefix) == len(dataset)


def cut(path, keep):
    with open(path, "r+b") as f:
        f.truncate(keep)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda d: shutil.rmtree(d), "is not a folder"),
        (lambda d: os.remove(d / "dict.fr.txt"), "dict.fr.txt is missing"),
        (lambda d: os.remove(d / "train.en-fr.en.idx"), "has no train.en-fr.en.idx"),
        (lambda d: os.remove(d / "valid.en-fr.fr.bin"), "valid.en-fr.fr.bin is missing"),
        (lambda d: cut(d / "train.en-fr.en.bin", 100), "has 100 bytes where its index asks for"),
        (lambda d: cut(d / "train.en-fr.fr.idx", 300), "has 300 bytes where"),
        (lambda d: cut(d / "train.en-fr.fr.idx", 12), "cut short"),
        (lambda d: (d / "train.en-fr.fr.idx").write_bytes(b"TNTIDX\0\0" * 9), "not in fairseq's mmap format"),
        (lambda d: (d / "dict.fr.txt").write_text("autre 1\n"), "--joined-dictionary"),
    ],
)
def test_databin_faults_are_one_line(databin, damage, message):
    damage(databin)
    with pytest.raises(LaunchError) as caught:
        check_databin(str(databin), "en", "fr", joined=True)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and str(databin) in str(caught.value)


def test_databin_sides_of_different_length(databin, tmp_path):
    other = write_databin(tmp_path / "other", pairs=7)
    for end in ("bin", "idx"):
        shutil.copy(f"{other}/train.en-fr.fr.{end}", databin / f"train.en-fr.fr.{end}")
    with pytest.raises(LaunchError, match="120 en sentences against 7 fr"):
        check_databin(str(databin), "en", "fr", joined=True)


# --- disk


def test_disk_estimate_and_refusal_when_short(tmp_path, monkeypatch):
    needed = check_disk(str(tmp_path / "new" / "dir"), 1_000_000, True, keep_epochs=10, keep_updates=2)
    assert needed.checkpoint == 10_000_000 and needed.count == 15
    monkeypatch.setattr(disk_module.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=140_000_000))
    with pytest.raises(LaunchError, match=r"0\.1 GB free.*--average-last"):
        check_disk(str(tmp_path), 1_000_000, True, 10, 2)
    # what an earlier part of the run wrote already counts
    (tmp_path / "checkpoint_last.pt").write_bytes(bytes(20_000_000))
    check_disk(str(tmp_path), 1_000_000, True, 10, 2)


# --- lock


def test_one_training_a_save_dir(tmp_path):
    fd = lock_save_dir(str(tmp_path))
    with pytest.raises(LaunchError, match=rf"launcher process {os.getpid()}"):
        lock_save_dir(str(tmp_path))
    os.close(fd)
    os.close(lock_save_dir(str(tmp_path)))
