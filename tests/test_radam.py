"""--optimizer radam against the algorithm of arXiv 1908.03265 in float64, and fairseq's flags and state."""

import math

import numpy as np
import pytest
import torch
from fairseq.optim import OPTIMIZER_REGISTRY
from omegaconf import OmegaConf

import realformer_nmt  # noqa: F401
from realformer_nmt.errors import RealFormerError


def make(parameters, lr=0.01, betas="(0.9, 0.98)", eps=1e-8, decay=0.0):
    cfg = OmegaConf.create({"lr": [lr], "adam_betas": betas, "adam_eps": eps, "weight_decay": decay, "_name": "radam"})
    return OPTIMIZER_REGISTRY["radam"](cfg, parameters)


def radam(theta, gradients, lr, beta1, beta2, eps, decay):
    """Algorithm 2 of the paper, with decoupled weight decay (as --optimizer adam)."""
    m = v = np.zeros_like(theta)
    rho_inf = 2 / (1 - beta2) - 1
    for t, g in enumerate(gradients, 1):
        theta = theta * (1 - lr * decay)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**t)
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho > 5:
            rectify = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            theta = theta - lr * rectify * m_hat * math.sqrt(1 - beta2**t) / (np.sqrt(v) + eps)
        else:
            theta = theta - lr * m_hat
    return theta


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", ["(0.9, 0.98)", "(0.9, 0.999)"])
def test_steps_equal_the_paper(betas, decay):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(7), rng.standard_normal((30, 7))
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = make([parameter], betas=betas, eps=1e-8, decay=decay)
    for g in gradients:
        parameter.grad = torch.tensor(g)
        optimizer.step()
    beta1, beta2 = eval(betas)
    np.testing.assert_allclose(
        parameter.detach().numpy(), radam(start, gradients, 0.01, beta1, beta2, 1e-8, decay), rtol=1e-9, atol=1e-11
    )


def test_state_is_saved_and_restored_exactly(tmp_path):
    torch.manual_seed(0)
    gradients = torch.randn(12, 5)

    def run(parameter, optimizer, part):
        for g in part:
            parameter.grad = g.clone()
            optimizer.step()

    one = torch.nn.Parameter(torch.ones(5))
    whole = make([one])
    run(one, whole, gradients)

    two = torch.nn.Parameter(torch.ones(5))
    first = make([two])
    run(two, first, gradients[:5])
    torch.save({"state": first.state_dict(), "p": two.detach()}, tmp_path / "s.pt")
    saved = torch.load(tmp_path / "s.pt", weights_only=True)
    three = torch.nn.Parameter(saved["p"])
    second = make([three], lr=123.0)
    second.load_state_dict(saved["state"])
    second.set_lr(0.01)
    run(three, second, gradients[5:])
    assert torch.equal(one, three)


def test_optimizer_overrides_replace_the_restored_settings():
    parameter = torch.nn.Parameter(torch.ones(3))
    old = make([parameter], betas="(0.9, 0.98)", eps=1e-8)
    parameter.grad = torch.ones(3)
    old.step()
    new = make([parameter])
    new.load_state_dict(old.state_dict(), {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.2})
    group = new.optimizer.param_groups[0]
    assert tuple(group["betas"]) == (0.8, 0.9) and group["eps"] == 1e-6 and group["weight_decay"] == 0.2


def test_it_can_step_on_flattened_master_weights():
    assert make([torch.nn.Parameter(torch.ones(3))]).supports_flat_params


@pytest.mark.parametrize(
    "settings, words",
    [
        *(({"betas": betas}, "--adam-betas") for betas in ["(0.9", "0.9", "(2, 3)", "(0.9, 1)", "(1, 2, 3)", "x", "('a', 0)"]),
        ({"eps": -1.0}, "--adam-eps -1.0"),
        ({"eps": float("nan")}, "--adam-eps nan"),
        ({"decay": -0.1}, "--weight-decay -0.1"),
    ],
)
def test_a_setting_out_of_its_range_is_one_clear_line(settings, words):
    with pytest.raises(RealFormerError) as caught:
        make([torch.nn.Parameter(torch.ones(3))], **settings)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
