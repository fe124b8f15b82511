"""Fetching: resumed, checked, fetched again, never half used."""
import errno
import gzip
import hashlib
import http.client
import os
import socket
import ssl

import pytest

from data_prep import archives, download
from data_prep.corpora import Archive
from data_prep.errors import DataPrepError
from prep_support import Server, tar_bytes

DATA = bytes(range(256)) * 4096  # 1 MiB
SUM = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def site():
    result = Server({"a.tgz": DATA})
    yield result
    result.close()


def quick(site, **more):
    return dict(DATA_PREP_MIRROR=site.url, DATA_PREP_PAUSE="0.01", DATA_PREP_RETRIES="3", **more)


def archive(size=len(DATA), sha256=SUM):
    return Archive("http://unreachable.invalid/x/a.tgz", size, sha256)


def test_whole_and_not_fetched_twice(site, tmp_path):
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    download.fetch(archive(), str(tmp_path), quick(site))
    assert len(site.log) == 1


def test_cut_connections_are_resumed_by_range(site, tmp_path):
    site.cut["a.tgz"] = [300000, 200000, 0, 100000]
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    assert [wanted for _, wanted, _ in site.log] == [
        None, "bytes=300000-", "bytes=500000-", "bytes=500000-", "bytes=600000-"]
    assert sorted(os.listdir(tmp_path)) == ["a.tgz", "a.tgz.ok"]


def test_a_part_left_by_a_killed_run_is_resumed(site, tmp_path):
    site.cut["a.tgz"] = [300000] + [0] * 4
    with pytest.raises(DataPrepError, match="rerun: it resumes"):
        download.fetch(archive(), str(tmp_path), quick(site))
    assert not os.path.exists(tmp_path / "a.tgz")
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    assert site.log[-1][1:] == ("bytes=300000-", 206)


def test_a_whole_part_is_not_fetched_again(site, tmp_path, monkeypatch):
    """Killed between the last byte and the rename, while the sum is worked out: what is there is used."""
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "_problem", killed)
        with pytest.raises(KeyboardInterrupt):
            download.fetch(archive(), str(tmp_path), quick(site))
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    assert site.log[1:] == [("a.tgz", "bytes=%d-" % len(DATA), 416)]


def test_a_whole_but_wrong_part_is_fetched_again(site, tmp_path):
    site.cut["a.tgz"] = [300000] + [0] * 4
    with pytest.raises(DataPrepError):
        download.fetch(archive(), str(tmp_path), quick(site))
    (tmp_path / "a.tgz.part").write_bytes(b"x" * len(DATA))
    assert open(download.fetch(archive(), str(tmp_path), quick(site)), "rb").read() == DATA


@pytest.mark.parametrize("error", [
    OSError(errno.EHOSTUNREACH, "No route to host"), OSError(errno.ENETDOWN, "Network is down"),
    socket.timeout("timed out"), ssl.SSLError("bad record"), ConnectionResetError("reset"),
    http.client.IncompleteRead(b"")], ids=lambda error: type(error).__name__)
def test_a_network_that_fails_midway_is_tried_again(site, tmp_path, monkeypatch, error):
    read, calls = http.client.HTTPResponse.read, []

    def failing(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise error
        return read(self, 300000)

    monkeypatch.setattr(http.client.HTTPResponse, "read", failing)
    assert open(download.fetch(archive(), str(tmp_path), quick(site)), "rb").read() == DATA
    assert [wanted for _, wanted, _ in site.log] == [None, "bytes=300000-"]


def test_a_full_disk_is_not_tried_again(site, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_stream", full)
    with pytest.raises(OSError, match="No space"):
        download.fetch(archive(), str(tmp_path), quick(site))


@pytest.mark.parametrize("mirror", ["nonsense", "http://127.0.0.1/a b", "nosuch://x"])
def test_mirror_that_is_no_address(tmp_path, mirror):
    """Waiting and trying again would not help."""
    with pytest.raises(DataPrepError, match="DATA_PREP_MIRROR"):
        download.fetch(archive(), str(tmp_path), {"DATA_PREP_MIRROR": mirror, "DATA_PREP_RETRIES": "0"})


def test_without_a_validator_it_starts_again(site, tmp_path):
    """With neither ETag nor date there is no telling whether the rest belongs to the same file."""
    site.no_validator = True
    site.cut["a.tgz"] = [300000]
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    assert [wanted for _, wanted, _ in site.log] == [None, None]


def test_file_changed_on_the_server_midway(site, tmp_path):
    """If-Range makes the server send the new file whole, not its tail."""
    site.swap["a.tgz"] = [b"old" * 200000]
    site.cut["a.tgz"] = [300000]
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA


def test_wrong_checksum_is_fetched_again(site, tmp_path, capsys):
    site.swap["a.tgz"] = [DATA[:-1] + b"x"]
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA
    assert "sha256" in capsys.readouterr().err


@pytest.mark.parametrize("known", [archive(), archive(size=5, sha256=None)])
def test_wrong_twice_is_an_error_and_leaves_nothing(site, tmp_path, known):
    site.files["a.tgz"] = DATA[:-1] + b"x"
    with pytest.raises(DataPrepError, match="twice"):
        download.fetch(known, str(tmp_path), quick(site))
    assert os.listdir(tmp_path) == []


def test_a_damaged_file_in_the_folder_is_replaced(site, tmp_path):
    (tmp_path / "a.tgz").write_bytes(b"half")
    path = download.fetch(archive(), str(tmp_path), quick(site))
    assert open(path, "rb").read() == DATA


def test_a_file_put_there_by_hand_is_used(site, tmp_path):
    (tmp_path / "a.tgz").write_bytes(DATA)
    download.fetch(archive(), str(tmp_path), quick(site))
    assert site.log == []


def test_missing_on_the_server(site, tmp_path):
    with pytest.raises(DataPrepError, match="HTTP 404"):
        download.fetch(Archive("http://unreachable.invalid/b.tgz"), str(tmp_path), quick(site))


def test_second_mirror_is_tried(site, tmp_path):
    dead = Server({})
    path = download.fetch(archive(), str(tmp_path), dict(quick(site), DATA_PREP_MIRROR=dead.url + "," + site.url))
    dead.close()
    assert open(path, "rb").read() == DATA


def test_next_address_only_where_nothing_came(site, tmp_path):
    """A cut connection goes on where it was; only a server that gives nothing is left for the next."""
    other = Server({"a.tgz": DATA})
    site.cut["a.tgz"] = [300000, 200000, 0, 0]
    both = Archive(site.url + "/a.tgz", len(DATA), SUM, others=(other.url + "/a.tgz",))
    assert download.addresses(both, {}) == [site.url + "/a.tgz", other.url + "/a.tgz"]
    path = download.fetch(both, str(tmp_path), {"DATA_PREP_PAUSE": "0.01"})
    other.close()
    assert open(path, "rb").read() == DATA
    assert [wanted for _, wanted, _ in site.log] == [None, "bytes=300000-", "bytes=500000-"]
    assert [wanted for _, wanted, _ in other.log] == [None]


def test_md5_where_no_sha256_is_known(site, tmp_path):
    right = Archive(site.url + "/a.tgz", md5=hashlib.md5(DATA).hexdigest())
    assert open(download.fetch(right, str(tmp_path / "right"), {}), "rb").read() == DATA
    wrong = Archive(site.url + "/a.tgz", md5="0" * 32)
    with pytest.raises(DataPrepError, match="its md5 is .*, not 0000"):
        download.fetch(wrong, str(tmp_path / "wrong"), {})
    # A sum of the user's own replaces it.
    (tmp_path / "sums").write_text("%s  a.tgz\n" % SUM)
    download.fetch(wrong, str(tmp_path / "wrong"), {"DATA_PREP_CHECKSUMS": str(tmp_path / "sums")})


@pytest.mark.parametrize("name", ["DATA_PREP_RETRIES", "DATA_PREP_PAUSE"])
@pytest.mark.parametrize("value", ["many", "-1", ""])
def test_variables_that_are_no_numbers(name, value, site, tmp_path):
    with pytest.raises(DataPrepError, match="%s is '%s'; give a number" % (name, value)):
        download.fetch(archive(), str(tmp_path), dict(quick(site), **{name: value}))


def test_checksum_file_that_is_none(site, tmp_path):
    bad = tmp_path / "sums"
    bad.write_text("abc a.tgz\n")
    with pytest.raises(DataPrepError, match="line 1"):
        download.fetch(archive(), str(tmp_path), quick(site, DATA_PREP_CHECKSUMS=str(bad)))


@pytest.mark.parametrize("cut", [10, 60, -20, -1])
def test_cut_archives_are_seen(tmp_path, cut):
    data = tar_bytes({"dir/a.en": os.urandom(50000), "dir/b.en": os.urandom(50000)})
    (tmp_path / "a.tgz").write_bytes(data[:cut])
    with pytest.raises(archives.Damaged):
        archives.extract(str(tmp_path / "a.tgz"), {"dir/a.en": str(tmp_path / "out")})


def test_flipped_byte_is_seen(tmp_path):
    data = bytearray(gzip.compress(os.urandom(50000)))
    data[30000] ^= 1
    (tmp_path / "a.gz").write_bytes(bytes(data))
    with pytest.raises(archives.Damaged):
        archives.extract(str(tmp_path / "a.gz"), {"": str(tmp_path / "out")})


def test_only_asked_members_and_never_outside(tmp_path):
    import tarfile
    evil = tarfile.TarInfo("../evil")
    evil.size = 3
    absolute = tarfile.TarInfo("/tmp/evil-absolute-data-prep")
    absolute.size = 3
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tgz").write_bytes(tar_bytes({"./a.en": b"hello\n", "b.en": b"no"}, extra=[evil, absolute]))
    archives.extract(str(tmp_path / "in" / "a.tgz"), {"a.en": str(tmp_path / "in" / "out")})
    assert (tmp_path / "in" / "out").read_bytes() == b"hello\n"
    assert sorted(os.listdir(tmp_path)) == ["in"] and sorted(os.listdir(tmp_path / "in")) == ["a.tgz", "out"]
    assert not os.path.exists("/tmp/evil-absolute-data-prep")


def test_a_link_is_not_followed(tmp_path):
    import tarfile
    link = tarfile.TarInfo("a.en")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    (tmp_path / "a.tgz").write_bytes(tar_bytes({}, extra=[link]))
    with pytest.raises(DataPrepError, match="not a regular file"):
        archives.extract(str(tmp_path / "a.tgz"), {"a.en": str(tmp_path / "out")})


def test_missing_member_is_named(tmp_path):
    (tmp_path / "a.tgz").write_bytes(tar_bytes({"a.en": b"x"}))
    with pytest.raises(DataPrepError, match="b.en"):
        archives.extract(str(tmp_path / "a.tgz"), {"b.en": str(tmp_path / "out")})
