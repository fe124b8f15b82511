"""fairseq's flags with residual attention: each works, checked against the same model without it.  Budget: 25 s.

Small float64 or float32 models in this process; only what belongs to the training command runs in a fork.
"""

import logging

import pytest
import torch
from tiny_databin import write_databin
from train_tools import USER_DIR, train

MODES = ["sum", "mean"]
TINY = ["--encoder-layers", "3", "--decoder-layers", "3"]


@pytest.fixture(scope="module")
def databin(tmp_path_factory):
    return write_databin(tmp_path_factory.mktemp("flags") / "db", pairs=40)


class Built:
    """Task, model and criterion as fairseq-train builds them, and a padded batch."""

    def __init__(self, databin, *flags, seed=3, dtype=torch.float64):
        from fairseq import options, tasks, utils
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        arguments = [
            databin, "--user-dir", USER_DIR, "--arch", "realformer_tiny", "--cpu", "--max-tokens", "100",
            "--optimizer", "radam", *flags,
        ]  # fmt: skip
        parser = options.get_training_parser()
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=arguments))
        utils.set_torch_seed(seed)
        self.task = tasks.setup_task(cfg.task)
        self.model = self.task.build_model(cfg.model).to(dtype)
        self.criterion = self.task.build_criterion(cfg.criterion)
        self.task.load_dataset("valid")
        dataset = self.task.dataset("valid")
        self.batch = dataset.collater([dataset[i] for i in range(6)])
        assert self.batch["net_input"]["src_tokens"].eq(dataset.src_dict.pad()).any()

    def backward(self, seed=5):
        """Loss and gradients of one training step; dropout drawn from *seed*."""
        from fairseq import utils

        self.model.train()
        self.model.zero_grad()
        utils.set_torch_seed(seed)
        loss, size, _ = self.criterion(self.model, self.batch)
        loss.backward()
        return loss.item(), {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}

    def logits(self):
        self.model.eval()
        with torch.no_grad():
            return self.model(**self.batch["net_input"])[0]


def assert_same_step(first, second):
    assert first[0] == pytest.approx(second[0], abs=1e-12)
    assert first[1].keys() == second[1].keys()
    for name, gradient in first[1].items():
        torch.testing.assert_close(gradient, second[1][name], rtol=1e-9, atol=1e-12, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flag", ["--checkpoint-activations", "--offload-activations"])
def test_recomputed_layers_carry_scores_forward_and_gradients_back(databin, flag, mode):
    """The same loss and gradients with dropout on: R and its gradient cross the checkpointed layer's boundary."""
    flags = [*TINY, "--residual-attention", mode, "--dropout", "0.1", "--attention-dropout", "0.2"]
    plain, recomputed = Built(databin, *flags), Built(databin, *flags, flag)
    wrapped = type(recomputed.model.encoder.layers[0].forward).__name__
    assert wrapped == "partial"  # fairseq's checkpoint_wrapper has replaced forward
    assert_same_step(plain.backward(), recomputed.backward())
    torch.testing.assert_close(plain.logits(), recomputed.logits())


def test_scores_do_reach_the_last_layer_in_these_tests(databin):
    """Guards the test above: without residual attention the numbers are others."""
    losses = {
        mode: Built(databin, *TINY, "--residual-attention", mode, "--admin-init", "none").backward()[0]
        for mode in ("none", "sum", "mean")
    }
    assert len({round(loss, 6) for loss in losses.values()}) == 3


@pytest.mark.parametrize("mode", MODES)
def test_layerdrop_equals_the_model_without_the_dropped_layers(databin, mode):
    flags = [*TINY, "--residual-attention", mode, "--admin-init", "none"]
    dropping = Built(databin, *flags, "--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5")
    encoder, decoder = dropping.model.encoder.layers, dropping.model.decoder.layers
    kept = {"encoder": [], "decoder": []}
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        for number, layer in enumerate(torch.nn.ModuleList.__iter__(stack)):
            layer.register_forward_pre_hook(lambda *_, n=name, i=number: kept[n].append(i))
    dropping.model.train()
    for dropout in (m for m in dropping.model.modules() if hasattr(m, "apply_during_inference")):
        dropout.p = 0.0
    dropping.model.encoder.layers[0].training  # noqa: B018  the modules are in training mode, as LayerDrop needs
    for seed in range(20):
        kept["encoder"].clear(), kept["decoder"].clear()
        loss, gradients = dropping.backward(seed)
        if 0 < len(kept["encoder"]) < 3 and 0 < len(kept["decoder"]) < 3:
            break
    chosen = {name: list(numbers) for name, numbers in kept.items()}
    smaller = Built(
        databin, "--residual-attention", mode, "--admin-init", "none", "--dropout", "0",
        "--encoder-layers", str(len(chosen["encoder"])), "--decoder-layers", str(len(chosen["decoder"])),
    )  # fmt: skip
    state = dropping.model.state_dict()
    for name in chosen:
        for new, old in enumerate(chosen[name]):
            for key in list(state):
                if key.startswith(f"{name}.layers.{old}."):
                    state[f"small.{name}.layers.{new}." + key.split(".", 3)[3]] = state[key]
    state = {k: v for k, v in state.items() if ".layers." not in k or k.startswith("small.")}
    smaller.model.load_state_dict({k.replace("small.", "", 1): v for k, v in state.items()}, strict=True)
    assert smaller.backward(seed)[0] == pytest.approx(loss, abs=1e-10)


def test_quant_noise(databin):
    built = Built(databin, "--quant-noise-pq", "0.5", "--quant-noise-pq-block-size", "8", "--admin-init", "none")
    attention = built.model.encoder.layers[0].self_attn
    before = attention.q_proj.weight.detach().clone()
    loss, gradients = built.backward()
    assert torch.isfinite(torch.tensor(loss))
    assert all(torch.isfinite(g).all() for g in gradients.values())
    # the noise zeroes blocks of 8 of the residual attention's own projections, and scales the others by 1 / (1 - p)
    blocks = attention.q_proj.weight.detach().view(-1, 8)
    zero = blocks.eq(0).all(1)
    assert 0.2 < zero.float().mean() < 0.8
    assert torch.equal(blocks[~zero], 2 * before.view(-1, 8)[~zero])


def test_scalar_quant_noise(databin):
    """fairseq's quantiser replaces the very layers that it does in its own transformer; it trains on a GPU only."""
    from fairseq.modules.quantization.scalar.modules import IntEmbedding, IntLinear

    def quantised(*flags):
        modules = Built(databin, "--quant-noise-scalar", "0.2", *flags).model.named_modules()
        return {name: type(module) for name, module in modules if isinstance(module, (IntEmbedding, IntLinear))}

    found = quantised("--residual-attention", "sum")
    sizes = ["--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "64", "--decoder-embed-dim", "64"]
    assert found == quantised("--arch", "transformer", *sizes)
    assert found["encoder.layers.1.self_attn.q_proj"] is IntLinear


@pytest.mark.parametrize("admin", ["profile", "analytic", "none"])
def test_no_cross_attention(databin, admin):
    built = Built(databin, "--no-cross-attention", "--admin-init", admin)
    assert built.model.decoder.layers[0].encoder_attn is None
    _, gradients = built.backward()
    assert gradients["decoder.layers.0.self_attn.q_proj.weight"].abs().sum() > 0
    # without cross-attention the decoder is blind to the source
    logits = built.logits()
    built.batch["net_input"]["src_tokens"] = built.batch["net_input"]["src_tokens"].flip(0)
    torch.testing.assert_close(built.logits(), logits)


@pytest.mark.parametrize("flag, tied", [("--share-decoder-input-output-embed", 2), ("--share-all-embeddings", 3)])
def test_shared_embeddings(databin, flag, tied):
    built = Built(databin, flag)
    model = built.model
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    assert (model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight) == (tied == 3)
    _, gradients = built.backward()
    assert sum("embed_tokens" in name or "output_projection" in name for name in gradients) == 4 - tied


def test_adaptive_softmax(databin):
    built = Built(databin, "--adaptive-softmax-cutoff", "8,16", "--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp")
    loss, gradients = built.backward()
    assert 0 < loss and any("adaptive_softmax" in name for name in gradients)
    built.model.eval()
    with torch.no_grad():
        out = built.model(**built.batch["net_input"])
        probabilities = built.model.get_normalized_probs(out, log_probs=False, sample=None)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))


def test_layers_to_keep_prunes_layers_with_their_omegas(databin, tmp_path):
    from fairseq import checkpoint_utils

    train(tmp_path, databin, tmp_path / "s", *TINY, "--max-update", "3", "--encoder-layerdrop", "0.2")
    path = str(tmp_path / "s" / "checkpoint_last.pt")
    whole = checkpoint_utils.load_model_ensemble([path], {"data": databin})[0][0]
    # fairseq drops every decoder layer when only the encoder's are named, so both are
    keep = {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "0,1,2"}
    kept = checkpoint_utils.load_model_ensemble([path], {"data": databin, **keep})[0][0]
    assert [len(m.encoder.layers) for m in (whole, kept)] == [3, 2]
    for new, old in ((0, 0), (1, 2)):
        a, b = kept.encoder.layers[new].state_dict(), whole.encoder.layers[old].state_dict()
        assert a.keys() == b.keys() and "ffn_omega.init" in a
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert float(kept.omega_profiled) > 0  # nothing would be profiled again


def test_ema_follows_the_weights_and_omega(databin, tmp_path):
    from realformer_nmt.checkpoints import load_checkpoint

    flags = ["--store-ema", "--ema-decay", "0.5", "--ema-fp32", "--max-update", "12"]
    train(tmp_path, databin, tmp_path / "s", *flags)
    # and goes on from the stored average
    flags[-1] = "13"
    _, log = train(tmp_path, databin, tmp_path / "s", *flags)
    assert "Loading EMA from checkpoint" in log
    state = load_checkpoint(str(tmp_path / "s" / "checkpoint_last.pt"))
    ema, model = state["extra_state"]["ema"], state["model"]
    assert ema.keys() == model.keys()
    for name in model:
        assert torch.isfinite(ema[name]).all()
        if name.endswith("omega.init"):
            # 1 at the start, then half of the way to the measured value with each of 13 updates
            expected = model[name] + (1 - model[name]) * 0.5**13
            torch.testing.assert_close(ema[name], expected, rtol=1e-3, atol=1e-4)
    changed = "decoder.layers.0.fc1.weight"
    assert not torch.equal(ema[changed], model[changed])


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--residual-attention-sites", "encoder,deocder"], "--residual-attention-sites 'encoder,deocder'"),
        (["--encoder-normalize-before", "--admin-init", "profile"], "scales Post-LN residuals"),
        (["--optimizer", "radam", "--memory-efficient-fp16"], "use --fp16, --bf16 or --amp, or --optimizer adam"),
    ],
)
def test_refused_with_one_line(databin, tmp_path, flags, message, caplog):
    caplog.set_level(logging.CRITICAL)
    status, log = train(tmp_path, databin, tmp_path / "s", *flags, "--max-update", "1", ok=False)
    last = log.strip().splitlines()[-1]
    assert status == 1 and last.startswith("realformer_nmt: ") and message in last
    assert "Traceback" not in log
