"""analyse_attention.py on real checkpoints: figures, files and page. Budget: 40 s."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_models import ROOT
from scipy.stats import entropy as scipy_entropy

from realformer_nmt.tools.analyse import short_names
from realformer_nmt.tools.attention_run import analyse, forward, open_model
from realformer_nmt.tools.files import ToolError

SCRIPT = ROOT / "scripts" / "analyse_attention.py"


@pytest.fixture(scope="module")
def result(tiny, residual_model, stock_model, tmp_path_factory):
    output = tmp_path_factory.mktemp("attention")
    paths = [stock_model / "checkpoint_last.pt", residual_model / "checkpoint_last.pt"]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tiny.data_bin), "--path", *map(str, paths), "--output", str(output), "--cpu",
         "--names", "stock", "<residual>", "--sentence", "3", "--layers", "2", "--subset", "test"],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return output, run


def test_files(result):
    output, run = result
    names = {"entropy", "divergence", *(f"heatmap-{site}-layer2" for site in ("encoder", "decoder", "cross"))}
    expected = {"summary.json", "heads.csv", "divergence.csv", "index.html"}
    assert {path.name for path in output.iterdir()} == expected | {n + e for n in names for e in (".png", ".svg")}
    assert (output / "entropy.png").read_bytes().startswith(b"\x89PNG")
    assert "stock: cross: entropy" in run.stdout


def test_csv_and_summary_agree(result):
    output, _ = result
    rows = list(csv.DictReader((output / "heads.csv").open()))
    assert len(rows) == 2 * 3 * 2 * 4  # models, sites, layers, heads
    summary = json.loads((output / "summary.json").read_text())
    assert summary["sentences"] == 11
    for entry in summary["models"]:
        for site in ("encoder", "decoder", "cross"):
            mine = [row for row in rows if row["model"] == entry["name"] and row["site"] == site]
            values = [float(row["normalised_entropy"]) for row in mine]
            assert entry["mean_normalised_entropy"][site] == pytest.approx(np.mean(values), abs=1e-5)
            assert entry["near_empty_share"][site] == np.mean([int(row["near_empty"]) for row in mine])
    pairs = list(csv.DictReader((output / "divergence.csv").open()))
    assert len(pairs) == 2 * 3 * 4 * 4
    assert all(0 <= float(row["jensen_shannon_bits"]) <= 1 for row in pairs)


def test_page_holds_everything(result):
    output, _ = result
    page = (output / "index.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page) and "<script" not in page and "@import" not in page
    assert page.count("data:image/svg+xml;base64,") == 5
    assert "&lt;residual&gt;" in page and "<residual>" not in page


@pytest.mark.parametrize("kind", ["residual", "stock"])
def test_entropy_of_padded_batches_equals_scipy_on_single_sentences(tiny, residual_model, stock_model, kind):
    path = (residual_model if kind == "residual" else stock_model) / "checkpoint_last.pt"
    session = open_model(path, tiny.data_bin, "test", "en", "fr", cpu=True)
    got = analyse(session, kind, path, sentences=6, batch_size=4, shown=None)
    sums, counts = {}, {}
    for index in range(6):
        probs, _ = forward(session, [index])  # a sentence alone has no padding
        for (site, layer), p in probs.items():
            for q in range(p.size(2)):
                keys = q + 1 if site == "decoder" else p.size(3)
                for head in range(p.size(1)):
                    row = p[0, head, q, :keys].double().numpy()
                    sums[site, layer, head] = sums.get((site, layer, head), 0) + scipy_entropy(row)
                    counts[site, layer, head] = counts.get((site, layer, head), 0) + 1
    assert len(sums) == 3 * 2 * 4
    for (site, layer, head), total in sums.items():
        expected = total / counts[site, layer, head]
        assert float(got.heads[site, layer].entropy[head]) == pytest.approx(expected, abs=1e-5)


def test_heatmap_is_of_the_chosen_sentence(tiny, residual_model):
    path = residual_model / "checkpoint_last.pt"
    session = open_model(path, tiny.data_bin, "test", "en", "fr", cpu=True)
    heatmap = analyse(session, "m", path, sentences=1, batch_size=1, shown=2).heatmap
    source = (tiny.directory / "test.en").read_text().split("\n")[2].split()
    target = (tiny.directory / "test.fr").read_text().split("\n")[2].split()
    assert heatmap.source == [*source, "</s>"] and heatmap.target == ["</s>", *target]
    for (site, _), probs in heatmap.probs.items():
        queries, keys = heatmap.axes(site)
        assert probs.shape == (4, len(queries), len(keys))
        assert torch.allclose(probs.sum(-1), torch.ones(4, len(queries)), atol=1e-5)
    with pytest.raises(ToolError, match="--sentence 11: the subset has sentences 0 to 10"):
        analyse(session, "m", path, sentences=1, batch_size=1, shown=11)


def test_refusals_are_one_line(tiny, tmp_path):
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tiny.data_bin), "--path", str(tmp_path / "cut.pt"), "--output", str(tmp_path / "o")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert "cut.pt" in run.stderr.splitlines()[-1]


def test_names_are_what_differs():
    assert short_names(["/a/b/x.pt"]) == ["x"]
    assert short_names(["/a/one/last.pt", "/a/two/last.pt"]) == ["one", "two"]
    assert short_names(["/a/x.pt", "/a/y.pt"]) == ["x", "y"]
    assert short_names(["/a/x.pt", "/a/x.pt"]) == ["first", "second"]
