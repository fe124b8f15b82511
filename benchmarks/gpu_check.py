"""The checks behind gpu_check.sh; see there.  Each part stops at its share of the time, and a report is always written."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Report:
    def __init__(self, path):
        self.path, self.lines, self.failed = path, [], 0

    def add(self, *lines):
        for line in lines:
            print(line, flush=True)
        self.lines += lines
        with open(self.path + ".tmp", "w") as f:
            f.write("\n".join(self.lines) + "\n")
        os.replace(self.path + ".tmp", self.path)

    def check(self, name, good, detail):
        self.failed += not good
        self.add(f"- {'ok' if good else 'FAILED'}: {name}: {detail}")


def parity(report, device):
    """Residual attention, forward and gradient, against float64 on the CPU, over a stack of layers."""
    from realformer_nmt.scores import additive_mask, residual_attention

    heads, batch, length, dim = 8, 3, 33, 64
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[1, 20:] = True
    padding[2] = True  # a sentence of padding only
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(batch * heads, length, dim, generator=generator, dtype=torch.float64) for _ in range(18)]

    def run(where, dtype, divide, autocast=None):
        tensors = [t.detach().clone().to(where, dtype).requires_grad_() for t in inputs]
        scores, total = None, 0
        mask = additive_mask(padding.to(where), None, heads, dtype)
        with torch.autocast(where.type, dtype=autocast, enabled=autocast is not None):
            for layer in range(6):
                q, k, v = tensors[3 * layer : 3 * layer + 3]
                out, scores, _ = residual_attention(
                    q, k, v, scores, mask, num_heads=heads, scale=dim**-0.5, divisor=layer + 1 if divide else 1
                )
                total = total + out.double().pow(2).mean()
        total.backward()
        return out.detach().double().cpu(), scores, [t.grad.double().cpu() for t in tensors]

    cpu = torch.device("cpu")
    cases = [("float64", torch.float64, None, 1e-10), ("float32", torch.float32, None, 1e-4),
             ("float16", torch.float16, None, 2e-2), ("bfloat16", torch.bfloat16, None, 1e-1),
             ("autocast fp16", torch.float32, torch.float16, 2e-2)]  # fmt: skip
    # TF32 products would be compared with float64 otherwise
    torch.backends.cuda.matmul.allow_tf32 = False
    for divide in (False, True):
        exact = run(cpu, torch.float64, divide)
        for name, dtype, autocast, tolerance in cases:
            if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
                continue
            out, scores, gradients = run(device, dtype, divide, autocast)
            error = float((out - exact[0]).abs().max() / exact[0].abs().max())
            largest = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients, exact[2]))
            wide = scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            good = error < tolerance and largest < 5 * tolerance and wide
            mode = "mean" if divide else "sum"
            report.check(f"parity, {mode}, {name}", good, f"output {error:.1e}, gradients {largest:.1e}, R is {scores.dtype}")


def training(report, databin, folder, until):
    """The training command in every precision, and fully sharded where fairscale is there."""
    import importlib.util

    sys.path.insert(0, os.path.join(ROOT, "tests"))
    worker = [sys.executable, "-m", "realformer_nmt.launch.worker"]
    common = [
        databin, "--user-dir", os.path.join(ROOT, "realformer_nmt"), "--arch", "realformer_tiny", "--lr", "0.001",
        "--max-tokens", "400", "--max-update", "30", "--log-format", "simple", "--log-interval", "10",
        "--disable-validation", "--num-workers", "0",
    ]  # fmt: skip
    cases = {
        "fp32": ["--optimizer", "radam"],
        "fp16": ["--optimizer", "radam", "--fp16", "--fp16-init-scale", "64"],
        "mem-fp16": ["--optimizer", "adam", "--memory-efficient-fp16", "--fp16-init-scale", "64"],
        "bf16": ["--optimizer", "radam", "--bf16"],
        "amp": ["--optimizer", "radam", "--amp"],
        "fully sharded, fp16": ["--optimizer", "adam", "--fp16", "--ddp-backend", "fully_sharded", "--fp16-init-scale", "64"],
    }
    for name, flags in cases.items():
        if time.time() > until:
            report.add(f"- skipped for time: training, {name}")
            continue
        if "sharded" in name and importlib.util.find_spec("fairscale") is None:
            report.add("- skipped: fully sharded wrapping, fairscale is not installed")
            continue
        save_dir = os.path.join(folder, name.replace(" ", "-").replace(",", ""))
        done = subprocess.run([*worker, *common, *flags, "--save-dir", save_dir], capture_output=True, text=True, timeout=120)
        losses = [float(w.split("=")[1].rstrip(",")) for line in done.stdout.splitlines() if "train_inner" in line for w in line.split() if w.startswith("loss=")]
        good = done.returncode == 0 and bool(losses) and losses[-1] < losses[0]
        detail = f"loss {losses[0]} to {losses[-1]}" if losses else (done.stderr.strip().splitlines() or ["no output"])[-1]
        report.check(f"training, {name}", good, detail)


def speed(report, until):
    """Step time and memory side by side, systems taking turns; medians."""
    from toys import ToyTask

    import argparse as ap

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    systems = {
        "stock transformer": ("transformer", {}),
        "realformer none": ("realformer", dict(residual_attention="none", admin_init="none")),
        "realformer sum": ("realformer", dict(residual_attention="sum", admin_init="none")),
        "realformer mean": ("realformer", dict(residual_attention="mean", admin_init="none")),
        "realformer sum + ADMIN": ("realformer", dict(residual_attention="sum", admin_init="analytic")),
    }
    sizes = {"base 6L-6L": dict(encoder_layers=6, decoder_layers=6), "60L-12L": dict(encoder_layers=60, decoder_layers=12)}
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    task = ToyTask(32000)
    report.add("", f"Step time (forward, backward, {str(dtype).split('.')[1]} weights, medians) and peak memory:", "",
               "| size | length | system | ms a step | ratio | peak GB | ratio |", "|---|---|---|---|---|---|---|")  # fmt: skip
    for size, layers in sizes.items():
        for length in (64, 256):
            if time.time() > until:
                report.add(f"| {size} | {length} | skipped for time | | | | |")
                continue
            batch = 4096 // length
            source = torch.randint(4, 32000, (batch, length), device="cuda")
            source[0, :4] = task.source_dictionary.pad()
            lengths = torch.full((batch,), length, device="cuda")
            steps, times, peaks = {}, {}, {}
            for name, (arch, flags) in systems.items():
                torch.manual_seed(1)
                args = ap.Namespace(arch=arch, share_all_embeddings=True, dropout=0.1, attention_dropout=0.1, **layers, **flags)
                ARCH_CONFIG_REGISTRY[arch](args)
                model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).to("cuda", dtype).train()

                def step(model=model):
                    model.zero_grad(set_to_none=True)
                    logits, _ = model(source, lengths, source)
                    torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), source.view(-1)).backward()
                    torch.cuda.synchronize()

                steps[name], times[name] = step, []
                step()
                own = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                step()
                # what lies on the device for the other systems is not this one's
                peaks[name] = torch.cuda.max_memory_allocated() - own + sum(p.nbytes * 2 for p in model.parameters())
                model.zero_grad(set_to_none=True)
            for _ in range(10):
                for name, step in steps.items():
                    start = time.perf_counter()
                    step()
                    times[name].append(time.perf_counter() - start)
                if time.time() > until:
                    break
            first = next(iter(systems))
            for name in systems:
                ms, peak = statistics.median(times[name]), peaks[name]
                report.add(f"| {size} | {length} | {name} | {ms * 1e3:.1f} | {ms / statistics.median(times[first]):.2f} | {peak / 1e9:.2f} | {peak / peaks[first]:.2f} |")
            del steps, step, model
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="gpu_check.md")
    parser.add_argument("--seconds", type=float, default=420)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: error: torch sees no CUDA device; this check needs one", file=sys.stderr)
        return 2
    sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]
    import realformer_nmt  # noqa: F401  registers the architectures

    start = time.time()
    report = Report(options.out)
    properties = torch.cuda.get_device_properties(0)
    report.add("# GPU check", "", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, torch {torch.__version__}, CUDA {torch.version.cuda}", "")
    from tiny_databin import write_databin

    with tempfile.TemporaryDirectory() as folder:
        databin = write_databin(os.path.join(folder, "db"), pairs=2000)
        for name, part in (
            ("parity", lambda: parity(report, torch.device("cuda"))),
            ("training", lambda: training(report, databin, folder, start + 0.45 * options.seconds)),
            ("speed", lambda: speed(report, start + options.seconds)),
        ):
            try:
                part()
            except Exception as error:  # the other parts still have something to say
                report.check(name, False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    report.add("", f"{report.failed} check(s) failed; {time.time() - start:.0f} s in all.")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
