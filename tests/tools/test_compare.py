"""compare.sh: the table's arithmetic, and one tiny comparison run and resumed for real. Budget: 60 s."""

import json
import math
import subprocess

import pytest
from tiny_models import ROOT

from realformer_nmt.tools.compare import SYSTEMS, parse_args, train_flags
from realformer_nmt.tools.comparison_table import (
    checked_updates,
    markdown,
    mean_and_spread,
    summarise,
    updates_to_reach,
)
from realformer_nmt.tools.files import ToolError


def run_record(system, seed, losses, bleu=None):
    return {"system": system, "seed": seed, "valid_updates": [10 * (i + 1) for i in range(len(losses))],
            "valid_nll_loss": losses, "bleu": bleu, "sacrebleu": bleu, "entropy": {"encoder": 0.5},
            "seconds_per_update": 0.1, "peak_rss_mb": 100.0, "peak_gpu_mb": None}  # fmt: skip


def test_updates_to_reach_interpolates():
    assert updates_to_reach([10, 20, 30], [5.0, 4.0, 3.0], 3.5) == 25
    assert updates_to_reach([10, 20, 30], [5.0, 4.0, 3.0], 5.5) == 10
    assert updates_to_reach([10, 20, 30], [5.0, 4.0, 3.0], 2.9) is None
    assert updates_to_reach([10, 20, 30], [5.0, 6.0, 3.0], 4.5) == 25
    assert updates_to_reach([10, 20], [math.nan, 3.0], 4.0) == 20


def test_mean_and_spread():
    assert mean_and_spread([None]) is None
    assert mean_and_spread([2.0, None]) == {"mean": 2.0, "sd": None, "n": 1}
    spread = mean_and_spread([1.0, 2.0, 3.0])
    assert (spread["mean"], spread["sd"], spread["n"]) == (2.0, 1.0, 3)  # n - 1 in the denominator
    assert math.isnan(mean_and_spread([1.0, math.nan])["mean"])


def test_checked_updates_fall_on_validations():
    assert checked_updates(600, 100) == [200, 400, 600]
    assert checked_updates(500, 100) == [100, 300, 500]
    assert checked_updates(20, 20) == [20]


def test_table_of_part_of_the_runs():
    records = [
        run_record("postln", 1, [5.0, 4.0, 3.0], bleu=10.0),
        run_record("postln", 2, [5.0, 4.2, 3.4], bleu=12.0),
        run_record("admin", 1, [5.0, 3.0, 2.8], bleu=20.0),
        run_record("admin", 2, [4.8]),  # still running
    ]
    table = summarise(records, ["postln", "admin", "preln"], 30, 10)
    postln, admin, preln = table["rows"]
    assert table["target_loss"] == pytest.approx(3.2)  # the first system's final mean
    assert postln["loss"][30] == {"mean": pytest.approx(3.2), "sd": pytest.approx(0.2828427), "n": 2}
    assert admin["loss"][10]["n"] == 2 and admin["loss"][30]["n"] == 1 and preln["loss"][30] is None
    assert (postln["seeds"], admin["seeds"]) == ([1, 2], [1])
    assert admin["updates_to_target"] == {"mean": pytest.approx(19.0), "sd": None, "n": 1}
    page = markdown(table, 2)
    assert "| 11.00 ± 1.41 |" in page and "| 20.00 (1) |" in page
    assert len({line.count("|") for line in page.split("\n") if line.startswith("|")}) == 1


def test_systems_differ_in_the_named_flags_only(tiny):
    args = parse_args([str(tiny.data_bin), "--output", "o", "--", "--foo", "1"])
    common = None
    for name, flags in SYSTEMS.items():
        got = train_flags(args, name, 3)
        at = got.index("realformer") + 1
        assert got[at : at + len(flags)] == flags
        rest = got[:at] + got[at + len(flags) :]
        assert common in (None, rest) and rest[-2:] == ["--foo", "1"]
        common = rest


def test_bad_flags(tiny):
    with pytest.raises(ToolError, match="no system 'nope'.*postln"):
        parse_args([str(tiny.data_bin), "--output", "o", "--systems", "nope"])
    with pytest.raises(ToolError, match="not a directory made by fairseq-preprocess"):
        parse_args(["/no/bin", "--output", "o"])
    with pytest.raises(ToolError, match="1 or more"):
        parse_args([str(tiny.data_bin), "--output", "o", "--jobs", "0"])


def compare(tiny, output, *flags):
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "compare.sh"), str(tiny.data_bin), "--output", str(output), "--cpu",
         "--systems", "postln", "realformer_admin", "--seeds", "4", "--validate-every", "2", "--encoder-layers", "2",
         "--decoder-layers", "2", "--embed-dim", "16", "--ffn-embed-dim", "16", "--attention-heads", "2",
         "--max-tokens", "150", "--beam", "1", "--attention-sentences", "5", *flags],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip


def test_run_and_rerun(tiny, tmp_path):
    output = tmp_path / "out"
    first = compare(tiny, output, "--max-update", "4", "--jobs", "2")
    assert first.returncode == 0, first.stderr
    table = json.loads((output / "table.json").read_text())
    assert [row["system"] for row in table["rows"]] == ["postln", "realformer_admin"]
    for row, run in zip(table["rows"], table["runs"]):
        assert row["seeds"] == [4] and run["valid_updates"][-1] == 4
        assert row["loss"]["4"]["mean"] == run["valid_nll_loss"][-1] > 0
        assert run["bleu"] is not None and run["peak_rss_mb"] > 50 and run["seconds_per_update"] > 0
        assert set(run["entropy"]) == {"encoder", "decoder", "cross"}
    assert table["runs"][0]["valid_nll_loss"] != table["runs"][1]["valid_nll_loss"]
    assert (output / "table.md").read_text().strip() in first.stdout

    stamps = {path: path.stat().st_mtime_ns for path in output.glob("*/seed4/**/*") if path.is_file()}
    again = compare(tiny, output, "--max-update", "4")
    assert again.returncode == 0 and "training" not in again.stderr
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items() if path.name != "settings.json")

    other = compare(tiny, output, "--max-update", "6")
    assert other.returncode == 1 and "holds a run with other flags" in other.stderr.splitlines()[-1]
    assert "Traceback" not in other.stderr
