"""Figures about attention heads: entropy, divergence between layers, and weight parked on a delimiter.

All take probabilities P `(batch, heads, tgt_len, src_len)` and ``allowed`` `(batch, tgt_len, src_len)`, true where a
query that is no padding may look at a key that is no padding. Queries without an allowed key are padding and never
counted.
"""

from typing import NamedTuple

import torch


def allowed_positions(query_valid, key_valid, causal):
    """Where attention is possible.

    Args:
        query_valid: `(batch, tgt_len)`, true at tokens
        key_valid: `(batch, src_len)`, true at tokens
        causal (bool): a query sees keys up to its own position only

    Returns:
        bool tensor `(batch, tgt_len, src_len)`
    """
    allowed = query_valid[:, :, None] & key_valid[:, None, :]
    return allowed.tril() if causal else allowed


def _xlogx(p):
    return torch.special.xlogy(p, p)


def entropy(probs, allowed):
    """Shannon entropy in nats of each query's distribution: `(batch, heads, tgt_len)`, 0 at padding."""
    probs = probs.double() * allowed[:, None]
    return -_xlogx(probs).sum(dim=-1)


def jensen_shannon(first, second):
    """Jensen-Shannon divergence in bits (0 to 1) of distributions along the last dimension; shapes broadcast."""
    first, second = first.double(), second.double()
    middle = (first + second) / 2
    nats = (_xlogx(first) + _xlogx(second)).sum(-1) / 2 - _xlogx(middle).sum(-1)
    return (nats / torch.log(torch.tensor(2.0, dtype=torch.float64))).clamp(0, 1)


class HeadFigures(NamedTuple):
    """Means over all counted positions, each a float64 tensor of one value a head.

    entropy: nats.
    normalised: entropy as a share of the log of the number of keys the query could see (1: uniform); queries that see
        one key only have no choice and are left out.
    parked: weight on the delimiter, over the queries that see other keys too.
    """

    entropy: torch.Tensor
    normalised: torch.Tensor
    parked: torch.Tensor


class HeadAverage:
    """Adds up the figures of one site and layer over batches."""

    def __init__(self):
        self.sums, self.positions, self.choices = 0.0, 0, 0

    def add(self, probs, allowed, delimiter):
        """
        Args:
            delimiter: bool `(batch, src_len)`, true at the key where a head parks its weight (end of the source; first
                position of the target)
        """
        keys = allowed.sum(dim=-1)  # (batch, tgt_len)
        nats = entropy(probs, allowed)
        choice = keys > 1
        share = nats / keys.clamp(min=2).double().log()[:, None]
        parked = (probs.double() * (allowed & delimiter[:, None, :])[:, None]).sum(-1)
        rows = [nats.sum((0, 2)), (share * choice[:, None]).sum((0, 2)), (parked * choice[:, None]).sum((0, 2))]
        self.sums = self.sums + torch.stack(rows)
        self.positions += int((keys > 0).sum())
        self.choices += int(choice.sum())

    def figures(self):
        choices = max(1, self.choices)
        return HeadFigures(self.sums[0] / max(1, self.positions), self.sums[1] / choices, self.sums[2] / choices)


class DivergenceAverage:
    """Adds up the divergence of every head of one layer from every head of the layer below."""

    def __init__(self):
        self.sums, self.choices = 0.0, 0

    def add(self, lower, upper, allowed):
        """``lower``, ``upper``: P of two adjacent layers."""
        choice = allowed.sum(-1) > 1  # with one key all heads agree
        lower = lower.double() * allowed[:, None]
        upper = upper.double() * allowed[:, None]
        rows = []
        for head in range(upper.size(1)):  # one head at a time: all pairs at once would be heads^2 times the memory
            pairs = jensen_shannon(lower, upper[:, head : head + 1])  # (batch, lower heads, tgt_len)
            rows.append((pairs * choice[:, None]).sum((0, 2)))
        self.sums = self.sums + torch.stack(rows)
        self.choices += int(choice.sum())

    def matrix(self):
        """Mean divergence in bits, `(upper heads, lower heads)`."""
        return self.sums / max(1, self.choices)
