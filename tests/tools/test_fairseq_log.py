"""Reading fairseq's logs and drawing them. The lines are fairseq's own. Budget: 10 s."""

import csv
import math

import pytest

from realformer_nmt.tools.fairseq_log import parse_line, read_log, series
from realformer_nmt.tools.files import ToolError
from realformer_nmt.tools.plot import draw, get_parser, main, panels_of, read_runs, run_names

PREFIX = "2026-12-02 06:52:02 | INFO | {} | "
JSON = [
    ("train_inner", '{"epoch": 1, "update": 0.074, "loss": "12.287", "nll_loss": "12.239", "ppl": "4833.1", "ups": "4.16", "num_updates": "20", "lr": "0.0004", "gnorm": "1.419", "train_wall": "5", "wall": "7"}'),
    ("valid", '{"epoch": 1, "valid_loss": "9.289", "valid_nll_loss": "8.882", "valid_ppl": "471.69", "valid_bleu": "3.5", "valid_num_updates": "60", "valid_best_loss": "9.289"}'),
    ("train", '{"epoch": 1, "train_loss": "8.69", "train_nll_loss": "8.135", "train_num_updates": "240", "train_gnorm": "0.69"}'),
]  # fmt: skip
SIMPLE = [
    ("train_inner", "epoch 001:     20 / 269 loss=12.287, nll_loss=12.239, ppl=4833.1, ups=4.16, num_updates=20, lr=0.0004, gnorm=1.419, train_wall=5, wall=7"),
    ("valid", "epoch 001 | valid on 'valid' subset | loss 9.289 | nll_loss 8.882 | ppl 471.69 | bleu 3.5 | num_updates 60 | best_loss 9.289"),
    ("train", "epoch 001 | loss 8.69 | nll_loss 8.135 | num_updates 240 | gnorm 0.69"),
]  # fmt: skip


@pytest.mark.parametrize("lines", [JSON, SIMPLE], ids=["json", "simple"])
@pytest.mark.parametrize("prefix", [PREFIX, ""], ids=["screen", "log-file"])
def test_both_formats_give_the_same_points(lines, prefix):
    inner, valid, train = [parse_line(prefix.format(name) + text) for name, text in lines]
    assert (inner.kind, inner.epoch, inner.update) == ("train_inner", 1, 20)
    assert inner.values["gnorm"] == 1.419 and inner.values["lr"] == 0.0004 and inner.values["nll_loss"] == 12.239
    assert (valid.kind, valid.update) == ("valid", 60)
    assert valid.values["bleu"] == 3.5 and valid.values["nll_loss"] == 8.882
    assert (train.kind, train.update, train.values["loss"]) == ("train", 240, 8.69)


@pytest.mark.parametrize(
    "line",
    ["", "begin validation on \"valid\" subset", "{'_name': None}", '{"a": 1}', "epoch 001 | done", '{"epoch": 1, "cut',
     "2026-12-02 06:52:02 | INFO | fairseq_cli.train | done training in 86.9 seconds"],
)  # fmt: skip
def test_other_lines_are_passed_over(line):
    assert parse_line(line) is None


def test_other_subsets_numbers_and_nan():
    point = parse_line("epoch 002 | valid on 'valid1' subset | loss nan | ppl inf | num_updates 9 | best_loss None")
    assert point.kind == "valid1" and math.isnan(point.values["loss"]) and math.isinf(point.values["ppl"])
    assert "best_loss" not in point.values


def test_resumed_run_keeps_the_later_line(tmp_path):
    log = tmp_path / "train.log"
    line = '{{"epoch": 1, "valid_nll_loss": "{}", "valid_num_updates": "{}"}}\n'
    log.write_text(line.format(5.0, 10) + line.format(4.0, 20) + line.format(4.5, 20) + line.format(3.0, 30))
    assert series(read_log(log), "valid", "nll_loss") == ([10, 20, 30], [5.0, 4.5, 3.0])


def test_real_log(stock_model):
    points = read_log(stock_model.with_suffix(".log"))
    assert series(points, "train_inner", "lr")[0] == [2, 4]
    updates, losses = series(points, "valid", "nll_loss")
    assert updates[-1] == 4 and all(loss > 0 for loss in losses)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_plot(tmp_path, ending, capsys):
    for name, lines in (("a", JSON), ("b", SIMPLE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text("\n".join(text for _, text in lines))
    output = tmp_path / f"curves{ending}"
    main([str(tmp_path / "a" / "train.log"), str(tmp_path / "b" / "train.log"), "--output", str(output)])
    assert output.stat().st_size > 3000
    printed = capsys.readouterr().out
    for title in ("loss", "perplexity", "gradient norm", "learning rate", "BLEU"):
        assert title in printed
    rows = list(csv.DictReader(output.with_name(output.name + ".csv").open()))
    a = {"run": "a", "log": str(tmp_path / "a" / "train.log")}
    assert {"kind": "valid", "epoch": "1", "update": "60", "figure": "bleu", "value": "3.5", **a} in rows
    assert [row for row in rows if row["run"] == "a"] == [{**row, **a} for row in rows if row["run"] == "b"]


def test_plot_of_seeds(tmp_path):
    """Runs of one name share a colour and one entry in the legend; another name has another colour."""
    logs = [tmp_path / f"{index}.log" for index in range(3)]
    for log in logs:
        log.write_text("\n".join(text for _, text in JSON))
    args = get_parser().parse_args([*map(str, logs), "--output", "x.png", "--names", "admin", "admin", "postln"])
    runs = read_runs(args)
    axis = draw(runs, panels_of(runs, "valid")).axes[0]
    colours = [line.get_color() for line in axis.lines if line.get_linestyle() == "-"]
    assert len(colours) == 3 and colours[0] == colours[1] != colours[2]
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    assert legend == ["admin train", "admin valid", "postln train", "postln valid"]


def test_plot_refusals(tmp_path):
    empty = tmp_path / "empty.log"
    empty.write_text("nothing here\n")
    with pytest.raises(ToolError, match="empty.log: holds no figures"):
        main([str(empty), "--output", str(tmp_path / "x.png")])
    with pytest.raises(ToolError, match="must end in"):
        main([str(empty), "--output", str(tmp_path / "x.gif")])
    with pytest.raises(ToolError, match="none.log: cannot be read"):
        main([str(tmp_path / "none.log"), "--output", str(tmp_path / "x.png")])


def test_run_names():
    assert run_names(["runs/a/seed1/train.log", "runs/b/seed1/train.log"]) == ["a", "b"]
    assert run_names(["x/train.log"]) == ["x/train.log"]
