"""What the attention heads of one checkpoint, or of two side by side, do on real sentences."""

import argparse
import csv
import io
import sys
from pathlib import Path

from realformer_nmt.tools.files import ToolError, quiet_libraries, run_main, write_json, write_text

DESCRIPTION = """\
Entropy of every attention head by layer, divergence between adjacent layers, near-empty
heads, and heatmaps of one sentence, for one checkpoint or two. Padding is never counted.
"""
EPILOG = """\
files written to --output:
  index.html                       everything on one page, opens without a network
  heads.csv, divergence.csv        the figures of every head
  summary.json                     their means
  entropy, divergence, heatmap-*   as .png and .svg
"""


def get_parser():
    parser = argparse.ArgumentParser(
        prog="analyse_attention.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("data_bin", metavar="DATA_BIN", help="directory made by fairseq-preprocess")
    add("--path", nargs="+", required=True, metavar="FILE", help="one checkpoint, or two to compare")
    add("--names", nargs="+", metavar="NAME", help="what to call them (default: their paths' differing parts)")
    add("--output", required=True, metavar="DIR", help="directory for the results")
    add("--subset", default="valid", metavar="NAME", help="subset of the data-bin (default: valid)")
    add("--source-lang", metavar="LANG", help="source language (default: as in DATA_BIN)")
    add("--target-lang", metavar="LANG", help="target language (default: as in DATA_BIN)")
    add("--sentences", type=int, default=200, metavar="N", help="average over the first N sentences (default: 200)")
    add("--batch-size", type=int, default=16, metavar="N", help="sentences at once (default: 16)")
    add("--sentence", type=int, default=0, metavar="N", help="sentence in the heatmaps, from 0 (default: 0)")
    add("--layers", nargs="+", type=int, metavar="N", help="layers in the heatmaps, from 1 (default: first, middle, last)")
    add(
        "--near-empty",
        type=float,
        default=0.9,
        metavar="X",
        help="a head is near-empty when this share of its weight lies on the sentence's end, in decoder "
        "self-attention on the first position (default: 0.9)",
    )
    add("--numbers-only", action="store_true", help="write the CSV and JSON files only")
    add("--cpu", action="store_true", help="do not use a GPU")
    return parser


def check(args):
    if len(args.path) > 2:
        raise ToolError(f"--path takes one checkpoint or two, not {len(args.path)}")
    if args.names and len(args.names) != len(args.path):
        raise ToolError(f"--names gives {len(args.names)} names for {len(args.path)} checkpoints")
    if args.sentences < 1 or args.batch_size < 1:
        raise ToolError("--sentences and --batch-size must be 1 or more")
    if not 0 < args.near_empty <= 1:
        raise ToolError("--near-empty must be above 0 and at most 1")


def short_names(paths):
    """Names that tell the checkpoints apart: the last parts of their paths that differ."""
    parts = [Path(path).resolve().with_suffix("").parts for path in paths]
    if len(paths) == 1:
        return [parts[0][-1]]
    if parts[0] == parts[1]:
        return ["first", "second"]
    while parts[0][-1] == parts[1][-1]:
        parts = [part[:-1] for part in parts]
    return [part[-1] for part in parts]


def heads_csv(models, near_empty):
    rows = [("model", "site", "layer", "head", "entropy_nats", "normalised_entropy", "parked_weight", "near_empty")]
    for model in models:
        for (site, layer), figures in sorted(model.heads.items()):
            for head in range(len(figures.entropy)):
                values = [float(figure[head]) for figure in figures]
                rows.append(
                    (model.name, site, layer + 1, head + 1, *(f"{value:.6f}" for value in values), int(values[2] >= near_empty))
                )
    return _csv(rows)


def divergence_csv(models):
    rows = [("model", "site", "layer", "head", "layer_below", "head_below", "jensen_shannon_bits")]
    for model in models:
        for (site, layer), matrix in sorted(model.divergence.items()):
            for head, row in enumerate(matrix.tolist()):
                for below, value in enumerate(row):
                    rows.append((model.name, site, layer + 2, head + 1, layer + 1, below + 1, f"{value:.6f}"))
    return _csv(rows)


def _csv(rows):
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def chosen_layers(models, site, wanted):
    """Layers (from 0) of a site that all models have: those wanted (from 1), or first, middle and last."""
    common = set(models[0].layers(site)).intersection(*(model.layers(site) for model in models))
    if wanted:
        return sorted(layer - 1 for layer in set(wanted) if layer - 1 in common)
    ordered = sorted(common)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}) if ordered else []


def draw(models, report, output, wanted_layers):
    """Figures and the page."""
    from realformer_nmt.attention import SITES
    from realformer_nmt.tools import attention_figures, attention_page

    figures = [
        ("Entropy", attention_figures.save(attention_figures.entropy_figure(models), output, "entropy")),
        (
            "Divergence between adjacent layers",
            attention_figures.save(attention_figures.divergence_figure(models), output, "divergence"),
        ),
    ]
    heatmaps = []
    for site in SITES:
        for layer in chosen_layers(models, site, wanted_layers):
            name = f"heatmap-{site}-layer{layer + 1}"
            path = attention_figures.save(attention_figures.heatmap_figure(models, site, layer), output, name)
            heatmaps.append((f"{attention_figures.TITLES[site]}, layer {layer + 1}", path))
    if wanted_layers and not heatmaps:
        raise ToolError(f"--layers {' '.join(map(str, wanted_layers))}: the models have no such layers")
    first = models[0].heatmap
    write_text(output / "index.html", attention_page.page(report, figures, heatmaps, first.source, first.target))


def main(argv=None):
    args = get_parser().parse_args(argv)
    check(args)

    import realformer_nmt  # noqa: F401  registers the plug-in, and what the safe loader may read
    from realformer_nmt.tools.attention_run import analyse, open_model, summary
    from realformer_nmt.tools.evaluate import find_languages

    quiet_libraries()
    source, target = find_languages(args.data_bin, args.subset, args.source_lang, args.target_lang)
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    models = []
    for path, name in zip(args.path, args.names or short_names(args.path)):
        print(f"analyse: {name} ({path})", file=sys.stderr, flush=True)
        session = open_model(path, args.data_bin, args.subset, source, target, args.cpu)
        shown = None if args.numbers_only else args.sentence
        models.append(analyse(session, name, path, args.sentences, args.batch_size, shown))
    report = {
        "data_bin": str(args.data_bin),
        "subset": args.subset,
        "sentences": min(args.sentences, len(session.dataset)),
        "near_empty_threshold": args.near_empty,
        "models": [summary(model, args.near_empty) for model in models],
    }
    write_json(output / "summary.json", report)
    write_text(output / "heads.csv", heads_csv(models, args.near_empty))
    write_text(output / "divergence.csv", divergence_csv(models))
    if not args.numbers_only:
        draw(models, report, output, args.layers)
    for entry in report["models"]:
        for site, value in entry["mean_normalised_entropy"].items():
            near = entry["near_empty_share"][site]
            js = entry["same_head_js"].get(site)
            print(
                f"{entry['name']}: {site}: entropy {value:.3f} of the largest possible, near-empty heads {near:.0%}"
                + (f", same-head divergence {js:.3f} bits" if js is not None else "")
            )
    print(f"written to {output}" + ("" if args.numbers_only else f"; open {output / 'index.html'}"))


if __name__ == "__main__":
    run_main(main)
