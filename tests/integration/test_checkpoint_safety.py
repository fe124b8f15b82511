"""A checkpoint that carries code, is damaged or missing, and flags that contradict: one line, nothing run.  Budget: 40 s."""

import os
import pickle
import sys

import pytest
import torch
from stock_commands import ROOT, TINY, command, digest, forked, program

from realformer_nmt.checkpoints import load_checkpoint


class Payload:
    """Pickles to a call that writes a file: what a hostile checkpoint would do on loading."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.system, (f"echo run > '{self.marker}'",)


@pytest.fixture(scope="module")
def checkpoint(corpus_databin, tmp_path_factory):
    """An honest checkpoint after two updates."""
    folder = tmp_path_factory.mktemp("honest")
    forked(
        "train", corpus_databin, *TINY, "--max-update", 2, "--disable-validation", "--no-epoch-checkpoints",
        "--save-dir", folder,
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def marker(tmp_path_factory):
    return tmp_path_factory.mktemp("marker") / "written"


@pytest.fixture(scope="module")
def hostile(checkpoint, marker, tmp_path_factory):
    """The honest checkpoint with a payload in its extra state; the payload works where pickle is trusted."""
    state = load_checkpoint(checkpoint)
    state["extra_state"]["note"] = Payload(marker)
    path = tmp_path_factory.mktemp("hostile") / "checkpoint_last.pt"
    torch.save(state, path)
    proof = marker.with_name("proof")
    pickle.loads(pickle.dumps(Payload(proof)))
    assert proof.exists()
    return path


def truncated(checkpoint, path, part=0.5):
    data = checkpoint.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    return path


def average(path, output):
    return program(
        [sys.executable, ROOT / "scripts" / "average_checkpoints.py", "--inputs", path, "--output", output], ok=False
    )


def refused(done, *words):
    """The command failed, and its last line alone says why."""
    assert done.rc not in (0, None)
    line = done.last_line()
    assert all(str(word) in line for word in words), done.err[-3000:]
    assert "Traceback" not in done.err, done.err[-3000:]
    return line


def test_generate_refuses_code(corpus_databin, hostile, marker):
    line = refused(command("generate", corpus_databin, "--path", hostile, ok=False), hostile, "refused", "system")
    assert line.startswith("realformer_nmt: checkpoint ")
    assert not marker.exists()


def test_train_refuses_code(corpus_databin, hostile, marker, tmp_path):
    done = command(
        "train", corpus_databin, *TINY, "--max-update", 4, "--restore-file", hostile, "--save-dir", tmp_path / "new", ok=False
    )
    refused(done, hostile, "refused", "system")
    assert not marker.exists() and not list((tmp_path / "new").glob("*.pt"))


def test_resume_and_finetune_refuse_code(corpus_databin, hostile, marker, tmp_path):
    before = digest(hostile)
    for flags in (
        ["--save-dir", hostile.parent],
        ["--save-dir", tmp_path / "new", "--finetune-from-model", hostile],
    ):
        done = forked("train", corpus_databin, *TINY, "--max-update", 4, *flags, ok=False)
        refused(done, hostile, "refused", "system")
    assert not marker.exists() and digest(hostile) == before


@pytest.mark.parametrize("name", ["validate", "interactive"])
def test_other_commands_refuse_code(corpus_databin, hostile, marker, name):
    flags = ["--task", "translation", "--max-tokens", 400]
    refused(forked(name, corpus_databin, *flags, "--path", hostile, ok=False), hostile, "refused")
    assert not marker.exists()


def test_averaging_refuses_code(hostile, marker, tmp_path):
    refused(average(hostile, tmp_path / "out.pt"), hostile, "refused", "system")
    assert not marker.exists() and not list(tmp_path.iterdir())


def test_python_refuses_code(corpus_databin, hostile, marker):
    from realformer_nmt.model import RealFormerModel

    with pytest.raises(pickle.UnpicklingError):
        RealFormerModel.from_pretrained(str(hostile.parent), hostile.name, str(corpus_databin))
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["old format", "in the settings", "in an array"])
def test_other_disguises(corpus_databin, checkpoint, marker, tmp_path, kind):
    """A payload in torch's old format, and inside of what the allow-list lets in."""
    path = tmp_path / "checkpoint.pt"
    state = load_checkpoint(checkpoint)
    if kind == "old format":
        state["extra_state"]["note"] = Payload(marker)
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif kind == "in the settings":
        state["cfg"]["model"].note = Payload(marker)  # inside the allowed argparse.Namespace
        torch.save(state, path)
    else:
        import numpy as np

        state["extra_state"]["note"] = np.array([Payload(marker)], dtype=object)  # inside an allowed array
        torch.save(state, path)
    refused(forked("generate", corpus_databin, "--path", path, ok=False), path, "refused")
    assert not marker.exists()


SETTINGS = ["adaptive_softmax_cutoff", "encoder_xformers_att_config", "decoder_xformers_att_config"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_fairseq_evaluates(corpus_databin, checkpoint, marker, tmp_path, setting):
    """fairseq hands some settings to eval: a checkpoint of plain text and tensors can carry code in them."""
    path = tmp_path / "checkpoint.pt"
    state = load_checkpoint(checkpoint)
    setattr(state["cfg"]["model"], setting, f"open({str(marker)!r}, 'w') and None")
    torch.save(state, path)
    for name in ("generate", "interactive"):
        refused(forked(name, corpus_databin, "--path", path, ok=False), setting.replace("_", "-"), "refused")
    assert not marker.exists()


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_truncated_file(corpus_databin, checkpoint, tmp_path, part):
    path = truncated(checkpoint, tmp_path / "checkpoint_last.pt", part)
    refused(forked("generate", corpus_databin, "--path", path, ok=False), path)
    if part == 0.5:
        refused(average(path, tmp_path / "out.pt"), path)
        assert not (tmp_path / "out.pt").exists()


def test_resume_from_truncated_file_leaves_it_alone(corpus_databin, checkpoint, tmp_path):
    path = truncated(checkpoint, tmp_path / "checkpoint_last.pt")
    before = digest(path)
    done = forked("train", corpus_databin, *TINY, "--max-update", 4, "--save-dir", tmp_path, ok=False)
    refused(done, path, "truncated")
    assert digest(path) == before


@pytest.mark.parametrize(
    "content",
    [b"no checkpoint at all\n", pickle.dumps([1, 2]), "tensor", "weights only"],
    ids=["text", "pickle", "tensor", "weights"],
)
def test_not_a_checkpoint(corpus_databin, checkpoint, tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "tensor":
        torch.save(torch.zeros(3), path)
    else:
        torch.save(load_checkpoint(checkpoint)["model"], path)
    refused(forked("generate", corpus_databin, "--path", path, ok=False), path)


@pytest.mark.parametrize(
    "flag, value, words",
    [
        ("admin_init", "none", "has also omega_profiled"),
        ("encoder_layers", 3, "lacks encoder.layers.2."),
        ("encoder_ffn_embed_dim", 32, "has encoder.layers.0.fc1.weight of"),
    ],
)
def test_another_model(corpus_databin, checkpoint, tmp_path, flag, value, words):
    """Parameters that do not fit the flags are one line in the commands that train and in those that do not."""
    done = forked("generate", corpus_databin, "--path", checkpoint, "--model-overrides", {flag: value}, ok=False)
    refused(done, "another model", words)
    for reader in ("--restore-file", "--finetune-from-model"):
        done = forked(
            "train", corpus_databin, *TINY, "--max-update", 4, "--save-dir", tmp_path / "new", reader, checkpoint,
            f"--{flag.replace('_', '-')}", value, ok=False,
        )  # fmt: skip
        refused(done, checkpoint, "another model", words)
    assert not list(tmp_path.glob("new/*.pt"))


def test_missing_file(corpus_databin, checkpoint, tmp_path):
    path = tmp_path / "nowhere.pt"
    refused(forked("generate", corpus_databin, "--path", path, ok=False), path)
    refused(forked("generate", corpus_databin, "--path", f"{checkpoint}:{path}", ok=False), path)
    refused(average(path, tmp_path / "out.pt"), path)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--residual-attention-sites", "encoder,foo"], ["--residual-attention-sites", "foo", "encoder,decoder,cross"]),
        (["--residual-attention-sites", ","], ["--residual-attention-sites", "encoder,decoder,cross"]),
        (["--admin-init", "profile", "--encoder-normalize-before"], ["--admin-init profile", "Post-LN"]),
        (["--admin-init", "analytic", "--decoder-normalize-before"], ["--admin-init analytic", "Post-LN"]),
        (["--residual-attention", "max"], ["--residual-attention", "max", "sum"]),
        (["--admin-init", "default"], ["--admin-init", "default", "profile"]),
    ],
    ids=["site", "no-site", "pre-ln-profile", "pre-ln-analytic", "mode", "init"],
)
def test_bad_flags(corpus_databin, tmp_path, flags, words):
    done = forked("train", corpus_databin, *TINY, "--max-update", 2, "--save-dir", tmp_path / "new", *flags, ok=False)
    refused(done, *words)
    assert "begin training" not in done.text and not list(tmp_path.glob("new/*.pt"))


def test_honest_checkpoint_is_taken(corpus_databin, checkpoint, tmp_path):
    """The refusals above are not due to something else in the commands."""
    forked("generate", corpus_databin, "--path", checkpoint, "--max-len-b", 5)
    assert average(checkpoint, tmp_path / "out.pt").rc == 0
