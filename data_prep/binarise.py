"""The last step: a data-bin equal, byte for byte, to what fairseq-preprocess --joined-dictionary makes.

fairseq-preprocess looks up one token after the other in Python with a tensor a sentence; for large texts that took
three quarters of the whole preparation. Here a worker turns a block of lines into one array.
"""
import contextlib
import functools
import os
import shutil

import numpy

from data_prep.chunks import ordered_map, read_blocks, size_of
from data_prep.dictionary import EOS, UNK, Vocabulary
from data_prep.errors import DataPrepError
from data_prep.indexed import IndexedFile, item_type
from data_prep.progress import Progress


@functools.lru_cache(maxsize=1)
def vocabulary(path, key):
    """A `Vocabulary`, read once a process; `key` tells one content of the file from another."""
    del key
    return Vocabulary(path)


def numbers_of(text, words):
    """The lines of `text` as numbers: (array of all lines' numbers, each line with EOS at its end; array of lengths).

    text: lines, each ended by ``\\n``. words: a `Vocabulary`. Tokens are apart by white space as fairseq's
    tokenize_line has it. dtypes: the vocabulary's `item_type`, and int32.
    """
    numbers, lengths, number_of = [], [], words.__getitem__
    for line in text.split("\n")[:-1]:
        tokens = line.split()
        numbers.extend(map(number_of, tokens))
        numbers.append(EOS)
        lengths.append(len(tokens) + 1)
    return numpy.array(numbers, item_type(words.size)[0]), numpy.array(lengths, "<i4")


def number_block(block, path, key):
    """One block of lines in a worker: (bytes of its numbers, bytes of its lengths, how many numbers, how many UNK)."""
    numbers, lengths = numbers_of(block[1].decode("utf-8"), vocabulary(path, key))
    return numbers.tobytes(), lengths.tobytes(), len(numbers), int(numpy.count_nonzero(numbers == UNK))


def binarise(label, prefixes, langs, dictionary, key, output, workers):
    """Makes the data-bin `output`, a new folder, of {split: prefix of the encoded text}; returns counts.

    langs: (source, target). dictionary: path of the dict.txt of both; key: identifies its content. Counts: lines of
    a side and tokens (line ends included) and unknown tokens of both sides, a split. Raises OSError where the disk
    is full.
    """
    os.makedirs(output)
    for lang in langs:
        shutil.copyfile(dictionary, os.path.join(output, "dict.%s.txt" % lang))
    files = [(split, lang, "%s.%s" % (prefix, lang)) for split, prefix in prefixes.items() for lang in langs]
    progress = Progress(label, "lines", size_of([path for _, _, path in files]))
    size = vocabulary(dictionary, key).size  # read before the workers are forked, which then share it
    blocks = ((file, block) for file in files for block in read_blocks([file[2]]))
    counts = {}
    with contextlib.ExitStack() as stack:
        opened = {file: stack.enter_context(IndexedFile(
            os.path.join(output, "%s.%s-%s.%s" % (file[0], *langs, file[1])), size)) for file in files}
        function = functools.partial(number_block, path=dictionary, key=key)
        for (file, block), (numbers, lengths, tokens, unknown) in ordered_map(function, blocks, workers):
            opened[file].add(numbers, lengths)
            for name, value in (("tokens", tokens), ("unknown", unknown)):
                name = "%s_%s" % (file[0], name)
                counts[name] = counts.get(name, 0) + value
            progress.add(len(lengths) // 4, len(block))
        for split in prefixes:
            lines = [opened[file].sentences for file in files if file[0] == split]
            if lines[0] != lines[1]:
                raise DataPrepError("internal error: the %s text has %d lines but %d on the other side; please report "
                                    "this" % (split, *lines))
            counts[split + "_lines"] = lines[0]
    progress.done()
    return counts
