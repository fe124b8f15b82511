"""Every entry point, end to end against a local server; the data-bins are read, and compared, with fairseq."""
import gzip
import json
import os
import shutil
import subprocess
import sys

import pytest

from data_prep import binarise, cli
from data_prep.corpora import CORPORA
from data_prep.errors import DataPrepError
from prep_support import ROOT, SHARED, run_script, sentences, stock_databin, text, tree

SCRIPTS = ["wmt14_en_fr", "wmt14_en_de", "iwslt14_de_en", "multi30k_en_fr", "prepare"]
FLAGS = ["--out", "--workers", "--bpe-merges", "--threshold", "--limit", "--valid-every", "--dry-run", "--keep-raw",
         "--help"]


def read_bin(folder, split, source, target, lang):
    """The sentences of a data-bin as strings, through fairseq itself."""
    from fairseq.data import Dictionary, data_utils
    dictionary = Dictionary.load(os.path.join(folder, "dict.%s.txt" % lang))
    data = data_utils.load_indexed_dataset(os.path.join(folder, "%s.%s-%s.%s" % (split, source, target, lang)),
                                           dictionary)
    return [dictionary.string(data[index], "@@ ") for index in range(len(data))]


@pytest.mark.parametrize("name", SCRIPTS[:4])
def test_entry_point(name, environ, server, tmp_path):
    corpus = CORPORA[name]
    out = tmp_path / "out"
    # The small training text would have no 1,333rd line of its own, so take one more often.
    every = [] if corpus.valid else ["--valid-every", "40"]
    run_script(name, "--out", out, "--workers", 2, "--bpe-merges", 200, "--keep-raw", *every, env=environ)
    source, target = corpus.langs
    manifest = json.loads((out / "manifest.json").read_text())
    stages = {stage["stage"]: stage["counts"] for stage in manifest["stages"]}
    assert all(stages.values()), stages
    extracted = sum(count for stage, counts in stages.items() if stage.startswith("extract/")
                    for what, count in counts.items() if what.split()[-1] in ("lines", "lines_out"))
    assert extracted == 2 * sum(counts["pairs_in"] for stage, counts in stages.items() if stage.startswith("tokenise/"))
    read = sum(counts["pairs_in"] for stage, counts in stages.items() if stage.startswith("tokenise/train"))
    assert read == sum(len((out / "work" / "raw" / ("train-%s.%s" % (piece.name, source))).read_bytes().splitlines())
                       for piece in corpus.train)
    for split in ("train", "valid", "test"):
        sides = [read_bin(str(out / "data-bin"), split, source, target, lang) for lang in corpus.langs]
        assert len(sides[0]) == len(sides[1]) == stages["encode/" + split]["pairs_out"]
        for side, lang in zip(sides, corpus.langs):
            encoded = (out / "work" / "bpe" / ("%s.%s" % (split, lang))).read_text().split("\n")[:-1]
            entries = {line.split(" ")[0] for line in (out / "data-bin" / ("dict.%s.txt" % lang)).open()}
            assert side == [" ".join(piece if piece in entries else "<unk>" for piece in line.split(" "))
                            .replace("@@ ", "") for line in encoded]
            assert split != "train" or not any("<unk>" in line for line in side)
    wanted = {"multi30k_en_fr": 15, "iwslt14_de_en": 25}.get(name, 20)
    assert stages["encode/test"]["pairs_out"] == wanted
    assert len((out / "text" / ("test." + source)).read_text().splitlines()) == wanted
    assert {entry[0] for entry in server.log} == {
        archive.name for pieces in (corpus.train, corpus.valid, corpus.test) for piece in pieces
        for archive in piece.archives}
    assert not (tmp_path / "evil.txt").exists() and not (out / "evil.txt").exists()
    # Once more: nothing is fetched or done.
    requests, before = len(server.log), tree(out)
    again = run_script(name, "--out", out, "--workers", 1, "--bpe-merges", 200, "--keep-raw", *every, env=environ)
    assert "already prepared" in again.stderr
    assert len(server.log) == requests and tree(out) == before


def test_own_files(environ, tmp_path):
    """A user's own pair of files; and the data-bin is, byte for byte, what fairseq-preprocess makes of the text."""
    for lang in ("en", "de"):
        (tmp_path / ("corpus." + lang)).write_bytes(text(lang, 300))
        (tmp_path / ("held.%s.gz" % lang)).write_bytes(gzip.compress(text(lang, 12, 5)))
    out, plain = tmp_path / "out", tmp_path / "plain"
    run_script("prepare", "--source-lang", "de", "--target-lang", "en", "--train", tmp_path / "corpus", "--test",
               tmp_path / "held", "--valid-every", 20, "--bpe-merges", 150, "--workers", 2, "--keep-raw", "--out", out,
               env=environ)
    assert len(read_bin(str(out / "data-bin"), "test", "de", "en", "de")) == 12
    assert (out / "text" / "test.en").read_bytes() == text("en", 12, 5)
    prefixes = {split: str(out / "work" / "bpe" / split) for split in ("train", "valid", "test")}
    assert stock_databin(prefixes, ("de", "en"), plain) == {
        name[len("data-bin/"):]: data for name, data in tree(out).items() if name.startswith("data-bin/")}


def test_own_files_without_keep_raw(tmp_path):
    from data_prep import cli
    for lang in ("en", "de"):
        (tmp_path / ("corpus." + lang)).write_bytes(text(lang, 60))
    assert cli.main(["prepare", "--source-lang", "de", "--target-lang", "en", "--train", str(tmp_path / "corpus"),
                     "--valid-every", "20", "--bpe-merges", "50", "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out" / "work")) == ["lock", "stamps"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_and_same_flags(name):
    shown = run_script(name, "--help").stdout
    assert all(flag in shown for flag in FLAGS)
    assert "data_prep/%s.sh" % name in shown


@pytest.mark.parametrize("name", SCRIPTS[:4])
def test_dry_run_does_nothing(name, tmp_path):
    out = tmp_path / "out"
    plan = run_script(name, "--out", out, "--dry-run", "--limit", 100).stdout
    assert not out.exists()
    corpus = CORPORA[name]
    assert corpus.train[0].archives[0].url in plan and "BPE: %d merges" % corpus.bpe_merges in plan
    if name == "wmt14_en_fr":  # the first archive holds the first 100 pairs
        assert "training-giga-fren.tar" not in plan and "test-full.tgz" in plan


def test_real_multi30k_plan():
    folder = SHARED / "data" / "multi30k_en_fr"
    if not folder.is_dir():
        pytest.skip("no Multi30k at %s (set REALFORMER_SHARED)" % folder)
    shown = run_script("multi30k_en_fr", "--from", folder, "--dry-run").stdout
    assert str(folder / "train.en.gz") in shown


@pytest.mark.parametrize("args,said", [
    (["--source-lang", "en", "--target-lang", "fr", "--train", "nowhere/x"], "no file nowhere/x.en"),
    (["--source-lang", "en", "--target-lang", "en", "--train", "x"], "two languages"),
    (["--source-lang", "en", "--target-lang", "", "--train", "x"], "'' is no language code"),
    (["--source-lang", "../en", "--target-lang", "fr", "--train", "x"], "'../en' is no language code"),
    (["--source-lang", "en", "--target-lang", "fi", "--train", "x", "--dry-run"], "language fi"),
])
def test_one_line_for_a_mistake(args, said, tmp_path):
    result = run_script("prepare", *args, "--out", tmp_path / "out", check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and said in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("args,said", [
    (["--limit", "abc"], "--limit: must be a whole number from 1 up, not 'abc'"), (["--limit", "1.5"], "--limit: must"),
    (["--workers", "0"], "--workers: must"), (["--valid-every", "1"], "--valid-every: must be a whole number from 2"),
    (["--bpe-merges"], "--bpe-merges: expected one argument"), (["--lim", "5"], "--lim"), (["--nosuch"], "--nosuch"),
])
def test_one_line_for_wrong_usage(args, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["multi30k_en_fr", *args])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and shown.count("\n") == 1 and said in shown and "--help" in shown


def own_files(tmp_path, *more):
    """The command line of a small run on own files."""
    for lang in ("en", "de"):
        (tmp_path / ("corpus." + lang)).write_bytes(text(lang, 60))
    return ["prepare", "--source-lang", "de", "--target-lang", "en", "--train", str(tmp_path / "corpus"), "--workers",
            "1", "--valid-every", "20", "--bpe-merges", "50", *map(str, more)]


@pytest.mark.parametrize("place", ["file", "file/below", "", "/proc/nosuch/out"])
def test_output_folder_that_cannot_be(tmp_path, capsys, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"mine")
    assert cli.main(own_files(tmp_path, "--out", place)) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "give another --out" in shown
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["text", "data-bin", "work", "bpe.codes", "manifest.json"])
def test_what_others_made_is_not_overwritten(tmp_path, capsys, name):
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    (out / name / "test.en").write_bytes(b"mine\n")
    assert cli.main(own_files(tmp_path, "--out", out)) == 1
    assert "already holds %s that this command did not make" % name in capsys.readouterr().err
    assert os.listdir(out) == [name] and tree(out, [name]) == {name + "/test.en": b"mine\n"}


@pytest.mark.parametrize("place", ["work/tok", "text", "data-bin"])
def test_input_where_the_output_goes_is_refused(tmp_path, capsys, place):
    """The folder would be replaced, or cleared at the end."""
    args, out = own_files(tmp_path), tmp_path / "out"
    assert cli.main([*args, "--out", str(out)]) == 0
    (out / place).mkdir(parents=True, exist_ok=True)
    for lang in ("en", "de"):
        (out / place / ("held." + lang)).write_bytes(b"mine\n")
    assert cli.main([*args, "--out", str(out), "--test", str(out / place / "held")]) == 1
    assert "lies where this run writes" in capsys.readouterr().err
    assert (out / place / "held.en").read_bytes() == b"mine\n"


def test_keep_raw_asked_for_later(tmp_path, capsys):
    """A finished run did not keep the text: it is made again, and the results stay the same."""
    args, out = own_files(tmp_path, "--out", tmp_path / "out"), tmp_path / "out"
    assert cli.main(args) == 0
    before = tree(out, ("data-bin", "bpe.codes", "manifest.json"))
    assert cli.main([*args, "--keep-raw"]) == 0
    assert (out / "work" / "bpe" / "train.en").stat().st_size and (out / "work" / "tok").is_dir()
    assert tree(out, ("data-bin", "bpe.codes", "manifest.json")) == before
    capsys.readouterr()
    assert cli.main([*args, "--keep-raw"]) == 0 and "already prepared" in capsys.readouterr().err


def test_no_manifest_beside_results_that_are_not_of_it(tmp_path, monkeypatch):
    """Stopped while another run's results replace the first's: the first's manifest must not stay."""
    args, out = own_files(tmp_path, "--out", tmp_path / "out"), tmp_path / "out"
    assert cli.main(args) == 0
    codes = (out / "bpe.codes").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(binarise, "binarise", lambda *_: (_ for _ in ()).throw(DataPrepError("stopped")))
        assert cli.main([*args[:-4], "--bpe-merges", "30", *args[-2:]]) == 1
    assert (out / "bpe.codes").read_bytes() != codes and not (out / "manifest.json").exists()


def test_another_corpus_in_the_same_folder(tmp_path):
    """The manifest names this run's files only."""
    args, out = own_files(tmp_path, "--out", tmp_path / "out"), tmp_path / "out"
    (tmp_path / "corpus.fr").write_bytes(text("fr", 60))
    test = ["--test", str(tmp_path / "corpus")]
    assert cli.main([*args, *test]) == 0
    other = [{"de": "fr"}.get(arg, arg) for arg in args]
    assert cli.main([*other, *test]) == 0
    first = (out / "manifest.json").read_bytes()
    assert "text/test.de" not in json.loads(first)["outputs"]
    other[-1] = str(tmp_path / "fresh")
    assert cli.main([*other, *test]) == 0
    assert (tmp_path / "fresh" / "manifest.json").read_bytes() == first


def test_plan_that_nobody_reads_to_its_end(tmp_path):
    """``--dry-run | head -1`` must not end in a complaint about the pipe."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "data_prep", "wmt14_en_fr", "--dry-run", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(write)
    assert result.stderr == b"" and result.returncode == 0


def test_shell_scripts_are_clean():
    shellcheck = shutil.which("shellcheck") or os.path.join(os.path.dirname(sys.executable), "shellcheck")
    if not os.path.exists(shellcheck):
        pytest.skip("shellcheck is not installed")
    scripts = sorted(str(path) for path in (ROOT / "data_prep").glob("*.sh"))
    assert len(scripts) > len(SCRIPTS)
    subprocess.run([shellcheck, "-x", *scripts], check=True, cwd=ROOT)


def test_which_python_runs(tmp_path):
    """PYTHON, else the active environment's, else .venv's, else the path's; none is one line."""
    def fake(*names):
        path = tmp_path.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho \"%s $PYTHONPATH $*\"\n" % "/".join(names))
        path.chmod(0o755)
        return str(path)

    for name in ("bash", "dirname"):
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).symlink_to(shutil.which(name))
    own, _, _ = fake("own"), fake("venv", "bin", "python"), fake("path", "python3")
    with_python, without = "%s:%s" % (tmp_path / "path", tmp_path / "tools"), str(tmp_path / "tools")
    for changes, expected in (({"PYTHON": own}, "own"), ({}, "venv/bin/python"),
                              ({"VIRTUAL_ENV": "/active"}, "path/python3"),
                              ({"REALFORMER_VENV": str(tmp_path / "none")}, "path/python3")):
        env = dict({"PATH": with_python, "REALFORMER_VENV": str(tmp_path / "venv")}, **changes)
        assert run_script("prepare", "--x", env=env).stdout == "%s %s -m data_prep prepare --x\n" % (expected, ROOT)
    nothing = run_script("prepare", env={"PATH": without, "REALFORMER_VENV": str(tmp_path / "none")}, check=False)
    assert nothing.returncode == 1 and nothing.stderr.count("\n") == 1 and "no Python found" in nothing.stderr


def test_sentences_differ():
    assert sentences("en", 5) != sentences("fr", 5)  # the fixtures above would prove little otherwise
