"""Launch of a run's ranks as processes on this machine, which are watched and stopped together.

Needs no PyTorch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from shardwright.errors import ShardwrightError, StrategyError
from shardwright.execute.launch.end_with_launcher import VARIABLE, end_signals, lifeline

FOLDER = "SHARDWRIGHT_LAUNCH"
"""Environment variable: the folder in which a started rank writes its error."""
POLL_S = 0.05
GRACE_S = 5.0
"""Seconds that other ranks have to end by themselves once one has failed."""
PEER = "run.peer"
LAST = 500
"""Maximum characters of the last output line of a rank that ended without a reported error."""
INTERRUPTED = 130


def is_rank(environment: Mapping[str, str]) -> bool:
    """True if this process is a rank that `torchrun` or `start_ranks` started."""
    return {"RANK", "WORLD_SIZE"} <= environment.keys()


def start_ranks(words: Sequence[str], *, ranks: int) -> int:
    """Run ``shardwright words`` as `ranks` processes: 0, or 130 if interrupted; raise if one fails.

    Rank 0 writes to this process's output. An interrupt (Ctrl-C), or the end of the terminal, is
    passed on: ranks end after their current step, and at once after a second interrupt. When a rank
    fails, the others have `GRACE_S` seconds to end; when this process is killed, all ranks end.

    Raises:
        ShardwrightError: the first rank's own error; run.peer if a rank was killed.
    """
    with TemporaryDirectory(prefix="shardwright-") as name, lifeline() as alive:
        folder, port = Path(name), _free_port()
        processes = [
            _start_rank(words, rank=rank, ranks=ranks, port=port, folder=folder, alive=alive)
            for rank in range(ranks)
        ]
        try:
            with _forward_interrupts(processes):
                failed = _wait_for_ranks(processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if failed:
            raise _first_cause(failed, processes, folder)
        return max(process.returncode for process in processes)


def _start_rank(
    words: Sequence[str], *, rank: int, ranks: int, port: int, folder: Path, alive: int
) -> subprocess.Popen[bytes]:
    """Start ``shardwright words`` as one rank: a process with torchrun's environment variables."""
    rank_variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        VARIABLE: alive,
    }
    # Threads of ranks that share cores would wait for each other.
    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // ranks, 1))}
    environment = {
        **threads,
        **os.environ,
        **{key: str(value) for key, value in rank_variables.items()},
        FOLDER: str(folder),
    }
    with _error_output_path(folder, rank).open("wb") as error_output:
        # A session of its own: an interrupt of the terminal reaches only this process, which
        # passes it on once.
        return subprocess.Popen(
            [sys.executable, "-m", "shardwright", *words],
            env=environment,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else error_output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(alive,),
        )


def _error_output_path(folder: Path, rank: int) -> Path:
    """The file that receives the error output of a rank other than the first."""
    return folder / f"said-{rank}"


def _free_port() -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        port: int = bound_socket.getsockname()[1]
        return port


@contextmanager
def _forward_interrupts(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Context manager in which Ctrl-C, SIGTERM and hangup are sent on to all ranks."""

    def pass_on(number: int, _: FrameType | None) -> None:
        """Send the received signal to each rank that still runs."""
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in end_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait_for_ranks(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for all ranks, `GRACE_S` after a failure: failed ranks (not 0 or 130) in order found."""
    failed: list[int] = []
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if process.poll() not in (None, 0, INTERRUPTED) and rank not in failed:
                failed.append(rank)
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return failed + [
        r
        for r, p in enumerate(processes)
        if r not in failed and p.poll() not in (None, 0, INTERRUPTED)
    ]


def _first_cause(
    failed: Sequence[int], processes: Sequence[subprocess.Popen[bytes]], folder: Path
) -> ShardwrightError:
    """Error of failed ranks: of one that reported none, else the first that is not about a peer."""
    reported = {rank: read_error(folder, rank) for rank in failed}
    for rank in failed:
        code = processes[rank].returncode
        if reported[rank] is None:
            last = (
                _error_output_path(folder, rank)
                .read_text(errors="replace")
                .strip()
                .rpartition("\n")[2][:LAST]
            )
            ending = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with exit code {code}{last and f': {last}'}"
            )
            return StrategyError(
                f"rank {rank} {ending}",
                hint="run again: it goes on from the last checkpoint",
                rule=PEER,
            )
    errors = [error for error in reported.values() if error is not None]
    return next((e for e in errors if PEER not in e.message), errors[0])


def write_error(error: ShardwrightError, environment: Mapping[str, str]) -> bool:
    """Write this rank's error to the launcher's folder; False if not started by `start_ranks`."""
    if FOLDER not in environment:
        return False
    text = json.dumps({"message": error.message, "hint": error.hint, "code": error.exit_code})
    (Path(environment[FOLDER]) / f"rank-{environment['RANK']}").write_text(text)
    return True


def read_error(folder: Path, rank: int) -> ShardwrightError | None:
    """Read the error that a rank wrote to the folder; None if there is none."""
    try:
        report = json.loads((folder / f"rank-{rank}").read_text())
    except (OSError, ValueError):
        return None
    error = ShardwrightError(report["message"], hint=report["hint"])
    error.exit_code = report["code"]
    return error
