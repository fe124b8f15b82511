"""Scores of translations: tokenised BLEU, sacreBLEU, chrF, TER, and significance against a second system."""

import contextlib
import io
import logging
import re

from realformer_nmt.tools.files import ToolError
from realformer_nmt.tools.multi_bleu import multi_bleu, split_compounds

_BPE_MARK = re.compile(r"@@(?= |$)|\u2581")


def check_lines(hypotheses, references, names):
    """Check that hypotheses and every list of references have the same, non-zero number of lines.

    Raises:
        ToolError
    """
    if not hypotheses:
        raise ToolError("there are no hypotheses to score")
    for reference, name in zip(references, names):
        if len(reference) != len(hypotheses):
            raise ToolError(f"{name}: has {len(reference)} lines, but there are {len(hypotheses)} hypotheses")


def check_no_bpe_marks(lines, name):
    """Check that no word is still cut by BPE (``@@`` at a token's end, or sentencepiece's U+2581).

    Raises:
        ToolError: naming the first such line.
    """
    for number, line in enumerate(lines, 1):
        match = _BPE_MARK.search(line)
        if match:
            context = line[max(0, match.start() - 15) : match.end() + 15]
            raise ToolError(
                f"{name}, line {number}: BPE marks are left ('{context}'); choose --post-process to fit the data's BPE"
            )


def detokenize(lines, language):
    """Undo Moses tokenisation (also its ``@-@`` hyphens and ``&apos;`` escapes) with sacremoses."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(line.split(), unescape=True) for line in lines]


def sacrebleu_metrics(references, tokenize="13a"):
    """sacreBLEU's BLEU, chrF2 and TER with default settings, holding ``references`` (lists of raw lines)."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    return {
        "BLEU": BLEU(tokenize=tokenize, references=references),
        "chrF2": CHRF(references=references),
        "TER": TER(references=references),
    }


def score_detokenized(hypotheses, references, tokenize="13a"):
    """sacreBLEU, chrF2 and TER of raw text: ``{name: {"score": float, "signature": str, "text": str}}``."""
    scores = {}
    for name, metric in sacrebleu_metrics(references, tokenize).items():
        result = metric.corpus_score(hypotheses, None)
        scores[name] = {
            "score": result.score,
            "signature": metric.get_signature().format(),
            "text": result.format(width=2),
        }
    return scores


def score_tokenized(hypotheses, references, compounds=False):
    """multi-bleu of tokenised text, and with ``compounds`` also that after splitting hyphenated words."""
    scores = {"multi-bleu": multi_bleu(hypotheses, references)}
    if compounds:
        scores["multi-bleu, compounds split"] = multi_bleu(
            [split_compounds(line) for line in hypotheses],
            [[split_compounds(line) for line in reference] for reference in references],
        )
    return {name: {"score": bleu.score, "text": str(bleu)} for name, bleu in scores.items()}


def compare_systems(hypotheses, baseline, references, tokenize="13a", resamples=1000, trials=10000):
    """Paired bootstrap and paired approximate randomisation of a system against a baseline, by sacrebleu.

    The p-values are for the hypothesis that both systems are equally good (Koehn 2004; Riezler and Maxwell 2005).

    Args:
        hypotheses, baseline: raw lines of the two systems.
        references: lists of raw lines.
        resamples: bootstrap resamples.
        trials: randomisation trials.

    Returns:
        ``{metric: {"system": float, "baseline": float, "bootstrap": {...}, "randomisation": {...}}}``
    """
    from sacrebleu.significance import PairedTest

    table = {}
    systems = [("baseline", baseline), ("system", hypotheses)]
    for key, kind, count in (("bootstrap", "bs", resamples), ("randomisation", "ar", trials)):
        metrics = sacrebleu_metrics(references, tokenize)
        with _quiet_sacrebleu():
            # References are cached by the metrics already.
            signatures, scores = PairedTest(systems, metrics, None, test_type=kind, n_samples=count)()
        for metric in scores:
            if metric == "System":
                continue
            first, second = scores[metric]
            row = table.setdefault(metric, {"system": float(second.score), "baseline": float(first.score)})
            row[key] = {"p_value": float(second.p_value), "signature": signatures[metric].format()}
            if second.score == first.score:
                # sacrebleu counts only differences larger than the one observed; none at all would be "significant".
                row[key]["p_value"] = 1.0
            if second.mean is not None:
                row[key].update(mean=float(second.mean), interval_95=float(second.ci))
    return table


@contextlib.contextmanager
def _quiet_sacrebleu():
    """sacrebleu logs each step of its tests; hide that, not its warnings."""
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
