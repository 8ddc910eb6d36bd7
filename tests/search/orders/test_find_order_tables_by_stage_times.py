"""Found tables of general plans: they run, fit, meet, and are no longer than what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import IntArray
from shardwright.errors import InfeasibleError, StrategyError, UsageError
from shardwright.program.orders.deadlock_check import action_violations
from shardwright.program.orders.plan_action_rows import ActionRows, action_rows
from shardwright.program.orders.stage_device_sets_and_classes import participation
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.find_order_tables_by_stage_times import (
    find_order_tables,
    find_shared_action_rows,
)
from shardwright.search.orders.stage_times_and_bytes import StageTimes
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Stage
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.program.rows import Act, entries, peaks, plan_of, run_rows, stage, zoo
from tests.search.orders.replay import problem_of
from tests.strategy.zoo_models import encoders_and_llm
from tests.tiers import examples

SOME = examples(25, 200)
SEARCH = NamedOrder(schedule="table-search", lanes=("main",))
CHAIN_20 = (((0, 2), (1, 2), (2, 3), (3, 4)),)


def times(
    plan: Plan,
    *,
    limit: int | None = None,
    edges: Sequence[Sequence[tuple[int, int]]] | None = None,
    **given: object,
) -> StageTimes:
    """Times that are single or by stage; 1 where nothing is said, sends 0."""
    shape = (len(plan.lanes), max(len(lane.stages) for lane in plan.lanes))
    names = ("forward", "input", "weight", "send_forward", "send_backward", "held", "stash")
    plain = {name: 0 if name.startswith("send") else 1 for name in names}
    columns = {
        name: np.array(np.broadcast_to(np.asarray(value, np.int64), shape))
        for name, value in (plain | given).items()
    }
    return StageTimes(
        limit=None if limit is None else np.full(plan.devices, limit),
        edges=None if edges is None else tuple(map(tuple, edges)),
        **columns,
    )


def makespan(plan: Plan, rows: ActionRows, given: StageTimes) -> int:
    """The order run by hand."""

    def lasts(act: Act) -> int:
        whole = {
            "F": given.forward,
            "I": given.input,
            "W": given.weight,
            "B": given.input + given.weight,
        }
        return int(whole[act[0]][act[1], act[2]])

    def send(act: Act) -> int:
        return int((given.send_forward if act[0] == "F" else given.send_backward)[act[1], act[2]])

    return run_rows(plan, rows, edges=given.edges, lasts=lasts, send=send)


def kept(rows: ActionRows, given: StageTimes) -> list[int]:
    return peaks(
        rows,
        held=lambda a: int(given.held[a[1], a[2]]),
        stash=lambda a: int(given.stash[a[1], a[2]]),
    )


def check(plan: Plan, given: StageTimes, *, effort: float = 0.05) -> int:
    """Resolve, check that everything is done once by all devices of its stage and within the limit,
    and say when it ends."""
    found = find_order_tables(plan, times=given, effort=effort)
    assert find_order_tables(plan, times=given, effort=effort) == found
    assert all(isinstance(order, Table) for order in found.orders)
    assert all(
        [key for key, _ in order.rows] == sorted(key for key, _ in order.rows)
        for order in found.orders
        if isinstance(order, Table)
    )
    rows = action_rows(found)
    assert action_violations(found, rows, edges=given.edges) == ()
    count = Counter(
        (members[0], act)
        for members, row in zip(rows.devices, entries(rows), strict=True)
        for entry in row
        for act in entry
    )
    assert set(count.values()) == {1}
    take = participation(plan, lanes=range(len(plan.lanes)))
    expected: set[tuple[int, Act]] = set()
    for (lane, chunk), one in take.set_of.items():
        letters = "FIW" if given.weight[lane, chunk] else "FB"
        units = range(plan.lanes[lane].microbatches // plan.lanes[lane].stages[chunk].every)
        slices = range(max(1, len(plan.lanes[lane].slices)))
        first = [int(take.classes[r][0]) for r in take.members[one]]
        expected |= {
            (d, (k, lane, chunk, m, s))
            for d in first
            for k in letters
            for m in units
            for s in slices
        }
    assert set(count) == expected
    if given.limit is not None:
        assert max(kept(rows, given)) <= given.limit.min()
    ends = makespan(found, rows, given)
    assert ends >= 0
    return ends


def opened(plan: Plan, *, microbatches: int) -> Plan:
    """The plan with an order yet to be found."""
    (lane,) = plan.lanes
    return replace(
        plan,
        lanes=(replace(lane, microbatches=microbatches),),
        orders=(NamedOrder(schedule="table-search", lanes=(lane.name,)),),
    )


@pytest.mark.parametrize("limit", [None, 4, 8])
def test_vocabulary_over_all_devices(limit: int | None) -> None:
    """Plan 17: embedding and head on all devices, four blocks of layers on two each."""
    plan = opened(zoo("17-vocab-spread"), microbatches=16)
    given = times(
        plan,
        forward=[1, 10, 10, 10, 10, 2, 1],
        input=[0, 10, 10, 10, 10, 2, 1],
        weight=[1, 10, 10, 10, 10, 2, 0],
        send_forward=1,
        send_backward=1,
        limit=limit,
    )
    ends = check(plan, given, effort=0.3)
    busy = 16 * (30 + 2 + 6 + 2)
    assert busy <= ends
    if limit is None:
        assert ends <= 1.1 * busy


def test_encoders_that_run_at_once() -> None:
    """Plan 20: two encoders feed the language model, not one the other; the order is whole for its
    model."""
    plan, model = opened(zoo("20-vit-llm"), microbatches=8), encoders_and_llm()
    longest = [5, 3, 10, 10, 10]
    given = times(plan, forward=longest, input=longest, weight=longest, edges=CHAIN_20)
    ends = check(plan, given, effort=0.3)
    assert 8 * 30 <= ends <= 1.15 * 8 * 30
    single = replace(plan, lanes=(replace(plan.lanes[0], microbatches=1),))
    assert check(single, given) == 5 + 30 + 30 + 5 + 5
    assert check(single, replace(given, edges=None)) == 5 + 3 + 30 + 30 + 3 + 5 + 5
    assert (
        verify(find_order_tables(plan, times=given, effort=0.05), model=model, global_batch=32)
        == ()
    )


@st.composite
def overlapping(draw: st.DrawFn) -> tuple[Plan, StageTimes]:
    """One or two lanes of stages on any stretch of four devices, with numbers of any kind and room
    for two microbatches at least."""
    lanes: list[list[Stage]] = []
    for _ in range(draw(st.integers(1, 2))):
        bases = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        lanes.append([stage(base, devices=draw(st.integers(1, 4 - base))) for base in bases])
    microbatches = draw(st.integers(1, 4))
    slices = (1,) * draw(st.sampled_from((0, 0, 2)))
    names = ("main", "other")[: len(lanes)]
    plan = plan_of(
        lanes,
        NamedOrder(schedule="table-search", lanes=names),
        microbatches=microbatches,
        slices=slices,
    )
    shape = (len(lanes), max(map(len, lanes)))

    def numbers(low: int, high: int) -> IntArray:
        return np.array(
            draw(
                st.lists(
                    st.integers(low, high),
                    min_size=shape[0] * shape[1],
                    max_size=shape[0] * shape[1],
                )
            )
        ).reshape(shape)

    held = numbers(1, 3)
    room = int(held.sum()) * max(1, len(slices)) + draw(st.integers(0, 9))
    given = times(
        plan,
        forward=numbers(1, 9),
        input=numbers(0, 9),
        weight=numbers(0, 4),
        send_forward=numbers(0, 3),
        send_backward=numbers(0, 3),
        held=held,
        stash=np.minimum(held, numbers(0, 3)),
        limit=draw(st.sampled_from((None, room))),
    )
    return plan, given


@given(case=overlapping())
@SOME
def test_any_lanes(case: tuple[Plan, StageTimes]) -> None:
    """Stages that share any part of their devices, slices, two lanes: whole, runs, fits, and no
    longer than one action at a time."""
    plan, given = case
    ends = check(plan, given, effort=0.01)
    units = plan.lanes[0].microbatches * max(1, len(plan.lanes[0].slices))
    used = [
        (lane, chunk) for lane, one in enumerate(plan.lanes) for chunk in range(len(one.stages))
    ]
    total = sum(
        int(table[place])
        for place in used
        for table in (
            given.forward,
            given.input,
            given.weight,
            given.send_forward,
            given.send_backward,
        )
    )
    assert ends <= units * total


@given(case=overlapping(), data=st.data())
@SOME
def test_no_longer_than_any_named_schedule_that_fits(
    case: tuple[Plan, StageTimes], data: st.DataObject
) -> None:
    """On stages of one device each, looped, by the search of either kind."""
    given, ranks, each = case[1], data.draw(st.integers(1, 4)), 1
    if ranks == 2 and given.forward.shape[1] == 4:
        each = 2
    ranks = min(ranks, given.forward.shape[1])
    each = each if ranks * each <= given.forward.shape[1] else 1
    plan = plan_of(
        [[stage(c % ranks) for c in range(ranks * each)]],
        SEARCH,
        microbatches=case[0].lanes[0].microbatches,
    )
    first = replace(
        given,
        **{
            name: getattr(given, name)[:1]
            for name in (
                "forward",
                "input",
                "weight",
                "send_forward",
                "send_backward",
                "held",
                "stash",
            )
        },
    )
    take = participation(plan, lanes=(0,))
    # Without any effort there is one list schedule beside the named ones.
    by_list = makespan(
        plan, find_shared_action_rows(plan, lanes=(0,), take=take, times=first, effort=0.0), first
    )
    ends = (check(plan, first, effort=0.01), by_list)
    for name in SCHEDULES:
        try:
            rows = action_rows(replace(plan, orders=(NamedOrder(schedule=name, lanes=("main",)),)))
        except StrategyError:
            continue
        # The search knows no pairs: they are one action after the other.
        if rows.overlapped is None and (
            first.limit is None or max(kept(rows, first)) <= int(first.limit.min())
        ):
            assert max(ends) <= makespan(plan, rows, first), name


def brute(plan: Plan, given: StageTimes) -> int:
    """The earliest end over all sequences of all actions, by exhaustion."""
    take = participation(plan, lanes=(0,))
    stages = range(len(plan.lanes[0].stages))
    acts = [(k, c, m) for c in stages for m in range(plan.lanes[0].microbatches) for k in "FB"]
    rows = {c: take.members[take.set_of[0, c]] for c in stages}
    lasts = {"F": given.forward[0], "B": given.input[0]}
    best, seen = 2**60, set()

    def needs(k: str, c: int, m: int) -> list[tuple[str, int, int]]:
        if k == "F":
            return [("F", c - 1, m)] if c else []
        return [("F", c, m), *([("B", c + 1, m)] if c + 1 < len(stages) else [])]

    def step(end: dict[tuple[str, int, int], int], free: tuple[int, ...]) -> None:
        nonlocal best
        state = (frozenset(end.items()), free)
        left = [
            time
            + sum(
                int(lasts[act[0]][act[1]]) for act in acts if act not in end and r in rows[act[1]]
            )
            for r, time in enumerate(free)
        ]
        if max(left) >= best or state in seen:
            return
        seen.add(state)
        if len(end) == len(acts):
            best = max(free)
            return
        for act in acts:
            if act in end or any(need not in end for need in needs(*act)):
                continue
            mine = rows[act[1]]
            done = max([free[r] for r in mine] + [end[need] for need in needs(*act)]) + int(
                lasts[act[0]][act[1]]
            )
            step(end | {act: done}, tuple(done if r in mine else old for r, old in enumerate(free)))

    step({}, (0,) * len(take.classes))
    return best


@given(
    bases=st.lists(
        st.sampled_from(((0, 1), (1, 1), (0, 2), (1, 2), (2, 1))), min_size=2, max_size=3
    ),
    data=st.data(),
)
@examples(25)
def test_small_orders_are_the_best_there_are(
    bases: list[tuple[int, int]], data: st.DataObject
) -> None:
    microbatches = 3 if len(bases) == 2 else 2
    plan = plan_of(
        [[stage(base, devices=count) for base, count in bases]], SEARCH, microbatches=microbatches
    )
    forward, backward = (
        data.draw(st.lists(st.integers(1, 5), min_size=len(bases), max_size=len(bases)))
        for _ in "FB"
    )
    given = times(plan, forward=forward, input=backward, weight=0)
    take = participation(plan, lanes=(0,))
    assert makespan(
        plan, find_shared_action_rows(plan, lanes=(0,), take=take, times=given, effort=0.1), given
    ) == brute(plan, given)


def test_plain_pipelines_are_find_orders() -> None:
    """On one device a stage the table is that of the order search, keyed by devices wherever these
    lie."""
    plan = plan_of(
        [[stage(base, devices=2) for base in (6, 2, 0, 4)]],
        replace(SEARCH, parameters=(("seed", 3),)),
        microbatches=12,
    )
    given = times(
        plan,
        forward=[3, 4, 4, 6],
        input=[3, 4, 4, 7],
        weight=[2, 4, 4, 5],
        send_forward=1,
        send_backward=1,
        limit=2,
    )
    problem = problem_of(
        np.arange(4)[None],
        12,
        forward=given.forward,
        input=given.input,
        weight=given.weight,
        send=1,
        limit=2,
    )
    assert check(plan, given) == find_order(problem, effort=0.05, seed=3).makespan


def test_only_searches_are_replaced_unless_asked() -> None:
    plan = plan_of(
        [[stage(0), stage(1)]], NamedOrder(schedule="gpipe", lanes=("main",)), microbatches=4
    )
    given = times(plan)
    assert find_order_tables(plan, times=given) == plan
    assert isinstance(find_order_tables(plan, times=given, replace_named=True).orders[0], Table)


def test_several_orders_are_found_apart() -> None:
    plan = plan_of(
        [[stage(0), stage(1)], [stage(2)]],
        NamedOrder(schedule="table-search", lanes=("a", "b")),
        microbatches=3,
    )
    plan = replace(
        plan,
        orders=tuple(NamedOrder(schedule="table-search", lanes=(name,)) for name in ("b", "a")),
    )
    assert check(plan, times(plan)) == 1 + 3 * 3
    assert [order.lanes for order in find_order_tables(plan, times=times(plan)).orders] == [
        ("b",),
        ("a",),
    ]


def test_branches_are_ordered_by_what_feeds_what() -> None:
    """Stages 0 and 1 share a device; what 1 feeds is long, so that 1 goes first, which no chain
    allows."""
    plan = plan_of([[stage(0), stage(0), stage(1), stage(2)]], SEARCH, microbatches=1)
    given = times(
        plan, forward=[1, 1, 1, 10], input=[1, 1, 1, 10], weight=0, edges=(((0, 2), (1, 3)),)
    )
    assert check(plan, given) == 1 + 10 + 10 + 1


def test_encoders_with_larger_microbatches() -> None:
    """A stage that runs once for two microbatches."""
    lane = Lane(
        name="main", samples=4, microbatches=4, stages=(replace(stage(0), every=2), stage(1))
    )
    plan = Plan(devices=2, lanes=(lane,), orders=(SEARCH,))
    assert check(plan, times(plan, forward=[2, 1], input=[4, 2], weight=0)) >= 4 * 3 + 2 + 4


def test_refusals() -> None:
    plan = plan_of([[stage(0, devices=2), stage(0)]], SEARCH, microbatches=2)
    with pytest.raises(InfeasibleError):
        find_order_tables(plan, times=times(plan, limit=1), effort=0.01)
    for parameters in ((("effort", 2),), (("seed", "x"),)):
        with pytest.raises(StrategyError, match="seed"):
            find_order_tables(
                replace(plan, orders=(replace(SEARCH, parameters=parameters),)), times=times(plan)
            )
    with pytest.raises(UsageError, match="stash"):
        times(plan, held=1, stash=2)
    with pytest.raises(UsageError, match="forward"):
        times(plan, forward=-1)
    with pytest.raises(UsageError, match="input"):
        replace(times(plan), input=np.zeros((1, 3), np.int64))
