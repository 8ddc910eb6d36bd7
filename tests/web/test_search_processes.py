"""Processes of questions: how many wait, and what ends them."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from shardwright.progress_callback import SearchProgress, beside
from shardwright.search.search_request import Request
from shardwright.web.answer_event_types import AnswerTexts, FailedQuestion, ProgressEvent
from shardwright.web.answer_event_types import TooManyQuestionsError as TooMany
from shardwright.web.answer_one_question_in_process import EventSender
from shardwright.web.question_bodies import PlanBody
from shardwright.web.search_processes import SearchProcesses
from shardwright.web.server_limits import ServerLimits
from tests.web.running_server import LONG, SMALL


def question(request: dict[str, Any]) -> PlanBody:
    return PlanBody.model_validate({"request": request})


def test_a_question_is_answered_and_leaves_no_file() -> None:
    async def scenario() -> None:
        processes = SearchProcesses(ServerLimits(workers=1))
        await processes.start()
        try:
            events = [event async for event in processes.events("plan", question(SMALL))]
        finally:
            folder = processes._folder
            left = [one for one in folder.rglob("*") if one.is_file()]
            await processes.close()
        assert isinstance(events[-1], AnswerTexts)
        assert json.loads(events[-1].document)["certificate"]["optimal"]
        assert all(isinstance(event, ProgressEvent) for event in events[:-1])
        assert left == []
        assert not folder.exists()

    asyncio.run(scenario())


def test_too_many_questions_are_refused_and_one_that_is_left_makes_room() -> None:
    async def scenario() -> None:
        processes = SearchProcesses(ServerLimits(workers=1, waiting=1))
        await processes.start()
        try:
            first = processes.events("plan", question(LONG))
            assert isinstance(await anext(first), ProgressEvent)
            second = asyncio.create_task(anext(processes.events("plan", question(SMALL))))
            await asyncio.sleep(0)
            with pytest.raises(TooMany, match="1 questions wait"):
                await anext(processes.events("plan", question(SMALL)))
            await first.aclose()
            assert isinstance(await second, ProgressEvent)
        finally:
            await processes.close()

    asyncio.run(scenario())


def test_a_search_beyond_its_time_and_grace_is_killed() -> None:
    async def scenario() -> None:
        limits = ServerLimits(workers=1, question_s=0.2, grace_s=0.1)
        processes = SearchProcesses(limits)
        await processes.start()
        try:
            *_, last = [event async for event in processes.events("plan", question(LONG))]
        finally:
            await processes.close()
        assert isinstance(last, FailedQuestion)
        assert last.exit_code == 11
        assert "takes longer" in last.message

    asyncio.run(scenario())


class Sent:
    """The end of a pipe that keeps what is sent."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def send(self, event: ProgressEvent) -> None:
        self.events.append(event)


def test_progress_has_the_numbers_of_the_search_and_says_nothing_twice() -> None:
    sent = Sent()
    tell = EventSender(sent)  # type: ignore[arg-type]
    inf = float("inf")
    tell(SearchProgress("refine", best_s=inf, lower_s=0.0), 0, 4)
    tell(SearchProgress("refine: gap", best_s=inf, lower_s=1.0), 0, 4)
    for done in range(50):
        tell(SearchProgress("refine: gap", best_s=2.0, lower_s=1.5), done, 4)
    tell(SearchProgress("refine: gap", best_s=2.0, lower_s=2.0), 1, 4)
    side = beside(tell, "another network")
    assert side is not None
    side(SearchProgress("refine: gap", best_s=9.0, lower_s=8.0), 1, 4)
    assert beside(None, "another network") is None
    told = [(event.text, event.best_s, event.lower_s) for event in sent.events]
    assert len(told) < 50
    assert list(dict.fromkeys(told)) == [
        ("refine", None, None),
        ("refine: gap", None, 1.0),
        ("refine: gap", 2.0, 1.5),
        ("refine: gap", 2.0, 2.0),
        ("another network: refine: gap", None, None),
    ]


def test_a_request_of_a_body_is_the_request_of_the_command_line() -> None:
    assert question(SMALL).request == Request(**SMALL)
    pins = {"pins": {"tp": ["4", "8"]}, "excludes": {"zero": ["3"]}}
    found = question({**SMALL, **pins}).request
    assert found.pins == (("tp", ("4", "8")),)
    assert found.excludes == (("zero", ("3",)),)
    assert os.sep not in found.model
