"""The process that answers one question: it waits for the question, answers it, and ends."""

from __future__ import annotations

import os
import signal
import time
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any, Final

from shardwright.progress_callback import SearchProgress
from shardwright.registry import load_target
from shardwright.search.search_time_limit import STOP
from shardwright.web.answer_event_types import LastEvent, ProgressEvent, failed
from shardwright.web.limit_process_memory_and_file_access import (
    limit_memory,
    only_open_files_of,
    out_of_memory,
)
from shardwright.web.server_limits import ServerLimits

ANSWER_FUNCTION: Final = "shardwright.web.answer_question:answer_question"
"""Function that answers; the server itself, which imports this module too, does not load it."""
_LEAST_INTERVAL_S: Final = 0.05
"""Seconds between two progress events that say nothing new about the best plan or its bound."""


class EventSender:
    """Progress callback that sends events through a pipe, the new ones at once, others seldom."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._start = connection, time.monotonic()
        self._sent_s = 0.0
        self._sent: tuple[str, float | None, float | None] = ("", None, None)

    def __call__(self, text: str, done: int, total: int) -> None:
        """Send a progress event, unless it says nothing new."""
        elapsed_s = time.monotonic() - self._start
        best_s = lower_s = None
        if isinstance(text, SearchProgress):
            best_s = text.best_s if text.best_s < inf else None
            lower_s = text.lower_s if 0 < text.lower_s < inf else None
        phase_and_numbers = (text.partition(":")[0], best_s, lower_s)
        is_new = phase_and_numbers != self._sent
        if not is_new and elapsed_s - self._sent_s < _LEAST_INTERVAL_S:
            return
        self._sent, self._sent_s = phase_and_numbers, elapsed_s
        self._connection.send(
            ProgressEvent(
                text=str(text),
                done=done,
                total=total,
                best_s=best_s,
                lower_s=lower_s,
                elapsed_s=elapsed_s,
            )
        )


def run_search_process(connection: Connection, folder: str, limits: ServerLimits) -> None:
    """Restrict this process, answer one question of the connection with events, and return.

    Args:
        connection: receives (verb, body), sends events; the last one is the answer or the error.
        folder: private folder of the question's files.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    limit_memory(limits.memory_bytes)
    only_open_files_of(Path(folder).resolve())
    try:
        verb, body = connection.recv()
    except EOFError:
        return
    timer = Timer(limits.question_s, STOP.set)
    timer.daemon = True
    timer.start()
    connection.send(_last_event(connection, verb, body, limits))
    connection.close()


def _last_event(connection: Connection, verb: str, body: Any, limits: ServerLimits) -> LastEvent:
    """Answer a question, sending its progress events; returns its answer or its error."""
    try:
        answer: LastEvent = load_target(ANSWER_FUNCTION)(
            verb, body, progress=EventSender(connection)
        )
        return answer
    except MemoryError:
        return failed(out_of_memory(limits.memory_bytes))
    except Exception as error:  # the one place of this process where nothing may escape
        return failed(error)
