"""The corpus made from message catalogues. Budget: 15 seconds, most of them pip's."""
import functools
import hashlib
import http.server
import io
import itertools
import json
import os
import re
import tarfile
import threading
import zipfile

import polib
import pytest

from data_prep import catalogue_wheels, message_catalogues as mc

HEADER = {"Content-Type": "text/plain; charset=UTF-8", "Plural-Forms": "nplurals=2; plural=(n > 1);"}


def catalogue(*entries):
    po = polib.POFile()
    po.metadata = dict(HEADER)
    po.extend(entries)
    return po


def wheel_with(path, **catalogues):
    """A zip at `path` with a French .po for each name."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, po in catalogues.items():
            archive.writestr("pkg/locale/fr/LC_MESSAGES/%s.po" % name, str(po))
    return str(path)


def numbered(count):
    """A catalogue of `count` different sentences."""
    words = ["red", "blue", "green", "old", "new", "small"]
    noms = ["rouge", "bleu", "vert", "vieux", "neuf", "petit"]
    pairs = itertools.islice(itertools.product(range(6), repeat=4), count)
    return catalogue(*(polib.POEntry(msgid="The " + " ".join(words[i] for i in p) + " house",
                                     msgstr="La maison " + " ".join(noms[i] for i in p)) for p in pairs))


@pytest.mark.parametrize("entry, expected", [
    (polib.POEntry(msgid="Open", msgstr="Ouvrir"), [("Open", "Ouvrir")]),
    (polib.POEntry(msgid="Open", msgstr=""), []),
    (polib.POEntry(msgid="Open", msgstr="Ouvrir", flags=["fuzzy"]), []),
    (polib.POEntry(msgid="Open", msgstr="Ouvrir", obsolete=True), []),
    (polib.POEntry(msgid="label_open", msgstr="Ouvrir"), []),
    (polib.POEntry(msgid="label_open", msgstr="Ouvrir", comment='Default: "Open \\"it\\""'), [('Open "it"', "Ouvrir")]),
    (polib.POEntry(msgid="a file", msgid_plural="%d files", msgstr_plural={0: "un fichier", 1: "%d fichiers"}),
     [("a file", "un fichier"), ("%d files", "%d fichiers")]),
    # Three forms, as French has since CLDR 38: the later two are plurals of different size.
    (polib.POEntry(msgid="a file", msgid_plural="%d files",
                   msgstr_plural={0: "un fichier", 1: "%d de fichiers", 2: "%d fichiers"}),
     [("a file", "un fichier"), ("%d files", "%d de fichiers"), ("%d files", "%d fichiers")]),
    (polib.POEntry(msgid="a file", msgid_plural="%d files", msgstr_plural={0: "", 1: "%d fichiers"}),
     [("%d files", "%d fichiers")]),
])
def test_entry_pairs(entry, expected):
    assert mc.entry_pairs(entry) == expected


@pytest.mark.parametrize("text, mnemonic, expected", [
    ("two\nlines\r\n\tand\u2028more\x85end", "", "two lines and more end"),
    ("nul\x00 bell\x07 zero\u200bwidth soft\u00adhyphen", "", "nul bell zerowidth softhyphen"),
    ("<b>bold</b> <a href=\"x\">link</a><br/>end", "", "bold link end"),
    ("a &amp; b &lt;i&gt;c&lt;/i&gt; &eacute;", "", "a & b c \u00e9"),
    ("1 < 2 and 3 > 2", "", "1 < 2 and 3 > 2"),
    ("l\u2019\u00ab\u00a0\u00e9t\u00e9\u00a0\u00bb\u2026", "", "l'\"\u00e9t\u00e9\"..."),
    ("_Open", "_", "Open"), ("Save _As", "_", "Save As"), ("E_xit", "_", "Exit"),
    ("_Open", "", "_Open"), ("my_file_name", "_", "my_file_name"), ("this & that", "&", "this & that"),
    ("e\u0301te\u0301", "", "\u00e9t\u00e9"),
])
def test_clean_text(text, mnemonic, expected):
    assert mc.clean_text(text, mnemonic) == expected


@pytest.mark.parametrize("source, target, expected", [
    ("Delete %(name)s by {user}?", "{user} supprime %(name)s ?", ("Delete X1 by X2?", "X2 supprime X1 ?")),
    ("${n} of %d", "%d sur ${n}", ("X1 of X2", "X2 sur X1")),
    ("%1 is 100% done", "%1 : fini à 100 %", ("X1 is 100% done", "X1 : fini à 100 %")),
    ("{a} and {a}", "{a} et {a}", ("X1 and X1", "X1 et X1")),
    ("%d files", "des fichiers", None),
    ("{a} and {b}", "{a} et {a}", None),
    ("50% discount", "remise de 50 %", ("50% discount", "remise de 50 %")),
])
def test_placeholders_are_the_same_on_both_sides(source, target, expected):
    assert mc.unify_placeholders(source, target) == expected


@pytest.mark.parametrize("source, target, reason", [
    ("Image", "image !", "copy of the source"),
    ("...", "...", "no letters"),
    ("%s", "%s", "no letters"),
    ("%s: %d", "%s : %d", "no letters"),
    ("one %s", "un", "placeholders differ"),
    ("word " * 61, "mot " * 10, "too long"),
    ("yes", "une phrase beaucoup plus longue que l'anglais", "lengths differ"),
])
def test_dropped_pairs_say_why(source, target, reason):
    assert mc.clean_pair(source, target) == reason


def test_no_source_of_one_split_is_in_another_in_any_spelling():
    base = [("Red house number %d" % n, "Maison rouge numéro %d" % n) for n in range(400)]
    variants = [(s.upper() + "!", t) for s, t in base] + [("\u201c%s\u201d..." % s.replace(" ", "  "), t) for s, t in base]
    variants += [(s.replace("e", "\u00e9"), t + ".") for s, t in base]
    splits = mc.split_pairs(base + variants, held_out_per_mille=100)

    def spelling(text):  # written from the rule, apart from comparison_key
        return "".join(re.findall("[a-z0-9]", text.lower().replace("\u00e9", "e")))

    keys = {name: {spelling(s) for s, _ in pairs} for name, pairs in splits.items()}
    assert all(keys.values())
    assert not keys["train"] & keys["valid"] and not keys["train"] & keys["test"] and not keys["valid"] & keys["test"]
    assert set().union(*keys.values()) == {spelling(s) for s, _ in base}
    # Held out, one pair a source; in training, every different one.
    assert len(splits["test"]) == len(keys["test"]) and len(splits["valid"]) == len(keys["valid"])
    assert len(splits["train"]) == 4 * len(keys["train"])


def test_split_depends_on_the_source_alone():
    pairs = [("Sentence %d" % n, "Phrase %d" % n) for n in range(300)]
    splits = mc.split_pairs(pairs, 100)
    assert splits == mc.split_pairs(list(reversed(pairs)) + pairs, 100)
    fewer = mc.split_pairs(pairs[:150], 100)
    for name in mc.SPLITS:
        assert set(fewer[name]) <= set(splits[name])


def test_po_wins_over_the_mo_beside_it_and_only_french_is_read(tmp_path):
    french = catalogue(polib.POEntry(msgid="Open", msgstr="Ouvrir"), polib.POEntry(msgid="id_close", msgstr="Fermer",
                                                                                  comment='Default: "Close"'))
    mo_only = catalogue(polib.POEntry(msgid="Edit", msgstr="Modifier", msgctxt="menu"))
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/locale/fr/LC_MESSAGES/django.po", str(french))
        archive.writestr("p/locale/fr/LC_MESSAGES/django.mo", french.to_binary())
        archive.writestr("p/locale/fr_FR/LC_MESSAGES/other.mo", mo_only.to_binary())
        archive.writestr("p/locale/de/LC_MESSAGES/django.po", str(catalogue(polib.POEntry(msgid="Open", msgstr="Auf"))))
        archive.writestr("p/locale/fr_CA/LC_MESSAGES/django.po",
                         str(catalogue(polib.POEntry(msgid="Email", msgstr="Courriel"))))
        archive.writestr("p/ir/locale/fr.po", str(catalogue(polib.POEntry(msgid="User", msgstr="Utilisateur"))))
    pairs = {pair for _, cat in mc.read_catalogues(str(path)) for entry in cat for pair in mc.entry_pairs(entry)}
    assert pairs == {("Open", "Ouvrir"), ("Close", "Fermer"), ("Edit", "Modifier"), ("User", "Utilisateur")}


def test_tar_members_are_not_extracted(tmp_path):
    data = str(catalogue(polib.POEntry(msgid="Open", msgstr="Ouvrir"))).encode()
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../../escape/fr/LC_MESSAGES/x.po", "p/fr.po"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("q/fr.po")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert [name for name, _ in mc.read_catalogues(str(path))] == ["../../escape/fr/LC_MESSAGES/x.po", "p/fr.po"]
    assert os.listdir(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("content, message", [
    (b"not an archive", "not a readable wheel"),
    (None, "No such file"),
])
def test_unreadable_archive_is_one_line_and_nothing_is_written(tmp_path, capsys, content, message):
    path = tmp_path / "bad.whl"
    if content is not None:
        path.write_bytes(content)
    assert mc.main(["--out", str(tmp_path / "out"), "--archives", str(path)]) == 1
    error = capsys.readouterr().err
    assert message in error and str(path) in error and error.count("\n") == 1
    assert os.listdir(tmp_path / "out") == []


def test_truncated_archive_and_broken_catalogue_are_named(tmp_path, capsys):
    good = wheel_with(tmp_path / "good.whl", a=numbered(50))
    cut = tmp_path / "cut.whl"
    cut.write_bytes(open(good, "rb").read()[:-40])
    assert mc.main(["--out", str(tmp_path / "o"), "--archives", str(cut)]) == 1
    assert str(cut) in capsys.readouterr().err
    broken = tmp_path / "broken.whl"
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("p/fr/LC_MESSAGES/x.mo", b"\xde\x12\x04\x95\xff\xff")
    assert mc.main(["--out", str(tmp_path / "o"), "--archives", str(broken)]) == 1
    error = capsys.readouterr().err
    assert "p/fr/LC_MESSAGES/x.mo" in error and error.count("\n") == 1


def test_main_writes_parallel_files_twice_the_same(tmp_path, capsys):
    path = wheel_with(tmp_path / "a.whl", a=numbered(600), b=numbered(100))
    for out in ("one", "two"):
        assert mc.main(["--out", str(tmp_path / out), "--archives", path, "--held-out", "100"]) == 0
    assert "100 duplicates removed" in capsys.readouterr().out
    counts = json.loads((tmp_path / "one" / "corpus.json").read_text())["counts"]
    assert counts["train"] + counts["valid"] + counts["test"] == 600 and counts["duplicates"] == 100
    for split in mc.SPLITS:
        english, french = ((tmp_path / "one" / (split + "." + lang)).read_bytes() for lang in ("en", "fr"))
        assert english.count(b"\n") == french.count(b"\n") == counts[split] > 0
        for lang in ("en", "fr"):
            name = "%s.%s" % (split, lang)
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip's index on 127.0.0.1, with one wheel of 'realformer-testcatalogue'; gives (Wheel, requests seen)."""
    name = "realformer_testcatalogue-1.0-py3-none-any.whl"
    folder = tmp_path / "index" / "realformer-testcatalogue"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("p/locale/fr/LC_MESSAGES/a.po", str(numbered(50)))
        info = "realformer_testcatalogue-1.0.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: realformer-testcatalogue\nVersion: 1.0\n"
                                            "Requires-Python: >=99\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    (folder / "index.html").write_text('<a href="%s">%s</a>' % (name, name))
    seen = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            seen.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler,
                                                                                 directory=str(tmp_path / "index")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:%d/" % server.server_port)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "http_proxy", "HTTP_PROXY", "all_proxy",
                     "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    yield catalogue_wheels.Wheel("realformer-testcatalogue", "1.0", name, digest, "MIT", ""), seen
    server.shutdown()
    server.server_close()


def test_fetch_downloads_once_and_repairs_a_damaged_file(tmp_path, index):
    wheel, seen = index
    cache = tmp_path / "cache"
    path = catalogue_wheels.fetch(wheel, str(cache))
    assert catalogue_wheels.file_sha256(path) == wheel.sha256
    assert os.listdir(cache) == [wheel.filename]
    requests = len(seen)
    assert requests
    assert catalogue_wheels.fetch(wheel, str(cache)) == path and len(seen) == requests
    with open(path, "r+b") as stream:
        stream.truncate(100)
    catalogue_wheels.fetch(wheel, str(cache))
    assert catalogue_wheels.file_sha256(path) == wheel.sha256 and len(seen) > requests


def test_fetch_refuses_another_file_and_keeps_nothing(tmp_path, index):
    wheel, _ = index
    with pytest.raises(catalogue_wheels.FetchError, match="realformer-testcatalogue 1.0.*SHA-256"):
        catalogue_wheels.fetch(wheel._replace(sha256="0" * 64), str(tmp_path / "cache"))
    assert os.listdir(tmp_path / "cache") == []


def test_failed_download_is_one_line_and_what_came_before_is_kept(tmp_path, index, monkeypatch, capsys):
    wheel, _ = index
    missing = wheel._replace(project="realformer-missing", filename="realformer_missing-1.0-py3-none-any.whl")
    monkeypatch.setattr(catalogue_wheels, "WHEELS", (wheel, missing))
    out = tmp_path / "out"
    assert mc.main(["--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "realformer-missing 1.0 could not be downloaded" in error and error.count("\n") == 1
    assert os.listdir(out / "wheels") == [wheel.filename]


def test_every_pinned_wheel_is_pinned_by_version_and_hash():
    assert len({wheel.project for wheel in catalogue_wheels.WHEELS}) == len(catalogue_wheels.WHEELS) >= 7
    for wheel in catalogue_wheels.WHEELS:
        assert re.fullmatch("[0-9a-f]{64}", wheel.sha256) and wheel.licence
        assert "-%s-" % wheel.version in wheel.filename and wheel.filename.endswith(".whl")
