"""Joint BPE: words are counted in parallel, merges learnt from the counts, text encoded in parallel.

The merges and the encoding are subword-nmt's, called as a library; around it lie the parallel counting, a cache
of whole words, and the length filter that the recipe applies to encoded text.
"""
import collections
import functools

from subword_nmt.apply_bpe import BPE

from data_prep import clean
from data_prep.chunks import ordered_map, read_blocks, read_pairs, size_of
from data_prep.errors import DataPrepError
from data_prep.learn_bpe import learn
from data_prep.progress import Progress

#: Words whose encoding a worker remembers; then it starts afresh.
CACHE_WORDS = 500_000


def count_block(data):
    """Words of a block of lines (bytes) and how often each occurs."""
    return collections.Counter(data.decode("utf-8").split())


def count_words(label, paths, output, workers):
    """Counts the words of the files into `output`, lines ``WORD COUNT``, most frequent first; returns counts."""
    words = collections.Counter()
    progress = Progress(label, "MB", size_of(paths))
    read = 0
    for block, counts in ordered_map(count_block, read_blocks(paths), workers):
        words.update(counts)
        read += len(block)
        progress.add((read >> 20) - progress.count, len(block))
    progress.done()
    with open(output, "w", encoding="utf-8", newline="\n") as out:
        for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
            out.write("%s %d\n" % (word, count))
    return {"tokens": sum(words.values()), "types": len(words)}


def learn_codes(label, words, output, merges):
    """Learns `merges` merges from the output of `count_words`; returns counts. DataPrepError where there is none."""
    progress = Progress(label, "merges", merges)
    with open(words, encoding="utf-8", newline="\n") as lines, \
            open(output, "w", encoding="utf-8", newline="\n") as out:
        learnt = learn(_reading(label + ", words", lines, size_of([words])), out, merges,
                       on_merge=lambda: progress.add(1, 1))
    progress.done()
    if not learnt:  # subword-nmt and fairseq refuse a file without merges
        raise DataPrepError("no BPE merge can be learnt: no two letters occur next to each other twice in the training "
                            "text; give more text")
    return {"merges_asked": merges, "merges_learnt": learnt}


def _reading(label, lines, size):
    """Passes `lines` on and shows how far it is; size: their bytes."""
    progress, number, done = Progress(label, "words", size), 0, 0
    for number, line in enumerate(lines, 1):
        done += len(line)
        if not number % 10000:
            progress.add(10000, done - progress.bytes)
        yield line
    progress.add(number - progress.count)
    progress.done()


class Encoder(dict):
    """word -> its pieces as text, e.g. ``lower`` -> ``low@@ er``; filled as words are asked for."""

    def __init__(self, codes):
        super().__init__()
        with open(codes, encoding="utf-8", newline="\n") as handle:
            self.bpe = BPE(handle)

    def __missing__(self, word):
        pieces = " ".join(self.bpe.segment_tokens([word]))
        self.bpe.cache.clear()  # this dict is the cache
        if len(self) >= CACHE_WORDS:
            self.clear()
        self[word] = pieces
        return pieces

    def line(self, line):
        """`line` (tokens apart by white space) encoded, tokens apart by one space."""
        return " ".join(map(self.__getitem__, line.split()))


@functools.lru_cache(maxsize=1)
def encoder(codes, key):
    """An `Encoder`, built once a process; `key` tells one content of the file `codes` from another."""
    del key
    return Encoder(codes)


def encode_block(block, codes, key, limits, count):
    """One block of pairs in a worker: (source bytes, target bytes, pairs left, Counter of pieces or None)."""
    encode = encoder(codes, key).line
    sides = ([], [])
    for first, second in zip(block[0].decode("utf-8").split("\n")[:-1], block[1].decode("utf-8").split("\n")[:-1]):
        first, second = encode(first), encode(second)
        if limits and not (first and second
                           and clean.keeps(first.count(" ") + 1, second.count(" ") + 1, *limits)
                           and not clean.has_giant_token(first) and not clean.has_giant_token(second)):
            continue
        sides[0].append(first)
        sides[1].append(second)
    pieces = None
    if count:
        pieces = collections.Counter()
        for side in sides:
            pieces.update(" ".join(side).split())
    number = len(sides[0])
    return [("\n".join(side) + "\n").encode("utf-8") if number else b"" for side in sides] + [number, pieces]


def encode_files(label, pairs, outputs, codes, key, limits, workers, pieces=None):
    """Encodes pairs of tokenised files, one pair after the other, into one pair of files; returns counts.

    pairs: list of (source, target) paths. outputs: (source, target). codes: the merges; key: identifies them.
    limits: None, or (shortest, longest, ratio): pairs outside are dropped. pieces: a Counter that gets the
    pieces of what is kept, or None.
    """
    total = {"pairs_in": 0, "pairs_out": 0}
    progress = Progress(label, "pairs", size_of([path for pair in pairs for path in pair]))
    function = functools.partial(encode_block, codes=codes, key=key, limits=limits, count=pieces is not None)
    blocks = (block for source, target in pairs for block in read_pairs(source, target))
    with open(outputs[0], "wb") as source, open(outputs[1], "wb") as target:
        for block, result in ordered_map(function, blocks, workers):
            source.write(result[0])
            target.write(result[1])
            total["pairs_in"] += block[2]
            total["pairs_out"] += result[2]
            if block[3]:
                total["over_long"] = total.get("over_long", 0) + block[3]
            if pieces is not None:
                pieces.update(result[3])
            progress.add(block[2], block[4])
    progress.done()
    return total
