"""Nothing that a line may hold shifts a pair: every rule, its count, and the pairs around it."""
import gzip
import json
import random
import re

import pytest

from data_prep import cli, corpora, extract_sgm, text
from data_prep.align import decode_pair
from data_prep.chunks import MAX_LINE_BYTES, read_blocks, read_pairs
from data_prep.errors import DataPrepError

OPTIONS = {"normalise": True, "aggressive": True, "lowercase": False, "clean_words": None}
#: line in the middle -> (what becomes of it, rule counted), in training text
RULES = {
    "nul": (b"b\0c", b"b c", "nul"),
    "utf8": (b"b \xff c", b"", "invalid_utf8"),
    "surrogate": (b"b \xed\xa0\x80 c", b"", "invalid_utf8"),
    "cut character": (b"b \xc3", b"", "invalid_utf8"),
    "u2028": ("b\u2028c".encode(), b"b c", "line_separator"),
    "u2029": ("b\u2029c".encode(), b"b c", "line_separator"),
    "next line": ("b\x85c".encode(), b"b c", "line_separator"),
    "form feed": (b"b\x0cc", b"b c", "line_separator"),
    "lone cr": (b"b\rc", b"bc", "lone_cr"),
    "crlf": (b"b c\r", b"b c", None),
    "empty": (b"", b"", "empty_side"),
    "blank": (b" \t ", b"", "empty_side"),
    "no-break spaces": ("\xa0\u3000".encode(), b"", "empty_side"),
    "10 MB": (b"x" * 10_000_000, b"", "over_long"),
}


def run(tmp_path, source, target, **more):
    paths = [tmp_path / "raw.en", tmp_path / "raw.fr"]
    paths[0].write_bytes(source)
    paths[1].write_bytes(target)
    outputs = [str(tmp_path / "out.en"), str(tmp_path / "out.fr")]
    counts = text.process_files("t", [str(path) for path in paths], ("en", "fr"), OPTIONS, outputs,
                                more.pop("workers", 1), **more)
    return [open(path, "rb").read().split(b"\n")[:-1] for path in outputs], counts


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("side", [0, 1])
def test_rule(name, side, tmp_path):
    line, becomes, rule = RULES[name]
    plain = [b"a", b"m", b"z"]
    sides = [list(plain), list(plain)]
    sides[side][1] = line
    (source, target), counts = run(tmp_path, *(b"\n".join(lines) + b"\n" for lines in sides))
    assert source[0] == target[0] == b"a" and source[2] == target[2] == b"z"
    assert (source, target)[side][1] == becomes
    emptied = rule in ("invalid_utf8", "over_long")
    assert (source, target)[1 - side][1] == (b"" if emptied else b"m")
    assert counts.get(rule, 1) == 1 and counts["pairs_in"] == counts["pairs_out"] == 3
    seen = {key for key in counts if not key.startswith("pairs")}
    assert seen == ({rule, "empty_side"} if emptied else {rule} if rule else set())


def test_a_test_set_keeps_all_its_lines(tmp_path):
    (source, target), counts = run(tmp_path, b"a\nb \xff\n\nd\n", b"a\nb\nc\nd\n", keep_all=True)
    assert source == [b"a", b"b \xef\xbf\xbd", b"", b"d"] and target == [b"a", b"b", b"c", b"d"]
    assert counts["invalid_utf8"] == 1 and counts["pairs_out"] == 4


@pytest.mark.parametrize("source,target,said", [
    (b"a\nb\nc\n", b"a\nb\n", "has 3 lines but .* has 2"),
    (b"a\n", b"a\nb\nc\n", "has 1 lines but .* has 3"),
    (b"", b"a\n", "has 0 lines but .* has 1"),
])
def test_unequal_numbers_of_lines(source, target, said, tmp_path):
    with pytest.raises(DataPrepError, match=said):
        run(tmp_path, source, target)


def test_last_line_without_end(tmp_path):
    (source, target), _ = run(tmp_path, b"a\nb", b"a\nb\n")
    assert source == target == [b"a", b"b"]


def test_limit_stops_before_a_mismatch(tmp_path):
    (source, _), counts = run(tmp_path, b"a\nb\nc\n", b"a\nb\n", limit=2)
    assert source == [b"a", b"b"] and counts["pairs_in"] == 2


def test_valid_lines_are_every_nth(tmp_path, monkeypatch):
    from data_prep import chunks
    monkeypatch.setattr(chunks, "BLOCK_LINES", 7)  # blocks must not matter
    lines = [b"%d" % number for number in range(1, 101)]
    block = b"\n".join(lines) + b"\n"
    valid = [str(tmp_path / "valid.en"), str(tmp_path / "valid.fr")]
    (source, target), counts = run(tmp_path, block, block, valid=(valid, 10, 4))
    picked = [number for number in range(1, 101) if (number + 4) % 10 == 0]
    assert [open(path, "rb").read() for path in valid] == [b"".join(b"%d\n" % number for number in picked)] * 2
    assert source == target == [b"%d" % number for number in range(1, 101) if number not in picked]
    assert counts == {"pairs_in": 100, "pairs_out": 90, "pairs_valid": 10}


def test_emptied_pairs_do_not_move_the_valid_lines(tmp_path):
    lines = [b"%d" % number for number in range(1, 21)]
    bad = lines[:2] + [b"\xff"] + lines[3:]
    valid = [str(tmp_path / "valid.en"), str(tmp_path / "valid.fr")]
    run(tmp_path, b"\n".join(bad), b"\n".join(lines), valid=(valid, 5, 0))
    assert open(valid[0], "rb").read() == b"5\n10\n15\n20\n"


def test_broken_gzip_is_one_line(tmp_path):
    data = gzip.compress(b"a\n" * 100000)
    (tmp_path / "a.en").write_bytes(data[:len(data) // 2])
    (tmp_path / "a.fr").write_bytes(data)
    with pytest.raises(DataPrepError, match="broken gzip"):
        list(read_pairs(str(tmp_path / "a.en"), str(tmp_path / "a.fr")))


def test_memory_is_bounded_by_a_line_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * (MAX_LINE_BYTES * 5) + b"\ny\n")
    (tmp_path / "b").write_bytes(b"1\n2\n")
    blocks = list(read_pairs(str(tmp_path / "a"), str(tmp_path / "b")))
    assert [block[:4] for block in blocks] == [(b"\ny\n", b"\n2\n", 2, 1)]


def test_blocks_end_at_line_ends(tmp_path):
    data = "".join("ligne %d \u2028 \xe9\n" % number for number in range(1000)).encode()
    (tmp_path / "a").write_bytes(data)
    blocks = list(read_blocks([str(tmp_path / "a")], block_bytes=100))
    assert b"".join(blocks) == data and all(block.endswith(b"\n") for block in blocks) and len(blocks) > 50


def test_counts_of_a_mixed_block():
    _, _, counts = decode_pair(b"a\0\n\nc\rd\n", "x\u2028\ny\nz\r\n".encode(), False)
    assert counts == {"nul": 1, "empty_side": 1, "lone_cr": 1, "line_separator": 1}


def test_sgm():
    lines = ['<srcset>\n', '<seg id="1"> It\u2019s  here. </seg>\n', '<hl>\n', '<seg id="2"></seg>\n',
             '  <seg id="13">A &amp; B</seg>  \n']
    assert list(extract_sgm.segments(lines)) == ["It's  here.", "", "  A &amp; B"]


def test_segment_ends_are_as_the_recipe_has_them():
    rng = random.Random(4)
    pieces = ["</seg>", " ", "\t", "\xa0", "a", "</seg", "\u2019"]
    lines = ['<seg id="1">%s\n' % "".join(rng.choice(pieces) for _ in range(rng.randint(0, 12))) for _ in range(2000)]
    expected = [re.sub(r"\s*</seg>\s*", "", re.sub(r'<seg id="[0-9]*">\s*', "", line)).strip("\n")
                .replace("\u2019", "'") for line in lines]
    assert list(extract_sgm.segments(lines)) == expected
    assert list(extract_sgm.segments(['<seg id="1">a' + " " * 100000 + "b</seg>\n"])) == ["a" + " " * 100000 + "b"]


def test_iwslt_tags():
    lines = ["<url>http://x</url>\n", "<talkid>1</talkid>\n", "<title>T</title>\n", "<keywords>a</keywords>\n",
             "<description>D: \u2019</description>\n", " Hi\n"]
    assert list(extract_sgm.tagged_lines(lines)) == ["T", "D: \u2019", " Hi"]


def test_cleaning_and_summary_end_to_end(tmp_path, capsys):
    """Empty, over-long and unbalanced pairs are gone after BPE, counted, and the rest still pair up."""
    numbers = range(1, 41)
    source = [b"w%d" % number for number in numbers]
    target = [b"w%d" % number for number in numbers]
    source[4] = b""                        # empty side
    target[6] = b"y " * 300                # over 250 tokens
    source[8] = b"w9 w9 w9"                # ratio 3
    source[10] = b"\xff\xfe"               # not UTF-8
    for name, lines in (("c.en", source), ("c.fr", target), ("v.en", [b"w1", b""]), ("v.fr", [b"w1", b"w2"])):
        (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    out = tmp_path / "out"
    assert cli.main(["prepare", "--source-lang", "en", "--target-lang", "fr", "--train", str(tmp_path / "c"),
                     "--valid", str(tmp_path / "v"), "--out", str(out), "--bpe-merges", "50", "--workers", "1",
                     "--keep-raw"]) == 0
    stages = {stage["stage"]: stage["counts"] for stage in json.loads((out / "manifest.json").read_text())["stages"]}
    assert stages["tokenise/train-train"]["invalid_utf8"] == 1
    assert stages["encode/train"]["pairs_in"] == 40 and stages["encode/train"]["pairs_out"] == 36
    assert stages["encode/valid"]["pairs_out"] == 1
    encoded = [(out / "work" / "bpe" / ("train." + lang)).read_text().replace("@@ ", "").split("\n")[:-1]
               for lang in ("en", "fr")]
    assert encoded[0] == encoded[1] == ["w%d" % number for number in numbers if number not in (5, 7, 9, 11)]
    assert "invalid_utf8 1" in capsys.readouterr().err


WORDS = "".join("the green tree %d\n" % number for number in range(40))


def own(tmp_path, **files):
    """Runs prepare.sh's command on files {split: (source bytes, target bytes)}; (status, output folder)."""
    out = tmp_path / "out"
    args = ["prepare", "--source-lang", "en", "--target-lang", "fr", "--out", str(out), "--bpe-merges", "20",
            "--workers", "1"]
    for split, sides in files.items():
        for lang, data in zip(("en", "fr"), sides):
            (tmp_path / (split + "." + lang)).write_bytes(data)
        args += ["--" + split, str(tmp_path / split)]
    return cli.main(args), out


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_text_in_another_encoding_stops_the_run(tmp_path, capsys, split, encoding):
    """A few bad lines are dropped; most of a corpus is not, in silence."""
    files = {name: (WORDS.encode(),) * 2 for name in ("train", "valid")}
    files[split] = (WORDS.encode(), WORDS.replace("green", "gr\xfcn").encode(encoding))
    if encoding == "utf-16":  # a byte order mark shows on the first line only; its line ends are not bytes of their own
        files[split] = (WORDS.encode(), files[split][1] + b"\n")
    status, out = own(tmp_path, **files)
    last = capsys.readouterr().err.strip().split("\n")[-1]
    said = "iconv" if encoding == "latin-1" else "iconv|sides do not pair up"
    assert status == 1 and re.search(said, last) and split in last
    assert not (out / "data-bin").exists()


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("sides", [(b"", b""), (b"\n\n", b"\n\n"), (b"a\n", b"a b c d\n")])
def test_sets_that_fairseq_could_not_read(tmp_path, capsys, split, sides):
    """fairseq-train and -generate crash on a set of no sentence; a test set of empty lines is one it can read."""
    files = dict({"train": (WORDS.encode(),) * 2, "valid": (WORDS.encode(),) * 2}, **{split: sides})
    status, out = own(tmp_path, **files)
    last = capsys.readouterr().err.strip().split("\n")[-1]
    if split == "test" and sides[0]:
        assert status == 0 and (out / "data-bin" / "test.en-fr.en.bin").stat().st_size
    else:
        assert status == 1 and split in last and ("has no line" in last or "is left after cleaning" in last)
        assert not (out / "data-bin").exists()


@pytest.mark.parametrize("text_", ["a\n", "ab\n", "a\nb\n\xe9\n"])
def test_text_that_no_merge_can_be_learnt_from(tmp_path, capsys, text_):
    status, out = own(tmp_path, train=(text_.encode(), b"\n" * text_.count("\n")), valid=(WORDS.encode(),) * 2)
    assert status == 1 and "no BPE merge" in capsys.readouterr().err.strip().split("\n")[-1]
    assert not (out / "bpe.codes").exists()


def test_one_pair_and_equal_sides(tmp_path):
    """The least there is: one pair, without a line end, the same on both sides and in every set."""
    one = (b"a banana and a banana",) * 2
    status, out = own(tmp_path, train=one, valid=one, test=one)
    assert status == 0
    assert (out / "text" / "test.fr").read_bytes() == b"a banana and a banana\n"


def test_corpora_tables():
    """Every archive has an address whose last part names it, and either both sum and size or neither."""
    archives = {archive for corpus in corpora.CORPORA.values()
                for pieces in (corpus.train, corpus.valid, corpus.test) for piece in pieces
                for archive in piece.archives}
    assert len({archive.name for archive in archives}) == len(archives) == 14
    assert all((archive.size is None) == (archive.sha256 is None) for archive in archives)
    assert all(len(archive.sha256) == 64 for archive in archives if archive.sha256)
