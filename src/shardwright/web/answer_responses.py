"""HTTP responses with the answer to a question: JSON, a page, or a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from fastapi import Response

from shardwright.web.answer_event_types import (
    Event,
    Events,
    FailedQuestion,
    LastEvent,
    ProgressEvent,
    TooManyQuestionsError,
    error_text,
)
from shardwright.web.request_guard import Receive, Scope, Send

STATUS: Final[Mapping[int, int]] = {
    1: 500,
    2: 400,
    3: 422,
    4: 422,
    5: 422,
    6: 422,
    7: 422,
    8: 422,
    10: 413,
    11: 408,
}
"""HTTP status of each exit code of an error; 1 is a bug."""
REPORT_POLICY: Final = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)
"""Content security policy of a report: its own scripts alone, in an origin of its own."""
_HEARTBEAT_S: Final = 10.0
"""Seconds after which an empty comment keeps a silent stream open."""


def status_of(failed: FailedQuestion) -> int:
    """HTTP status of a failed question: 429 for too many questions, else by its exit code."""
    return 429 if failed.kind == TooManyQuestionsError.__name__ else STATUS[failed.exit_code]


def error_response(
    error: FailedQuestion,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """JSON response of an error; its HTTP status is `status_of` the error unless given.

    Args:
        status: HTTP status; None = that of the exit code.
    """
    return Response(
        error_text(error),
        status_code=status_of(error) if status is None else status,
        media_type="application/json",
        headers=headers,
    )


def response_of(last: LastEvent, *, as_page: bool = False) -> Response:
    """Response of a last event: its error, its HTML page if wanted and there, else its JSON."""
    if isinstance(last, FailedQuestion):
        return error_response(last)
    if as_page and last.page:
        return Response(
            last.page,
            media_type="text/html; charset=utf-8",
            headers={
                "content-security-policy": REPORT_POLICY,
                "cross-origin-opener-policy": "unsafe-none",  # a sandboxed page cannot have one
            },
        )
    return Response(last.document, media_type="application/json")


class AnswerResponse(Response):
    """Response that waits for the last event of an answer, and ends when its client is gone."""

    def __init__(self, events: Events, *, as_page: bool = False) -> None:
        super().__init__()
        self._events, self._as_page = events, as_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the answer and send it."""

        async def answer() -> None:
            """Send the response of the last event; progress events are skipped."""
            async for event in self._events:
                if not isinstance(event, ProgressEvent):
                    await response_of(event, as_page=self._as_page)(scope, receive, send)

        await _until_gone(answer(), self._events, receive)


class EventStream(Response):
    """Response with the events of an answer as server-sent events.

    ``progress`` has the fields of `ProgressEvent`, ``answer`` the document with the digest of the
    question as its id, ``error`` the error document.
    """

    def __init__(self, events: Events, *, digest: str) -> None:
        super().__init__()
        self._events, self._digest = events, digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the last one, or until the client is gone."""
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
            }
        )

        async def write(text: str) -> None:
            """Send a text as a part of the response body, with more to follow."""
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async def stream() -> None:
            """Send each event as it comes, comments while none comes, and the body's end."""
            beats = asyncio.create_task(_beat(write))
            try:
                await write(": the answer follows\n\n")
                async for event in self._events:
                    await write(event_text(event, digest=self._digest))
            finally:
                beats.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await _until_gone(stream(), self._events, receive)


async def _beat(write: Any) -> None:
    """Write an empty server-sent comment every `_HEARTBEAT_S` seconds until cancelled."""
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        await write(":\n\n")


def event_text(event: Event, *, digest: str) -> str:
    """Server-sent text of an event; an answer is without its page and has `digest` as its id."""
    if isinstance(event, ProgressEvent):
        return _event("progress", json.dumps(asdict(event)))
    if isinstance(event, FailedQuestion):
        return _event("error", error_text(event))
    return f"id: {digest}\n" + _event("answer", event.document)


def _event(name: str, data: str) -> str:
    """Text of an event; each line of its data has its own prefix."""
    lines = "".join(f"data: {line}\n" for line in data.rstrip("\n").split("\n"))
    return f"event: {name}\n{lines}\n"


async def _until_gone(answer: Coroutine[Any, Any, None], events: Events, receive: Receive) -> None:
    """Run `answer` until it ends or the client disconnects; then cancel it and close `events`."""

    async def gone() -> None:
        """Wait until the client closes the connection."""
        while (await receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.create_task(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answering, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task
        await events.aclose()
