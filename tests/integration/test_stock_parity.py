"""A stock transformer's checkpoint under --arch realformer with both additions off: the same model.  Budget: 40 s."""

import argparse
import re

import pytest
import torch
from stock_commands import TINY, bleu, forked, hypotheses, weights

OFF = ["--residual-attention", "none", "--admin-init", "none"]
SIZES = [
    "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "64", "--decoder-embed-dim", "64",
    "--encoder-ffn-embed-dim", "128", "--decoder-ffn-embed-dim", "128", "--encoder-attention-heads", "4",
    "--decoder-attention-heads", "4",
]  # fmt: skip
# as TINY, with an architecture to be chosen
FLAGS = [*TINY[TINY.index("--share-all-embeddings") :], *SIZES, "--attention-dropout", "0.05"]


@pytest.fixture(scope="module")
def stock(corpus_databin, tmp_path_factory):
    """Checkpoints after 14 and 15 epochs of --arch transformer, in one folder, and the training's log."""
    folder = tmp_path_factory.mktemp("stock")
    flags = ["--arch", "transformer", *FLAGS, "--save-dir", folder, "--keep-last-epochs", 2, "--max-epoch", 15]
    return folder, forked("train", corpus_databin, *flags).text


@pytest.fixture(scope="module")
def continued(corpus_databin, stock, tmp_path_factory):
    """The stock checkpoint of the 14th epoch trained for one more: ``{arch: (folder, log)}``, stock and ours."""
    runs = {}
    for arch, flags in (("transformer", []), ("realformer", OFF)):
        folder = tmp_path_factory.mktemp(arch)
        flags = ["--arch", arch, *flags, *FLAGS, "--save-dir", folder, "--max-epoch", 15]
        done = forked("train", corpus_databin, *flags, "--restore-file", stock[0] / "checkpoint14.pt")
        runs[arch] = folder, done.text
    return runs


def build(model_class, **settings):
    """A model of ``settings`` over the databin's dictionary, as fairseq-train builds it."""
    from fairseq.data import Dictionary

    dictionary = settings.pop("dictionary")
    task = argparse.Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    assert isinstance(dictionary, Dictionary)
    return model_class.build_model(argparse.Namespace(**settings), task).eval()


@pytest.fixture(scope="module")
def pair(corpus_databin, stock):
    """The stock checkpoint in fairseq's model and, loaded strictly, in this project's."""
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel
    from fairseq.models.transformer.transformer_legacy import base_architecture

    from realformer_nmt.model import RealFormerModel

    sizes = {flag[2:].replace("-", "_"): int(value) for flag, value in zip(SIZES[::2], SIZES[1::2])}
    common = dict(sizes, share_all_embeddings=True, dictionary=Dictionary.load(str(corpus_databin / "dict.en.txt")))
    settings = argparse.Namespace(**common)
    base_architecture(settings)
    state = weights(stock[0] / "checkpoint_last.pt")
    theirs = build(TransformerModel, **{**vars(settings), "max_source_positions": 1024, "max_target_positions": 1024})
    ours = build(RealFormerModel, **common, residual_attention="none", admin_init="none")
    for model in (theirs, ours):
        model.load_state_dict(state, strict=True)
    return theirs, ours


def test_parameter_names(pair):
    theirs, ours = pair
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]


def batches():
    torch.manual_seed(0)
    for bsz, src_len, tgt_len in ((1, 5, 4), (6, 11, 13), (3, 2, 9)):
        src, prev = torch.randint(4, 60, (bsz, src_len)), torch.randint(4, 60, (bsz, tgt_len))
        prev[:, 0] = 2
        lengths = torch.full((bsz,), src_len)
        for row in range(1, bsz):  # left-padded sources, right-padded targets, as in training
            src[row, : min(row, src_len - 1)] = 1
            lengths[row] -= min(row, src_len - 1)
            prev[row, tgt_len - min(row, tgt_len - 1) :] = 1
        yield src, lengths, prev


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_logits_and_gradients(pair, mode):
    theirs, ours = pair
    for src, lengths, prev in batches():
        outs, grads = [], []
        for model in (theirs, ours):
            model.train(mode == "train")
            model.zero_grad()
            torch.manual_seed(1)  # the same dropout masks
            logits = model(src, lengths, prev)[0]
            logits.float().log_softmax(-1)[prev.ne(1)].pow(2).mean().backward()
            outs.append(logits.detach())
            grads.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
            model.eval()
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-5)
        for name, grad in grads[0].items():
            torch.testing.assert_close(grads[1][name], grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def losses(text, epoch):
    inner = re.findall(rf"train_inner \| epoch {epoch:03d}:.* loss=([\d.]+).*num_updates=(\d+)", text)
    valid = re.findall(rf"valid \| epoch {epoch:03d} \|.* loss ([\d.]+) \| nll_loss ([\d.]+)", text)
    assert inner and valid
    return inner, valid


def test_training_goes_on_with_the_same_losses(stock, continued):
    for _, log in continued.values():
        assert f"Loaded checkpoint {stock[0]}/checkpoint14.pt (epoch 15 @ 224 updates)" in log
    (theirs, their_log), (ours, our_log) = continued["transformer"], continued["realformer"]
    assert losses(our_log, 15) == losses(their_log, 15)
    after, expected = weights(ours / "checkpoint_last.pt"), weights(theirs / "checkpoint_last.pt")
    assert list(after) == list(expected)
    before = weights(stock[0] / "checkpoint14.pt")
    for name, value in expected.items():
        if name.endswith("k_proj.bias"):
            continue  # the loss does not depend on it: its gradient is rounding alone, which the optimiser scales up
        moved = (value - before[name]).abs().max()
        assert (after[name] - value).abs().max() <= 0.05 * moved, name


def test_same_translations_and_validation_loss(corpus_databin, continued):
    results = []
    for arch in ("transformer", "realformer"):
        path = continued[arch][0] / "checkpoint_last.pt"
        text = forked("generate", corpus_databin, "--path", path, "--beam", 5).text
        validated = forked("validate", corpus_databin, "--task", "translation", "--path", path, "--max-tokens", 400)
        results.append((text, re.findall(r"\| loss ([\d.]+) \| nll_loss ([\d.]+)", validated.text)[-1]))
    (theirs, their_loss), (ours, our_loss) = results
    assert their_loss == our_loss
    assert bleu(theirs) == bleu(ours) > 30
    for number, several in hypotheses(theirs).items():
        assert hypotheses(ours)[number][0][1] == several[0][1]
        assert hypotheses(ours)[number][0][0] == pytest.approx(several[0][0], abs=1e-4)
