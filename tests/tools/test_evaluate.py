"""evaluate.sh on a tiny data-bin with the real fairseq-generate. Budget: 60 s."""

import json
import subprocess
import sys

import pytest
import sacrebleu
import torch
from tiny_models import ROOT, call

from realformer_nmt.tools.evaluate import find_languages, markdown, parse_args, resolve_models
from realformer_nmt.tools.files import ToolError
from realformer_nmt.tools.multi_bleu import multi_bleu

SCRIPT = ROOT / "scripts" / "evaluate.sh"


def evaluate(*args):
    return subprocess.run(["bash", str(SCRIPT), *map(str, args)], capture_output=True, text=True, check=False, cwd="/")


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def report(tiny, residual_model, tmp_path_factory):
    """One evaluation of the mean of two update checkpoints, in two processes, with a raw reference."""
    output = tmp_path_factory.mktemp("report")
    reference = output / "reference.fr"
    reference.write_text((tiny.directory / "test.fr").read_text().replace("l&apos; ", "l'").replace(" .", "."))
    result = evaluate(
        tiny.data_bin, "--path", residual_model, "--num-update-checkpoints", "2", "--checkpoint-upper-bound", "4",
        "--output", output, "--cpu", "--processes", "2", "--reference", reference, "--max-tokens", "30",
        "--", "--max-len-b", "12",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return output, result, json.loads((output / "report.json").read_text())


def test_report_holds_scores_of_the_hypotheses_written(tiny, report):
    output, result, data = report
    hyp_tok, hyp_raw, ref_raw = read(output / "hyp.tok"), read(output / "hyp.detok"), read(output / "reference.fr")
    assert len(hyp_tok) == len(hyp_raw) == 11 == data["sentences"]
    assert data["scores"]["multi-bleu"]["score"] == multi_bleu(hyp_tok, [read(output / "ref.tok")]).score
    assert data["scores"]["BLEU"]["score"] == sacrebleu.corpus_bleu(hyp_raw, [ref_raw]).score
    assert "nrefs:1" in data["scores"]["BLEU"]["signature"]
    assert {"chrF2", "TER"} < set(data["scores"]) and "multi-bleu, compounds split" not in data["scores"]
    for name, entry in data["scores"].items():
        assert f"| {name} | {entry['score']:.2f} |" in (output / "report.md").read_text()
    assert any("outside the dictionary" in note for note in data["notes"])


def test_hypotheses_are_in_source_order(tiny, report, residual_model):
    output, _, data = report
    # fairseq sorts sentences by length; a plain run in one process, put in order by hand.
    printed = call(
        sys.executable, "-m", "fairseq_cli.generate", tiny.data_bin,
        "--user-dir", ROOT / "realformer_nmt", "--path", output / "average.pt", "--beam", "5", "--lenpen", "0.8",
        "--post-process", "subword_nmt", "--max-tokens", "30", "--max-len-b", "12", "--cpu",
        "--required-batch-size-multiple", "1",
    )  # fmt: skip
    found = {}
    for line in printed.split("\n"):
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t")
            found[int(number)] = text
    assert [found[number] for number in sorted(found)] == read(output / "hyp.tok")
    assert list(found) != sorted(found), "the test needs sentences that fairseq reorders"


def test_average_is_of_the_checkpoints_named(report, residual_model):
    output, _, data = report
    inputs = data["models"][0]["inputs"]
    assert [path.rsplit("_", 1)[1] for path in inputs] == ["4.pt", "2.pt"]
    average = torch.load(output / "average.pt", weights_only=True)["model"]
    parts = [torch.load(path, weights_only=True)["model"] for path in inputs]
    name = "encoder.layers.0.fc1.weight"
    assert torch.allclose(average[name], (parts[0][name] + parts[1][name]) / 2)


def test_second_call_keeps_translations_and_tests_significance(tiny, report, residual_model, tmp_path):
    output, _, before = report
    shard = output / "shards" / "shard-0-of-2.txt"
    stamp = shard.stat().st_mtime_ns
    baseline = tmp_path / "other.txt"
    baseline.write_text("un chien .\n" * 11)
    again = evaluate(
        tiny.data_bin, "--path", residual_model, "--num-update-checkpoints", "2", "--checkpoint-upper-bound", "4",
        "--output", output, "--cpu", "--processes", "2", "--reference", output / "reference.fr", "--max-tokens", "30",
        "--baseline", baseline, "--resamples", "50", "--trials", "50", "--split-compounds", "yes",
        "--", "--max-len-b", "12",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert shard.stat().st_mtime_ns == stamp
    after = json.loads((output / "report.json").read_text())
    assert after["scores"]["BLEU"] == before["scores"]["BLEU"]
    assert set(after["significance"]["metrics"]) == {"BLEU", "chrF2", "TER"}
    assert "p, paired bootstrap" in again.stdout and "multi-bleu, compounds split" in again.stdout


def test_ensemble_of_a_file_and_a_stock_model(tiny, residual_model, stock_model, tmp_path):
    path = f"{residual_model / 'checkpoint_last.pt'}:{stock_model / 'checkpoint_last.pt'}"
    result = evaluate(tiny.data_bin, "--path", path, "--output", tmp_path, "--cpu", "--beam", "2", "--", "--max-len-b", "5")
    assert result.returncode == 0, result.stderr
    data = json.loads((tmp_path / "report.json").read_text())
    assert len(data["models"]) == 2 and data["sentences"] == 11
    assert any("detokenised again" in note for note in data["notes"])
    assert "<<unk>>" in read(tmp_path / "ref.tok")[3]


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--path", "/no/such.pt"], "no such checkpoint"),
        (["--path", "{model}"], "holds 0 epoch checkpoints, but 10"),
        (["--path", "{model}/checkpoint_last.pt", "--num-epoch-checkpoints", "2"], "need a directory"),
        (["--path", "{model}/checkpoint_last.pt", "--gen-subset", "test9"], "no subset 'test9'"),
        (["--path", "{model}/checkpoint_last.pt", "--reference", "/no/ref"], "/no/ref: no such file"),
        (["--path", "{model}/checkpoint_last.pt", "--beam", "0"], "--beam"),
    ],
)
def test_mistakes_are_one_line(tiny, residual_model, tmp_path, flags, words, capsys, monkeypatch):
    from realformer_nmt.tools.evaluate import main
    from realformer_nmt.tools.files import run_main

    flags = [flag.format(model=residual_model) for flag in flags]
    with pytest.raises(SystemExit) as end:
        run_main(main, [str(tiny.data_bin), "--output", str(tmp_path / "out"), *flags])
    assert end.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("evaluate:")]
    assert len(lines) == 1 and words in lines[0]


def test_failure_of_generate_is_told(tiny, residual_model, tmp_path):
    result = evaluate(
        tiny.data_bin, "--path", residual_model / "checkpoint_last.pt", "--output", tmp_path, "--cpu", "--", "--no-such-flag"
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "no-such-flag" in result.stderr.splitlines()[-1]


def test_languages_from_file_names(tmp_path):
    for name in ("test.en-fr.en.idx", "test.en-fr.fr.idx", "test1.de-en.en.idx"):
        (tmp_path / name).touch()
    assert find_languages(tmp_path, "test") == ("en", "fr")
    assert find_languages(tmp_path, "test", source="fr") == ("fr", "en")
    assert find_languages(tmp_path, "test1") == ("de", "en")
    with pytest.raises(ToolError, match="no subset 'valid'"):
        find_languages(tmp_path, "valid")
    (tmp_path / "test.en-de.en.idx").touch()
    with pytest.raises(ToolError, match="en-de, en-fr"):
        find_languages(tmp_path, "test")
    assert find_languages(tmp_path, "test", target="de") == ("en", "de")


def test_german_target_splits_compounds_by_default():
    args = parse_args(["bin", "--path", "x", "--", "--nbest", "2"])
    assert args.generate_flags == ["--nbest", "2"] and args.split_compounds == "auto"
    assert (args.beam, args.lenpen) == (5, 0.8)


def test_markdown_escapes_the_signatures_bars():
    page = markdown(
        {"languages": "en-fr", "subset": "test", "sentences": 1, "data_bin": "bin", "command": "c", "notes": [],
         "models": [{"path": "a.pt", "inputs": ["a.pt"]}], "significance": None,
         "scores": {"BLEU": {"score": 1.0, "text": "t", "signature": "nrefs:1|case:mixed"}}}
    )  # fmt: skip
    assert "nrefs:1\\|case:mixed" in page


def test_same_inputs_are_not_averaged_again(residual_model, tmp_path):
    args = parse_args(["bin", "--path", str(residual_model), "--num-update-checkpoints", "2"])
    first, _ = resolve_models(args, tmp_path)
    stamp = first[0].stat().st_mtime_ns
    assert resolve_models(args, tmp_path)[0][0].stat().st_mtime_ns == stamp
    args.num_update_checkpoints = 3
    assert resolve_models(args, tmp_path)[0][0].stat().st_mtime_ns != stamp
