"""What a device begins beside its own task runs one behind another, sees what was asked before, and
is waited for."""

from __future__ import annotations

from collections.abc import Generator
from threading import Event as Flag
from threading import current_thread
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.transport.communication_requests import (
    Begin,
    End,
    Post,
    Reduce,
    Request,
    Task,
    answer_requests,
    begin_side_task,
    end_side_task,
)
from shardwright.execute.transport.run_side_tasks_in_turn import side_tasks_in_turn
from shardwright.execute.transport.run_side_tasks_on_stream_or_thread import (
    StreamSideTasks,
    ThreadSideTasks,
)


def asks(*keys: str) -> Task[list[Any]]:
    """A reduction under each key; their answers."""
    found = []
    for key in keys:
        found.append((yield Reduce(group=(0, 1), tensor=torch.zeros(1), key=key)))
    return found


def key_of(request: Request) -> Any:
    assert isinstance(request, Reduce)
    return request.key


def test_tasks_of_a_thread_run_one_behind_another_while_their_device_goes_on() -> None:
    asides, go, order = ThreadSideTasks(name="beside"), Flag(), []

    def answers(request: Request) -> Any:
        if key_of(request) == "a":
            go.wait()
        order.append((key_of(request), current_thread().name))
        return key_of(request)

    first, second = asides.begin(asks("a", "b"), answers), asides.begin(asks("c"), answers)
    assert order == [], "the device goes on before the first is answered"
    go.set()
    assert asides.end(second) == ["c"]
    assert asides.end(first) == ["a", "b"]
    assert order == [(key, "beside") for key in "abc"]
    asides.close()


def test_an_error_is_of_who_waits_and_tasks_behind_it_run() -> None:
    asides = ThreadSideTasks(name="beside")

    def answers(request: Request) -> Any:
        if key_of(request) == "bad":
            raise StrategyError("gone", rule="run.peer")
        return 1

    bad, good = asides.begin(asks("bad"), answers), asides.begin(asks("good"), answers)
    with pytest.raises(StrategyError, match="gone"):
        asides.end(bad)
    assert asides.end(good) == [1]
    asides.close()


def test_messages_have_no_place_beside() -> None:
    asides = ThreadSideTasks(name="beside")

    def posts() -> Task[None]:
        yield Post(to=1, tensor=torch.zeros(1), key="m")

    with pytest.raises(AssertionError, match="no communicator beside"):
        asides.end(asides.begin(posts(), key_of))
    asides.close()


class Events:
    """CUDA's streams and events, which say what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.current = "main"

    def stream_of(self, name: str) -> Any:
        events = self

        class Stream:
            def wait_stream(self, other: Any) -> None:
                events.asked.append(f"{name} waits for {other.name}")

            def wait_event(self, event: Any) -> None:
                events.asked.append(f"{name} waits for the event")

            def __enter__(self) -> None:
                events.current = name

            def __exit__(self, *error: object) -> None:
                events.current = "main"

        stream = Stream()
        stream.name = name  # type: ignore[attr-defined]
        return stream

    def event(self) -> Any:
        events = self

        class Event:
            def record(self, stream: Any) -> None:
                events.asked.append(f"event on {stream.name}")

        return Event()


def test_a_stream_waits_for_what_was_asked_before_and_who_ends_for_the_stream() -> None:
    events = Events()
    main = events.stream_of("main")
    with (
        patch.object(torch.cuda, "Stream", lambda on: events.stream_of("beside")),
        patch.object(torch.cuda, "Event", events.event),
        patch.object(torch.cuda, "stream", lambda stream: stream),
        patch.object(torch.cuda, "current_stream", lambda on: main),
    ):
        asides = StreamSideTasks(torch.device("cuda"))
        begins = asides.begin(
            asks("a", "b"),
            lambda request: events.asked.append(f"{key_of(request)} on {events.current}"),
        )
        events.asked.append("main goes on")
        assert asides.end(begins) == [None, None]
    assert events.asked == [
        *("beside waits for main", "a on beside", "b on beside", "event on beside"),
        *("main goes on", "main waits for the event"),
    ]


@pytest.mark.parametrize("late", [False, True])
def test_where_one_thing_runs_behind_another_a_task_has_one_place(late: bool) -> None:
    def device() -> Task[tuple[list[Any], Any]]:
        beside = yield from begin_side_task(asks("a", "b"), late=late)
        own = yield Reduce(group=(0, 1), tensor=torch.zeros(1), key="own")
        found = yield from end_side_task(beside)
        assert (yield from end_side_task(beside)) == found, "it runs once"
        return found, own

    order = []

    def by(request: Request) -> Generator[Request, Any, Any]:
        assert not isinstance(request, Begin | End)
        order.append(key_of(request))
        return key_of(request)
        yield

    with pytest.raises(StopIteration) as end:
        next(answer_requests(side_tasks_in_turn(device()), by))
    assert end.value.value == (["a", "b"], "own")
    assert order == (["own", "a", "b"] if late else ["a", "b", "own"])
