"""Curves from the logs of fairseq-train: loss, perplexity, gradient norm, learning rate and BLEU over updates."""

import argparse
import csv
import io
from pathlib import Path

from realformer_nmt.tools.fairseq_log import read_log, series
from realformer_nmt.tools.files import ToolError, atomic_path, quiet_libraries, run_main, write_text

# (title, y axis logarithmic, [(what to read, line style, label)])
PANELS = [
    ("loss (nll_loss, bits a token)", False, [("train_inner", "nll_loss", ":", "train"), ("valid", "nll_loss", "-", "valid")]),
    ("perplexity", True, [("train_inner", "ppl", ":", "train"), ("valid", "ppl", "-", "valid")]),
    ("gradient norm", True, [("train_inner", "gnorm", "-", "")]),
    ("learning rate", False, [("train_inner", "lr", "-", "")]),
    ("BLEU (valid)", False, [("valid", "bleu", "-", "")]),
]


def get_parser():
    parser = argparse.ArgumentParser(
        prog="plot_training.py",
        description="Plot loss, perplexity, gradient norm, learning rate and BLEU over updates from logs of "
        "fairseq-train (--log-format simple or json; screen output or --log-file).",
    )
    add = parser.add_argument
    add("logs", nargs="+", metavar="LOG", help="log files, one a run")
    add("--output", required=True, metavar="FILE", help="file to write: .png, .svg or .pdf; FILE.csv holds the figures")
    add("--names", nargs="+", metavar="NAME", help="what to call the runs (default: their paths); runs of one name share a colour")
    add("--subset", default="valid", metavar="NAME", help="validation subset to show (default: valid)")
    add("--from-update", type=int, default=0, metavar="N", help="leave out earlier updates (default: 0)")
    return parser


def read_runs(args):
    """``[(name, points)]`` of every log, in the order given.

    Raises:
        ToolError: a log cannot be read or holds no figures.
    """
    names = args.names or run_names(args.logs)
    if len(names) != len(args.logs):
        raise ToolError(f"--names gives {len(names)} names for {len(args.logs)} logs")
    runs = []
    for name, path in zip(names, args.logs):
        points = [point for point in read_log(path) if point.update >= args.from_update]
        if not points:
            raise ToolError(f"{path}: holds no figures of fairseq-train (use --log-format simple or json)")
        runs.append((name, points))
    return runs


def run_names(paths):
    """Paths without the parts that all have in common at either end."""
    parts = [Path(path).with_suffix("").parts for path in paths]
    if len(set(parts)) < 2:
        return [str(path) for path in paths]
    while all(len(part) > 1 for part in parts) and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while all(len(part) > 1 for part in parts) and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def panels_of(runs, subset):
    """Panels for which some run has figures: ``[(title, logarithmic, [(run index, style, label, x, y)])]``."""
    result = []
    for title, logarithmic, wanted in PANELS:
        lines = []
        for index, (_, points) in enumerate(runs):
            for kind, key, style, label in wanted:
                x, y = series(points, subset if kind == "valid" else kind, key)
                if x:
                    lines.append((index, style, label, x, y))
        if lines:
            result.append((title, logarithmic, lines))
    return result


def draw(runs, panels):
    """The figure. Names have a colour each; dotted lines are training, solid ones validation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = (len(panels) + columns - 1) // columns
    figure = Figure(figsize=(6.5 * columns, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    names = list(dict.fromkeys(name for name, _ in runs))
    colours = matplotlib.colormaps["tab10" if len(names) <= 10 else "tab20"].colors
    for axis, (title, logarithmic, lines) in zip(axes, panels):
        labelled = set()
        for index, style, label, x, y in lines:
            # One point alone would be invisible as a line.
            marker = "o" if len(x) < 30 and style == "-" else None
            name = runs[index][0]
            text = " ".join(filter(None, [name, label]))
            colour = colours[names.index(name) % len(colours)]
            # Seeds of one system: the legend names the system once ("_" hides an entry).
            axis.plot(x, y, style, marker=marker, ms=3, color=colour, label="_" if text in labelled else text, lw=1.3)
            labelled.add(text)
        axis.set_title(title)
        axis.set_xlabel("updates")
        axis.grid(True, alpha=0.3)
        if logarithmic:
            axis.set_yscale("log")
    for axis in axes[len(panels) :]:
        axis.axis("off")
    axes[0].legend(fontsize=7)
    return figure


def figures_csv(runs, logs):
    rows = [("run", "kind", "epoch", "update", "figure", "value", "log")]
    for (name, points), log in zip(runs, logs):
        for point in points:
            rows += [(name, point.kind, point.epoch, point.update, key, value, log) for key, value in point.values.items()]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def main(argv=None):
    args = get_parser().parse_args(argv)
    output = Path(args.output)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise ToolError(f"{output}: the name must end in .png, .svg or .pdf (--output)")
    runs = read_runs(args)
    panels = panels_of(runs, args.subset)
    if not panels:
        raise ToolError(f"{args.logs[0]}: has no curve to draw")
    quiet_libraries()
    figure = draw(runs, panels)
    with atomic_path(output) as temporary:
        figure.savefig(temporary, dpi=110)
    write_text(output.with_name(output.name + ".csv"), figures_csv(runs, args.logs))
    print(f"written: {output} and {output.name}.csv ({', '.join(title for title, _, _ in panels)})")


if __name__ == "__main__":
    run_main(main)
