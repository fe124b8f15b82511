"""From raw pairs of lines to tokenised ones, in one pass over the files, on all cores."""
import collections
import functools

from data_prep import align, clean
from data_prep.chunks import ordered_map, read_pairs, size_of
from data_prep.errors import DataPrepError
from data_prep.normalise import normalise_punctuation, remove_non_printing
from data_prep.progress import Progress
from data_prep.tokenise import tokeniser


def process_text(text, lang, normalise, aggressive, lowercase):
    """Normalises (where `normalise`), tokenises and lower-cases (where `lowercase`) whole lines of `text`."""
    if normalise:
        text = remove_non_printing(normalise_punctuation(text, lang))
    text = tokeniser(lang, aggressive)(text)
    return text.lower() if lowercase else text


def process_block(block, langs, options, keep_all):
    """One block of `read_pairs` in a worker: (source bytes, target bytes, pairs left, counts)."""
    source, target, number, too_long, _ = block
    source, target, counts = align.decode_pair(source, target, keep_all)
    if too_long:
        counts["over_long"] = too_long
    steps = (options["normalise"], options["aggressive"], options["lowercase"])
    source, target = (process_text(text, lang, *steps) for text, lang in zip((source, target), langs))
    if source.count("\n") != number or target.count("\n") != number:
        raise DataPrepError("internal error: a text stage changed the number of lines; please report this text")
    limits = options.get("clean_words")
    if limits and not keep_all:
        kept = [(first, second)
                for first, second in zip(source.split("\n")[:-1], target.split("\n")[:-1])
                if clean.keeps(len(first.split()), len(second.split()), *limits)
                and not clean.has_giant_token(first) and not clean.has_giant_token(second)]
        counts["cleaned_away"] = number - len(kept)
        number = len(kept)
        source = "".join(first + "\n" for first, _ in kept)
        target = "".join(second + "\n" for _, second in kept)
    return source.encode("utf-8"), target.encode("utf-8"), number, counts


def process_files(label, files, langs, options, outputs, workers, keep_all=False, limit=None, valid=None):
    """Writes the processed text of a pair of files; returns counts.

    files, langs: (source, target). options: dict with normalise, aggressive, lowercase and clean_words (None, or
    shortest, longest, ratio). outputs: (source, target) paths. keep_all: a test set, never loses a line.
    limit: read this many pairs at most. valid: None, or ((source, target) paths, every, first): lines whose
    number is a multiple of `every`, counted from `first` + 1, go to those paths instead.

    Returns a dict: pairs_in, pairs_out, pairs_valid (where `valid`), and how often each alignment rule applied.
    """
    for lang in langs:  # built before the workers are forked, which then share it
        process_text("\x01a.\n", lang, options["normalise"], options["aggressive"], False)
    total = collections.Counter(pairs_in=0, pairs_out=0)
    progress = Progress(label, "pairs", size_of(files))
    function = functools.partial(process_block, langs=langs, options=options, keep_all=keep_all)
    paths = list(outputs) + (list(valid[0]) if valid else [])
    handles = []
    try:
        for path in paths:
            handles.append(open(path, "wb"))
        seen = valid[2] if valid else 0
        for block, result in ordered_map(function, read_pairs(files[0], files[1], limit), workers):
            number, counts = result[2], result[3]
            total.update(counts)
            total["pairs_in"] += block[2]
            chosen = []
            if valid:
                every = valid[1]
                chosen = [index - seen - 1 for index in
                          range(seen - seen % every + every, seen + number + 1, every)]
                total["pairs_valid"] += len(chosen)
            seen += number
            total["pairs_out"] += number - len(chosen)
            for side in (0, 1):
                handles[side].write(_without(result[side], chosen, handles[side + 2] if valid else None))
            progress.add(block[2], block[4])
    finally:
        for handle in handles:
            handle.close()
    progress.done()
    return dict(total)


def _without(data, chosen, other):
    """`data` less the lines numbered in `chosen`, which are written to `other`."""
    if not chosen:
        return data
    lines = data.split(b"\n")
    for index in chosen:
        other.write(lines[index] + b"\n")
    for index in reversed(chosen):
        del lines[index]
    return b"\n".join(lines)
