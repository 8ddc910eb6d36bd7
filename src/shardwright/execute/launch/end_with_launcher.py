"""Ranks end when the process that started them ends, detected by a pipe that closes.

Ranks hold the reading end; only the launcher holds the writing end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

VARIABLE = "SHARDWRIGHT_ALIVE"
"""Environment variable: the descriptor that a rank watches."""
ORPHANED = 1


def end_signals() -> tuple[signal.Signals, ...]:
    """Signals that ask a run to end: Ctrl-C, SIGTERM, and hangup (but not under ``nohup``)."""
    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is None or signal.getsignal(hangup) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (hangup,)))


@contextmanager
def lifeline() -> Iterator[int]:
    """Context manager: read end of a pipe whose write end closes with the context or process."""
    reading, writing = os.pipe()  # neither is inherited unless it is passed on
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


def end_with_launcher(
    environment: Mapping[str, str], *, end: Callable[[int], object] = os._exit
) -> threading.Thread | None:
    """Start a thread that ends this rank when its launcher ends; None if no launcher started it.

    The rank ends at once: an unfinished checkpoint has no final name yet, and the checkpoint before
    is complete.
    """
    number = environment.get(VARIABLE, "")
    if not number.isdigit():
        return None

    def watch() -> None:
        """Wait for the end of the pipe, then end this rank."""
        with suppress(OSError):  # no such descriptor: an environment that was handed on
            if os.read(int(number), 1) == b"":
                end(ORPHANED)

    thread = threading.Thread(target=watch, daemon=True, name="lifeline")
    thread.start()
    return thread
