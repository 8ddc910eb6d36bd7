"""Equal questions share one search and its answer; a search that nobody follows ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from shardwright.errors import ModelError
from shardwright.web.answer_event_types import (
    AnswerTexts,
    Event,
    Events,
    FailedQuestion,
    ProgressEvent,
    error_text,
)
from shardwright.web.answer_event_types import failed as event_of
from shardwright.web.shared_answers import SharedAnswers


def progress(text: str) -> ProgressEvent:
    return ProgressEvent(text=text, done=0, total=0, best_s=None, lower_s=None, elapsed_s=0.0)


class Searches:
    """Searches that go on when they are told to, and end with an event or an error."""

    def __init__(self, last: Event | Exception) -> None:
        self.last, self.begun, self.ended = last, 0, 0
        self.go_on = asyncio.Event()

    async def __call__(self, verb: str, body: Any) -> Events:
        self.begun += 1
        try:
            yield progress("one")
            await self.go_on.wait()
            if isinstance(self.last, Exception):
                raise self.last
            yield self.last
        finally:
            self.ended += 1


async def all_of(answers: SharedAnswers, digest: str) -> list[Event]:
    return [event async for event in answers.events(digest, "plan", None)]


ANSWER = AnswerTexts(document="{}")


def test_equal_questions_are_searched_once_and_kept() -> None:
    async def scenario() -> None:
        searches = Searches(ANSWER)
        answers = SharedAnswers(searches, cache_bytes=10_000)
        tasks = [asyncio.create_task(all_of(answers, "a")) for _ in range(5)]
        await asyncio.sleep(0)
        searches.go_on.set()
        assert await asyncio.gather(*tasks) == [[progress("one"), ANSWER]] * 5
        assert await all_of(answers, "a") == [ANSWER]
        assert answers.kept("a") == ANSWER
        assert searches.begun == searches.ended == 1
        assert await all_of(answers, "b") == [progress("one"), ANSWER]
        assert searches.begun == 2

    asyncio.run(scenario())


def test_one_who_leaves_ends_the_search_only_if_nobody_else_follows() -> None:
    async def scenario() -> None:
        searches = Searches(ANSWER)
        answers = SharedAnswers(searches, cache_bytes=10_000)
        first, second = (answers.events("a", "plan", None) for _ in range(2))
        assert await anext(first) == await anext(second) == progress("one")
        await first.aclose()
        assert searches.ended == 0
        await second.aclose()
        assert (searches.begun, searches.ended) == (1, 1)
        assert answers.kept("a") is None
        searches.go_on.set()
        assert await all_of(answers, "a") == [progress("one"), ANSWER]

    asyncio.run(scenario())


def test_one_who_reads_slowly_has_the_answer_too() -> None:
    """Also where it comes while an earlier event is being sent."""

    async def scenario() -> None:
        searches = Searches(ANSWER)
        events = SharedAnswers(searches, cache_bytes=10_000).events("a", "plan", None)
        assert await anext(events) == progress("one")
        searches.go_on.set()
        await asyncio.sleep(0.01)
        assert [event async for event in events] == [ANSWER]

    asyncio.run(scenario())


def test_an_unexpected_error_ends_the_question_of_all_who_follow() -> None:
    async def scenario() -> None:
        searches = Searches(ZeroDivisionError("a\nb"))
        searches.go_on.set()
        answers = SharedAnswers(searches, cache_bytes=10_000)
        both = asyncio.gather(*(all_of(answers, "a") for _ in range(2)))
        for events in await asyncio.wait_for(both, timeout=30):
            assert isinstance(events[-1], FailedQuestion)
            assert events[-1].message == "unexpected ZeroDivisionError: a b"
            assert events[-1].exit_code == 1
        assert answers.kept("a") is None

    asyncio.run(scenario())


def test_errors_have_the_form_of_the_command_line() -> None:
    document = json.loads(error_text(event_of(ModelError("a\nb", hint="c"))))
    assert document == {
        "error": {"kind": "ModelError", "message": "a b", "hint": "c", "exit_code": 3}
    }


def failed(exit_code: int) -> FailedQuestion:
    return FailedQuestion(kind="x", message="m", hint="h", exit_code=exit_code)


def test_errors_of_the_question_are_kept_and_those_of_the_machine_are_not() -> None:
    async def scenario() -> None:
        for exit_code, kept in ((6, True), (2, True), (10, False), (11, False), (1, False)):
            searches = Searches(failed(exit_code))
            searches.go_on.set()
            answers = SharedAnswers(searches, cache_bytes=10_000)
            for _ in range(2):
                assert (await all_of(answers, "a"))[-1] == failed(exit_code)
            assert searches.begun == (1 if kept else 2)

    asyncio.run(scenario())


def test_the_cache_is_bounded_and_drops_what_was_used_least_recently() -> None:
    async def scenario() -> None:
        searches = Searches(AnswerTexts(document="x" * 1000))
        searches.go_on.set()
        answers = SharedAnswers(searches, cache_bytes=3000)
        for digest in ("a", "b"):
            await all_of(answers, digest)
        await all_of(answers, "a")
        await all_of(answers, "c")
        assert [answers.kept(digest) is not None for digest in "abc"] == [True, False, True]

    asyncio.run(scenario())
