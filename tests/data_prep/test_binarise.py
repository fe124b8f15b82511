"""The data-bin is, byte for byte, what stock fairseq-preprocess makes with the same flags. About 15 s."""
import collections
import random

import pytest

from data_prep import binarise, chunks
from data_prep.dictionary import SPECIALS, Vocabulary, write_dictionary
from data_prep.errors import DataPrepError
from data_prep.indexed import IndexedFile
from prep_support import sentences, stock_databin as stock, tree

LANGS = ("en", "fr")
#: Tokens that could be taken for something else: fairseq's own symbols, its fillers, white space that is no U+0020.
AWKWARD = ["<s>", "<pad>", "</s>", "<unk>", "madeupword0000", "madeupword0002", "#fairseq:overwrite", "a@@", "0",
           "\U0001F600", "\xe9\u0301", "x\xa0y", "x\u2028y", "x\x1cy", "\ufeff", "\t", "\x85", "  "]


def lines_of(lang, number, seed, awkward):
    rng = random.Random(seed)
    lines = [line.split() for line in sentences(lang, number, seed)]
    for line in lines if awkward else []:
        line.insert(rng.randint(0, len(line)), rng.choice(AWKWARD))
        if not rng.randint(0, 9):
            line.clear()
    return [" ".join(line) for line in lines]


def write(folder, texts):
    """{split: {lang: lines}} as files folder/split.lang; returns {split: prefix}."""
    for split, sides in texts.items():
        for lang, lines in sides.items():
            (folder / ("%s.%s" % (split, lang))).write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
    return {split: str(folder / split) for split in texts}


def ours(prefixes, output, workers=1, **flags):
    pieces = collections.Counter()
    for lang in LANGS:
        with open("%s.%s" % (prefixes["train"], lang), encoding="utf-8", newline="\n") as lines:
            for line in lines:
                pieces.update(line.split())
    dictionary = str(output) + ".dict"
    write_dictionary(pieces, dictionary, **flags)
    counts = binarise.binarise("binarise", prefixes, LANGS, dictionary, str(output), str(output), workers)
    return tree(output, ["."]), counts


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """{split: prefix}; valid and test hold words that train does not, all have empty lines."""
    texts = {split: {lang: lines_of(lang, number, seed, True) for lang in LANGS}
             for split, number, seed in (("train", 400, 1), ("valid", 60, 2), ("test", 50, 3))}
    texts["valid"]["fr"][5] = texts["test"]["en"][0] = "unseen words here"
    assert any(not line for line in texts["train"]["en"])
    return write(tmp_path_factory.mktemp("corpus"), texts)


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    return stock(corpus, LANGS, tmp_path_factory.mktemp("stock") / "bin", 1)


@pytest.mark.parametrize("workers,block_bytes", [(1, 1 << 22), (1, 100), (2, 700), (3, 5000)])
def test_same_files_as_fairseq_preprocess(workers, block_bytes, corpus, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks.read_blocks, "__defaults__", (block_bytes,))
    found, counts = ours(corpus, tmp_path / "bin", workers)
    assert found == expected and len(found) == 14
    assert counts["train_lines"] == 400 and counts["valid_lines"] == 60 and counts["test_unknown"] >= 3


def test_fairseq_with_several_workers_agrees(corpus, expected, tmp_path):
    """fairseq's own output does not depend on its workers either, so the comparison above is with any of them."""
    assert stock(corpus, LANGS, tmp_path / "bin", 3) == expected


@pytest.mark.parametrize("threshold,factor", [(0, 1), (3, 8), (12, 8), (30, 5), (10 ** 6, 8)])
def test_thresholds_and_padding_factor(threshold, factor, corpus, tmp_path):
    flags = ["--thresholdsrc", str(threshold), "--padding-factor", str(factor)]
    theirs = stock(corpus, LANGS, tmp_path / "stock", 1, *flags)
    found, counts = ours(corpus, tmp_path / "bin", threshold=threshold, padding_factor=factor)
    assert found == theirs
    assert (counts["train_unknown"] > 100) == (threshold > 3)


@pytest.mark.parametrize("entries,width", [(65496, 2), (65499, 2), (65500, 4), (70000, 4)])
def test_type_of_the_numbers(entries, width, tmp_path):
    """Two bytes a number up to 65,499 dictionary entries, four from 65,500."""
    words = entries - len(SPECIALS)
    names = ["w%d" % number for number in range(words)]
    lines = [" ".join(names[start:start + 50]) for start in range(0, words, 50)]
    prefixes = write(tmp_path, {"train": {"en": lines, "fr": lines}})
    theirs = stock(prefixes, LANGS, tmp_path / "stock", 1, "--padding-factor", "1")
    found, counts = ours(prefixes, tmp_path / "bin", padding_factor=1)
    assert found == theirs
    assert len(found["train.en-fr.en.bin"]) == width * (words + len(lines)) == width * counts["train_tokens"] // 2


def test_reads_back_through_fairseq(corpus, tmp_path):
    from fairseq.data import Dictionary, data_utils
    ours(corpus, tmp_path / "bin")
    dictionary = Dictionary.load(str(tmp_path / "bin" / "dict.en.txt"))
    data = data_utils.load_indexed_dataset(str(tmp_path / "bin" / "valid.en-fr.fr"), dictionary)
    with open(corpus["valid"] + ".fr", encoding="utf-8", newline="\n") as lines:
        for index, line in enumerate(lines):
            assert data[index].tolist() == [dictionary.index(word) for word in line.split()] + [dictionary.eos()]
    assert index + 1 == len(data)


def test_numbers_of_sentences_beyond_a_chunk(tmp_path, monkeypatch):
    """Where the lengths are read back in parts, the places are the same as in one."""
    import numpy
    from data_prep import indexed
    lengths = numpy.arange(1, 1001, dtype="<i4")
    for name, chunk in (("whole", 1 << 20), ("parts", 7)):
        monkeypatch.setattr(indexed, "_CHUNK", chunk)
        with IndexedFile(str(tmp_path / name), 100) as out:
            for start in range(0, 1000, 130):
                out.add(b"", lengths[start:start + 130].tobytes())
    assert (tmp_path / "whole.idx").read_bytes() == (tmp_path / "parts.idx").read_bytes()
    places = numpy.frombuffer((tmp_path / "parts.idx").read_bytes()[26 + 4000:], "<i8")
    assert places.tolist() == [sum(range(1, number)) * 2 for number in range(1, 1001)]


def test_sides_of_different_length_are_an_error(tmp_path):
    prefixes = write(tmp_path, {"train": {"en": ["a", "b"], "fr": ["a"]}})
    with pytest.raises(DataPrepError, match="2 lines but 1"):
        ours(prefixes, tmp_path / "bin")


def test_vocabulary(tmp_path):
    write_dictionary({"b": 2, "a": 2, "c": 5, "<unk>": 9}, str(tmp_path / "dict"))
    words = Vocabulary(str(tmp_path / "dict"))
    assert [words[name] for name in ("<s>", "<pad>", "</s>", "<unk>", "c", "a", "b", "d")] == [0, 1, 2, 3, 4, 5, 6, 3]
    assert words.size == 8 and "d" not in words
