"""Tokenised BLEU as Moses' ``multi-bleu.perl`` defines it, and the compound splitting of En-De papers.

This is the number that papers on WMT'14 report. It counts the tokens as they stand: corpus-level n-gram
precisions up to 4 without smoothing, clipped by the largest count in any one reference, and a brevity penalty from
the closest reference length (the shorter one where two are as close).
"""

import math
import re
from collections import Counter
from typing import NamedTuple, Tuple

MAX_ORDER = 4
# Perl splits bytes at ASCII white space; Python's split() would also split at no-break spaces.
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)


class MultiBleu(NamedTuple):
    """A BLEU score between 0 and 100 with its parts; ``precisions`` are percentages for n = 1..4."""

    score: float
    precisions: Tuple[float, ...]
    brevity_penalty: float
    ratio: float
    hyp_len: int
    ref_len: int

    def __str__(self):
        if self.ref_len == 0:
            return "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
        precisions = "/".join(f"{value:.1f}" for value in self.precisions)
        return (
            f"BLEU = {self.score:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={self.ratio:.3f}, "
            f"hyp_len={self.hyp_len}, ref_len={self.ref_len})"
        )


def _tokens(line):
    return [token for token in _SPACE.split(line) if token]


def _ngrams(tokens, order):
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def multi_bleu(hypotheses, references):
    """Corpus BLEU of tokenised lines, equal to ``multi-bleu.perl``.

    Where the script stops with a division by zero (every hypothesis empty) the score is 0.

    Args:
        hypotheses: one line a sentence.
        references: one or more lists of lines, each as long as ``hypotheses``.

    Returns:
        MultiBleu

    Raises:
        ValueError: no references, or a list of another length.
    """
    if not references:
        raise ValueError("at least one list of references is needed")
    for reference in references:
        if len(reference) != len(hypotheses):
            raise ValueError(f"{len(hypotheses)} hypotheses, but {len(reference)} references")
    correct, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    hyp_len = ref_len = 0
    for hypothesis, *lines in zip(hypotheses, *references):
        hyp_tokens = _tokens(hypothesis)
        ref_tokens = [_tokens(line) for line in lines]
        hyp_len += len(hyp_tokens)
        ref_len += min((abs(len(tokens) - len(hyp_tokens)), len(tokens)) for tokens in ref_tokens)[1]
        for order in range(1, MAX_ORDER + 1):
            limits = Counter()
            for tokens in ref_tokens:
                limits |= _ngrams(tokens, order)  # the larger of the two counts
            found = _ngrams(hyp_tokens, order)
            total[order - 1] += sum(found.values())
            correct[order - 1] += sum((found & limits).values())  # the smaller of the two counts
    precisions = [100.0 * c / t if t else 0.0 for c, t in zip(correct, total)]
    if ref_len == 0:
        return MultiBleu(0.0, (0.0,) * MAX_ORDER, 0.0, 0.0, 0, 0)
    if hyp_len == 0:
        penalty = 0.0
    else:
        penalty = math.exp(1 - ref_len / hyp_len) if hyp_len < ref_len else 1.0
    score = 0.0
    if min(precisions) > 0:
        score = penalty * math.exp(sum(map(math.log, precisions)) / MAX_ORDER)
    return MultiBleu(score, tuple(precisions), penalty, hyp_len / ref_len, hyp_len, ref_len)


def split_compounds(line):
    """Write hyphens inside words as tokens of their own, ``a-b`` as ``a ##AT##-##AT## b``.

    The substitution of the tensor2tensor and fairseq evaluation scripts, ``s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g``,
    with its habit that in ``a-b-c`` of single letters only every other hyphen is split.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)
