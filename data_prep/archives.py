"""Taking the few members that are needed out of an archive, and nothing else."""
import gzip
import os
import tarfile
import zlib

from data_prep.chunks import open_bytes
from data_prep.errors import DataPrepError
from data_prep.progress import Progress


_BLOCK = 1 << 20


class Damaged(Exception):
    """The archive is cut or corrupt: it must be fetched again."""


def extract(archive, members):
    """Writes the archive's `members` to files; anything else in it is passed over.

    archive: path of a .tar, .tgz or .gz. members: {name in the archive: path to write}; a .gz has one, named "".
    A member whose own name ends in .gz is unpacked on the way. Paths come only from `members`, never from the
    archive, and only regular files are taken, so nothing is written elsewhere. The archive is read to its end,
    so that a damaged tail is seen. Returns {path: lines in it}. Raises Damaged, or DataPrepError where a member is
    not in a sound archive.
    """
    wanted, lines = dict(members), {}
    progress = Progress("unpack %s" % os.path.basename(archive), "MB", os.path.getsize(archive))
    try:
        if "" in wanted:
            with open(archive, "rb") as raw, gzip.GzipFile(fileobj=raw) as source:
                path = wanted.pop("")
                lines[path] = _copy(source, path, raw, progress)
            return lines
        with open_bytes(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            raw = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
            for entry in tar:
                name = entry.name[2:] if entry.name.startswith("./") else entry.name
                if name not in wanted:
                    continue
                if not entry.isreg():
                    raise DataPrepError("%s: member %s is not a regular file; not unpacking it" % (archive, name))
                source = tar.extractfile(entry)
                if name.endswith(".gz"):
                    source = gzip.GzipFile(fileobj=source)
                path = wanted.pop(name)
                lines[path] = _copy(source, path, raw, progress)
            # The gzip checksum comes after the tar's own end.
            while stream.read(_BLOCK):
                progress.add(0)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Damaged("%s: damaged archive (%s)" % (archive, error)) from None
    if wanted:
        raise DataPrepError("%s: no member %s; is this the published archive?" % (archive, ", ".join(sorted(wanted))))
    return lines


def _copy(source, path, raw, progress):
    """Copies `source` to the file `path` and returns its lines; `raw`, the archive, tells how far it is."""
    done = lines = 0
    with open(path, "wb") as out:
        while True:
            data = source.read(_BLOCK)
            if not data:
                return lines
            out.write(data)
            lines += data.count(b"\n")
            before, done = done, done + len(data)
            progress.bytes = raw.tell()
            progress.add((done >> 20) - (before >> 20))
