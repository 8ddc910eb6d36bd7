"""Events of a question: progress of its search, and at last the answer or the error."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Final

from shardwright.errors import ResourceError, ShardwrightError
from shardwright.lazily_compiled_dataclass import dataclass

_BUG_HINT: Final = "this is a bug; the same command with --debug prints the traceback"
_MOST_LETTERS: Final = 400
"""Letters of an unexpected error's text that are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """Progress of a search.

    Args:
        text: name of the current work.
        done, total: finished parts and all parts; a total of 0 = unknown.
        best_s: seconds of the best plan so far; None = no plan yet.
        lower_s: lower bound of the step in seconds; None = not known yet.
        elapsed_s: seconds since the search began.
    """

    text: str
    done: int
    total: int
    best_s: float | None
    lower_s: float | None
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedQuestion:
    """The error that ended a question, with the exit code of the command line.

    Args:
        kind: class of the error.
        message, hint: a line each.
        exit_code: see `shardwright.errors`.
    """

    kind: str
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTexts:
    """The answer to a question, as the texts that the server sends.

    Args:
        document: JSON of the answer; of a plan or a simulation as in the file that ``-o`` writes,
            else as the command line prints it with ``--json``.
        page: HTML of a report or a guide; empty for other answers.
    """

    document: str
    page: str = ""


class TooManyQuestionsError(ResourceError):
    """More questions wait for a process than the server keeps."""


LastEvent = AnswerTexts | FailedQuestion
"""The last event of a question."""
Event = ProgressEvent | LastEvent
Events = AsyncGenerator[Event, None]
"""Events of a question in their order; closing the generator ends the search."""


def failed(error: Exception) -> FailedQuestion:
    """The event of an error; one outside the error tree is reported as a bug, on one line."""
    reported = (
        error
        if isinstance(error, ShardwrightError)
        else ShardwrightError(
            f"unexpected {type(error).__name__}: {error}"[:_MOST_LETTERS], hint=_BUG_HINT
        )
    )
    return FailedQuestion(
        kind=type(error).__name__,
        message=reported.message,
        hint=reported.hint,
        exit_code=reported.exit_code,
    )


def error_text(error: FailedQuestion) -> str:
    """JSON text of an error: ``{"error": {"kind", "message", "hint", "exit_code"}}``."""
    return json.dumps({"error": asdict(error)}, indent=1) + "\n"
