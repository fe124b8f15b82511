#!/usr/bin/env python3
"""Other ways to compute a stack of residual attention, in turn with this project's, on queries, keys and values alone.

Projections are left out: the ways differ in what lies between them. Every way must give the same numbers without dropout,
and the largest difference to ours is printed. The ways:

* ours: realformer_nmt.scores, without gradient the composed path, with gradient the fused one;
* ordinary operations, with torch's own gradient;
* SDPA, last layer: torch's fused attention, with R of the layer below as its float bias, in the last layer (the others must
  make R anyway); without gradient only, since with gradient R needs one as well;
* SDPA, joined heads: R_l is one product of the concatenated queries and keys of layers 1 to l, and is never made;
* torch.compile of the ordinary operations, one graph for the stack; where there is no compiler the line says so.
"""

import argparse
import logging
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from speed import spread, where  # noqa: E402
from speed_steps import timed  # noqa: E402

from realformer_nmt.scores import residual_attention  # noqa: E402

HEADS = 4
HEAD_DIM = 64


def ours(layers, mask, dropout):
    """Outputs of all layers, one after the other; q, k, v and outputs `(sentences * heads, length, head_dim)`."""
    outs, scores = [], None
    for q, k, v in layers:
        out, scores, _ = residual_attention(q, k, v, scores, mask, num_heads=HEADS, scale=HEAD_DIM**-0.5, dropout=dropout)
        outs.append(out)
    return torch.stack(outs)


def ordinary(layers, mask, dropout):
    outs, scores = [], None
    for q, k, v in layers:
        new = torch.bmm(q * HEAD_DIM**-0.5, k.transpose(1, 2))
        scores = new if scores is None else scores + new
        probs = torch.softmax(scores.view(-1, HEADS, *scores.shape[1:]) + mask, dim=-1).view_as(scores)
        outs.append(torch.bmm(F.dropout(probs, dropout), v))
    return torch.stack(outs)


def sdpa(q, k, v, bias, dropout):
    q, k, v = (x.view(-1, HEADS, *x.shape[1:]) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=HEAD_DIM**-0.5).flatten(0, 1)


def sdpa_last(layers, mask, dropout):
    outs, scores = [], None
    for q, k, v in layers[:-1]:
        out, scores, _ = residual_attention(q, k, v, scores, mask, num_heads=HEADS, scale=HEAD_DIM**-0.5, dropout=dropout)
        outs.append(out)
    bias = mask if scores is None else scores.view(-1, HEADS, *scores.shape[1:]) + mask
    return torch.stack([*outs, sdpa(*layers[-1], bias, dropout)])


def sdpa_joined(layers, mask, dropout):
    outs = []
    for number in range(1, len(layers) + 1):
        q, k = (torch.cat([layer[index] for layer in layers[:number]], dim=-1) for index in (0, 1))
        outs.append(sdpa(q, k, layers[number - 1][2], mask, dropout))
    return torch.stack(outs)


def with_gradient(function):
    def step(layers, mask, dropout):
        out = function(layers, mask, dropout)
        leaves = [x for layer in layers for x in layer]
        return out.detach(), torch.autograd.grad(out.square().sum(), leaves)

    return step


def without_gradient(function):
    def step(layers, mask, dropout):
        with torch.no_grad():
            return function(layers, mask, dropout), ()

    return step


def tensors(depth, length, tokens, gradient, device):
    """Random layers, and an additive mask: every second sentence is padded over its last tenth."""
    sentences = max(1, tokens // length)
    shape = (sentences * HEADS, length, HEAD_DIM)
    layers = [[torch.randn(shape, device=device).requires_grad_(gradient) for _ in range(3)] for _ in range(depth)]
    mask = torch.zeros(sentences, 1, 1, length, device=device)
    mask[::2, ..., length - length // 10 :] = -1e30
    return layers, mask


def difference(got, wanted):
    pairs = [(got[0], wanted[0]), *zip(got[1], wanted[1])]
    return max(float((a - b).abs().max()) for a, b in pairs)


def measure(depth, length, tokens, gradient, dropout, repeats, compiled, device):
    """`{way: (seconds of each repeat, largest difference to ours)}`; a way that fails has its error's text instead."""
    ways = {"ours": ours, "ordinary operations": ordinary}
    if not gradient:
        ways["SDPA, last layer"] = sdpa_last
    ways["SDPA, joined heads"] = sdpa_joined
    if compiled:
        torch._dynamo.reset()
        ways["torch.compile"] = torch.compile(ordinary, dynamic=False)
    wrap = with_gradient if gradient else without_gradient
    ways = {name: wrap(way) for name, way in ways.items()}
    found = {name: ([], 0.0) for name in ways}
    for repeat in range(-2, repeats):  # two to warm up: one without dropout for the differences, one with it
        torch.manual_seed(repeat)
        inputs = tensors(depth, length, tokens, gradient, device)
        wanted = None
        for name, way in ways.items():
            if isinstance(found[name], str):
                continue
            try:
                seconds, got = timed(lambda: way(*inputs, 0.0 if repeat == -2 else dropout), device)
            except Exception as error:  # torch.compile without a compiler, a kernel that this device lacks
                if name == "ours":
                    raise
                found[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:80]}"
                continue
            wanted = got if wanted is None else wanted
            if repeat == -2:
                found[name] = ([], difference(got, wanted))
            elif repeat >= 0:
                found[name][0].append(seconds)
    return found


def table(depths, lengths, args, device):
    yield "| gradient, dropout | layers | length | way | ms | ratio to ours | largest difference |"
    yield "|---|--:|--:|---|--:|--:|--:|"
    for gradient, dropout in ((False, 0.0), (True, 0.0), (True, 0.1)):
        kind = f"yes, {dropout}" if gradient else "no"
        for depth in depths:
            for length in lengths:
                found = measure(depth, length, args.tokens, gradient, dropout, args.repeats, not args.no_compile, device)
                base = statistics.median(found["ours"][0])
                for name, result in found.items():
                    head = f"| {kind} | {depth} | {length} | {name} |"
                    if isinstance(result, str):
                        yield f"{head} {result} | | |"
                    else:
                        times, worst = result
                        ratio = statistics.median(times) / base
                        yield f"{head} {spread(times, 1000)} | {ratio:.2f} | {worst:.1e} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 6, 18], metavar="N", help="layers (default: 3 6 18)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256], metavar="N", help="(default: 16 64 256)")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N", help="tokens in a batch (default: 1024)")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="(default: 15)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which compiles for minutes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.getLogger("filelock").setLevel(logging.WARNING)  # torch.compile's locks; fairseq turns every logger on
    print(where(args.threads) + f"; {HEADS} heads of {HEAD_DIM}, {args.tokens} tokens\n", flush=True)
    for line in table(args.depths, args.lengths, args, "cuda" if torch.cuda.is_available() else "cpu"):
        print(line, flush=True)


if __name__ == "__main__":
    main()
