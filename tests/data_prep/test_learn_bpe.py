"""BPE: the merges are subword-nmt's own, from the same text, and so is the encoding. About 15 s."""
import collections
import copy
import io
import random

import pytest
from subword_nmt import apply_bpe, learn_bpe

from data_prep import bpe, chains
from data_prep.learn_bpe import _set_aside, _take_back, learn
from prep_support import sentences


def theirs(lines, merges):
    out = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("".join(line + "\n" for line in lines)), out, merges)
    return out.getvalue()


def ours(lines, merges, tmp_path, workers=1):
    text, words, codes = tmp_path / "text", tmp_path / "words", tmp_path / "codes"
    text.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
    counts = bpe.count_words("words", [str(text)], str(words), workers)
    assert counts["tokens"] == sum(len(line.split()) for line in lines)
    bpe.learn_codes("learn", str(words), str(codes), merges)
    return codes.read_bytes().decode("utf-8")


def repetitive(number, seed):
    """Words in which the same string arises in more than one way, and runs of one letter: the awkward cases."""
    rng = random.Random(seed)
    return [" ".join("".join(rng.choice(["a", "b", "ab", "aa", "aba", "he", "the", "t", "\xe9"])
                             for _ in range(rng.randint(1, 9))) for _ in range(8)) for _ in range(number)]


@pytest.mark.parametrize("merges", [1, 50, 400, 5000])
@pytest.mark.parametrize("lines", [sentences("en", 400) + sentences("fr", 400), repetitive(150, 1), repetitive(60, 2)],
                         ids=["sentences", "repetitive", "short"])
def test_same_codes_as_subword_nmt(lines, merges, tmp_path, capsys):
    assert ours(lines, merges, tmp_path) == theirs(lines, merges)
    capsys.readouterr()


#: Letters of made-up words: few, so that pairs are tied, overlap, and the same string arises in several ways.
ALPHABETS = [["a"], ["a", "b"], ["a", "b", "ab", "aa", "aba"], ["<", "/", "w", ">", "a", "</w>"], ["\\", "a", "1", "."],
             list("abcdefgh"), ["he", "the", "t", "h", "e"], ["0", "1", "00", "000"], ["\U0001F600", "\xe9", "a"]]


def made_up(seed):
    """{word: count} with few and many, short and long words."""
    rng = random.Random(seed)
    alphabet, longest = ALPHABETS[seed % len(ALPHABETS)], rng.choice([3, 8, 20, 40])
    words = {}
    for _ in range(rng.choice([3, 10, 40, 200, 800])):
        word = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, longest)))
        words[word] = words.get(word, 0) + (rng.randint(1, 5) if rng.random() < .7 else rng.randint(1, 3000))
    return words


@pytest.mark.parametrize("seed", range(45))
def test_same_codes_from_awkward_counts(seed, capsys):
    lines = ["%s %d\n" % item for item in made_up(seed).items()]
    merges = random.Random(seed).choice([1, 50, 150, 350, 1000])
    out, expected = io.StringIO(), io.StringIO()
    learn(lines, out, merges)
    learn_bpe.learn_bpe(iter(lines), expected, merges, is_dict=True)
    assert out.getvalue() == expected.getvalue()
    capsys.readouterr()


class Twin:
    """subword-nmt's words, counts and index beside our chains; both undergo the same merges."""

    def __init__(self, words):
        self.vocab = [(tuple(word[:-1]) + (word[-1] + "</w>",), count) for word, count in words.items()]
        self.stats, self.index = learn_bpe.get_pair_statistics(self.vocab)
        self.chains = chains.Chains("%s %d\n" % item for item in words.items())
        self.counts = collections.Counter(self.chains.statistics())

    def merge(self, pair):
        changes = learn_bpe.replace_pair(pair, self.vocab, self.index)
        learn_bpe.update_pair_statistics(pair, changes, self.stats, self.index)
        self.stats[pair] = 0
        key = self.chains._key(pair)
        for other, change in self.chains.merge(key >> 32, key & 0xFFFFFFFF):
            self.counts[other] += change
        self.counts[key] = 0

    def word(self, number):
        symbols, place = [], self.chains.after[self.chains.starts[number]]
        while self.chains.symbol[place] != chains.BOUNDARY:
            symbols.append(self.chains.names[self.chains.symbol[place]])
            place = self.chains.after[place]
        return tuple(symbols)

    def check(self):
        names = self.chains.names
        for number, (symbols, _) in enumerate(self.vocab):
            assert self.word(number) == symbols
        assert {pair: count for pair, count in self.stats.items() if count} == {
            (names[key >> 32], names[key & 0xFFFFFFFF]): count for key, count in self.counts.items() if count}
        theirs = {(pair, number): count for pair, held in self.index.items() for number, count in held.items() if count}
        ours = collections.Counter()
        for number, (symbols, _) in enumerate(self.vocab):
            ours.update((pair, number) for pair in zip(symbols, symbols[1:]))
        for key, departures in self.chains.departures.items():
            for number, amount in departures.items():
                ours[(names[key >> 32], names[key & 0xFFFFFFFF]), number] += amount
        assert {item: count for item, count in ours.items() if count} == theirs


@pytest.mark.parametrize("seed", range(36))
def test_any_merges_leave_subword_nmts_words_counts_and_index(seed):
    """Merges picked at random reach states that the most frequent pair seldom leads to."""
    rng = random.Random(seed)
    words = dict(list(made_up(seed).items())[:60])
    twin = Twin(words)
    for number in range(60):
        # Pairs without occurrences, and with wrong counts, are picked too.
        held = sorted(pair for pair, count in twin.stats.items() if count or rng.random() < .05)
        if not held:
            break
        twin.merge(rng.choice(held))
        if number % 6 == 0:
            twin.check()
    twin.check()


def test_words_that_subword_nmts_index_has_wrong():
    """Too little: a run of three. Too much: a symbol is there already when a merge makes it (a literal </w>)."""
    run = Twin({"aaab": 3})
    run.merge(("a", "a"))
    run.check()
    assert run.chains.departures[run.chains._key(("a", "a"))] == {0: -1}
    twice = Twin({"a</w>xa": 2, "xa": 1})
    for pair in (("<", "/"), ("</", "w"), ("</w", ">"), ("a", "</w>")):
        twice.merge(pair)
        twice.check()
    wrong = ("x", "a</w>")
    assert twice.chains.departures[twice.chains._key(wrong)] == {0: 1} and twice.stats[wrong] == 2 * 2 + 1
    twice.merge(wrong)
    twice.check()


@pytest.mark.parametrize("seed", range(20))
def test_setting_pairs_aside_is_subword_nmts(seed):
    """prune_stats and the copy that is taken back, with negative counts among them, as in learn_bpe's own loop."""
    rng = random.Random(seed)
    full = collections.defaultdict(int, {pair: rng.randint(-20, 100) for pair in range(50)})
    stats = collections.defaultdict(int, {pair: rng.randint(-20, 30) for pair in rng.sample(range(80), 30)})
    number, threshold = rng.randint(1, 20000), 31
    ours_stats, ours_full = dict(stats), dict(full)
    learn_bpe.prune_stats(stats, full, threshold)
    _set_aside(ours_stats, ours_full, threshold)
    assert ours_full == full and ours_stats == stats == {}
    stats = copy.deepcopy(full)
    threshold = max(stats.values()) * number / (number + 10000.0)
    learn_bpe.prune_stats(stats, full, threshold)
    taken, ours_threshold = _take_back(ours_full, number)
    assert (taken, ours_full, ours_threshold) == (stats, full, threshold)


def test_workers_do_not_matter(tmp_path):
    lines = sentences("en", 300) + sentences("fr", 300)
    assert ours(lines, 300, tmp_path, 1) == ours(lines, 300, tmp_path, 3)


def test_encoding_is_subword_nmts(tmp_path):
    lines = sentences("en", 200) + repetitive(100, 3)
    codes = ours(lines, 150, tmp_path)
    reference = apply_bpe.BPE(io.StringIO(codes))
    encoder = bpe.Encoder(str(tmp_path / "codes"))
    for line in lines + sentences("de", 50):
        assert encoder.line(line) == reference.process_line(line)


def test_cache_limit_changes_nothing(tmp_path, monkeypatch):
    lines = sentences("en", 100)
    ours(lines, 50, tmp_path)
    free = bpe.Encoder(str(tmp_path / "codes"))
    monkeypatch.setattr(bpe, "CACHE_WORDS", 3)
    tight = bpe.Encoder(str(tmp_path / "codes"))
    assert [free.line(line) for line in lines] == [tight.line(line) for line in lines]
    assert len(tight) <= 3


def test_no_words():
    out = io.StringIO()
    assert learn([], out, 10) == 0 and out.getvalue() == "#version: 0.2\n"
    assert learn(["a 5\n"], io.StringIO(), 10) == 0
