"""One HTML page with everything in it: it opens without a network and without the other files."""

import base64
import html

from realformer_nmt.attention import SITES
from realformer_nmt.tools.attention_figures import TITLES

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { border: 1px solid #ccc; padding: .25em .6em; }
td + td { text-align: right; font-variant-numeric: tabular-nums; } img { max-width: 100%; }
summary { cursor: pointer; margin: .5em 0; font-weight: 600; }
"""

_ROWS = (
    ("mean_normalised_entropy", "mean entropy, as a share of the largest possible"),
    ("mean_entropy_nats", "mean entropy (nats)"),
    ("near_empty_share", "share of near-empty heads"),
    ("same_head_js", "divergence from the same head one layer below (bits)"),
    ("closest_head_js", "divergence from the closest head one layer below (bits)"),
)


def image(svg_path, text):
    """An SVG file as an ``<img>`` that carries it: its names cannot clash with another figure's."""
    data = base64.b64encode(svg_path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{data}">'


def _table(summaries):
    heads = "".join(
        f"<th>{html.escape(TITLES[site])}<br>{html.escape(entry['name'])}</th>" for site in SITES for entry in summaries
    )
    lines = [f"<table><tr><th></th>{heads}</tr>"]
    for key, label in _ROWS:
        cells = ""
        for site in SITES:
            for entry in summaries:
                value = entry[key].get(site)
                cells += f"<td>{'-' if value is None else format(value, '.3f')}</td>"
        lines.append(f"<tr><td>{html.escape(label)}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def page(report, figures, heatmaps, source, target):
    """
    Args:
        report: what summary.json holds
        figures: ``[(title, path of an SVG)]``
        heatmaps: the same, shown folded
        source, target: tokens of the sentence in the heatmaps, or None
    """
    esc = html.escape
    out = ['<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Attention heads</title>']
    out.append(f"<style>{_STYLE}</style></head><body><h1>Attention heads</h1><ul>")
    out += [f"<li>{esc(entry['name'])}: <code>{esc(entry['path'])}</code></li>" for entry in report["models"]]
    out.append(
        f"</ul><p>First {report['sentences']} sentences of <code>{esc(report['subset'])}</code> in "
        f"<code>{esc(report['data_bin'])}</code>; padding is not counted. A head is near-empty when at least "
        f"{report['near_empty_threshold']:.0%} of its weight lies on the sentence's end (encoder, encoder-decoder) or on "
        "the first position (decoder).</p>"
    )
    out.append(_table(report["models"]))
    for title, path in figures:
        out.append(f"<h2>{esc(title)}</h2>{image(path, title)}")
    if heatmaps:
        out.append("<h2>One sentence</h2>")
        out.append(f"<p>source: <code>{esc(' '.join(source))}</code><br>target: <code>{esc(' '.join(target))}</code></p>")
        for title, path in heatmaps:
            out.append(f"<details><summary>{esc(title)}</summary>{image(path, title)}</details>")
    return "\n".join([*out, "</body></html>\n"])
