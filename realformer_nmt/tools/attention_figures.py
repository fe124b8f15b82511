"""Figures of attention heads, drawn with matplotlib."""

import matplotlib

matplotlib.use("Agg")  # no display is needed or looked for

from matplotlib.figure import Figure  # noqa: E402

from realformer_nmt.attention import SITES  # noqa: E402
from realformer_nmt.tools.files import atomic_path  # noqa: E402

# Two colours that colour-blind readers can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00")
TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "encoder-decoder attention"}


def save(figure, directory, name):
    """Write NAME.png and NAME.svg; the same figure always gives the same bytes. Returns the SVG's path."""
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for ending in (".png", ".svg"):
            path = directory / (name + ending)
            with atomic_path(path) as temporary:
                metadata = {"Date": None} if ending == ".svg" else {"Software": None}
                figure.savefig(temporary, dpi=110, metadata=metadata, bbox_inches="tight")
    return path


def _grid(models):
    figure = Figure(figsize=(13, 3.6))
    axes = figure.subplots(1, len(SITES), sharey=True)
    for axis, site in zip(axes, SITES):
        axis.set_title(TITLES[site])
        axis.grid(True, alpha=0.3)
        layers = [layer + 1 for model in models for layer in model.layers(site)]
        axis.set_xticks(range(1, max(layers, default=1) + 1, max(1, max(layers, default=1) // 12)))
        axis.set_xlim(0.5, max(layers, default=1) + 0.5)
    return figure, axes


def entropy_figure(models):
    """Every head's normalised entropy (dots) and the layer's mean (line)."""
    figure, axes = _grid(models)
    for axis, site in zip(axes, SITES):
        for index, model in enumerate(models):
            layers, shift = model.layers(site), 0.12 * (index - (len(models) - 1) / 2)
            for layer in layers:
                values = model.heads[site, layer].normalised.tolist()
                axis.plot([layer + 1 + shift] * len(values), values, "o", ms=3, alpha=0.5, color=COLOURS[index])
            means = [float(model.heads[site, layer].normalised.mean()) for layer in layers]
            axis.plot([layer + 1 + shift for layer in layers], means, color=COLOURS[index], label=model.name)
        axis.set_xlabel("layer")
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("entropy / log(number of keys)")
    axes[0].legend(fontsize=8)
    return figure


def divergence_figure(models):
    """Divergence from the layer below: of the head of the same number, and of the closest head."""
    figure, axes = _grid(models)
    for axis, site in zip(axes, SITES):
        for index, model in enumerate(models):
            layers = sorted(layer for where, layer in model.divergence if where == site)
            if not layers:
                continue
            matrices = [model.divergence[site, layer] for layer in layers]
            x = [layer + 2 for layer in layers]
            same = [float(matrix.diagonal().mean()) for matrix in matrices]
            closest = [float(matrix.min(1).values.mean()) for matrix in matrices]
            axis.plot(x, same, "o-", ms=4, color=COLOURS[index], label=f"{model.name}: same head")
            axis.plot(x, closest, "o:", ms=4, color=COLOURS[index], label=f"{model.name}: closest head")
        axis.set_xlabel("layer (against the one below)")
    # Only now: the axes share their scale, and setting one end stops it from growing.
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("Jensen-Shannon divergence (bits)")
    if axes[0].lines:
        axes[0].legend(fontsize=8)
    return figure


def heatmap_figure(models, site, layer):
    """Attention of the chosen sentence: a row for the mean of the heads and for each head, a column a model."""
    rows = max(model.heatmap.probs[site, layer].size(0) for model in models) + 1
    queries, keys = models[0].heatmap.axes(site)
    width = max(2.5, 0.22 * len(keys) + 1.2)
    height = max(2.0, 0.2 * len(queries) + 0.9)
    figure = Figure(figsize=(width * len(models), height * rows), layout="constrained")
    axes = figure.subplots(rows, len(models), squeeze=False)
    for column, model in enumerate(models):
        probs = model.heatmap.probs[site, layer]
        queries, keys = model.heatmap.axes(site)
        for row in range(rows):
            axis = axes[row][column]
            if row > probs.size(0):
                axis.axis("off")
                continue
            picture = probs.mean(0) if row == 0 else probs[row - 1]
            axis.imshow(picture.numpy(), vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
            axis.set_title(f"{model.name}: {'mean of heads' if row == 0 else f'head {row}'}", fontsize=8)
            # parse_math off: a token such as $ is text, not the start of a formula.
            axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6, parse_math=False)
            axis.set_yticks(range(len(queries)), queries, fontsize=6, parse_math=False)
    figure.suptitle(f"{TITLES[site]}, layer {layer + 1} (rows look at columns)", fontsize=10)
    return figure
