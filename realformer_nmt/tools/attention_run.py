"""Run a checkpoint over sentences of a data-bin and collect figures about its attention heads."""

from pathlib import Path
from typing import Dict, List, NamedTuple

import torch

from realformer_nmt.attention import SITES, record_attention
from realformer_nmt.checkpoints import load_checkpoint
from realformer_nmt.tools.attention_stats import DivergenceAverage, HeadAverage, allowed_positions
from realformer_nmt.tools.files import ToolError


class Heatmap(NamedTuple):
    """Attention of one sentence: ``probs[site, layer]`` is `(heads, queries, keys)`, and the tokens it is between."""

    probs: Dict
    source: List[str]
    target: List[str]

    def axes(self, site):
        """Tokens of the queries and of the keys."""
        queries = self.source if site == "encoder" else self.target
        return queries, (self.target if site == "decoder" else self.source)


class ModelAttention(NamedTuple):
    """Figures of one model: ``heads[site, layer]`` HeadFigures, ``divergence[site, layer]`` from layer to layer + 1."""

    name: str
    path: str
    heads: Dict
    divergence: Dict
    heatmap: Heatmap

    def layers(self, site):
        return sorted(layer for where, layer in self.heads if where == site)


class Session(NamedTuple):
    """A loaded model with the dataset it reads."""

    model: torch.nn.Module
    task: object
    dataset: object


def open_model(path, data_bin, subset, source, target, cpu=False):
    """Load a checkpoint (of this project or stock) and a subset of a data-bin.

    Raises:
        CheckpointError: the file is missing, damaged or carries code.
        ToolError: the model is no encoder-decoder transformer or does not fit the data-bin's dictionaries.
    """
    from fairseq import checkpoint_utils

    load_checkpoint(path)  # for its one clear line; fairseq then reads the file again
    overrides = {"data": str(data_bin), "source_lang": source, "target_lang": target}
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    except RuntimeError as error:  # shapes: another dictionary
        raise ToolError(f"{path}: does not fit {data_bin} ({str(error).strip().splitlines()[-1].strip()})") from error
    model = models[0].eval()
    if not hasattr(getattr(model, "encoder", None), "layers") or not hasattr(getattr(model, "decoder", None), "layers"):
        raise ToolError(f"{path}: is not an encoder-decoder transformer")
    task.load_dataset(subset, task_cfg=cfg.task)
    if torch.cuda.is_available() and not cpu:
        model.cuda()
    return Session(model, task, task.dataset(subset))


def forward(session, indices):
    """One forward pass over sentences: the recorded probabilities, and masks by site.

    Returns:
        tuple: ``{(site, layer): P}`` on the CPU, and ``{site: (allowed, delimiter)}`` as attention_stats wants them
    """
    batch = session.dataset.collater([session.dataset[index] for index in indices])
    if "net_input" not in batch:
        raise ToolError("the data-bin holds no such sentence")
    inputs = batch["net_input"]
    pad = session.task.source_dictionary.pad()
    source_valid = inputs["src_tokens"].ne(pad)
    target_valid = inputs["prev_output_tokens"].ne(session.task.target_dictionary.pad())
    device = next(session.model.parameters()).device
    moved = {key: value.to(device) if torch.is_tensor(value) else value for key, value in inputs.items()}
    with record_attention(session.model) as records, torch.no_grad():
        session.model(**moved)
        probs = {where: value.float().cpu() for where, value in records.items()}
    if not probs:
        raise ToolError("the model ran without attention that could be recorded")
    # Padding may be on either side: the source's last token is the last that is no padding.
    source_end = _last(source_valid)
    target_start = _last(target_valid.flip(1)).flip(1)
    masks = {
        "encoder": (allowed_positions(source_valid, source_valid, False), source_end),
        "decoder": (allowed_positions(target_valid, target_valid, True), target_start),
        "cross": (allowed_positions(target_valid, source_valid, False), source_end),
    }
    return probs, masks


def _last(valid):
    """True at the last true position of each row."""
    after = valid.flip(1).cumsum(1).flip(1)
    return valid & after.eq(1)


def analyse(session, name, path, sentences, batch_size, shown):
    """Figures of a model over the first ``sentences`` of its dataset, and the heatmap of sentence ``shown``.

    Args:
        batch_size: sentences at once; changes speed and memory, not the figures.
        shown: number of the sentence (0 is the first), or None.
    """
    count = min(sentences, len(session.dataset))
    heads, divergence = {}, {}
    for start in range(0, count, batch_size):
        probs, masks = forward(session, range(start, min(count, start + batch_size)))
        for (site, layer), p in probs.items():
            allowed, delimiter = masks[site]
            heads.setdefault((site, layer), HeadAverage()).add(p, allowed, delimiter)
            above = probs.get((site, layer + 1))
            if above is not None:
                divergence.setdefault((site, layer), DivergenceAverage()).add(p, above, allowed)
    heatmap = None
    if shown is not None:
        if not 0 <= shown < len(session.dataset):
            raise ToolError(f"--sentence {shown}: the subset has sentences 0 to {len(session.dataset) - 1}")
        heatmap = read_heatmap(session, shown)
    return ModelAttention(
        name,
        str(Path(path)),
        {where: average.figures() for where, average in heads.items()},
        {where: average.matrix() for where, average in divergence.items()},
        heatmap,
    )


def read_heatmap(session, index):
    """Attention of one sentence of the dataset, and its tokens (the target as the decoder reads it: shifted)."""
    probs, _ = forward(session, [index])
    batch = session.dataset.collater([session.dataset[index]])["net_input"]
    source = [session.task.source_dictionary[token] for token in batch["src_tokens"][0].tolist()]
    target = [session.task.target_dictionary[token] for token in batch["prev_output_tokens"][0].tolist()]
    return Heatmap({where: p[0] for where, p in probs.items()}, source, target)


def summary(model, near_empty):
    """Means over heads and layers by site, as plain numbers."""
    result = {"name": model.name, "path": model.path}
    keys = ("mean_normalised_entropy", "mean_entropy_nats", "near_empty_share", "same_head_js", "closest_head_js")
    for key in keys:
        result[key] = {}
    for site in SITES:
        layers = model.layers(site)
        if not layers:
            continue
        figures = [model.heads[site, layer] for layer in layers]
        result["mean_normalised_entropy"][site] = float(torch.cat([f.normalised for f in figures]).mean())
        result["mean_entropy_nats"][site] = float(torch.cat([f.entropy for f in figures]).mean())
        parked = torch.cat([f.parked for f in figures])
        result["near_empty_share"][site] = float((parked >= near_empty).double().mean())
        matrices = [model.divergence[site, layer] for layer in layers if (site, layer) in model.divergence]
        if matrices:
            result["same_head_js"][site] = float(torch.stack([m.diagonal().mean() for m in matrices]).mean())
            result["closest_head_js"][site] = float(torch.stack([m.min(1).values.mean() for m in matrices]).mean())
    return result
