"""What a search tells about its question: progress, and at last an answer or an error."""

from __future__ import annotations

from shardwright.errors import ResourceError, ShardwrightError
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """Progress of a search.

    Args:
        text: name of the current work.
        done, total: finished parts and all parts; a total of 0 = unknown.
        best_s: seconds of the best plan so far; None = no plan yet.
        lower_s: seconds that no plan of the space is below; None = not known yet.
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
        document: the JSON that the command line prints with ``--json``.
        page: HTML of a report; empty for other answers.
    """

    document: str
    page: str = ""


class TooManyQuestionsError(ResourceError):
    """More questions wait for a process than the server keeps."""


Event = ProgressEvent | FailedQuestion | AnswerTexts
"""What is told about a question: its progress, and at last its answer or its error."""


def failed(error: ShardwrightError) -> FailedQuestion:
    """The event of an error of the error tree."""
    return FailedQuestion(
        kind=type(error).__name__,
        message=error.message,
        hint=error.hint,
        exit_code=error.exit_code,
    )
