"""Devices as coroutines in one process: matching, order, mismatches and deadlocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Post,
    Reduce,
    Reduction,
    Take,
    Task,
)
from shardwright.execute.transport.in_process_transport import run_in_process


def summed(
    device: int, group: tuple[int, ...], *, key: str = "s", reduction: Reduction = Reduction.SUM
) -> Task[list[float]]:
    total = yield Reduce(
        group=group,
        tensor=torch.tensor([float(device + 1), -float(device)]),
        key=key,
        reduction=reduction,
    )
    return total.tolist()  # type: ignore[union-attr, no-any-return]


def test_reductions_of_groups() -> None:
    assert run_in_process({d: summed(d, (0, 1, 2)) for d in range(3)}) == {
        d: [6.0, -3.0] for d in range(3)
    }
    assert run_in_process({d: summed(d, (0, 1, 2), reduction=Reduction.MAX) for d in range(3)}) == {
        d: [3.0, 0.0] for d in range(3)
    }


def test_an_exchange_gives_each_its_own() -> None:
    def task(device: int) -> Task[dict[int, list[int]]]:
        came = yield GroupExchange(
            group=(0, 1, 2),
            sends={
                other: torch.tensor([10 * device + other])
                for other in range(3)
                if other != (device + 1) % 3
            },
            receives={other: (1,) for other in range(3) if device != (other + 1) % 3},
            key="e",
            kind="all_to_all",
            elements=3,
        )
        return {other: tensor.tolist() for other, tensor in came.items()}  # type: ignore[union-attr]

    assert run_in_process({d: task(d) for d in range(3)}) == {
        d: {o: [10 * o + d] for o in range(3) if d != (o + 1) % 3} for d in range(3)
    }


def test_messages_of_one_key_come_in_order_and_a_post_never_waits() -> None:
    def giver() -> Task[None]:
        tensor = torch.zeros(2)
        for i in range(3):
            tensor += 1
            yield Post(to=1, tensor=tensor, key="m")
            yield Post(to=1, tensor=torch.tensor([float(i)]), key=("other", i))

    def taker() -> Task[list[float]]:
        result = []
        for i in reversed(range(3)):
            other = yield Take(source=0, shape=(1,), key=("other", i))
            one = yield Take(source=0, shape=(2,), key="m")
            result += [float(other[0]), float(one[0])]  # type: ignore[index]
        return result

    assert run_in_process({0: giver(), 1: taker()})[1] == [2.0, 1.0, 1.0, 2.0, 0.0, 3.0]


def test_a_deadlock_names_devices_and_what_they_wait_for() -> None:
    def crossed(first: str, second: str, device: int) -> Task[None]:
        yield Reduce(group=(0, 1), tensor=torch.zeros(1), key=(first, device))
        yield Reduce(group=(0, 1), tensor=torch.zeros(1), key=second)

    def alone() -> Task[None]:
        yield Take(source=0, shape=(1,), key="never")

    with pytest.raises(StrategyError) as caught:
        run_in_process({0: crossed("a", "b", 0), 1: crossed("b", "a", 1), 2: alone()})
    assert caught.value.rule == "run.deadlock"
    message = str(caught.value)
    assert "device 0 for 1 in all_reduce ('a', 0)" in message
    assert "device 1 for 0 in all_reduce ('b', 1)" in message
    assert "device 2 for message 'never' from device 0" in message
    assert "\n" not in message


def test_a_wait_for_a_device_that_is_done_is_a_deadlock() -> None:
    def done() -> Task[None]:
        yield Post(to=1, tensor=torch.zeros(1), key="a")

    def waits() -> Task[None]:
        yield Take(source=0, shape=(1,), key="b")

    with pytest.raises(StrategyError) as caught:
        run_in_process({0: done(), 1: waits()})
    assert caught.value.rule == "run.deadlock"


@pytest.mark.parametrize(
    "second",
    [
        Reduce(group=(0, 1), tensor=torch.zeros(3), key="k"),
        Reduce(group=(0, 1), tensor=torch.zeros(2, dtype=torch.float64), key="k"),
        Reduce(group=(0, 1), tensor=torch.zeros(2), key="k", reduction=Reduction.MAX),
        Reduce(group=(1, 0), tensor=torch.zeros(2), key="k"),
        Reduce(group=(0, 2), tensor=torch.zeros(2), key="k"),
    ],
)
def test_members_that_disagree(second: Reduce) -> None:
    def task(request: Reduce) -> Task[None]:
        yield request

    with pytest.raises(StrategyError) as caught:
        run_in_process(
            {0: task(Reduce(group=(0, 1), tensor=torch.zeros(2), key="k")), 1: task(second)}
        )
    assert caught.value.rule == "run.mismatch"


@pytest.mark.parametrize(
    ("sends", "receives"),
    [
        ({}, {0: (2,)}),
        ({0: torch.zeros(1)}, {}),
        ({0: torch.zeros(1)}, {0: (3,)}),
        ({0: torch.zeros(2)}, {0: (2,)}),
    ],
)
def test_exchanges_that_disagree(
    sends: dict[int, torch.Tensor], receives: dict[int, tuple[int, ...]]
) -> None:
    def task(given: dict[int, torch.Tensor], expected: dict[int, tuple[int, ...]]) -> Task[None]:
        yield GroupExchange(
            group=(0, 1), sends=given, receives=expected, key="k", kind="all_gather", elements=3
        )

    with pytest.raises(StrategyError) as caught:
        run_in_process({0: task({1: torch.zeros(2)}, {1: (1,)}), 1: task(sends, receives)})
    assert caught.value.rule == "run.mismatch"


def test_messages_of_the_wrong_shape_or_never_taken() -> None:
    def giver() -> Task[None]:
        yield Post(to=1, tensor=torch.zeros(2), key="m")

    def taker(*, shape: tuple[int, ...] | None) -> Task[None]:
        if shape is not None:
            yield Take(source=0, shape=shape, key="m")

    for shape, rule in (((3,), "run.mismatch"), (None, "run.untaken")):
        with pytest.raises(StrategyError) as caught:
            run_in_process({0: giver(), 1: taker(shape=shape)})
        assert caught.value.rule == rule


def test_an_error_of_a_task_says_where_and_ends_the_others() -> None:
    ended = []

    def fails() -> Task[None]:
        yield Post(to=1, tensor=torch.zeros(1), key="m")
        raise ValueError("no")

    def waits() -> Task[None]:
        try:
            yield Take(source=2, shape=(1,), key="n")
        finally:
            ended.append(1)

    with pytest.raises(ValueError, match="no") as caught:
        run_in_process({0: fails(), 1: waits()})
    assert caught.value.__notes__ == ["on device 0"]


def test_answers_belong_to_who_asked() -> None:
    def task(device: int) -> Task[float]:
        total = yield Reduce(group=(0, 1), tensor=torch.ones(1), key="a")
        total += device  # type: ignore[operator, assignment]
        again = yield Reduce(group=(0, 1), tensor=torch.ones(1), key="a")
        return float(total) + float(again)  # type: ignore[arg-type]

    assert run_in_process({d: task(d) for d in range(2)}) == {0: 4.0, 1: 5.0}


def test_the_trace_counts_tensors_and_says_what_the_device_did() -> None:
    trace = CommunicationRecord()

    def task(device: int) -> Task[None]:
        trace.doing[device] = "F0"
        yield Reduce(group=(0, 1, 2), tensor=torch.ones(4), key="a")
        if device == 0:
            yield Post(to=2, tensor=torch.ones(5, dtype=torch.float64), key="b")
        if device == 2:
            trace.doing[device] = "I0"
            yield Take(source=0, shape=(5,), key="b", dtype=torch.float64)

    run_in_process({d: task(d) for d in range(3)}, trace=trace)
    assert trace.elements() == {
        **{(d, "all_reduce", (0, 1, 2)): 4 for d in range(3)},
        (0, "send", (0, 2)): 5,
        (2, "receive", (0, 2)): 5,
    }
    assert [
        (r.device, r.sent, r.received, r.element, r.action) for r in trace.records if r.device != 1
    ] == [
        (0, 6, 6, 4, "F0"),
        (2, 6, 6, 4, "F0"),
        (0, 5, 0, 8, "F0"),
        (2, 0, 5, 8, "I0"),
    ]
