"""Run ``fairseq-generate`` in one or more processes and put its output back into source order."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from realformer_nmt.tools.files import ToolError, read_lines, write_text

USER_DIR = Path(__file__).resolve().parents[1]
_OUTPUT = re.compile(r"([STHD])-(\d+)\t")


def generate_command(data_bin, checkpoints, flags):
    """``fairseq-generate`` on this Python, with the plug-in loaded. ``checkpoints`` is joined by ``:``."""
    path = os.pathsep.join(map(str, checkpoints))
    # -m rather than the console script: it is sure to run on this interpreter.
    start = [sys.executable, "-m", "fairseq_cli.generate", str(data_bin), "--user-dir", str(USER_DIR)]
    return [*start, "--path", path, *flags]


def is_complete(path):
    """Whether a file of fairseq-generate's output ends as that program does when it finished."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.path.getsize(path) - 4000))
            tail = handle.read().decode("utf-8", "replace")
    except OSError:
        return False
    return any(re.match(r"Generate .* with beam=|.*\| Translated [\d,]+ sentences", line) for line in tail.splitlines())


def run_shards(command, directory, processes, gpus, total=None, report=None):
    """Run ``command`` as ``processes`` shards; shard files already complete are kept.

    fairseq-generate gives shard i of n every n-th batch when told ``--distributed-world-size n
    --distributed-rank i`` (its ``--num-shards`` is accepted, but not read, by fairseq 0.12).

    Args:
        directory: where ``shard-<i>-of-<n>.txt`` is written, each first under a temporary name.
        gpus: ids of the GPUs to share out, or an empty list for the CPU.
        total: number of sentences, for the progress line.
        report: called with a line of progress now and then.

    Returns:
        the shard files.

    Raises:
        ToolError: a process failed; its last lines of output are quoted.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"shard-{i}-of-{processes}.txt" for i in range(processes)]
    counts, running, failures = [0] * processes, [], []
    cores = os.cpu_count() or 1

    def follow(index, process, path, errors):
        temporary = path.with_suffix(".part")
        with open(temporary, "wb") as handle:
            for line in process.stdout:
                handle.write(line)
                counts[index] += line.startswith(b"H-")
        if process.wait() == 0 and is_complete(temporary):
            os.replace(temporary, path)
            errors.unlink()
        else:
            # Several processes mostly fail for one reason: the first one's words are enough.
            failures.append(_reason(temporary, errors))

    for i, path in enumerate(files):
        if is_complete(path):
            continue
        environment = dict(os.environ)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpus[i % len(gpus)])
        else:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
        shard = ["--distributed-world-size", str(processes), "--distributed-rank", str(i)]
        errors = path.with_suffix(".err")
        # Apart from stdout: a warning could else land in the middle of a sentence.
        with open(errors, "wb") as handle:
            process = subprocess.Popen([*command, *shard], stdout=subprocess.PIPE, stderr=handle, env=environment)
        thread = threading.Thread(target=follow, args=(i, process, path, errors), daemon=True)
        thread.start()
        running.append((process, thread))
    try:
        last, start = 0.0, time.monotonic()
        while any(thread.is_alive() for _, thread in running):
            time.sleep(0.2)
            if report and time.monotonic() - last > 10:
                last = time.monotonic()
                of = f" of {total}" if total else ""
                report(f"translated {sum(counts)}{of} sentences ({last - start:.0f} s)")
            if failures:
                break
    finally:
        for process, _ in running:
            if process.poll() is None:
                process.terminate()
        for _, thread in running:
            thread.join()
    if failures:
        raise ToolError(f"fairseq-generate failed: {failures[0]}")
    return files


def _reason(*paths):
    """The last line that says something, from the output of a failed program."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    lines = [line.strip() for line in "\n".join(texts).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b|.*error:|realformer_nmt: ", line)]
    return f"{(errors or lines or ['no output'])[-1]} (whole output: {paths[-1]})"


def read_generated(files):
    """Sources, targets and best hypotheses of fairseq-generate's output, in source order.

    Args:
        files: output of fairseq-generate, all shards.

    Returns:
        ``{"S": [...], "T": [...], "D": [...], "H": [...]}``: lines by sentence number; T is None without targets.
        S, T and H are tokenised; D is what fairseq's ``--tokenizer`` made of H (the same text without one).

    Raises:
        ToolError: a sentence is missing or comes twice with different text.
    """
    lines = {kind: {} for kind in "STHD"}
    for path in files:
        for line in read_lines(path):
            match = _OUTPUT.match(line)
            if not match:
                continue
            kind, number = match.group(1), int(match.group(2))
            text = line[match.end() :]
            if kind in "HD":
                text = text.partition("\t")[2]  # the score comes first
            # With --nbest the best hypothesis is printed first.
            lines[kind].setdefault(number, text)
    if not lines["H"]:
        raise ToolError(f"{files[0]}: holds no hypotheses of fairseq-generate")
    count = max(max(lines["H"]), max(lines["S"], default=0), max(lines["T"], default=0)) + 1
    result = {}
    for kind, found in lines.items():
        if kind == "T" and not found:
            result[kind] = None
            continue
        missing = [number for number in range(count) if number not in found]
        if missing:
            raise ToolError(
                f"{files[0].parent}: sentence {missing[0]} and {len(missing) - 1} more have no {kind}- line: "
                "was a sentence too long for the model (--skip-invalid-size-inputs-valid-test)?"
            )
        result[kind] = [found[number] for number in range(count)]
    return result


def write_generated(files, path):
    """Concatenate shard files into one that ``fairseq-score`` and the usual ``grep ^H`` read."""
    write_text(path, "".join(Path(file).read_text(encoding="utf-8") for file in files))
