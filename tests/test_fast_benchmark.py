"""The speed benchmark's own parts: memory, batches, its report and going on from a file.  Budget: 10 s."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmark_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_peak_memory_is_what_was_held_at_once():
    from speed_steps import peak_memory

    kilobyte = 256  # floats

    def work():
        first = torch.empty(1000 * kilobyte)
        second = torch.empty(3000 * kilobyte)
        del first, second
        return torch.empty(2000 * kilobyte)

    assert 4000 * 1024 <= peak_memory(work, "cpu") < 4100 * 1024


def test_batches_have_many_shapes_and_fairseqs_padding():
    from speed_systems import _Task, make_batch

    task = _Task(words=50)
    shapes = set()
    for seed in range(12):
        batch = make_batch(task, 256, 16, seed=seed)
        source, previous = batch["net_input"]["src_tokens"], batch["net_input"]["prev_output_tokens"]
        target = batch["target"]
        shapes.add((source.shape, target.shape))
        assert 200 <= source.numel() <= 256 and 12 <= source.size(1) <= 20
        assert source.ne(1).sum(1).tolist() == batch["net_input"]["src_lengths"].tolist()
        assert (source[:, -1] == 2).all() and source[0, 0] != 1  # padded on the left, the first row fills the batch
        assert (target[:, 0] != 1).all() and (previous[:, 0] == 2).all()
        for row, shifted in zip(target, previous):
            n = int(row.ne(1).sum())
            assert row[n - 1] == 2 and (row[n:] == 1).all() and shifted[1:n].tolist() == row[: n - 1].tolist()
    assert len(shapes) > 8
    assert make_batch(task, 256, 16)["target"].shape == (16, 16)


def test_the_report_is_kept_and_taken_up_again(tmp_path):
    import speed

    output = tmp_path / "speed.md"
    seconds = {"transformer": [0.2, 0.1, 0.4], "realformer none": [0.1, 0.3, 0.1]}
    found = {work: seconds for work in ("train", "validate", "generate")}
    found["memory"] = {"transformer": 100e6, "realformer none": 50e6}
    found["same output"] = {"transformer": 1.0, "realformer none": 0.75}
    cell = {"where": "a machine", "size": "small", "length": 16, "tokens": 64, "found": found}
    speed.Results(str(output)).add("models/small/16", cell)
    text = output.read_text()
    assert "a machine" in text and not list(tmp_path.glob("*.tmp"))
    row = next(line for line in text.splitlines() if "| realformer none |" in line)
    assert "| 100.0 (100.0 - 300.0) | 0.50 | 50 | 0.50 |" in row and row.endswith("| 75% |")
    assert speed.Results(str(output)).cells == json.loads((tmp_path / "speed.md.json").read_text())


@pytest.mark.parametrize("flags, message", [(["--lengths", "1"], "--lengths must be 2 or more"),
                                            (["--parts", "command"], "needs --command DATA-BIN CHECKPOINT")])  # fmt: skip
def test_bad_flags_are_refused_in_one_line(flags, message):
    done = subprocess.run([sys.executable, "-W", "ignore", FOLDER / "speed.py", *flags], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]


def test_only_a_stock_model_is_compared_with_stock(tmp_path):
    import speed_command

    path = tmp_path / "model.pt"
    model = {"_name": "realformer", "arch": "realformer", "residual_attention": "sum", "admin_init": "none"}
    torch.save({"cfg": {"model": model}, "args": None, "model": {}}, path)
    with pytest.raises(SystemExit, match="not a stock model"):
        speed_command.with_arch(str(path), "transformer", str(tmp_path))
    model.update(residual_attention="none")
    torch.save({"cfg": {"model": model}, "args": None, "model": {}}, path)
    copy = torch.load(speed_command.with_arch(str(path), "transformer", str(tmp_path)), weights_only=True)
    assert copy["cfg"]["model"]["arch"] == copy["cfg"]["model"]["_name"] == "transformer"
