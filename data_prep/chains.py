"""The words of a vocabulary as chains of symbols, in arrays, in which a pair of symbols is merged everywhere at once.

subword-nmt holds a word as a tuple of strings and, for each pair, a dict of the words that it is in: about 3 kB a word.
Here a symbol is a place in a flat array with links to its neighbours, and a pair's places are slices of sorted
arrays.

A merge answers with the changes that subword-nmt's update_pair_statistics makes to its counts of pairs, to the letter:
in a word where they are not simply what the merge changes (an overlapping run such as "a a a", or a symbol that came
about in two ways: "ab c" and "a bc"), that function itself is called, and where its index thereby departs from what
is in the word, the difference is kept, since subword-nmt later skips or visits words by it.

Source: subword_nmt/learn_bpe.py, version 0.3.8 (Sennrich, Haddow and Birch 2016, arXiv 1508.07909).
"""
import collections
import itertools

import numpy
from subword_nmt.learn_bpe import update_pair_statistics

#: What stands between two words, and at a place whose symbol was merged into the one before it.
BOUNDARY, DEAD = 0, -1
_END = "</w>"
_CODES = 0x110000
_SHIFT = 32
_LINES = 200_000


def key_of(first, second):
    """One number for a pair of symbols' numbers."""
    return first << _SHIFT | second


class Chains:
    """The words of lines ``WORD COUNT`` (each word once), split into characters, the last one with ``</w>``.

    names: the symbols' strings, by number. symbol, after, before, word [places]: the symbol at a place, the places
    of its neighbours, the word's number. count [words].
    """

    def __init__(self, lines):
        self.names = [""]
        self.numbers = {}
        numbered = numpy.zeros(2 * _CODES, dtype=numpy.int32)  # by code point, with _CODES added for a last character
        parts, counts = [numpy.zeros(1, dtype=numpy.int32)], []
        lines = iter(lines)
        while True:
            pairs = [line.rstrip("\n").split(" ") for line in itertools.islice(lines, _LINES)]
            if not pairs:
                break
            counts.append(numpy.array([int(count) for _, count in pairs], dtype=numpy.int64))
            text = "\n".join(word for word, _ in pairs) + "\n"
            codes = numpy.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(numpy.int32)
            codes[numpy.flatnonzero(codes == 10) - 1] += _CODES
            for code in numpy.unique(codes).tolist():
                if code != 10 and not numbered[code]:
                    numbered[code] = self._number(chr(code) if code < _CODES else chr(code - _CODES) + _END)
            parts.append(numbered[codes])
        self.count = numpy.concatenate(counts) if counts else numpy.zeros(0, dtype=numpy.int64)
        self.symbol = numpy.concatenate(parts)
        size = len(self.symbol)
        self.after = numpy.arange(1, size + 1, dtype=numpy.int32)
        self.before = numpy.arange(-1, size - 1, dtype=numpy.int32)
        self.starts = numpy.flatnonzero(self.symbol == BOUNDARY).astype(numpy.int32)
        self.word = numpy.repeat(numpy.arange(len(self.starts), dtype=numpy.int32),
                                 numpy.diff(self.starts, append=size))
        # {pair: {word: how far subword-nmt's index is from how often the pair is in the word}}
        self.departures = collections.defaultdict(dict)
        # {symbol: [(symbols before it, sorted; their places; symbols after it, sorted; its places)]}, an entry a merge
        self.neighbours = collections.defaultdict(list)

    def _number(self, name):
        self.names.append(name)
        return self.numbers.setdefault(name, len(self.names) - 1)

    def statistics(self):
        """{pair: how often it occurs}, each word as often as it is counted; sets up the places of the pairs."""
        places = numpy.flatnonzero((self.symbol[:-1] > 0) & (self.symbol[1:] > 0)).astype(numpy.int32)
        base = len(self.names)
        pairs = self.symbol[places].astype(numpy.uint32 if base < 1 << 16 else numpy.uint64)
        pairs *= base
        pairs += self.symbol[places + 1].astype(pairs.dtype)
        order = numpy.argsort(pairs, kind="stable")
        self.first_places, pairs = places[order], pairs[order]
        del places, order
        begin = numpy.flatnonzero(numpy.diff(pairs, prepend=pairs[:1] + 1)) if len(pairs) else pairs
        names = [key_of(*divmod(pair, base)) for pair in pairs[begin].tolist()]
        self.first_slices = dict(zip(names, zip(begin.tolist(), begin.tolist()[1:] + [len(pairs)])))
        del pairs
        counts = self.count[self.word[self.first_places]]
        return dict(zip(names, numpy.add.reduceat(counts, begin).tolist() if len(begin) else ()))

    def places(self, first, second):
        """The places of `first` where `second` follows, ascending."""
        begin, end = self.first_slices.get(key_of(first, second), (0, 0))
        parts = [self.first_places[begin:end]] if end else []
        for symbols, places, _, _ in self.neighbours.get(second, ()):
            begin, end = symbols.searchsorted((first, first + 1))
            parts.append(places[begin:end])
        for _, _, symbols, places in self.neighbours.get(first, ()):
            begin, end = symbols.searchsorted((second, second + 1))
            parts.append(places[begin:end])
        found = parts[0] if len(parts) == 1 else numpy.unique(numpy.concatenate(parts))
        # The neighbours' places are those at the time of a merge; later ones may have changed them.
        return found[(self.symbol[found] == first) & (self.symbol[self.after[found]] == second)]

    def merge(self, first, second):
        """Merges `second` into `first` wherever it follows; returns [(pair, change of its count)].

        A pair may come up several times, and with no change at all. `first` and `second` themselves, whose count
        becomes 0, do not.
        """
        name = self.names[first] + self.names[second]
        known = name in self.numbers
        merged = self.numbers[name] if known else self._number(name)
        places = self.places(first, second)
        odd = self.departures.pop(key_of(first, second), {})
        special = set(odd)
        if first == second:
            runs = self.symbol[self.after[self.after[places]]] == first
            special.update(self.word[places[runs]].tolist())
        if known:
            special.update(self._words_with(merged, numpy.unique(self.word[places])))
        changes = []
        if special:
            special = sorted(special)
            places = places[~numpy.isin(self.word[places], special)]
            changes = self._merge_specially(first, second, merged, special, odd)
        return changes + self._merge(first, second, merged, places)

    def _merge(self, first, second, merged, places):
        if not len(places):
            return []
        counts = self.count[self.word[places]]
        gone = self.after[places]
        follow = self.after[gone]
        self.symbol[places] = merged
        self.symbol[gone] = DEAD
        self.after[places] = follow
        self.before[follow] = places
        left = self.before[places]
        changes = []
        symbols = self.symbol[left]
        # "first second first second": between the two, (second, first) turns into (merged, merged).
        symbols, left, values, sums = _group(symbols, left, counts)
        for symbol, value in zip(values, sums):
            changes.append((key_of(second if symbol == merged else symbol, first), -value))
            changes.append((key_of(symbol, merged), value))
        others = self.symbol[follow]
        keep = others != merged  # that pair was counted from its other side
        others, right, values, sums = _group(others[keep], places[keep], counts[keep])
        for symbol, value in zip(values, sums):
            changes.append((key_of(second, symbol), -value))
            changes.append((key_of(merged, symbol), value))
        self.neighbours[merged].append((symbols, left, others, right))
        return changes

    def _words_with(self, symbol, words):
        """Those of `words` (an array) that hold `symbol`, as a list."""
        found, place = [], self.after[self.starts[words]]
        while len(words):
            now = self.symbol[place]
            found += words[now == symbol].tolist()
            going = (now != symbol) & (now != BOUNDARY)
            words, place = words[going], self.after[place[going]]
        return found

    def _merge_specially(self, first, second, merged, words, odd):
        changes, before, after = [], [], []
        pair = (self.names[first], self.names[second])
        for word in words:
            places, place = [], self.after[self.starts[word]]
            while self.symbol[place] != BOUNDARY:
                places.append(place)
                place = self.after[place]
            end = place
            old = tuple(self.names[self.symbol[place]] for place in places)
            held = collections.Counter(zip(old, old[1:]))
            if held[pair] + odd.get(word, 0) < 1:  # by its index, subword-nmt passes this word over
                self._depart(pair, word, -held[pair])
                continue
            kept = []
            for place in places:
                if (kept and self.symbol[place] == second and self.symbol[kept[-1]] == first):
                    self.symbol[kept[-1]] = merged
                    self.symbol[place] = DEAD
                else:
                    kept.append(place)
            for place, follow in zip(kept, kept[1:] + [end]):
                self.after[place] = follow
                self.before[follow] = place
            new = tuple(self.names[self.symbol[place]] for place in kept)
            counts = collections.defaultdict(int)
            index = collections.defaultdict(lambda: collections.defaultdict(int))
            update_pair_statistics(pair, [(word, new, old, int(self.count[word]))], counts, index)
            holds = collections.Counter(zip(new, new[1:]))
            for touched in set(held) | set(holds) | set(index):
                change = index[touched][word] if touched in index else 0
                if touched == pair:
                    self._depart(pair, word, change - holds[pair])
                else:
                    key = self._key(touched)
                    self._depart(touched, word, self.departures[key].get(word, 0) if key in self.departures else 0,
                                 change - holds[touched] + held[touched])
                    if touched in counts:
                        changes.append((key, counts[touched]))
            for place, follow in zip(kept, kept[1:]):
                if self.symbol[follow] == merged:
                    before.append((int(self.symbol[place]), int(place)))
                elif self.symbol[place] == merged:
                    after.append((int(self.symbol[follow]), int(place)))
        self.neighbours[merged].append(tuple(
            numpy.array([item[field] for item in sorted(side)], dtype=numpy.int32)
            for side in (before, after) for field in (0, 1)))
        return changes

    def _key(self, pair):
        return key_of(self.numbers[pair[0]], self.numbers[pair[1]])

    def _depart(self, pair, word, *amounts):
        key, amount = self._key(pair), sum(amounts)
        if amount:
            self.departures[key][word] = amount
        elif key in self.departures:
            self.departures[key].pop(word, None)


def _group(symbols, places, counts):
    """Sorted by symbol, boundaries left out: (symbols, their places, [each symbol once], [the sum of its counts])."""
    order = numpy.argsort(symbols, kind="stable")
    order = order[numpy.searchsorted(symbols, BOUNDARY, side="right", sorter=order):]
    symbols, places = symbols[order], places[order]
    if not len(order):
        return symbols, places, [], []
    begin = numpy.flatnonzero(numpy.diff(symbols, prepend=symbols[0] - 1))
    return symbols, places, symbols[begin].tolist(), numpy.add.reduceat(counts[order], begin).tolist()
