"""The line that says why a run ended: real torchrun jobs whose processes fail in every order."""

import os
import sys
import textwrap

import pytest

from realformer_nmt.launch.supervise import FAILED, supervise

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:59582: Connection reset by peer"


def job(tmp_path, bodies, name="job"):
    """Run one process for each piece of code in *bodies* (its index is its rank) under torchrun; return the ending."""
    script = tmp_path / f"{name}.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, pathlib, signal, sys, time
            here, rank = pathlib.Path(__file__).parent, int(os.environ["RANK"])
            def state(pid):
                return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
            def wait_for_the_end_of(other):
                path = here / f"{other}.pid"
                while not path.exists() or not path.read_text():
                    time.sleep(0.002)
                while state(path.read_text()) != "Z":
                    time.sleep(0.0005)
            def say(text):
                print(f"train: rank {rank}: {text}", file=sys.stderr, flush=True)
            def end(status=1):
                os._exit(status)
            (here / f"{rank}.pid").write_text(str(os.getpid()))
            """
        )
        + "\n".join(f"if rank == {rank}:\n" + textwrap.indent(body, "    ") for rank, body in enumerate(bodies))
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(bodies)}", str(script)]
    return supervise(command, dict(os.environ, OMP_NUM_THREADS="1"), str(tmp_path / "log"))


KILL = "os.kill(os.getpid(), signal.{})"
DIES = {
    # the processes, then what the line must say: the cause, not its echo in another process
    "a peer's connection error is seen first": (
        [f"wait_for_the_end_of(1); say({RESET!r}); end()", KILL.format("SIGKILL")],
        "process 1 was ended by SIGKILL",
    ),
    "the killed process is seen first": ([KILL.format("SIGKILL"), "time.sleep(60)"], "process 0 was ended by SIGKILL"),
    "a crash": ([f"wait_for_the_end_of(1); say({RESET!r}); end()", KILL.format("SIGSEGV")], "process 1 was ended by SIGSEGV"),
    "an error, and a watchdog that aborts because of it": (
        [
            "wait_for_the_end_of(1); " + KILL.format("SIGABRT"),
            "say('OutOfMemoryError: CUDA out of memory'); end()",
        ],
        "rank 1: OutOfMemoryError: CUDA out of memory",
    ),
    "only an abort": ([f"wait_for_the_end_of(1); say({RESET!r}); end()", KILL.format("SIGABRT")], "process 1 was ended by SIGABRT"),
    "an error and its echo": (
        [f"wait_for_the_end_of(1); say({RESET!r}); end()", "say('ValueError: the cause'); end()"],
        "rank 1: ValueError: the cause",
    ),
    "nothing but connection errors": ([f"say({RESET!r}); end()", "time.sleep(60)"], "rank 0: RuntimeError: [gloo"),
}


@pytest.mark.parametrize("case", DIES)
def test_the_line_names_the_cause(tmp_path, case):
    bodies, expected = DIES[case]
    ending = job(tmp_path, bodies)
    assert ending.status == FAILED
    assert ending.line.startswith(expected), ending.line
    assert "the same command resumes from the last checkpoint" in ending.line.lower()
