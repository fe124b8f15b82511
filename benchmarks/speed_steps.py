"""Training step, validation and beam search of whole models, in turn in one process, on batches of many shapes."""

import copy
import time

import torch
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from speed_systems import build_all, make_batch

BEAM = 5


def train_step(model, sample):
    """Loss and gradient; no optimiser, which is the same for all."""
    model.train()
    model.zero_grad(set_to_none=True)
    logits, _ = model(**sample["net_input"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=1).backward()


def validate(model, sample):
    model.eval()
    with torch.no_grad():
        model(**sample["net_input"])


def timed(function, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def peak_memory(function, device):
    """Bytes of tensors that ``function`` holds at its worst moment beyond what was held before.

    On CUDA the allocator keeps count. On a CPU every allocation and release is taken from torch's profiler, in order,
    so that the number does not depend on the machine, on freed pages or on other work; memory that the libraries take for
    themselves is not in it.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch._C._profiler import _EventType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    changes, pending = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    live = peak = 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        live += size
        peak = max(peak, live)
    return peak


def generator_for(model, task, length):
    """fairseq's beam search, made ready as fairseq-generate does; every output is as long as the sources."""
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": BEAM, "print_alignment": None}}))
    return SequenceGenerator(
        [model], task.target_dictionary, beam_size=BEAM, max_len_a=0, max_len_b=length, min_len=length - 1,
        len_penalty=0.8,
    )  # fmt: skip


def measure(size, length, systems, tokens, repeats, device, say):
    """All works at one size and length.

    Each repeat has a batch of a new shape, which all systems take in turn; the order of systems moves on by one each
    time. One batch before the first is not counted.

    Returns:
        dict: work -> system -> list of seconds a 1,000 padded tokens (source and target; for "generate" target tokens);
        "memory" -> system -> bytes; "same output" -> system -> share of translations equal to the first system's
    """
    models, task = build_all(systems, size, device)
    found = {work: {name: [] for name in systems} for work in ("train", "validate", "generate")}

    fixed = make_batch(task, tokens, length, device=device)
    found["memory"] = {}
    for name, model in models.items():
        train_step(model, fixed)  # the first step of ADMIN is another: it profiles
        model.zero_grad(set_to_none=True)
        held = sum(p.numel() * p.element_size() for p in model.parameters())
        found["memory"][name] = held + peak_memory(lambda m=model: train_step(m, fixed), device)
        model.zero_grad(set_to_none=True)
    say("memory")

    for work, function in (("train", train_step), ("validate", validate)):
        for repeat in range(repeats + 1):
            sample = make_batch(task, tokens, length, seed=100 + repeat, device=device)
            padded = (sample["net_input"]["src_tokens"].numel() + sample["target"].numel()) / 1000
            for name in _turned(systems, repeat):
                seconds, _ = timed(lambda m=models[name]: function(m, sample), device)
                models[name].zero_grad(set_to_none=True)
                if repeat:
                    found[work][name].append(seconds / padded)
        say(work)

    # a model made ready for generation cannot train again
    ready = {name: copy.deepcopy(model).eval() for name, model in models.items()}
    same = {name: [] for name in systems}
    for repeat in range(repeats + 1):
        sample = make_batch(task, tokens, length, seed=200 + repeat, device=device)
        steps = sample["net_input"]["src_tokens"].size(1)
        outputs = {}
        for name in _turned(systems, repeat):
            search = generator_for(ready[name], task, steps)
            seconds, hypotheses = timed(lambda: search.generate([ready[name]], sample), device)
            outputs[name] = [several[0]["tokens"].tolist() for several in hypotheses]
            if repeat:
                found["generate"][name].append(seconds / sum(map(len, outputs[name])) * 1000)
        for name in systems:
            same[name] += [ours == stock for ours, stock in zip(outputs[name], outputs[systems[0]])]
    found["same output"] = {name: sum(equal) / len(equal) for name, equal in same.items()}
    say("generate")
    return found


def _turned(systems, by):
    return [systems[(index + by) % len(systems)] for index in range(len(systems))]
