"""The attention stack alone: this project's, fairseq's and x-transformers' (PyPI, optional), and how time grows.

A stack is ``depth`` times [attention, dropout of its result, residual connection, LayerNorm], forward and gradient, on
random input without padding, with attention dropout.
"""

import torch
import torch.nn as nn
from fairseq.modules import MultiheadAttention
from speed_steps import timed

from realformer_nmt.attention import ResidualMultiheadAttention

PEER = "x-transformers, residual_attn"
DROPOUT = 0.1


class Stack(nn.Module):
    """fairseq's attention modules, or this project's with R handed on."""

    def __init__(self, dim, heads, depth, residual):
        super().__init__()
        kind = ResidualMultiheadAttention if residual else MultiheadAttention
        self.residual = residual
        self.attention = nn.ModuleList(kind(dim, heads, dropout=DROPOUT, self_attention=True) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))

    def forward(self, x):
        scores = None
        for number, (attention, norm) in enumerate(zip(self.attention, self.norm)):
            if self.residual:
                with attention.linked(scores, number) as link:
                    y, _ = attention(x, x, x, need_weights=False)
                scores = link.scores
            else:
                y, _ = attention(x, x, x, need_weights=False)
            x = norm(x + nn.functional.dropout(y, DROPOUT))
        return x


class Peer(nn.Module):
    """x-transformers' attention layers with residual_attn, Post-LN, LayerNorm, the same dropouts."""

    def __init__(self, dim, heads, depth):
        super().__init__()
        from x_transformers.x_transformers import AttentionLayers

        self.layers = AttentionLayers(
            dim=dim, depth=depth, heads=heads, attn_dim_head=dim // heads, residual_attn=True, pre_norm=False,
            attn_dropout=DROPOUT, attn_on_attn=False, layer_dropout=0.0, custom_layers=("a",) * depth,
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x.transpose(0, 1)).transpose(0, 1)


def peer_missing():
    """One line that says why the peer cannot run, or None."""
    try:
        import x_transformers  # noqa: F401
    except ImportError as error:
        return f"x-transformers is not measured ({error}): pip install x-transformers"
    return None


def step(stack, x):
    stack.zero_grad(set_to_none=True)
    stack(x).square().mean().backward()


def compare(dim, heads, depth, length, tokens, repeats, device):
    """Seconds a step of every stack, in turn, on inputs `(length, tokens // length, dim)`; system -> list."""
    torch.manual_seed(1)
    stacks = {"fairseq": Stack(dim, heads, depth, False), "realformer sum": Stack(dim, heads, depth, True)}
    if peer_missing() is None:
        stacks[PEER] = Peer(dim, heads, depth)
    found = {name: [] for name in stacks}
    for stack in stacks.values():
        stack.to(device).train()
    for repeat in range(repeats + 1):
        n = length if repeat == 0 else length + repeat - 1  # a new shape each time
        x = torch.randn(n, max(tokens // length, 1), dim, device=device, requires_grad=True)
        for name, stack in stacks.items():
            seconds, _ = timed(lambda s=stack: step(s, x), device)
            if repeat:
                found[name].append(seconds)
    return found


def operations(dim, depth, length, batch):
    """Multiplications and additions of one step by the formula: 4 T d^2 and 2 T^2 d, times 2, times 3."""
    return 6 * depth * batch * (4 * length * dim**2 + 2 * length**2 * dim)
