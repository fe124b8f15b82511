"""Starts the training processes, passes a request to stop on to them, and says in one line how they ended."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Dict, List, Optional

from .stop import STOP_FILE_VARIABLE
from .worker import REPORT_VARIABLE

FINISHED, FAILED, STOPPED = 0, 1, 75  # 75 is EX_TEMPFAIL: run the same command again


@dataclass(frozen=True)
class Ending:
    """Exit status for the shell, and the line that explains it."""

    status: int
    line: str


class _Tail:
    """Copies what is appended to a log file to standard output.

    The processes write to the file itself rather than to a pipe of ours, so that they outlive this one.
    """

    def __init__(self, path: str):
        self._file = open(path, "rb")
        self._file.seek(0, os.SEEK_END)
        self.seen = b""

    def copy(self) -> None:
        chunk = self._file.read()
        if chunk:
            self.seen = (self.seen + chunk)[-65536:]
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()


def supervise(command: List[str], environ: Dict[str, str], log_path: str, lock_fd: Optional[int] = None) -> Ending:
    """Run *command* until it ends.

    The first SIGUSR1, SIGTERM or SIGINT asks the processes to save a checkpoint and stop; a second SIGINT or SIGTERM
    ends them at once.

    Args:
        command: what to start, in a session of its own.
        environ: its environment.
        log_path: file that its output is appended to.
        lock_fd: a locked file that the processes keep open, so that the lock lives as long as they do.
    """
    with tempfile.TemporaryDirectory(prefix="realformer-run-") as run_dir:
        stop_file, report = os.path.join(run_dir, "stop"), os.path.join(run_dir, "report.json")
        environ = dict(environ)
        environ[STOP_FILE_VARIABLE], environ[REPORT_VARIABLE] = stop_file, report
        # Slurm may signal every process of a job at once.  torchrun would answer SIGTERM by killing its children
        # after 30 seconds; they look after themselves.  (Read by torch >= 2.9; older ones always handle SIGTERM.)
        environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT,SIGHUP,SIGQUIT")
        with open(log_path, "ab") as log:
            tail = _Tail(log_path)
            child = subprocess.Popen(
                command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_ignore_stop_signals, pass_fds=() if lock_fd is None else (lock_fd,),
            )  # fmt: skip
        asked: List[str] = []

        def on_signal(number, frame):
            asked.append(signal.Signals(number).name)
            if len(asked) == 1:
                open(stop_file, "w").close()
                print(f"train: {asked[0]}: saving a checkpoint after the current update, then stopping", flush=True)
            elif number in (signal.SIGINT, signal.SIGTERM):
                print(f"train: second {asked[-1]}: ending the processes now", flush=True)
                os.killpg(child.pid, signal.SIGINT)

        previous = {s: signal.signal(s, on_signal) for s in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
        try:
            while child.poll() is None:
                tail.copy()
                time.sleep(0.1)
            tail.copy()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if os.path.exists(report):
            with open(report) as f:
                reason = json.load(f)["reason"]
            return Ending(STOPPED, f"stopped on {asked[0] if asked else reason} with its checkpoint saved; the same command resumes")
        if child.returncode == 0:
            return Ending(FINISHED, "training finished")
        return Ending(FAILED, _explain(child.returncode, tail.seen.decode("utf-8", "replace")))


def _ignore_stop_signals() -> None:
    """In the child, before exec: neither torchrun nor a worker still importing dies of a stop signal."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


# What a process says when it has only lost another one.
_LOST_PEER = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Timed out waiting|Socket|TCPStore|DistNetworkError|DistBackendError|NCCL|gloo"
)


def _explain(returncode: int, output: str) -> str:
    """One line for a failed run, from the exit status and the end of its log.

    When one process goes, its peers fail in the same instant, and torchrun names any of them as the first.  A cause
    is picked by what can only be a cause: a death by signal (but SIGABRT, which NCCL's watchdog sends to itself), then an
    error that does not speak of a lost peer, then SIGABRT, then the rest.
    """
    ended_by_torchrun = set(re.findall(r"Sending process (\d+) closing signal", output))
    found = re.findall(r"\(local_rank: (\d+)\)\s+exitcode\s+: -(\d+) \(pid: (\d+)\)", output)  # in torchrun's summary
    found += [(rank, number, pid) for number, rank, pid in re.findall(r"\(exitcode: -(\d+)\) local_rank: (\d+) \(pid: (\d+)\)", output)]
    killed = [(rank, number) for rank, number, pid in found if pid not in ended_by_torchrun]
    aborted = [entry for entry in killed if int(entry[1]) == signal.SIGABRT]
    killed = [entry for entry in killed if entry not in aborted]
    lines = re.findall(r"^(?:\[[^\]]*\]:)?train: (rank \d+: .*)$", output, re.M)
    own = [line for line in lines if not _LOST_PEER.search(line)]
    if killed or (aborted and not own):
        rank, number = (killed or aborted)[0]
        name = signal.Signals(int(number)).name
        hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
        return f"process {rank} was ended by {name}{hint}; the others were stopped. The same command resumes from the last checkpoint"
    if returncode < 0:
        return f"the training process was ended by {signal.Signals(-returncode).name}. The same command resumes from the last checkpoint"
    if own or lines:
        return f"{(own or lines)[0]}. After putting it right, the same command resumes from the last checkpoint"
    return f"the training command ended with status {returncode}; see the end of the log"
