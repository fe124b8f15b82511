"""omega under half-precision optimisers: measured after the master weights were copied, it survives the steps.

Budget: 10 s. Built on the CPU from fairseq's own optimisers, without the trainer (which wants a GPU for --fp16).
"""

import argparse

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import OmegaConf, open_dict

from realformer_nmt.architectures import realformer_tiny
from realformer_nmt.model import RealFormerModel


def tiny_model(**settings):
    dictionary = Dictionary()
    for number in range(20):
        dictionary.add_symbol(f"w{number}")
    task = argparse.Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    args = argparse.Namespace(share_all_embeddings=True, dropout=0.1, **settings)
    realformer_tiny(args)
    torch.manual_seed(0)
    return RealFormerModel.build_model(args, task)


def optimiser(kind, model, dtype):
    """fairseq's ``kind`` for the model's parameters, as the trainer builds it; over RAdam where fairseq allows that.

    The memory-efficient kind keeps no float32 weights; fairseq takes it for optimisers made for that alone.
    """
    name = "radam" if kind is FP16Optimizer else "adam"
    cfg = OmegaConf.structured(FairseqConfig)
    with open_dict(cfg):
        cfg.common.fp16, cfg.common.bf16 = dtype == torch.float16, dtype == torch.bfloat16
        cfg.common.fp16_init_scale = 4
        cfg.common.fp16_no_flatten_grads = True  # the flattened copy is always made on a GPU
        cfg.optimization.lr = [1e-3]
        cfg.optimizer = {
            "_name": name, "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.0, "lr": [1e-3],
            **({} if name == "radam" else {"use_old_adam": True, "fp16_adam_stats": False, "tpu": False}),
        }  # fmt: skip
    return kind.build_optimizer(cfg, [parameter for parameter in model.parameters() if parameter.requires_grad])


def batch():
    torch.manual_seed(1)
    src, prev = torch.randint(4, 24, (3, 6)), torch.randint(4, 24, (3, 5))
    src[1, :2] = 1
    return src, torch.tensor([6, 4, 6]), prev


def step(model, optimizer):
    optimizer.zero_grad()
    logits = model(*batch())[0]
    loss = logits.float().log_softmax(-1)[..., 5].mean().neg()
    optimizer.backward(loss)
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", [FP16Optimizer, MemoryEfficientFP16Optimizer], ids=["master", "memory-efficient"])
def test_omega_survives_half_precision_steps(kind, dtype):
    model = tiny_model().to(dtype).train()
    optimizer = optimiser(kind, model, dtype)  # copies the weights now, before omega is measured
    reference = tiny_model().train()
    reference.profile_omega(*batch())

    step(model, optimizer)
    measured = [omega.init.item() for omega in model.omegas()]
    assert len(measured) == 10 and max(measured) > 1.2
    assert measured == pytest.approx([omega.init.item() for omega in reference.omegas()], rel=0.03)
    for _ in range(6):  # RAdam's own warm-up is over after five
        step(model, optimizer)
    for omega, value in zip(model.omegas(), measured):
        assert omega.init.item() == value
        assert 0 < omega.delta.abs().max() < 0.05  # learnt, and from where it was measured
        assert (omega.value() - value).abs().max() < 0.05
    assert model.omega_profiled.item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_omega_survives_a_change_of_type_and_a_checkpoint(dtype):
    model = tiny_model().train()
    model.profile_omega(*batch())
    expected = [omega.value().mean().item() for omega in model.omegas()]
    other = tiny_model().to(dtype)
    other.load_state_dict(model.state_dict(), strict=True)
    before = [omega.init.clone() for omega in other.omegas()]
    other.train()
    other(*batch())  # does not measure again
    assert [omega.init for omega in other.omegas()] == before
    assert [value.item() for value in before] == pytest.approx(expected, rel=5e-3)


def test_evaluation_does_not_measure():
    model = tiny_model().eval()
    model(*batch())
    assert model.omega_profiled.item() == 0
    assert all(omega.init.item() == 1 for omega in model.omegas())
