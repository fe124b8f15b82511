#!/usr/bin/env python3
"""What depth does to training: Post-LN, ADMIN, and ADMIN with residual attention (sum and mean), narrow and deep.

    benchmarks/depth.py DATA-BIN --out DIR [--layers 60 12] [--updates 300] [--until HH:MM]

All systems live in one process and take turns, one update each on the same batch, so that they can be compared at any
moment; it stops after --updates, or at the time --until, and everything measured so far is already on disk:

    loss.csv     training loss (base 2, per token), gradient norm and learning rate, every update
    valid.csv    validation loss every --valid-every updates
    layers.csv   by layer, at the first update and at every validation: gradient norm, how much the layer changes the
                 stream, entropy of its attention, spread of its scores

    benchmarks/depth.py --plot DIR       draws the plots from these files again (needs matplotlib)
"""

import argparse
import csv
import datetime
import math
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

SYSTEMS = {
    "post-ln": ["--residual-attention", "none", "--admin-init", "none"],
    "admin": ["--residual-attention", "none", "--admin-init", "profile"],
    "admin+sum": ["--residual-attention", "sum", "--admin-init", "profile"],
    "admin+mean": ["--residual-attention", "mean", "--admin-init", "profile"],
}


class System:
    """One model with its own fairseq trainer; the batches come from outside."""

    def __init__(self, name, options):
        from fairseq import options as fairseq_options
        from fairseq import tasks, utils
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from fairseq.trainer import Trainer

        arguments = [
            options.data, "--user-dir", os.path.join(ROOT, "realformer_nmt"), "--arch", "realformer", "--cpu",
            "--encoder-layers", str(options.layers[0]), "--decoder-layers", str(options.layers[1]),
            "--encoder-embed-dim", str(options.dim), "--decoder-embed-dim", str(options.dim),
            "--encoder-ffn-embed-dim", str(2 * options.dim), "--decoder-ffn-embed-dim", str(2 * options.dim),
            "--encoder-attention-heads", "4", "--decoder-attention-heads", "4", "--share-all-embeddings",
            "--dropout", "0.1", "--attention-dropout", "0.1", "--activation-dropout", "0.1",
            "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
            "--optimizer", "radam", "--adam-betas", "(0.9, 0.98)", "--lr", str(options.lr), "--clip-norm", "0.0",
            "--lr-scheduler", "inverse_sqrt", "--warmup-init-lr", "1e-07", "--warmup-updates", str(options.warmup),
            "--max-tokens", str(options.max_tokens), "--seed", str(options.seed), *SYSTEMS[name],
        ]  # fmt: skip
        parser = fairseq_options.get_training_parser()
        cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, input_args=arguments))
        utils.set_torch_seed(cfg.common.seed)
        self.name = name
        self.task = tasks.setup_task(cfg.task)
        model = self.task.build_model(cfg.model)
        self.trainer = Trainer(cfg, self.task, model, self.task.build_criterion(cfg.criterion))

    @property
    def model(self):
        return self.trainer.get_model()

    def update(self, samples):
        """One update; returns loss (base 2), gradient norm and learning rate."""
        from fairseq.logging import metrics

        with metrics.aggregate(new_root=True) as seen:
            self.trainer.train_step(samples)
        values = seen.get_smoothed_values()
        return float(values["nll_loss"]), float(values["gnorm"]), self.trainer.get_lr()

    def valid_loss(self, batches):
        """nll_loss (base 2, per token) over *batches*."""
        import torch

        criterion = self.trainer.get_criterion()
        self.model.eval()
        total = tokens = 0.0
        with torch.no_grad():
            for batch in batches:
                _, size, log = criterion(self.model, batch)
                total, tokens = total + float(log["nll_loss"]), tokens + log["ntokens"]
        return total / tokens / math.log(2)

    def layer_statistics(self, batch):
        """Rows (stack, layer, measure, value) from the gradients of the last update and one forward pass of *batch*."""
        import torch

        from realformer_nmt.attention import record_attention

        rows = []
        for stack in ("encoder", "decoder"):
            for number, layer in enumerate(getattr(self.model, stack).layers, 1):
                norms = [p.grad.double().pow(2).sum() for p in layer.parameters() if p.grad is not None]
                rows.append((stack, number, "gradient norm", math.sqrt(sum(float(n) for n in norms))))

        streams, handles = {"encoder": [], "decoder": []}, []

        def watch(stack, number):
            def hook(module, args, output):
                before, after = args[0].detach(), output[0].detach()
                change = (after - before).norm() / before.norm()
                rows.append((stack, number, "change of the stream", float(change)))
                kinds = ("encoder",) if stack == "encoder" else ("decoder", "cross")
                for kind, scores in zip(kinds, output[1:] if stack == "encoder" else output[-2:]):
                    if scores is not None:
                        rows.append((kind, number, "spread of R", float(scores.float().std(-1).mean())))

            return hook

        for stack in streams:
            for number, layer in enumerate(getattr(self.model, stack).layers, 1):
                handles.append(layer.register_forward_hook(watch(stack, number)))
        self.model.eval()
        with torch.no_grad(), record_attention(self.model) as recorded:
            self.model(**batch["net_input"])
        for handle in handles:
            handle.remove()
        source_length = batch["net_input"]["src_lengths"]
        for (site, number), probs in recorded.items():
            if site == "decoder":
                continue  # causal rows of every length: one number would mean little
            entropy = -(probs * probs.clamp(min=1e-30).log()).sum(-1)  # batch, heads, queries
            share = entropy / source_length.float().log().clamp(min=1e-6)[:, None, None]
            rows.append((site, number + 1, "entropy (1 = uniform)", float(share.mean())))
        return rows


def measure(options):
    import torch

    torch.set_num_threads(options.threads)
    names = options.systems.split(",")
    systems = []
    for name in names:
        start = time.time()
        systems.append(System(name, options))
        print(f"{name}: {sum(p.numel() for p in systems[-1].model.parameters()):,} parameters, built in {time.time() - start:.0f} s", flush=True)
    first = systems[0]
    first.task.load_dataset("valid")
    from fairseq.trainer import utils as fairseq_utils

    def batches(split, epoch):
        dataset = first.task.dataset(split)
        size = fairseq_utils.resolve_max_positions(first.task.max_positions(), first.model.max_positions())
        iterator = first.task.get_batch_iterator(
            dataset, max_tokens=options.max_tokens, max_positions=size, ignore_invalid_inputs=True, seed=options.seed, epoch=epoch
        )
        return iterator.next_epoch_itr(shuffle=split == "train")

    first.task.load_dataset("train")
    for system in systems[1:]:
        system.task.datasets = first.task.datasets
    valid = list(batches("valid", 1))[: options.valid_batches]
    for system in systems:
        system.trainer.reset_dummy_batch(valid[0])

    os.makedirs(options.out, exist_ok=True)
    files = {n: open(os.path.join(options.out, n + ".csv"), "w", newline="") for n in ("loss", "valid", "layers")}
    writers = {n: csv.writer(f) for n, f in files.items()}
    writers["loss"].writerow(["system", "update", "loss", "gradient_norm", "lr", "seconds"])
    writers["valid"].writerow(["system", "update", "loss"])
    writers["layers"].writerow(["system", "update", "stack", "layer", "measure", "value"])
    until = _clock(options.until)
    update = 0
    epoch = 1
    stream = iter(batches("train", epoch))
    while update < options.updates and (until is None or datetime.datetime.now() < until):
        try:
            batch = next(stream)
        except StopIteration:
            epoch += 1
            stream = iter(batches("train", epoch))
            batch = next(stream)
        update += 1
        for system in systems:
            start = time.perf_counter()
            loss, norm, lr = system.update([batch])
            writers["loss"].writerow([system.name, update, f"{loss:.4f}", f"{norm:.4g}", f"{lr:.4g}", f"{time.perf_counter() - start:.3f}"])
        if update == 1 or update % options.valid_every == 0:
            line = [f"update {update}"]
            for system in systems:
                value = system.valid_loss(valid)
                writers["valid"].writerow([system.name, update, f"{value:.4f}"])
                line.append(f"{system.name} {value:.3f}")
                for row in system.layer_statistics(valid[0]):
                    writers["layers"].writerow([system.name, update, *row[:3], f"{row[3]:.5g}"])
            print("; ".join(line), flush=True)
        for f in files.values():
            f.flush()
    for f in files.values():
        f.close()


def _clock(text):
    if text is None:
        return None
    hour, minute = (int(part) for part in text.split(":"))
    now = datetime.datetime.now()
    then = now.replace(hour=hour, minute=minute, second=0)
    return then if then > now else then + datetime.timedelta(days=1)


def _rows(folder, name):
    with open(os.path.join(folder, name + ".csv"), newline="") as f:
        return list(csv.DictReader(f))


def plot(folder):
    """loss.svg and layers.svg in *folder*."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "svg.fonttype": "path", "axes.spines.top": False, "axes.spines.right": False})
    losses, valids, layers = (_rows(folder, n) for n in ("loss", "valid", "layers"))
    names = list(dict.fromkeys(row["system"] for row in losses))
    colours = dict(zip(names, ("#888888", "#d95f02", "#1b9e77", "#7570b3")))

    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    for name in names:
        own = [r for r in losses if r["system"] == name]
        smooth, value = [], None
        for r in own:  # the batches differ a lot in difficulty
            value = float(r["loss"]) if value is None else 0.9 * value + 0.1 * float(r["loss"])
            smooth.append(value)
        axes[0].plot([int(r["update"]) for r in own], smooth, color=colours[name], label=name)
        own_valid = [r for r in valids if r["system"] == name]
        axes[1].plot([int(r["update"]) for r in own_valid], [float(r["loss"]) for r in own_valid], "o-", ms=3, color=colours[name])
        axes[2].semilogy([int(r["update"]) for r in own], [float(r["gradient_norm"]) for r in own], color=colours[name], lw=0.8)
    for axis, title in zip(axes, ("training loss (bits a token, smoothed)", "validation loss (bits a token)", "gradient norm")):
        axis.set_title(title)
        axis.set_xlabel("updates")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(os.path.join(folder, "loss.svg"))

    panels = [
        ("encoder", "gradient norm"), ("encoder", "change of the stream"), ("encoder", "entropy (1 = uniform)"),
        ("encoder", "spread of R"), ("decoder", "gradient norm"), ("cross", "entropy (1 = uniform)"),
    ]  # fmt: skip
    updates = sorted({int(r["update"]) for r in layers})
    figure, axes = plt.subplots(2, 6, figsize=(17, 5), sharex="col")
    for row, update in enumerate((updates[0], updates[-1])):
        for axis, (stack, measure_name) in zip(axes[row], panels):
            for name in names:
                own = [r for r in layers if r["system"] == name and int(r["update"]) == update and r["stack"] == stack and r["measure"] == measure_name]
                if own:
                    axis.plot([int(r["layer"]) for r in own], [float(r["value"]) for r in own], color=colours[name], label=name)
            if measure_name in ("gradient norm", "spread of R"):
                axis.set_yscale("log")
            axis.set_title(f"{stack}: {measure_name}\nupdate {update}")
            if row:
                axis.set_xlabel("layer")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(os.path.join(folder, "layers.svg"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="data-bin with a joined dictionary")
    parser.add_argument("--out", help="folder for the CSV files")
    parser.add_argument("--plot", metavar="DIR", help="only draw the plots of an earlier run")
    parser.add_argument("--layers", type=int, nargs=2, default=(60, 12), metavar=("ENC", "DEC"))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--until", metavar="HH:MM", help="stop at this time of day at the latest")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--valid-every", type=int, default=25)
    parser.add_argument("--valid-batches", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.plot:
        plot(options.plot)
        return
    if not options.data or not options.out:
        parser.error("give a DATA-BIN and --out DIR (or --plot DIR)")
    measure(options)
    print(f"measured; draw with: benchmarks/depth.py --plot {options.out}")


if __name__ == "__main__":
    main()
