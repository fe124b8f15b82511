"""Averaging of checkpoints, against means computed with numpy in float64. Budget: 20 s."""

import argparse
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from realformer_nmt.checkpoints import CheckpointError, load_checkpoint
from realformer_nmt.tools.average import average_checkpoints, find_checkpoints, main, save_checkpoint
from realformer_nmt.tools.files import ToolError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "average_checkpoints.py"


def write(path, model, **rest):
    """A file with the entries that fairseq's trainer writes."""
    state = {
        "args": argparse.Namespace(arch="transformer"),
        "cfg": None,
        "model": OrderedDict(model),
        "optimizer_history": [{"num_updates": 3, "best_loss": np.float64(2.5)}],
        "extra_state": {"epoch": 1},
        "last_optimizer_state": {"state": {0: torch.ones(4)}},
        **rest,
    }
    torch.save(state, path)
    return path


def run_script(*args):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)], capture_output=True, text=True, check=False, cwd="/"
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mean_equals_numpy_float64_mean_rounded_once(tmp_path, dtype):
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(7, 5, generator=generator, dtype=torch.float64).to(dtype) for _ in range(6)]
    paths = [write(tmp_path / f"{i}.pt", {"w": tensor}) for i, tensor in enumerate(tensors)]
    got = average_checkpoints(paths)["model"]["w"]
    expected = np.mean([tensor.double().numpy() for tensor in tensors], axis=0)
    assert got.dtype == dtype
    # Half a unit in the last place for the final rounding, and a little for the float32 sum.
    tolerance = torch.finfo(dtype).eps * 0.51 if dtype.itemsize < 4 else torch.finfo(dtype).eps * 6
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=tolerance, atol=1e-7 if dtype.itemsize < 4 else 1e-6)


def test_half_precision_is_summed_in_float32(tmp_path):
    # In float16 the sum of ten 10,000s overflows, and 2048 + 1 is 2048.
    paths = [write(tmp_path / f"{i}.pt", {"w": torch.tensor([1e4, 2048.0 if i == 0 else 1.0]).half()}) for i in range(10)]
    got = average_checkpoints(paths)["model"]["w"].float()
    assert got[0] == 1e4
    assert got[1] == torch.tensor((2048 + 9) / 10).half().float()


def test_integers_round_down_and_booleans_stay(tmp_path):
    models = [{"n": torch.tensor([1, -3, 2**40]), "b": torch.tensor([True])}, {"n": torch.tensor([2, -4, 2**40]), "b": torch.tensor([True])}]
    got = average_checkpoints([write(tmp_path / f"{i}.pt", m) for i, m in enumerate(models)])["model"]
    assert got["n"].tolist() == [1, -4, 2**40] and got["n"].dtype == torch.int64
    assert got["b"].tolist() == [True]
    other = write(tmp_path / "other.pt", {**models[0], "b": torch.tensor([False])})
    with pytest.raises(ToolError, match="other.pt.*boolean"):
        average_checkpoints([tmp_path / "0.pt", other])


def test_tied_tensors_stay_tied_in_the_file(tmp_path):
    paths = []
    for i in range(3):
        shared = torch.full((1000, 64), float(i))
        paths.append(write(tmp_path / f"{i}.pt", {"enc": shared, "dec": shared, "other": torch.ones(3) * i}))
    output = tmp_path / "average.pt"
    main(["--inputs", *map(str, paths), "--output", str(output)])
    model = load_checkpoint(output)["model"]
    assert list(model) == ["enc", "dec", "other"]
    assert model["enc"].data_ptr() == model["dec"].data_ptr()
    assert model["enc"].data_ptr() != model["other"].data_ptr()
    assert torch.equal(model["dec"], torch.ones(1000, 64)) and torch.equal(model["other"], torch.ones(3))
    assert output.stat().st_size < 1.2 * 1000 * 64 * 4


def test_tie_missing_in_a_later_file(tmp_path):
    shared = torch.ones(4)
    first = write(tmp_path / "first.pt", {"enc": shared, "dec": shared})
    equal = write(tmp_path / "equal.pt", {"enc": torch.ones(4) * 3, "dec": torch.ones(4) * 3})
    apart = write(tmp_path / "apart.pt", {"enc": torch.ones(4), "dec": torch.zeros(4)})
    assert average_checkpoints([first, equal])["model"]["dec"].tolist() == [2.0] * 4
    with pytest.raises(ToolError, match="apart.pt: dec and enc differ.*first.pt"):
        average_checkpoints([first, apart])


def test_views_of_a_larger_storage_are_written_alone(tmp_path):
    big = torch.arange(100_000.0)
    paths = [write(tmp_path / f"{i}.pt", {"a": big[:10], "b": big[10:20].view(2, 5).t()}) for i in range(2)]
    output = tmp_path / "average.pt"
    save_checkpoint(average_checkpoints(paths), output)
    model = load_checkpoint(output)["model"]
    assert torch.equal(model["a"], big[:10]) and torch.equal(model["b"], big[10:20].view(2, 5).t())
    assert output.stat().st_size < 20_000


def test_settings_come_from_the_first_file_and_optimiser_state_is_dropped(tmp_path):
    first = write(tmp_path / "a.pt", {"w": torch.ones(1)}, extra_state={"epoch": 9})
    second = write(tmp_path / "b.pt", {"w": torch.ones(1)}, extra_state={"epoch": 8})
    state = average_checkpoints([first, second])
    assert state["extra_state"] == {"epoch": 9}
    assert state["args"].arch == "transformer"
    assert state["last_optimizer_state"] is None


@pytest.mark.parametrize(
    "change, words",
    [
        ({"w": torch.ones(2, 3)}, "shape"),
        ({"w": torch.ones(3, 2, dtype=torch.float64)}, "float64"),
        ({"w": torch.ones(3, 2), "omega": torch.ones(1)}, "has also omega"),
        ({"v": torch.ones(3, 2)}, "lacks w and has also v"),
        ({"w": torch.full((3, 2), float("nan"))}, "NaN"),
        ({"w": 3}, "not a tensor"),
    ],
)
def test_another_model_is_refused_by_name(tmp_path, change, words):
    good = write(tmp_path / "good.pt", {"w": torch.ones(3, 2)})
    bad = write(tmp_path / "bad.pt", change)
    with pytest.raises(ToolError) as error:
        average_checkpoints([good, bad])
    assert "bad.pt" in str(error.value) and words in str(error.value)


@pytest.mark.parametrize("where", ["cfg", "args"])
@pytest.mark.parametrize(
    "setting, one, other",
    [
        ("residual_attention", "sum", "mean"),
        ("residual_attention_sites", "encoder,decoder,cross", "encoder"),
        ("encoder_attention_heads", 4, 8),
        ("activation_fn", "relu", "gelu"),
    ],
)
def test_a_model_that_computes_otherwise_is_refused_by_name(tmp_path, where, setting, one, other):
    """Equal names and shapes do not make two files one model."""

    def file(name, value):
        settings = argparse.Namespace(arch="realformer_tiny", **{setting: value})
        entry = {"cfg": {"model": settings}, "args": None} if where == "cfg" else {"args": settings}
        return write(tmp_path / name, {"w": torch.ones(3, 2)}, **entry)

    good, bad = file("good.pt", one), file("bad.pt", other)
    with pytest.raises(ToolError) as error:
        average_checkpoints([good, bad])
    assert "bad.pt" in str(error.value) and f"--{setting.replace('_', '-')} was {other}" in str(error.value)
    average_checkpoints([good, file("same.pt", one), write(tmp_path / "without.pt", {"w": torch.ones(3, 2)})])


def test_the_order_of_sites_does_not_matter(tmp_path):
    files = [
        write(tmp_path / name, {"w": torch.ones(3, 2)}, args=argparse.Namespace(residual_attention_sites=sites))
        for name, sites in (("a.pt", "encoder,cross"), ("b.pt", "cross,encoder"))
    ]
    average_checkpoints(files)


@pytest.mark.parametrize("output", ["", ".", "folder"])
def test_an_output_that_is_no_file_is_refused_before_the_work(tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolError, match="--output '.*': is not the name of a file"):
        main(["--inputs", str(write(tmp_path / "good.pt", {"w": torch.ones(3)})), "--output", output])


class Bomb:
    """Unpickling this creates a file: what the safe loader must prevent."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_truncated_foreign_and_code_carrying_files(tmp_path):
    good = write(tmp_path / "good.pt", {"w": torch.ones(3000)})
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:5000])
    (tmp_path / "text.pt").write_text("not a checkpoint")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    write(tmp_path / "code.pt", {"w": torch.ones(3000)}, extra_state=Bomb(str(tmp_path / "ran")))
    for name in ("cut.pt", "text.pt", "empty.pt", "list.pt", "code.pt"):
        with pytest.raises((ToolError, CheckpointError)) as error:
            average_checkpoints([good, tmp_path / name])
        assert name in str(error.value)
        assert "\n" not in str(error.value).strip()
    assert not (tmp_path / "ran").exists()


def test_command_line_failure_is_one_line_and_leaves_the_output(tmp_path):
    good = write(tmp_path / "good.pt", {"w": torch.ones(3000)})
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:5000])
    output = tmp_path / "out" / "average.pt"
    output.parent.mkdir()
    output.write_text("earlier result")
    result = run_script("--inputs", good, tmp_path / "cut.pt", "--output", output)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1 and "cut.pt" in errors[0] and "Traceback" not in result.stderr
    assert output.read_text() == "earlier result" and [p.name for p in output.parent.iterdir()] == ["average.pt"]


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("unexpected pos 64 vs 0")  # what torch says when the disk is full

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ToolError, match="average.pt: cannot be written"):
        save_checkpoint({}, tmp_path / "average.pt")
    assert list(tmp_path.iterdir()) == []


def test_choice_of_checkpoints(tmp_path):
    names = ["checkpoint1.pt", "checkpoint2.pt", "checkpoint9.pt", "checkpoint10.pt", "checkpoint11.pt",
             "checkpoint_2_400.pt", "checkpoint_9_1000.pt", "checkpoint_best.pt", "checkpoint_last.pt",
             "checkpoint12.pt.tmp", "checkpoint12-shard0.pt"]  # fmt: skip
    for name in names:
        (tmp_path / name).touch()

    def found(*args, **kwargs):
        return [path.name for path in find_checkpoints(tmp_path, *args, **kwargs)]

    assert found(2) == ["checkpoint11.pt", "checkpoint10.pt"]
    assert found(3, upper_bound=10) == ["checkpoint10.pt", "checkpoint9.pt", "checkpoint2.pt"]
    assert found(2, update_based=True) == ["checkpoint_9_1000.pt", "checkpoint_2_400.pt"]
    assert found(1, update_based=True, upper_bound=999) == ["checkpoint_2_400.pt"]
    with pytest.raises(ToolError, match="holds 4 epoch checkpoints up to epoch 10, but 5"):
        found(5, upper_bound=10)
    with pytest.raises(ToolError, match="1 or more"):
        found(0)
    with pytest.raises(ToolError, match="not a directory"):
        find_checkpoints(tmp_path / "none", 1)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--checkpoint-upper-bound", "3"], "needs --num-epoch-checkpoints"),
        ([], "give --num-epoch-checkpoints N for a directory"),
        (["--num-epoch-checkpoints", "2"], "holds 0 epoch checkpoints"),
    ],
)
def test_flags_that_do_not_fit(tmp_path, flags, words):
    with pytest.raises(ToolError, match=words):
        main(["--inputs", str(tmp_path), "--output", str(tmp_path / "x.pt"), *flags])


PEAK = """
import sys
sys.path.insert(0, {root!r})
from realformer_nmt.tools.average import average_checkpoints
average_checkpoints(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc (Linux)")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    size = 8_000_000  # 32 MB in float32
    paths = [write(tmp_path / f"{i}.pt", {"w": torch.full((size,), float(i))}) for i in range(8)]

    def peak_megabytes(count):
        command = [sys.executable, "-c", PEAK.format(root=str(ROOT)), *map(str, paths[:count])]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]) / 1024

    # Holding all eight would add 6 x 32 MB.
    assert peak_megabytes(8) < peak_megabytes(2) + 40
