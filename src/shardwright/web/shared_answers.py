"""Answers that equal questions share: one search for all who ask at once, and a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.errors import OutOfTimeError, ResourceError, ShardwrightError
from shardwright.web.answer_event_types import Event, Events, FailedQuestion, LastEvent, failed

Search = Callable[[str, Any], Events]
"""Function from a verb and its body to the events of the answer."""
_NOT_KEPT: Final = frozenset(
    {ShardwrightError.exit_code, ResourceError.exit_code, OutOfTimeError.exit_code}
)
"""Exit codes of errors that the same question may not have again: of the server, not of it."""


@dataclass(slots=True)
class _Running:
    """A question that is being answered, with the events so far."""

    events: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the last event is there: the answer or the error."""
        return bool(self.events) and isinstance(self.events[-1], LastEvent)


class SharedAnswers:
    """Answers by the digest of their questions; a search that nobody follows any more is ended."""

    def __init__(self, search: Search, *, cache_bytes: int) -> None:
        self._search, self._cache_bytes = search, cache_bytes
        self._kept: OrderedDict[str, LastEvent] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[str, _Running] = {}

    def kept(self, digest: str) -> LastEvent | None:
        """Kept answer or error of a question, now the most recently used; None if there is none."""
        answer = self._kept.get(digest)
        if answer is not None:
            self._kept.move_to_end(digest)
        return answer

    async def events(self, digest: str, verb: str, body: Any) -> Events:
        """Yield a question's events: only the kept answer, or all of a shared or new search."""
        answer = self.kept(digest)
        if answer is not None:
            yield answer
            return
        running = self._running.get(digest)
        if running is None:
            running = self._running[digest] = _Running()
            running.task = asyncio.create_task(self._follow(digest, running, verb, body))
        running.followers += 1
        try:
            number = 0
            while True:
                while number < len(running.events):
                    number += 1
                    yield running.events[number - 1]
                if running.is_over:
                    return
                await running.changed.wait()
        finally:
            running.followers -= 1
            if not running.followers and not running.is_over:
                await self._cancel(digest, running)

    async def _cancel(self, digest: str, running: _Running) -> None:
        """Cancel the search of a question that nobody follows, and wait for its end."""
        self._running.pop(digest, None)
        if running.task is not None:
            running.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.wait({running.task}))

    async def _follow(self, digest: str, running: _Running, verb: str, body: Any) -> None:
        """Search and add each event for the followers; an exception is added as an error event."""
        events = self._search(verb, body)
        try:
            async for event in events:
                self._add(digest, running, event)
        except Exception as error:  # whatever ends the search, all who follow are told
            self._add(digest, running, failed(error))
        finally:
            await events.aclose()

    def _add(self, digest: str, running: _Running, event: Event) -> None:
        """Add an event and wake all followers; the last one ends the search and may be kept."""
        running.events.append(event)
        if isinstance(event, LastEvent):
            self._keep(digest, event)
            if self._running.get(digest) is running:
                del self._running[digest]
        running.changed.set()
        running.changed = asyncio.Event()

    def _keep(self, digest: str, last: LastEvent) -> None:
        """Keep an answer or lasting error; drop the least recently used beyond the cache size."""
        if isinstance(last, FailedQuestion) and last.exit_code in _NOT_KEPT:
            return
        self._kept[digest] = last
        self._kept_bytes += _size(last)
        while self._kept_bytes > self._cache_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= _size(dropped)


def _size(last: LastEvent) -> int:
    """Approximate bytes of an answer or error: the characters of its texts, and 256."""
    if isinstance(last, FailedQuestion):
        return len(last.message) + len(last.hint) + 256
    return len(last.document) + len(last.page) + 256
