"""The launcher's command line: what it would run, and what it refuses with one line.  Budget: 8 s."""

import shlex
import types

import pytest
from tiny_databin import write_databin

from realformer_nmt.launch import disk
from realformer_nmt.launch.__main__ import keep_last_epochs, main
from realformer_nmt.launch.command import parse_with_fairseq
from realformer_nmt.launch.disk import transformer_parameters
from realformer_nmt.launch.recipes import RECIPES
from realformer_nmt.launch.worker import distributed_arguments


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("dry") / "db")


@pytest.fixture(autouse=True)
def room(monkeypatch):
    """The machine that runs the tests need not have room for 60-layer checkpoints."""
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10**15))


@pytest.fixture
def launch(databin, tmp_path, capsys):
    def run(*flags, corpus="wmt14_en_fr", data=databin):
        status = main(["--corpus", corpus, "--data-bin", data, "--save-dir", str(tmp_path / "s"), *flags])
        return status, capsys.readouterr()

    return run


def flag(words, name):
    return words[words.index(name) + 1]


def test_published_60l_12l_on_two_nodes(launch, tmp_path):
    status, out = launch("--size", "60l-12l", "--devices", "8", "--nodes", "2", "--node-rank", "0", "--rdzv-endpoint", "n0:29500", "--dry-run")
    assert status == 0
    (line,) = out.out.strip().splitlines()  # standard output holds the command and nothing else
    words = shlex.split(line)
    assert words[1:3] == ["-m", "torch.distributed.run"] and "--nnodes=2" in words and "--nproc-per-node=8" in words
    arguments = words[words.index("realformer_nmt.launch.worker") + 1 :]
    parsed = parse_with_fairseq(arguments)
    assert (parsed.encoder_layers, parsed.decoder_layers, parsed.encoder_embed_dim) == (60, 12, 512)
    assert (parsed.max_tokens, parsed.update_freq, parsed.max_epoch) == (5000, [16], 50)
    assert (parsed.optimizer, parsed.lr, parsed.warmup_updates, parsed.clip_norm) == ("radam", [7e-4], 8000, 0.0)
    assert (parsed.fp16, parsed.fp16_scale_window, parsed.threshold_loss_scale) == (True, 256, 0.03125)
    assert (parsed.dropout, parsed.attention_dropout, parsed.activation_dropout, parsed.label_smoothing) == (0.1,) * 4
    assert parsed.share_all_embeddings and parsed.keep_last_epochs == 10 and parsed.update_epoch_batch_itr
    assert parsed.load_checkpoint_on_all_dp_ranks
    assert not (tmp_path / "s").exists()  # a dry run leaves nothing behind
    assert "1,280,000 tokens an update (as published)" in out.err and "apex" in out.err


@pytest.mark.parametrize("corpus, size", [(c, s) for c, sizes in RECIPES.items() for s in sizes])
def test_every_recipe_is_understood_by_fairseq(launch, corpus, size, tmp_path):
    recipe = RECIPES[corpus][size]
    data = write_databin(tmp_path / "db", pairs=3, source=recipe.source_lang, target=recipe.target_lang)
    status, out = launch("--size", size, "--devices", "1", "--dry-run", corpus=corpus, data=data)
    assert status == 0 and "WOULD STOP" not in out.err and "(as published)" in out.err


def test_users_flags_win(launch):
    status, out = launch("--cpu", "--dropout", "0.25", "--residual-attention", "mean", "--encoder-layers", "12", "--dry-run")
    words = shlex.split(out.out)
    parsed = parse_with_fairseq(words[words.index("realformer_nmt.launch.worker") + 1 :])
    assert (parsed.dropout, parsed.residual_attention, parsed.encoder_layers) == (0.25, "mean", 12)
    assert "--cpu" in words and "--fp16" not in words


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--dropuot", "0.1"], "unrecognized arguments: --dropuot 0.1"),
        (["--residual-attention", "median"], "invalid choice: 'median'"),
        (["--update-freq", "3"], "--update-freq: it follows from --global-batch"),
        (["--fp16"], "--fp16: use --precision fp16"),
        (["--size", "12l"], "--size takes: 6l, 60l-12l"),
        (["--keep-last-epochs", "3"], "--keep-last-epochs 3: averaging needs 10"),
        (["--no-epoch-checkpoints"], "averaging needs the last 10 epoch checkpoints"),
        (["--no-last-checkpoints"], "resuming needs checkpoint_last.pt"),
        (["--average-until", "60"], "after the last epoch trained, 50"),
        (["--precision", "mem-fp16"], "keeps no float32 weights, which RAdam needs"),
        (["--nodes", "2"], "--nodes needs --rdzv-endpoint"),
        (["--nodes", "2", "--rdzv-endpoint", "n0:29500"], "--nodes 2 needs --node-rank R"),
        (["--nodes", "2", "--rdzv-endpoint", "n0:29500", "--node-rank", "2"], "--nodes 2 needs --node-rank R"),
        (["--devices", "2", "--ddp-backend", "c10d"], "needs CUDA devices in fairseq"),
        (["--ddp-backend", "fully_sharded"], "CUDA devices only"),
        (["--data-bin", "/nonexistent"], "data-bin /nonexistent is not a folder"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--global-batch", "0"], "--global-batch must be at least 1, got 0"),
        (["--average-last", "0"], "--average-last must be at least 1, got 0"),
        (["--save-interval", "10"], "--save-interval 10: 50 epochs write 5 checkpoints, averaging needs 10"),
        (["--restore-file", "/nonexistent.pt"], "--restore-file /nonexistent.pt is not there; fairseq would start again"),
    ],
)
def test_refused_in_one_line_before_anything_is_written(launch, tmp_path, flags, message):
    status, out = launch("--cpu", *flags)
    last = out.err.strip().splitlines()[-1]
    assert status == 2 and last.startswith("train: error: ") and message in last
    assert not (tmp_path / "s").exists()


def test_too_little_disk_stops_early(launch, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10**6))
    status, out = launch("--cpu")
    assert status == 2 and "1.0 MB free, but the checkpoints kept need" in out.err
    status, out = launch("--cpu", "--dry-run")
    assert status == 0 and "WOULD STOP" in out.err and "1 problem(s)" in out.err


def test_layerdrop_tells_torchs_wrapper_about_unused_parameters(launch):
    _, out = launch("--devices", "8", "--encoder-layerdrop", "0.2", "--dry-run")
    assert "--find-unused-parameters" in out.out
    _, out = launch("--devices", "8", "--dry-run")
    assert "--find-unused-parameters" not in out.out


def test_keep_last_epochs():
    assert keep_last_epochs(10, None, 50) == 10
    assert keep_last_epochs(10, 50, 50) == 10
    assert keep_last_epochs(10, 45, 50) == 15  # 46-50 would push 36-40 out
    assert keep_last_epochs(10, 45, 0) == -1


def test_arguments_from_torchruns_environment():
    environ = {"WORLD_SIZE": "16", "RANK": "11", "LOCAL_RANK": "3"}
    arguments = distributed_arguments(environ, cuda=True)
    assert flag(arguments, "--distributed-rank") == "11" and flag(arguments, "--device-id") == "3"
    assert "--distributed-backend" not in arguments
    assert flag(distributed_arguments(environ, cuda=False), "--distributed-backend") == "gloo"
    assert distributed_arguments({}, cuda=True) == ["--distributed-world-size", "1"]


@pytest.mark.parametrize("flags", [{"share_all_embeddings": True}, {"share_decoder_input_output_embed": True}, {}])
def test_parameter_estimate_equals_the_model(flags):
    import argparse

    from fairseq.models import ARCH_CONFIG_REGISTRY
    from toys import build

    args = argparse.Namespace(**flags)
    ARCH_CONFIG_REGISTRY["realformer_tiny"](args)
    exact = sum(p.numel() for p in build("realformer_tiny", words=40, **flags).parameters())
    assert transformer_parameters(args, 44, 44) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("below", ["", "deeper/"])
def test_save_dir_that_cannot_be_made_or_written(launch, tmp_path, below):
    (tmp_path / "file").write_text("")
    where = f"{tmp_path}/file/{below}s"
    status, out = launch("--cpu", "--save-dir", where)
    last = out.err.strip().splitlines()[-1]
    assert status == 2 and last.startswith(f"train: error: --save-dir {where}: cannot be written to (Not a directory)")
