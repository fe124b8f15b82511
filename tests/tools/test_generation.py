"""Merging the output of fairseq-generate, and running shards, with stand-in programs. Budget: 5 s."""

import sys

import pytest

from realformer_nmt.tools.files import ToolError
from realformer_nmt.tools.generation import is_complete, read_generated, run_shards

END = "Generate test with beam=5: BLEU4 = 1.00\n"


def block(number, source, target, hypothesis):
    return (
        f"S-{number}\t{source}\nT-{number}\t{target}\nH-{number}\t-0.25\t{hypothesis}\n"
        f"D-{number}\t-0.25\t{hypothesis}\nP-{number}\t-0.1 -0.4\n"
    )


def test_shards_are_merged_in_source_order(tmp_path):
    first, second = tmp_path / "0", tmp_path / "1"
    first.write_text("2026 | INFO | x\n" + block(2, "s2", "t2", "h2") + block(0, "s0", "t0", "") + END)
    # A line separator and a tab inside a sentence belong to it.
    second.write_text(block(3, "s3", "t3", "h\u20283\tx") + block(1, "s1", "t1", "h1") + END, encoding="utf-8")
    lines = read_generated([first, second])
    assert lines["H"] == ["", "h1", "h2", "h\u20283\tx"]
    assert lines["S"] == ["s0", "s1", "s2", "s3"] and lines["T"] == ["t0", "t1", "t2", "t3"]


def test_only_the_best_of_nbest_counts(tmp_path):
    path = tmp_path / "0"
    path.write_text("S-0\ts\nH-0\t-0.1\tbest\nD-0\t-0.1\tbest\nH-0\t-0.9\tworse\nD-0\t-0.9\tworse\n" + END)
    lines = read_generated([path])
    assert lines["H"] == ["best"] and lines["T"] is None


def test_missing_sentence_is_named(tmp_path):
    path = tmp_path / "0"
    path.write_text(block(0, "s", "t", "h") + block(3, "s", "t", "h") + END)
    with pytest.raises(ToolError, match="sentence 1 and 1 more"):
        read_generated([path])
    path.write_text(END)
    with pytest.raises(ToolError, match="no hypotheses"):
        read_generated([path])


# Stands for fairseq-generate: reads the flags that choose a shard.
PROGRAM = """
import sys
n, i = int(sys.argv[sys.argv.index("--distributed-world-size") + 1]), int(sys.argv[sys.argv.index("--distributed-rank") + 1])
if "fail" in sys.argv and i == 1:
    print("ValueError: no such thing"); sys.exit(1)
for k in range(i, 5, n):
    print("a warning", end="", file=sys.stderr, flush=True)
    print(f"S-{k}\\ts{k}\\nH-{k}\\t-1\\th{k}\\nD-{k}\\t-1\\th{k}")
print("x | INFO | Translated 3 sentences")
"""


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_the_sentences(tmp_path, processes):
    files = run_shards([sys.executable, "-c", PROGRAM], tmp_path, processes, [])
    assert read_generated(files)["H"] == ["h0", "h1", "h2", "h3", "h4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files)


def test_failed_process_is_quoted_and_finished_shards_are_kept(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    with pytest.raises(ToolError, match="ValueError: no such thing"):
        run_shards([*command, "fail"], tmp_path, 2, [])
    assert not (tmp_path / "shard-1-of-2.txt").exists()
    run_shards(command, tmp_path, 2, [])
    done = tmp_path / "shard-0-of-2.txt"
    done.write_text(done.read_text().replace("h0", "kept"))
    (tmp_path / "shard-1-of-2.txt").unlink()
    files = run_shards(command, tmp_path, 2, [])
    assert read_generated(files)["H"] == ["kept", "h1", "h2", "h3", "h4"]


def test_cut_output_is_not_complete(tmp_path):
    path = tmp_path / "0"
    path.write_text(block(0, "s", "t", "h") + END)
    assert is_complete(path)
    path.write_text(block(0, "s", "t", "h"))
    assert not is_complete(path) and not is_complete(tmp_path / "none")
