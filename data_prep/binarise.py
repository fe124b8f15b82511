"""The last step: fairseq-preprocess with one dictionary for both sides."""
import os
import shutil
import subprocess
import sys
import tempfile

from data_prep.errors import DataPrepError
from data_prep.progress import Progress
from data_prep.stages import remove


def write_dictionary(pieces, output):
    """Writes fairseq's dict.txt for a Counter of BPE pieces; returns how many entries, special symbols included.

    fairseq-preprocess would build the same file in a second pass over all the text (its Dictionary.finalize and
    .save: most frequent first, equals in alphabetical order, filled up to a multiple of 8); here the pieces were
    counted while they were written. The format is plain enough not to import fairseq and torch for it.
    """
    specials = 4  # <s>, <pad>, </s>, <unk>, which the file does not list
    for name in ("<s>", "<pad>", "</s>", "<unk>"):
        pieces.pop(name, None)  # already in the dictionary; Moses escapes < and >, so only foreign text has them
    with open(output, "w", encoding="utf-8", newline="\n") as out:
        for piece, count in sorted(pieces.items(), key=lambda item: (-item[1], item[0])):
            out.write("%s %d\n" % (piece, count))
        filled = -(len(pieces) + specials) % 8
        for number in range(filled):
            out.write("madeupword%04d 0\n" % number)
    return {"dictionary": len(pieces) + specials + filled}


def preprocess_command():
    """The fairseq-preprocess beside the running Python, else the one on the path; DataPrepError where none is."""
    beside = os.path.join(os.path.dirname(sys.executable), "fairseq-preprocess")
    command = beside if os.access(beside, os.X_OK) else shutil.which("fairseq-preprocess")
    if not command:
        raise DataPrepError("fairseq-preprocess is not installed beside %s; install the requirements "
                            "(pip install -r requirements.txt) and rerun" % sys.executable)
    return command


def binarise(prefixes, langs, dictionary, output, workers, expected_bytes=None):
    """Runs fairseq-preprocess on {split: prefix} into the folder `output`.

    expected_bytes: roughly what it will write, for the time left. Raises DataPrepError with its last line where it
    fails, OSError where the disk is full.
    """
    # A fairseq-preprocess whose parent was killed may still be writing: never share a folder with it.
    folder, name = os.path.split(output)
    for stale in os.listdir(folder):
        if stale.startswith(name + "."):
            remove(os.path.join(folder, stale))
    own = "%s.%d" % (output, os.getpid())
    command = [preprocess_command(), "--source-lang", langs[0], "--target-lang", langs[1], "--joined-dictionary",
               "--srcdict", dictionary, "--destdir", own, "--workers", str(workers)]
    for name in ("train", "valid", "test"):
        if prefixes.get(name):
            command += ["--%spref" % name, prefixes[name]]
    progress = Progress("fairseq-preprocess", "MB", expected_bytes)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                try:
                    process.wait(1)
                except subprocess.TimeoutExpired:
                    written = _written(own)
                    progress.add((written >> 20) - progress.count, written - progress.bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(0)
        lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if process.returncode:
        remove(own)
        if any("No space left" in line for line in lines):
            raise OSError(28, "No space left on device", output)
        raise DataPrepError("fairseq-preprocess failed (%s); run it by hand to see all: %s"
                            % (lines[-1] if lines else "exit status %d" % process.returncode, " ".join(command)))
    remove(os.path.join(own, "preprocess.log"))  # holds times and temporary paths; the manifest says what was done
    os.rename(own, output)
    progress.done()
    return {}


def _written(folder):
    """Bytes in the files of `folder`, which come and go."""
    total = 0
    try:
        for entry in os.scandir(folder):
            total += entry.stat().st_size
    except OSError:
        pass
    return total
