"""Learning BPE merges from word counts, equal to subword-nmt's learn_bpe and faster on a large vocabulary.

subword-nmt looks for the most frequent pair by going through all pairs it holds, once a merge; with the millions
of words of a large corpus that is half of its time. Here a heap answers that question. The pair statistics and
their updates are subword-nmt's own functions, and pairs are set aside and taken back by its rule too, so the
merges are the same, in the same order.

Source: subword_nmt/learn_bpe.py (Sennrich, Haddow and Birch 2016, arXiv 1508.07909).
"""
import collections
import heapq

from subword_nmt.learn_bpe import get_pair_statistics, prune_stats, replace_pair, update_pair_statistics


class _Heap:
    """The most frequent pair of `stats` (a dict pair -> count), the greatest pair among equals.

    Counts that fell are put right when they come up; a pair whose count rose must be pushed.
    """

    def __init__(self, stats):
        self.stats = stats
        self.keys = {}
        self.entries = [self._entry(pair, count) for pair, count in stats.items()]
        heapq.heapify(self.entries)

    def _entry(self, pair, count):
        return -count, self._key(pair[0]), self._key(pair[1]), pair

    def _key(self, symbol):
        # Sorts strings from last to first; the 1 puts a longer string before its own beginning.
        key = self.keys.get(symbol)
        if key is None:
            key = self.keys[symbol] = tuple(-ord(char) for char in symbol) + (1,)
        return key

    def push(self, pair):
        heapq.heappush(self.entries, self._entry(pair, self.stats[pair]))

    def top(self):
        """The pair, left in place; None where there is none."""
        while self.entries:
            count, pair = -self.entries[0][0], self.entries[0][3]
            now = self.stats.get(pair)
            if now == count:
                return pair
            if now is None or now > count:  # set aside, or there is a newer entry
                heapq.heappop(self.entries)
            else:
                heapq.heapreplace(self.entries, self._entry(pair, now))
        return None


class _Stats(collections.defaultdict):
    """Pair counts that note which pairs were written to, so that the heap can hear of those that rose."""

    def __init__(self, values=()):
        super().__init__(int, values)
        self.written = set()

    def __setitem__(self, pair, count):
        self.written.add(pair)
        super().__setitem__(pair, count)


def read_words(lines):
    """[(symbols of the word, count)], most frequent first, of lines ``WORD COUNT``."""
    words = []
    for line in lines:
        word, count = line.rstrip("\n").split(" ")
        words.append((tuple(word[:-1]) + (word[-1] + "</w>",), int(count)))
    words.sort(key=lambda item: item[1], reverse=True)
    return words


def learn(lines, out, merges, on_merge=None, min_frequency=2):
    """Writes up to `merges` merges, learnt from lines ``WORD COUNT`` (each word once); returns how many.

    Stops early where no pair occurs `min_frequency` times. on_merge: called after every merge.
    """
    out.write("#version: 0.2\n")
    words = read_words(lines)
    full, indices = get_pair_statistics(words)
    stats = _Stats(full)
    if not stats:
        return 0
    heap = _Heap(stats)
    threshold = max(stats.values()) / 10
    for number in range(merges):
        best = heap.top()
        if best is None or (number and stats[best] < threshold):
            # A pair that was set aside may be the best by now: back to the full statistics.
            prune_stats(stats, full, threshold)
            stats = _Stats(full)
            best = max(stats, key=lambda pair: (stats[pair], pair))
            threshold = stats[best] * number / (number + 10000.0)
            prune_stats(stats, full, threshold)
            heap = _Heap(stats)
        if stats[best] < min_frequency:
            return number
        out.write("%s %s\n" % best)
        changes = replace_pair(best, words, indices)
        stats.written.clear()
        update_pair_statistics(best, changes, stats, indices)
        stats[best] = 0
        symbol = best[0] + best[1]
        for pair in stats.written:
            if pair[0] == symbol or pair[1] == symbol:
                heap.push(pair)
        if not number % 100:
            prune_stats(stats, full, threshold)
        if on_merge:
            on_merge()
    return merges
