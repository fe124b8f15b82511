"""fairseq's "mmap" datasets (NAME.bin and NAME.idx), written as they come.

fairseq's own MMapIndexedDatasetBuilder takes a tensor a sentence and holds two Python numbers for each until its end;
with 40 million sentences that is slow, and memory is not flat.

The format (fairseq/data/indexed_dataset.py, fairseq 0.12): NAME.bin holds the numbers of all sentences one after the
other. NAME.idx: the bytes ``MMIDIDX\0\0``, the version as 8 bytes, the type's code as 1, the number of sentences as 8,
each sentence's length as 4, and where in NAME.bin each begins as 8, all little-endian.
"""
import os
import struct

import numpy

#: Lengths read at a time to work out where the sentences begin.
_CHUNK = 1 << 20


def item_type(vocabulary_size):
    """(numpy type, its code in the .idx) of the numbers of a vocabulary: fairseq's best_fitting_int_dtype."""
    return (numpy.dtype("<u2"), 8) if vocabulary_size < 65500 else (numpy.dtype("<u4"), 9)


class IndexedFile:
    """Writes PREFIX.bin and PREFIX.idx; a context manager. Raises OSError where the disk is full."""

    def __init__(self, prefix, vocabulary_size):
        dtype, code = item_type(vocabulary_size)
        self._width, self.sentences = dtype.itemsize, 0
        self._data = open(prefix + ".bin", "wb")  # pylint: disable=consider-using-with
        self._index = open(prefix + ".idx", "w+b")  # pylint: disable=consider-using-with
        self._index.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, code))
        self._count_at = self._index.tell()
        self._index.write(struct.pack("<Q", 0))

    def add(self, items, lengths):
        """items: bytes of the numbers of some sentences; lengths: bytes of their lengths ("<i4")."""
        self._data.write(items)
        self._index.write(lengths)
        self.sentences += len(lengths) // 4

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self._finish()
        finally:
            self._data.close()
            self._index.close()

    def _finish(self):
        start = self._count_at + 8
        end, begin = start + 4 * self.sentences, 0
        for position in range(start, end, 4 * _CHUNK):
            self._index.seek(position)
            lengths = numpy.frombuffer(self._index.read(min(4 * _CHUNK, end - position)), "<i4")
            ends = begin + numpy.cumsum(lengths, dtype="<i8") * self._width
            self._index.seek(0, os.SEEK_END)
            self._index.write(numpy.concatenate(([begin], ends[:-1])).astype("<i8").tobytes())
            begin = int(ends[-1])
        self._index.seek(self._count_at)
        self._index.write(struct.pack("<Q", self.sentences))
