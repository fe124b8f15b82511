"""The table of a comparison: means and spreads over seeds."""

import math
import statistics


def updates_to_reach(updates, losses, target):
    """First update at which the loss is at or below ``target``, interpolated between validations; None if never."""
    previous = None
    for update, loss in zip(updates, losses):
        if loss <= target:
            if previous is None or not math.isfinite(previous[1]):
                return float(update)
            share = (previous[1] - target) / (previous[1] - loss)
            return previous[0] + share * (update - previous[0])
        previous = (update, loss)
    return None


def mean_and_spread(values):
    """Mean and sample standard deviation (None for one value) of the values that are not None, and their number."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    if not all(math.isfinite(value) for value in values):
        return {"mean": math.nan, "sd": None, "n": len(values)}
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sd": spread, "n": len(values)}


def loss_at(record, update):
    """Valid nll_loss at just this update, or None."""
    pairs = dict(zip(record["valid_updates"], record["valid_nll_loss"]))
    return pairs.get(update)


def checked_updates(max_update, validate_every):
    """Updates to show losses at: about a third, two thirds and all of the budget, where a validation falls."""
    thirds = [max_update * third // 3 // validate_every * validate_every for third in (1, 2)]
    return sorted({update for update in thirds if update > 0} | {max_update})


def summarise(records, systems, max_update, validate_every, target_loss=None):
    """Rows by system from runs as ``compare.read_run`` gives them.

    ``target_loss`` defaults to the first system's mean valid loss at the end; where that does not exist yet
    (or is no number) the column stays empty.
    """
    by_system = {name: [record for record in records if record["system"] == name] for name in systems}
    shown = checked_updates(max_update, validate_every)
    if target_loss is None:
        final = mean_and_spread([loss_at(record, max_update) for record in by_system[systems[0]]])
        target_loss = final["mean"] if final and math.isfinite(final["mean"]) else None
    rows = []
    for name in systems:
        runs = by_system[name]
        reached = [
            updates_to_reach(run["valid_updates"], run["valid_nll_loss"], target_loss) if target_loss else None
            for run in runs
        ]
        entropies = [run["entropy"] for run in runs if run["entropy"]]
        rows.append(
            {
                "system": name,
                "seeds": [run["seed"] for run in runs if run["valid_updates"][-1] >= max_update],
                "loss": {update: mean_and_spread([loss_at(run, update) for run in runs]) for update in shown},
                "updates_to_target": mean_and_spread(reached),
                "bleu": mean_and_spread([run["bleu"] for run in runs]),
                "sacrebleu": mean_and_spread([run["sacrebleu"] for run in runs]),
                "entropy": {
                    site: mean_and_spread([entropy.get(site) for entropy in entropies])
                    for site in ("encoder", "decoder", "cross")
                },
                "seconds_per_update": mean_and_spread([run["seconds_per_update"] for run in runs]),
                "peak_mb": mean_and_spread([run["peak_gpu_mb"] or run["peak_rss_mb"] for run in runs]),
            }
        )
    return {"updates": shown, "target_loss": target_loss, "rows": rows}


def _cell(entry, digits=2, wanted=None):
    if entry is None:
        return "-"
    text = f"{entry['mean']:.{digits}f}"
    if entry["sd"] is not None:
        text += f" ± {entry['sd']:.{digits}f}"
    if wanted and entry["n"] < wanted:
        text += f" ({entry['n']})"
    return text


def markdown(table, seeds):
    """The table as Markdown; a number in brackets is how many of the ``seeds`` a cell rests on, where not all."""
    heads = ["system"] + [f"valid loss, {update} updates" for update in table["updates"]]
    target = "?" if table["target_loss"] is None else f"{table['target_loss']:.2f}"
    heads += [f"updates to loss {target}", "test BLEU, tokenised", "sacreBLEU"]
    heads += ["entropy: encoder", "decoder", "cross", "s/update", "peak MB"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for row in table["rows"]:
        cells = [row["system"]]
        cells += [_cell(row["loss"][update], 3, seeds) for update in table["updates"]]
        cells += [_cell(row["updates_to_target"], 0, seeds), _cell(row["bleu"], 2, seeds)]
        cells += [_cell(row["sacrebleu"], 2, seeds)]
        cells += [_cell(row["entropy"][site], 3, seeds) for site in ("encoder", "decoder", "cross")]
        cells += [_cell(row["seconds_per_update"], 2, seeds), _cell(row["peak_mb"], 0, seeds)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Mean ± standard deviation over {seeds} seeds (in brackets: over how many, where fewer). Valid loss is "
        "nll_loss in bits a token. Entropy is a head's, as a share of the largest possible, over heads, layers and "
        "positions.",
        "",
    ]
    return "\n".join(lines)
