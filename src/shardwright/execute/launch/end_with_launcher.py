"""Ranks end with the process that started them, however it ends: they hold the reading end of a
pipe that it alone writes to.
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
    """Signals that ask a run to end: Ctrl-C, a scheduler's, and the terminal's hangup (but not
    under ``nohup``).
    """
    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is None or signal.getsignal(hangup) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (hangup,)))


@contextmanager
def lifeline() -> Iterator[int]:
    """A descriptor for ranks to inherit, which reads as ended once this process is gone or has left
    the context.
    """
    reading, writing = os.pipe()  # neither is inherited unless it is passed on
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


def end_with_launcher(
    environment: Mapping[str, str], *, end: Callable[[int], object] = os._exit
) -> threading.Thread | None:
    """Watch, in a thread, the process that started this rank; None where it was not started by
    `launch`.

    What is under way is not finished: a checkpoint that is being made has no name yet, and the one
    before is whole.
    """
    number = environment.get(VARIABLE, "")
    if not number.isdigit():
        return None

    def watch() -> None:
        with suppress(OSError):  # no such descriptor: an environment that was handed on
            if os.read(int(number), 1) == b"":
                end(ORPHANED)

    thread = threading.Thread(target=watch, daemon=True, name="lifeline")
    thread.start()
    return thread
