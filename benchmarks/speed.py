"""Training step, validation forward and beam search, side by side in one process, alternating; a Markdown table.

    python benchmarks/speed.py --sizes small --lengths 16 64 --repeats 5

Figures are medians over the repeats (smallest - largest), and ratios of medians to stock fairseq's transformer: below 1
is faster. Beam search runs fairseq's SequenceGenerator, made ready as fairseq-generate does, on random weights with
every output as long as its source, so that all systems do the same steps.
"""

import argparse
import platform
import statistics
import time

import fairseq
import torch
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from speed_systems import SIZES, SYSTEMS, build, make_batch


def train_step(model, sample):
    """Loss, gradient; no optimiser, which is the same for all."""
    model.train()
    model.zero_grad(set_to_none=True)
    logits, _ = model(**sample["net_input"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=1).backward()


def validate(model, sample):
    model.eval()
    with torch.no_grad():
        model(**sample["net_input"])


def generator_for(model, task, length):
    settings = OmegaConf.create({"generation": {"beam": 5, "print_alignment": None}})
    model.prepare_for_inference_(settings)
    return SequenceGenerator(
        [model], task.target_dictionary, beam_size=5, max_len_a=1, max_len_b=0, min_len=length - 1, len_penalty=0.8
    )


def timed(function, device):
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def alternate(work, repeats, device):
    """Run each of ``work`` (name -> function) once to warm up, then in turn; seconds by name."""
    for function in work.values():
        timed(function, device)
    times = {name: [] for name in work}
    for _ in range(repeats):
        for name, function in work.items():
            times[name].append(timed(function, device))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 64, 256], help="source tokens")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--tokens", type=int, default=1024, help="padded tokens in a batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    systems = ["transformer", *(name for name in args.systems if name != "transformer")]
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}, torch {torch.__version__}, "
          f"fairseq {fairseq.__version__}; {args.tokens} padded tokens a batch, {args.repeats} repeats\n")  # fmt: skip
    print("| size | length | work | system | seconds (range) | / transformer |")
    print("|---|---|---|---|---|---|", flush=True)
    for size in args.sizes:
        for length in args.lengths:
            models = {name: build(name, size) for name in systems}
            for model, _ in models.values():
                model.to(device)
            task = models["transformer"][1]
            sample = make_batch(task, max(args.tokens // length, 1), length, device=device)
            for title in ("train", "validate", "generate"):
                work = {}
                for name, (model, own) in models.items():
                    if title == "generate":
                        generator = generator_for(model, own, length)
                        work[name] = lambda g=generator, m=model: g.generate([m], sample)
                    else:
                        function = train_step if title == "train" else validate
                        work[name] = lambda f=function, m=model: f(m, sample)
                times = alternate(work, args.repeats, device)
                stock = statistics.median(times["transformer"])
                for name, seconds in times.items():
                    median = statistics.median(seconds)
                    print(f"| {size} | {length} | {title} | {name} | {median:.3f} ({min(seconds):.3f} - "
                          f"{max(seconds):.3f}) | {median / stock:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
