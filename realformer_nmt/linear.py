"""Linear layers that can use oneDNN for float32 products on a CPU; otherwise, and on any other device, torch's own.

torch multiplies float32 matrices on a CPU with MKL, which takes its AVX-512 kernels on Intel processors only. oneDNN,
which torch also carries, takes them wherever the processor has them: on an AMD EPYC it is 1.6 to 2.3 times as fast in the
same float32 (docs/speed.md). But it prepares a kernel for every new shape, and in training nearly every batch has a shape
of its own: there it was several times slower. So it is off unless ``REALFORMER_CPU_LINEAR=onednn`` is in the environment,
for work of few shapes. Results differ from torch's by rounding alone.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def _product(x, weight, bias):
    """x weight^T + bias in oneDNN; x `(rows, in)`, weight `(out, in)`, any strides."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _works():
    """Whether this torch has the operator and it computes a product."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        with torch.no_grad():
            x, weight, bias = torch.ones(3, 4), torch.full((2, 4), 0.5), torch.ones(2)
            straight = _product(x, weight, bias)
            turned = _product(x.t(), torch.ones(2, 3), None)
        return bool((straight == 3).all()) and bool((turned == 3).all())
    except (AttributeError, RuntimeError, TypeError):
        return False


# read once, on import
ONEDNN = os.environ.get("REALFORMER_CPU_LINEAR", "torch") == "onednn" and _works()


def uses_onednn(x, weight):
    """Whether :func:`linear` takes oneDNN's product for these two tensors."""
    return (
        ONEDNN
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and weight.dtype == torch.float32
        and x.numel() > 0
        and not torch.is_autocast_cpu_enabled()
        and not torch.jit.is_tracing()
    )


class _OneDnnLinear(torch.autograd.Function):
    """The three products of a linear layer: y = x W^T + b, dx = dy W, dW = dy^T x."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.t(), None) if need_x else None,
            _product(grad.t(), x.t(), None) if need_weight else None,
            grad.sum(dim=0) if need_bias and ctx.has_bias else None,
        )


def linear(x, weight, bias=None):
    """As :func:`torch.nn.functional.linear`.

    Args:
        x: `(..., in_features)`
        weight: `(out_features, in_features)`
        bias: `(out_features,)` or None

    Returns:
        Tensor: `(..., out_features)`
    """
    if not uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.size(-1))
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y = _OneDnnLinear.apply(rows, weight, bias)
    else:
        y = _product(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.size(0))


class Linear(nn.Linear):
    """torch's linear layer with :func:`linear` for its product; same parameters and names."""

    def forward(self, x):
        return linear(x, self.weight, self.bias)


def replace_linear_layers(module):
    """Put a :class:`Linear` that holds the same parameters in the place of every plain ``nn.Linear`` inside ``module``.

    Layers with hooks of their own (quantisation noise) are left as they are.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not child._forward_pre_hooks and not child._forward_hooks:
                fast = Linear.__new__(Linear)
                nn.Module.__init__(fast)
                fast.in_features, fast.out_features = child.in_features, child.out_features
                fast.weight, fast.bias = child.weight, child.bias
                fast.train(child.training)
                setattr(parent, name, fast)
