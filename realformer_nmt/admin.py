"""ADMIN: residual branches scaled by omega, measured once on the first batch (arXiv 2004.08249, 2008.07772).

A Post-LN sub-layer becomes ``x <- LayerNorm(omega * x + f(x))`` with a learnable vector omega of size d_model. In each
stack (encoder; decoder) omega_1 = 1 and, in one forward pass of the fresh model in training mode,

    omega_{i+1} = sqrt( Var(omega_i * x_i) + Var(f_i(x_i)) )

over non-padding positions and all features. The whole vector omega_i starts at that number.
"""

import logging
import math
from contextlib import contextmanager

import torch
import torch.nn as nn

logger = logging.getLogger(__name__)

INITS = ("profile", "analytic", "none")


class Omega(nn.Module):
    """omega = init + delta: a measured constant plus a learnable vector that starts at 0.

    Adam and RAdam see the same gradient for ``delta`` as for omega itself. The measured part is a buffer because
    half-precision optimisers copy the parameters when they are built, before the first batch is seen, and would write
    their stale copy back after the first step; and because an update of 1e-4 is lost in half precision next to an omega
    of 8, but not next to 0.

    Args:
        dim (int): d_model
        init (float): starting value

    Shape: `(..., dim)` in and out.
    """

    def __init__(self, dim, init=1.0):
        super().__init__()
        self.register_buffer("init", torch.tensor(float(init)))
        self.delta = nn.Parameter(torch.zeros(dim))

    def value(self):
        """omega, `(dim,)`, float32 or wider."""
        delta = self.delta if self.delta.dtype == torch.float64 else self.delta.float()
        return self.init.to(delta.dtype) + delta

    def forward(self, x):
        return x * self.value().to(x.dtype)


def analytic_omega(num_sublayers):
    """omega for a stack of ``num_sublayers`` residual sub-layers: omega^2 = (n+1) / log(n+1) - 1 (admin-torch)."""
    n = num_sublayers + 1
    return math.sqrt(n / math.log(n) - 1)


class OmegaProfiler:
    """Sets the omegas of one stack, in order, while a forward pass visits its residual connections.

    Args:
        valid (Tensor): `(seq_len, batch)` bool, false at padding
    """

    def __init__(self, valid):
        self.valid = valid
        self.current = torch.ones((), dtype=torch.float64, device=valid.device)
        self.visited = []

    def visit(self, omega, residual, branch):
        """Give ``omega`` its value and step the chain.

        Args:
            omega (Omega): of this sub-layer
            residual (Tensor): x_i, `(seq_len, batch, d_model)`
            branch (Tensor): f_i(x_i), after dropout, same shape
        """
        omega.init.copy_(self.current)
        self.visited.append(omega)
        variance = (self.current * residual[self.valid].double()).var(unbiased=False)
        self.current = (variance + branch[self.valid].double().var(unbiased=False)).sqrt()


@contextmanager
def profiling(layers, valid):
    """Attach a profiler to all ``layers`` (no LayerDrop inside); ``valid`` as in :class:`OmegaProfiler`."""
    profiler = OmegaProfiler(valid)
    drop, layers.p = layers.p, 0.0
    members = [layer for layer in layers if hasattr(layer, "omegas")]
    for layer in members:
        layer.set_profiler(profiler)
    try:
        yield profiler
    finally:
        layers.p = drop
        for layer in members:
            layer.set_profiler(None)


def broadcast_omegas(omegas):
    """Give every data-parallel rank rank 0's values; each rank profiled a batch of its own."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_world_size() == 1:
        return
    values = torch.stack([omega.init.float() for omega in omegas])
    torch.distributed.broadcast(values, src=0)
    for omega, value in zip(omegas, values):
        omega.init.copy_(value)


def log_omegas(name, omegas):
    """One log line a stack: the omegas in order of depth, from rank 0 only."""
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    logger.info(f"ADMIN omega, {name}: " + " ".join(f"{float(omega.init):.4f}" for omega in omegas))
