"""Learning BPE merges from word counts, equal to subword-nmt's learn_bpe, for vocabularies of millions of words.

subword-nmt looks for the most frequent pair by going through all pairs it holds, once a merge, and changes the words
one at a time. Here a heap answers the question and `Chains` changes all words with a pair at once. Which pairs are
set aside as rare, when they are taken back, and what then becomes of their counts follows subword-nmt's rules to the
letter (they lose counts in odd cases), so the merges are the same, in the same order.

Source: subword_nmt/learn_bpe.py, version 0.3.8 (Sennrich, Haddow and Birch 2016, arXiv 1508.07909).
"""
import heapq

from data_prep.chains import Chains

_LOW = (1 << 32) - 1


class _Heap:
    """The most frequent pair of `stats` ({pair: count}), the greatest pair of strings among equals.

    Only pairs that occur `threshold` times are held. Counts that fell are put right when they come up; a pair whose
    count rose must be pushed.
    """

    def __init__(self, stats, names, threshold):
        self.stats, self.names, self.threshold = stats, names, threshold
        self.orders = {}
        self.entries = [self._entry(pair, count) for pair, count in stats.items() if count >= threshold]
        heapq.heapify(self.entries)

    def _entry(self, pair, count):
        return -count, self._order(pair >> 32), self._order(pair & _LOW), pair

    def _order(self, symbol):
        # Sorts strings from last to first; the 1 puts a longer string before its own beginning.
        order = self.orders.get(symbol)
        if order is None:
            order = self.orders[symbol] = tuple(-ord(char) for char in self.names[symbol]) + (1,)
        return order

    def push(self, pair, count):
        if count >= self.threshold:
            heapq.heappush(self.entries, self._entry(pair, count))

    def top(self):
        """The pair, left in place; None where there is none."""
        while self.entries:
            count, pair = -self.entries[0][0], self.entries[0][3]
            now = self.stats.get(pair)
            if now == count:
                return pair
            if now is None or now > count or now < self.threshold:  # set aside, a newer entry is there, or too rare
                heapq.heappop(self.entries)
            else:
                heapq.heapreplace(self.entries, self._entry(pair, now))
        return None


def _set_aside(stats, full, threshold):
    """subword-nmt's prune_stats: pairs under the threshold go from `stats` to `full`."""
    for pair in [pair for pair, count in stats.items() if count < threshold]:
        count = stats.pop(pair)
        full[pair] = full.get(pair, 0) + count if count < 0 else count


def _take_back(full, number):
    """(the pairs of `full` over a new threshold, that threshold); `number`: how many merges there are already."""
    threshold = max(full.values()) * number / (number + 10000.0)
    # As if a copy of `full` went through prune_stats: that is where counts below 0 are added once more.
    for pair in [pair for pair, count in full.items() if count < 0]:
        full[pair] *= 2
    return {pair: count for pair, count in full.items() if count >= threshold}, threshold


def learn(lines, out, merges, on_merge=None, min_frequency=2):
    """Writes up to `merges` merges, learnt from lines ``WORD COUNT`` (each word once); returns how many.

    Stops early where no pair occurs `min_frequency` times. on_merge: called after every merge.
    """
    out.write("#version: 0.2\n")
    chains = Chains(lines)
    full = chains.statistics()
    if not full:
        return 0
    stats, names = dict(full), chains.names
    threshold = max(stats.values()) / 10
    heap = _Heap(stats, names, threshold)
    for number in range(merges):
        best = heap.top()
        if best is None:
            # A pair that was set aside is the best by now: back to the full statistics.
            _set_aside(stats, full, threshold)
            stats, threshold = _take_back(full, number)
            heap = _Heap(stats, names, threshold)
            best = heap.top()
        if best is None or stats[best] < min_frequency:
            return number
        first, second = best >> 32, best & _LOW
        out.write("%s %s\n" % (names[first], names[second]))
        for pair, change in chains.merge(first, second):
            count = stats[pair] = stats.get(pair, 0) + change
            if change > 0:
                heap.push(pair, count)
        stats[best] = 0
        if not number % 100:
            _set_aside(stats, full, threshold)
        if on_merge:
            on_merge()
    return merges
