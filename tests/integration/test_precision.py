"""Residual scores in half precision: float32 always, no overflow over 60 layers, padding-only rows.  Budget: 20 s."""

import contextlib
import math

import pytest
import torch
from test_flags import Built
from tiny_databin import write_databin
from train_tools import Train, Background, USER_DIR, MODEL, QUIET, weights

from realformer_nmt.scores import residual_attention

HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("precision") / "db", pairs=40)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sum_over_60_layers_beyond_fp16(dtype, mode):
    """Scores of some thousands a layer: their sum passes fp16's 65,504, in the forward pass and in its gradient."""
    torch.manual_seed(0)
    heads, length, dim = 2, 5, 8
    scale = dim**-0.5
    queries = [(torch.randn(heads, length, dim) * 40).to(dtype) for _ in range(60)]
    keys = [(torch.randn(heads, length, dim) * 40 + 60).to(dtype) for _ in range(60)]
    value = torch.randn(heads, length, dim).to(dtype)
    for q, k in zip(queries, keys):
        q += 40
        q.requires_grad_(), k.requires_grad_()
    running, wide = None, torch.zeros(heads, length, length, dtype=torch.float64)
    for number, (q, k) in enumerate(zip(queries, keys), 1):
        divisor = number if mode == "mean" else 1
        out, running, _ = residual_attention(q, k, value, running, None, num_heads=heads, scale=scale, divisor=divisor)
        assert running.dtype == torch.float32 and out.dtype == dtype
        # the definition, in float64, from the scores of this layer as half precision gives them
        wide = wide + (q.detach().double() @ k.detach().double().transpose(1, 2)) * scale
        assert torch.isfinite(running).all() and torch.isfinite(out).all()
    assert wide.abs().max() > 2 * 65504
    # each layer's product is rounded to the precision of q and k once; the sum adds no error of its own
    torch.testing.assert_close(running.double(), wide, rtol=60 ** 0.5 * torch.finfo(dtype).eps, atol=0)
    out.float().pow(2).sum().backward()
    for tensor in queries + keys:
        assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_model_carries_float32_and_survives_padding_only(databin, dtype, mode):
    """R is float32 or wider between layers; a sentence of padding only gives finite numbers and gradients."""
    built = Built(databin, "--residual-attention", mode, "--dropout", "0", dtype=dtype)
    net = built.batch["net_input"]
    net["src_tokens"][0] = built.task.source_dictionary.pad()
    seen = []
    for layer in (*built.model.encoder.layers, *built.model.decoder.layers):
        layer.register_forward_hook(lambda m, i, o: seen.extend(t.dtype for t in o[1:] if torch.is_tensor(t) and t.dim() == 3))
    loss, gradients = built.backward()
    assert seen and set(seen) == {torch.float64 if dtype == torch.float64 else torch.float32}
    assert math.isfinite(loss)
    assert gradients and all(torch.isfinite(g).all() for g in gradients.values())
    assert torch.isfinite(built.logits()).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_autocast_leaves_the_scores_float32(dtype):
    """What --amp does on CUDA: autocast around everything."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 6, 8, requires_grad=True) for _ in range(3))
    outs = []
    for around in (contextlib.nullcontext(), torch.autocast("cpu", dtype=dtype)):
        with around:
            _, first, _ = residual_attention(q, k, v, None, None, num_heads=2, scale=1.0)
            out, second, _ = residual_attention(q, k, v, first, None, num_heads=2, scale=1.0)
        assert first.dtype == second.dtype == torch.float32
        outs.append(out.float())
        out.float().sum().backward()
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0.02)


@pytest.mark.parametrize(
    "flags",
    [
        ["--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4"],
        ["--memory-efficient-fp16", "--fp16-init-scale", "4", "--optimizer", "adam"],
        ["--bf16"],
        ["--memory-efficient-bf16", "--optimizer", "adam"],
        ["--amp"],
    ],
    ids=lambda flags: flags[0].strip("-"),
)
def test_training_in_every_precision_keeps_omega(databin, tmp_path, flags):
    """The training command itself; omega is the measured one after updates by a half-precision optimiser, and trains."""
    save_dir = tmp_path / "s"
    arguments = [databin, "--user-dir", USER_DIR, "--save-dir", str(save_dir), *MODEL, *QUIET, "--max-update", "5", *flags]

    def worker():
        from realformer_nmt.launch.worker import run

        torch.set_num_threads(1)
        assert run(arguments) == 0

    job = Background(worker, tmp_path / "log")
    assert job.wait() == 0, job.text()[-4000:]
    logged = [
        float(word)
        for line in job.text().splitlines()
        if "ADMIN omega" in line
        for word in line.split(": ")[-1].split()
    ]
    assert len(logged) == 2 * 2 + 2 * 3 and max(logged) > 1.05
    state = weights(save_dir / "checkpoint_last.pt")
    stored = [float(state[name]) for name in state if name.endswith("omega.init")]
    tolerance = 0.01 if "bf16" in flags[0] else 1e-3
    assert sorted(stored) == pytest.approx(sorted(logged), rel=tolerance)
    assert any(state[name].abs().max() > 0 for name in state if name.endswith("omega.delta"))
    assert all(torch.isfinite(value).all() for value in state.values())


def test_stock_command_takes_bf16_for_a_tpu(databin, tmp_path):
    """Why training in bfloat16 goes through the launcher; if this fails, fairseq has changed and docs/training.md must."""
    job = Background(Train(databin, tmp_path / "s", "--bf16", "--max-update", "1"), tmp_path / "log")
    assert job.wait() != 0
    assert "torch_xla" in job.text() or "xm" in job.text()
