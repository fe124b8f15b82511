"""Fetching one file over HTTP: resumed where it was cut, checked, fetched again where it is wrong.

Environment:
    DATA_PREP_MIRROR     base address(es), comma-separated, tried in turn instead of the published address: the
                         file is looked for at ADDRESS/NAME.
    DATA_PREP_CHECKSUMS  a file of lines ``SHA256  NAME`` (what sha256sum prints) that replace the known sums, for
                         a mirror whose archives were packed anew.
    DATA_PREP_RETRIES    how often a cut or refused connection is tried again, default 8.
    DATA_PREP_PAUSE      seconds before the first new try, default 2; doubled each time, 60 at most.
"""
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request

from data_prep.errors import DataPrepError
from data_prep.progress import Progress
from data_prep.stages import read_json, remove, write_json

_BLOCK = 1 << 20
_TIMEOUT = 60


class Broken(Exception):
    """A connection that gave less than it promised, or an answer worth another try."""


def known_sums(environ=os.environ):
    """{name: sha256} of the file that DATA_PREP_CHECKSUMS names; empty where it is not set."""
    path = environ.get("DATA_PREP_CHECKSUMS")
    if not path:
        return {}
    sums = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) != 2 or len(fields[0]) != 64:
                raise DataPrepError("%s line %d: not SHA256 and NAME, as sha256sum prints" % (path, number))
            sums[fields[1].lstrip("*")] = fields[0].lower()
    return sums


def sha256_of(path):
    """The sha256 of a file's bytes, in hex."""
    return digest_of(path, "sha256")


def digest_of(path, algorithm):
    """The sum of a file's bytes, in hex, by hashlib's `algorithm`."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as handle:
        for data in iter(lambda: handle.read(_BLOCK), b""):
            digest.update(data)
    return digest.hexdigest()


def addresses(archive, environ=os.environ):
    """Where `archive` may be had, in the order of trying."""
    mirrors = [base.strip() for base in environ.get("DATA_PREP_MIRROR", "").split(",") if base.strip()]
    return [base.rstrip("/") + "/" + archive.name for base in mirrors] or [archive.url, *archive.others]


def expected_sum(archive, sums):
    """(hashlib's name of the algorithm, sum) of `archive`, None where unknown; sums: {name: sha256} that go first."""
    for algorithm, value in (("sha256", sums.get(archive.name)), ("sha256", archive.sha256), ("md5", archive.md5)):
        if value:
            return algorithm, value
    return None


def fetch(archive, folder, environ=os.environ):
    """The path of `archive` in `folder`, fetched there unless it is there already, whole and right.

    archive: a `corpora.Archive`. A part of the file is kept as NAME.part and resumed. Raises DataPrepError where it
    cannot be had, or is not what it should be after a second fetch.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, archive.name)
    sums = known_sums(environ)
    expected = expected_sum(archive, sums)
    size = archive.size if archive.name not in sums else None
    if os.path.exists(path):
        problem = _problem(path, expected, size)
        if not problem:
            return path
        print("%s: %s; fetching it again" % (path, problem), file=sys.stderr)
        remove(path)
    part = path + ".part"
    for attempt in (1, 2):
        _fetch_part(archive, part, environ)
        problem = _problem(part, expected, size)
        if not problem:
            os.replace(part, path)
            remove(part + ".json")
            _remember(path, expected)
            return path
        remove(part)
        remove(part + ".json")
        print("%s: %s; %s" % (archive.name, problem, "fetching it again" if attempt == 1 else "giving up"),
              file=sys.stderr)
    raise DataPrepError("%s from %s: %s, twice; set DATA_PREP_MIRROR to another address, or put the right file at "
                        "%s" % (archive.name, addresses(archive, environ)[0], problem, path))


def discard(path):
    """Forgets a fetched file that turned out to be damaged."""
    remove(path)
    remove(path + ".ok")


def _remember(path, expected):
    # The sum of a file of several GB is not worked out again on every run.
    info = os.stat(path)
    write_json(path + ".ok", [expected, info.st_size, info.st_mtime_ns])


def _problem(path, expected, size):
    info = os.stat(path)
    if size is not None and info.st_size != size:
        return "it has %d bytes, not %d" % (info.st_size, size)
    if expected is None or read_json(path + ".ok") == [list(expected), info.st_size, info.st_mtime_ns]:
        return None
    algorithm, value = expected
    found = digest_of(path, algorithm)
    if found != value:
        return "its %s is %s, not %s" % (algorithm, found, value)
    if not path.endswith(".part"):
        _remember(path, expected)
    return None


def _number(environ, name, default):
    try:
        value = float(environ.get(name, default))
    except ValueError:
        value = -1
    if value < 0:
        raise DataPrepError("%s is %r; give a number from 0 up" % (name, environ[name]))
    return value


def _fetch_part(archive, part, environ):
    retries, pause = _number(environ, "DATA_PREP_RETRIES", 8), _number(environ, "DATA_PREP_PAUSE", 2)
    urls = addresses(archive, environ)
    failures = turn = 0
    while True:
        url = urls[turn % len(urls)]
        before = os.path.getsize(part) if os.path.exists(part) else 0
        try:
            _stream(url, part, archive.name)
            return
        except (http.client.InvalidURL, ValueError) as error:
            raise DataPrepError("%s: cannot fetch %s (%s); set DATA_PREP_MIRROR to an address, http://..." % (
                archive.name, url, error)) from None
        except (Broken, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            code = getattr(error, "code", None)
            reason = "HTTP %d" % code if code else getattr(error, "reason", None) or error
            if os.path.exists(part) and os.path.getsize(part) > before:
                failures = 0  # it moves on: a long file may be cut any number of times
            else:
                turn += 1  # only then: another address could not resume this one's part
            failures += 1
            if failures > retries or (code in (401, 403, 404, 410) and failures >= len(urls)):
                raise DataPrepError("%s: cannot fetch %s (%s); check the network or set DATA_PREP_MIRROR, then "
                                    "rerun: it resumes" % (archive.name, url, reason)) from None
            print("%s: %s; trying again" % (url, reason), file=sys.stderr)
            time.sleep(min(pause * 2 ** (failures - 1), 60))


def _stream(url, part, name):
    """Appends to `part` until the whole file is there; raises Broken where the connection ends before."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    state = read_json(part + ".json") or {}
    request = urllib.request.Request(url, headers={"User-Agent": "data_prep", "Accept-Encoding": "identity"})
    # Without a validator there is no telling whether the rest belongs to the same file: start again.
    if have and state.get("url") == url and state.get("validator"):
        request.add_header("Range", "bytes=%d-" % have)
        request.add_header("If-Range", state["validator"])
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            if error.headers.get("Content-Range", "").replace(" ", "") == "bytes*/%d" % have:
                return  # the part was whole already: a run was killed before it was renamed
            remove(part)
            raise Broken("the server has no more than the part here") from None
        raise
    with response:
        if response.status == 206:
            start, total = _content_range(response.headers.get("Content-Range", ""))
            if start != have:
                remove(part)
                raise Broken("the server answered with another range")
        else:
            have = 0
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
        etag = response.headers.get("ETag", "")
        validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
        write_json(part + ".json", {"url": url, "validator": validator})
        progress = Progress("fetch %s" % name, "MB", total)
        progress.bytes = have
        with open(part, "r+b" if have else "wb") as out:
            out.seek(have)
            while True:
                try:
                    data = response.read(_BLOCK)
                except OSError as error:  # of the network, not of the disk: timed out, no route, broken TLS
                    raise Broken("the connection failed at byte %d (%s)" % (have, error)) from None
                if not data:
                    break
                out.write(data)
                have += len(data)
                progress.add((have >> 20) - progress.count, len(data))
        progress.done()
    if total is not None and have < total:
        raise Broken("the connection was cut at byte %d of %d" % (have, total))


def _content_range(value):
    """(first byte, total or None) of a Content-Range header; (-1, None) where it cannot be read."""
    try:
        span, total = value.split(" ")[-1].split("/")
        return int(span.split("-")[0]), None if total == "*" else int(total)
    except ValueError:
        return -1, None
