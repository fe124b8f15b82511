"""Entropy and Jensen-Shannon divergence against scipy, position by position. Budget: 5 s."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from realformer_nmt.tools.attention_stats import (
    DivergenceAverage,
    HeadAverage,
    allowed_positions,
    entropy,
    jensen_shannon,
)

BATCH, HEADS, QUERIES, KEYS = 3, 4, 6, 7


def masks(causal):
    """Left-padded keys and right-padded queries, as fairseq makes them; square and left alone when causal."""
    query_valid = torch.ones(BATCH, QUERIES, dtype=torch.bool)
    query_valid[1, 4:] = False
    query_valid[2, 1:] = False
    if causal:
        return query_valid, query_valid, allowed_positions(query_valid, query_valid, True)
    key_valid = torch.ones(BATCH, KEYS, dtype=torch.bool)
    key_valid[0, :3] = False
    key_valid[2, :6] = False
    return query_valid, key_valid, allowed_positions(query_valid, key_valid, False)


def probabilities(allowed, seed):
    """Softmax over allowed keys; at padded queries anything at all, which must not count."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(BATCH, HEADS, *allowed.shape[1:], generator=generator) * 3
    probs = scores.masked_fill(~allowed[:, None], -1e30).softmax(-1)
    return torch.where(allowed.any(-1)[:, None, :, None], probs, torch.rand(probs.shape, generator=generator))


def counted(allowed):
    """(sentence, query, keys it sees) for every query that is no padding."""
    for b in range(allowed.size(0)):
        for q in range(allowed.size(1)):
            keys = np.flatnonzero(allowed[b, q].numpy())
            if len(keys):
                yield b, q, keys


@pytest.mark.parametrize("causal", [False, True])
def test_head_figures_equal_scipy(causal):
    _, key_valid, allowed = masks(causal)
    probs = probabilities(allowed, 1)
    delimiter = torch.zeros_like(key_valid)
    delimiter[:, 0 if causal else -1] = True
    average = HeadAverage()
    for b in range(BATCH):  # one sentence at a time: batches must not matter
        average.add(probs[b : b + 1], allowed[b : b + 1], delimiter[b : b + 1])
    whole = HeadAverage()
    whole.add(probs, allowed, delimiter)
    for head in range(HEADS):
        nats, shares, parked = [], [], []
        for b, q, keys in counted(allowed):
            row = probs[b, head, q, keys].double().numpy()
            nats.append(scipy_entropy(row))
            if len(keys) > 1:
                shares.append(scipy_entropy(row, base=len(keys)))
                parked.append(float(probs[b, head, q, 0 if causal else -1]))
        for got in (average.figures(), whole.figures()):
            assert float(got.entropy[head]) == pytest.approx(np.mean(nats), abs=1e-6)
            assert float(got.normalised[head]) == pytest.approx(np.mean(shares), abs=1e-6)
            assert float(got.parked[head]) == pytest.approx(np.mean(parked), abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_divergence_matrix_equals_scipy(causal):
    _, _, allowed = masks(causal)
    lower, upper = probabilities(allowed, 2), probabilities(allowed, 3)
    average = DivergenceAverage()
    average.add(lower[:1], upper[:1], allowed[:1])
    average.add(lower[1:], upper[1:], allowed[1:])
    matrix = average.matrix()
    assert matrix.shape == (HEADS, HEADS)
    for i in range(HEADS):
        for j in range(HEADS):
            values = [
                jensenshannon(upper[b, i, q, keys].double(), lower[b, j, q, keys].double(), base=2) ** 2
                for b, q, keys in counted(allowed)
                if len(keys) > 1
            ]
            assert float(matrix[i, j]) == pytest.approx(np.mean(values), abs=1e-6)


def test_extremes():
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(jensen_shannon(one, other)) == pytest.approx(1.0)
    assert float(jensen_shannon(one, one)) == 0.0
    allowed = torch.ones(1, 1, 8, dtype=torch.bool)
    uniform = torch.full((1, 1, 1, 8), 1 / 8)
    average = HeadAverage()
    average.add(uniform, allowed, torch.tensor([[True] + [False] * 7]))
    assert float(average.figures().normalised) == pytest.approx(1.0)
    assert float(average.figures().parked) == pytest.approx(1 / 8)
    peaked = torch.zeros(1, 1, 1, 8)
    peaked[..., 3] = 1.0
    assert float(entropy(peaked, allowed)) == 0.0


def test_queries_with_one_key_are_no_choice():
    # The first decoder position sees itself alone: entropy 0 of at most 0 says nothing about the head.
    allowed = allowed_positions(torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool), True)
    probs = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    average = HeadAverage()
    average.add(probs, allowed, torch.tensor([[True, False]]))
    assert float(average.figures().normalised) == pytest.approx(1.0)
    assert float(average.figures().parked) == pytest.approx(0.5)
