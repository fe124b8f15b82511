"""Peak memory of a whole data preparation, by stage, for texts of two sizes.

The text (PREFIX.en.gz, PREFIX.fr.gz) is repeated up to each number of pairs. Memory is read from /proc every 0.2 s:
the proportional set size (shared pages counted once) of the command and all its children together, and the
resident set size of the largest single process.
"""
import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def children(pid):
    """`pid` and all processes below it."""
    found = [pid]
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), encoding="ascii") as handle:
                for child in handle.read().split():
                    found += children(int(child))
    except OSError:
        pass
    return found


def memory(pid):
    """(MB of PSS of the tree, MB of RSS of its largest process)."""
    total = largest = 0
    for process in children(pid):
        try:
            with open("/proc/%d/smaps_rollup" % process, encoding="ascii") as handle:
                values = dict(re.findall(r"^(Pss|Rss):\s+(\d+) kB", handle.read(), re.MULTILINE))
        except OSError:
            continue
        total += int(values.get("Pss", 0))
        largest = max(largest, int(values.get("Rss", 0)))
    return total / 1024, largest / 1024


def measure(pairs, text, workers, merges):
    """Runs the preparation of `pairs` pairs; prints a line a stage."""
    folder = tempfile.mkdtemp()
    try:
        for lang in ("en", "fr"):
            lines = gzip.open("%s.%s.gz" % (text, lang)).read().split(b"\n")[:-1]
            with open(os.path.join(folder, "raw." + lang), "wb") as out:
                for start in range(0, pairs, len(lines)):
                    out.write(b"\n".join(lines[:pairs - start]) + b"\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "data_prep", "prepare", "--source-lang", "en", "--target-lang", "fr", "--train",
             os.path.join(folder, "raw"), "--out", os.path.join(folder, "out"), "--workers", str(workers),
             "--bpe-merges", str(merges)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        stage, peaks, began = ["start"], {}, time.monotonic()
        print("%s pairs, %d workers" % (format(pairs, ","), workers))

        def show(name):
            total, largest = peaks.get(name, (0, 0))
            print("  %-24s all processes %5.0f MB, largest process %5.0f MB, ended after %4.0f s" % (
                name, total, largest, time.monotonic() - began), flush=True)

        def read():
            for line in process.stderr:
                if line.endswith(": start\n"):
                    show(stage[0])
                    stage[0] = line.split(":")[0]
                elif "error" in line:
                    print(line, end="")

        reader = threading.Thread(target=read)
        reader.start()
        while process.poll() is None:
            total, largest = memory(process.pid)
            peak = peaks.setdefault(stage[0], [0, 0])
            peaks[stage[0]] = [max(peak[0], total), max(peak[1], largest)]
            time.sleep(0.2)
        reader.join()
        show(stage[0])
        print("  exit status %d" % process.returncode)
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="PREFIX of PREFIX.en.gz and PREFIX.fr.gz")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--merges", type=int, default=8000)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    args = parser.parse_args()
    for pairs in args.pairs:
        measure(pairs, args.text, args.workers, args.merges)


if __name__ == "__main__":
    main()
