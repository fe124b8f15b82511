"""Learning BPE merges from word counts: subword-nmt's own learner."""
from subword_nmt import learn_bpe


def learn(words, out, merges, on_merge=None):
    """Writes up to `merges` merges, learnt from lines ``WORD COUNT``; returns how many."""
    class Writer:
        count = -1  # the version line is not a merge

        def write(self, text):
            out.write(text)
            self.count += 1
            if on_merge and self.count:
                on_merge()

    writer = Writer()
    learn_bpe.learn_bpe(words, writer, merges, is_dict=True)
    return writer.count
