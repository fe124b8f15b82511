"""fairseq-train that loses power while it writes its N-th checkpoint: python die_writing.py {save,copy} N ARGUMENTS.

save: half of the first file of a checkpoint (fairseq writes it under a temporary name).
copy: half of checkpoint_last.pt (fairseq copies the file it has just saved, in place).
"""

import io
import os
import shutil
import signal
import sys

import torch

where, number, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
seen = 0
save, copyfile = torch.save, shutil.copyfile


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def save_or_die(obj, f, *args, **kwargs):
    global seen
    seen += 1
    if where == "save" and seen == number:
        whole = io.BytesIO()
        save(obj, whole)
        f.write(whole.getvalue()[: len(whole.getvalue()) // 2])
        f.flush()
        die()
    return save(obj, f, *args, **kwargs)


def copy_or_die(source, target, **kwargs):
    if where == "copy" and seen == number and target.endswith("checkpoint_last.pt"):
        with open(source, "rb") as i, open(target, "wb") as o:
            o.write(i.read(os.path.getsize(source) // 2))
            o.flush()
            die()
    return copyfile(source, target, **kwargs)


torch.save, shutil.copyfile = save_or_die, copy_or_die
sys.argv[1:] = arguments
from fairseq_cli.train import cli_main  # noqa: E402

cli_main()
