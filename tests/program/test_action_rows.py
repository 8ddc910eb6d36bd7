"""Rows of actions: every schedule on a plan laid as it wants, tables, refusals, deadlocks, what
rows hold."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.program.orders.deadlock_check import action_violations
from shardwright.program.orders.plan_action_rows import ActionRows, action_rows
from shardwright.program.orders.rows_to_order_table import order_table_of_rows
from shardwright.program.orders.stage_device_sets_and_classes import participation
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import chunk_ranks
from shardwright.schedules.schedule_registry import SCHEDULES, schedule
from shardwright.strategy.plan.pipeline_order import Action, Kind, NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from tests.program.rows import devices, entries, peaks, plan_of, run_rows, stage, zoo
from tests.program.written import written_out
from tests.tiers import examples

SOME = examples(30, 400)
NAMES = sorted(SCHEDULES)
ARRAYS = ("row_start", "kind", "lane", "chunk", "microbatch", "slice", "overlapped")


def same(one: ActionRows, other: ActionRows) -> bool:
    return one.devices == other.devices and all(
        np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
        for name in ARRAYS
    )


@st.composite
def placed(draw: st.DrawFn) -> tuple[Plan, ActionTable, list[int], int]:
    """A plan laid as a schedule wants, its table, the rank of each row, devices a rank; ranks lie
    anywhere in the cluster."""
    rule = schedule(draw(st.sampled_from(NAMES)))
    ranks, each = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    microbatches, width = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    slices = draw(st.integers(1, 3)) if "slices" in getattr(rule, "options", ()) else 1
    extra = {"slices": slices} if slices > 1 else {}
    try:
        table = rule.table(
            num_ranks=ranks, chunks_per_rank=each, num_microbatches=microbatches, **extra
        )
    except StrategyError:
        assume(False)
        raise
    where = draw(st.permutations(range(ranks)))
    owner = chunk_ranks(rule.placement, num_ranks=ranks, chunks_per_rank=each)
    lanes = [[stage(where[rank] * width, devices=width) for rank in row] for row in owner.tolist()]
    order = NamedOrder(schedule=rule.name, lanes=("down", "up")[: len(lanes)])
    plan = plan_of(
        lanes, order, microbatches=microbatches, slices=(1,) * slices if slices > 1 else ()
    )
    return plan, table, sorted(range(ranks), key=lambda rank: where[rank]), width


@given(case=placed())
@SOME
def test_rows_of_a_named_order_are_the_rows_of_its_table(
    case: tuple[Plan, ActionTable, list[int], int],
) -> None:
    plan, table, turn, width = case
    rows = action_rows(plan)
    assert rows.devices == tuple(DeviceList.run(r * width, width) for r in range(len(turn)))
    for row, rank in enumerate(turn):
        mine, theirs = (
            slice(*rows.row_start[row : row + 2]),
            slice(*table.row_start[rank : rank + 2]),
        )
        for name in ARRAYS[1:]:
            here, there = getattr(rows, name), getattr(table, name)
            assert (here is None) == (there is None)
            assert here is None or np.array_equal(here[mine], there[theirs])
    assert action_violations(plan, rows) == ()
    assert run_rows(plan, rows) >= 0
    assert same(action_rows(written_out(plan)), rows)


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_laid(name: str) -> None:
    """On four ranks with as many chunks as it needs: none is left out above for want of a legal
    size, and peaks are the papers'."""
    rule = schedule(name)
    each = getattr(rule, "chunks_per_rank", 0) or 2
    owner = chunk_ranks(rule.placement, num_ranks=4, chunks_per_rank=each).tolist()
    lanes = [[stage(rank) for rank in row] for row in owner]
    plan = plan_of(
        lanes, NamedOrder(schedule=name, lanes=("down", "up")[: len(lanes)]), microbatches=8
    )
    known = rule.peak_in_flight(num_ranks=4, chunks_per_rank=each, num_microbatches=8)
    peaks_found = peaks(action_rows(plan), held=lambda _: 1, stash=lambda _: 1)
    assert len(peaks_found) == 4
    assert known is None or peaks_found == known.tolist(), (
        f"peak_in_flight of {name} differs from the peaks of its table"
    )


@pytest.mark.parametrize(
    "name",
    [
        "09-llama405b",
        "10-zb-v",
        "11-dualpipe",
        "11-dualpipe-v",
        "12-chimera",
        "13-terapipe",
        "16-unequal",
        "19-deepseek-v3",
        "21-seq1f1b-cp",
    ],
)
def test_zoo(name: str) -> None:
    """Each unit of each stage has its forward and its backward once, in the row of the stage's
    devices, and rows can be run."""
    plan = zoo(name)
    rows = action_rows(plan)
    row_of = {device: row for row, members in enumerate(rows.devices) for device in members}
    assert sum(map(len, rows.devices)) == len(row_of)
    count = Counter(
        (r, act) for r, row in enumerate(entries(rows)) for entry in row for act in entry
    )
    assert set(count.values()) == {1}
    expected = set()
    for lane, one in enumerate(plan.lanes):
        for chunk in range(len(one.stages)):
            members = devices(plan, lane, chunk)
            (row,) = {row_of[device] for device in members}
            assert set(rows.devices[row]) == members
            expected |= {
                (row, lane, chunk, m, s)
                for m in range(one.microbatches)
                for s in range(max(1, len(one.slices)))
            }
    assert {(r, *act[1:]) for r, act in count if act[0] == "F"} == expected
    assert {(r, *act[1:]) for r, act in count if act[0] in "IB"} == expected
    assert {(r, *act[1:]) for r, act in count if act[0] in "WB"} == expected
    assert action_violations(plan, rows) == ()
    assert same(action_rows(written_out(plan)), rows)


def test_chimera_of_the_zoo_is_its_text_and_the_schedule_with_a_lane_each_way() -> None:
    plan = zoo("12-chimera")
    assert entries(action_rows(plan))[0][:3] == [
        (("F", 0, 0, 0, 0),),
        (("F", 0, 0, 1, 0),),
        (("F", 1, 3, 0, 0),),
    ]
    named = replace(plan, orders=(NamedOrder(schedule="chimera", lanes=("down", "up")),))
    assert run_rows(plan, action_rows(named), lasts=lambda act: {"F": 1, "B": 2}[act[0]]) == 16


def test_lanes_are_numbered_as_in_the_plan() -> None:
    """An order may name its lanes in another order than the plan; several orders follow one
    another."""
    plan = zoo("11-dualpipe")
    turned = replace(plan, orders=(replace(plan.orders[0], lanes=("up", "down")),))
    rows = action_rows(turned)
    assert entries(rows)[0][0] == (("F", 0, 0, 0, 0),)
    assert same(action_rows(written_out(turned)), rows)
    unequal = action_rows(zoo("16-unequal"))
    assert tuple(map(tuple, unequal.devices)) == ((0, 1), (2, 3), (4,), (5,), (6,))
    assert [sorted(set(unequal.lane[unequal.row == r].tolist())) for r in range(5)] == [
        [0],
        [0],
        [1],
        [1],
        [2],
    ]


def row(*texts: str, lane: int = 0) -> tuple[Action, ...]:
    return tuple(
        Action(chunk=int(text[0]), kind=Kind(text[1]), microbatch=int(text[2]), lane=lane)
        for text in texts
    )


SPREAD = Table(lanes=("main",), rows=((0, row("0F0", "1F0", "1B0", "0B0")), (1, row("0F0", "0B0"))))


def spread(*, order: NamedOrder | Table = SPREAD) -> Plan:
    """A stage on devices 0 to 3, then one on device 0 alone."""
    return plan_of([[stage(0, devices=4), stage(0)]], order, microbatches=1)


def test_devices_that_take_part_in_the_same_stages_are_one_row() -> None:
    rows = action_rows(spread())
    assert tuple(map(tuple, rows.devices)) == ((0,), (1, 2, 3))
    assert order_table_of_rows(rows, plan=spread()) == SPREAD
    assert action_violations(spread(), rows) == ()


def one(name: str, *bases: int, lanes: tuple[str, ...] = ("main",), **more: object) -> Plan:
    order = NamedOrder(schedule=name, lanes=lanes, parameters=tuple(more.items()))  # type: ignore[arg-type]
    return plan_of([[stage(base) for base in bases]] * len(lanes), order, microbatches=4)


REFUSED = {
    "late": ("order.placement", one("1f1b", 0, 0, 1, 1)),
    "wave": ("order.placement", one("zb-v", 0, 1, 0, 1)),
    "looped": ("order.placement", one("interleaved-1f1b", 0, 1, 1, 0)),
    "odd": ("order.placement", one("interleaved-1f1b", 0, 1, 0)),
    "lanes": ("order.placement", one("1f1b", 0, 1, lanes=("a", "b"))),
    "same way": ("order.placement", one("dualpipe", 0, 1, 2, 3, lanes=("a", "b"))),
    "one lane": ("order.placement", one("dualpipe", 0, 1)),
    "overlap": ("order.placement", spread(order=NamedOrder(schedule="1f1b", lanes=("main",)))),
    "every": (
        "order.placement",
        plan_of(
            [[replace(stage(0), every=2)]],
            NamedOrder(schedule="1f1b", lanes=("main",)),
            microbatches=2,
        ),
    ),
    "chunks": ("order.chunks", one("1f1b", 0, 1, 0, 1)),
    "parameter": ("order.parameter", one("1f1b", 0, 1, group=2)),
    "text": ("order.parameter", one("interleaved-1f1b", 0, 1, group="two")),
    "sizes": ("order.parameter", one("1f1b", 0, 1, num_ranks=2)),
    "slices": ("order.parameter", one("terapipe", 0, 1, slices=2)),
    "search": ("order.schedule", one("table-search", 0, 1)),
    "unknown": ("order.schedule", one("2f2b", 0, 1)),
    "cut": (
        "order.parameter",
        plan_of(
            [[stage(0)]],
            NamedOrder(schedule="1f1b", lanes=("main",)),
            microbatches=2,
            slices=(1, 1),
        ),
    ),
    "rows": ("order.rows", spread(order=Table(lanes=("main",), rows=SPREAD.rows[:1]))),
    "row key": (
        "order.rows",
        spread(order=Table(lanes=("main",), rows=(SPREAD.rows[0], (2, SPREAD.rows[1][1])))),
    ),
    "chunk": (
        "order.actions",
        plan_of([[stage(0)]], Table(lanes=("main",), rows=((0, row("1F0")),)), microbatches=1),
    ),
    "microbatch": (
        "order.actions",
        plan_of([[stage(0)]], Table(lanes=("main",), rows=((0, row("0F1")),)), microbatches=1),
    ),
    "lane": (
        "order.lanes",
        replace(one("1f1b", 0), orders=(NamedOrder(schedule="1f1b", lanes=("other",)),)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    rule, plan = REFUSED[case]
    with pytest.raises(StrategyError) as caught:
        action_rows(plan)
    assert caught.value.rule == rule
    assert caught.value.path == "order 0"
    assert caught.value.hint or rule == "order.parameter" or case == "lane"


def test_unequal_lanes_are_refused() -> None:
    plan = zoo("11-dualpipe")
    for change in ({"microbatches": 10}, {"slices": (1, 1)}):
        with pytest.raises(StrategyError) as caught:
            action_rows(replace(plan, lanes=(plan.lanes[0], replace(plan.lanes[1], **change))))  # type: ignore[arg-type]
        assert caught.value.rule == "order.microbatches"


def test_a_deadlock_is_named() -> None:
    """Row 1 of Chimera runs one microbatch after the other before it turns to the other lane."""
    plan = zoo("12-chimera")
    order = plan.orders[0]
    assert isinstance(order, Table)
    greedy = (*row("1F0", "1B0", "1F1", "1B1"), *row("2F0", "2F1", "2B0", "2B1", lane=1))
    rows = tuple((key, greedy if key == 1 else actions) for key, actions in order.rows)
    wrong = replace(plan, orders=(replace(order, rows=rows),))
    (broken,) = action_violations(wrong, action_rows(wrong))
    assert broken.rule == "order.deadlock"
    assert broken.path == "row 0"
    assert broken.message == "device 0 waits for ever at up/3F0 for up/2F0"


def test_rows_that_meet_in_different_orders_deadlock() -> None:
    """Two stages on devices that overlap: the rows take two microbatches of the shared stage in
    different orders."""
    one = row("0F0", "0F1", "1F0", "1B0", "1F1", "1B1", "0B0", "0B1")
    table = Table(lanes=("main",), rows=((0, one), (1, row("0F1", "0F0", "0B0", "0B1"))))
    plan = plan_of([[stage(0, devices=2), stage(0)]], table, microbatches=2)
    (broken,) = action_violations(plan, action_rows(plan))
    assert (
        broken.message
        == "device 0 waits for ever at 0F0 for device 1, which never reaches this action"
    )


def test_a_pair_that_needs_itself_deadlocks() -> None:
    forward, backward = row("0F0", "0B0")
    plan = plan_of(
        [[stage(0)]], Table(lanes=("main",), rows=((0, ((forward, backward),)),)), microbatches=1
    )
    (broken,) = action_violations(plan, action_rows(plan))
    assert broken.message == "device 0 waits for ever at 0F0 for 0F0, which it runs together with"


@given(case=placed(), seed=st.integers(0, 2**31), moves=st.integers(1, 4))
@SOME
def test_deadlocks_are_found_exactly_where_a_walk_hangs(
    case: tuple[Plan, ActionTable, list[int], int], seed: int, moves: int
) -> None:
    plan = written_out(case[0])
    order, generator = plan.orders[0], random.Random(seed)
    assert isinstance(order, Table)
    rows = [list(row) for _, row in order.rows]
    for _ in range(moves):
        row = generator.choice(rows)
        i = generator.randrange(len(row))
        row.insert(min(len(row), max(0, i + generator.randint(-3, 3))), row.pop(i))
    changed = replace(
        plan,
        orders=(
            replace(
                order,
                rows=tuple(
                    (key, tuple(row)) for (key, _), row in zip(order.rows, rows, strict=True)
                ),
            ),
        ),
    )
    found = action_rows(changed)
    assert bool(action_violations(changed, found)) == (run_rows(changed, found) < 0)


def test_a_lone_weight_gradient_frees_and_a_forward_without_backward_is_not_held() -> None:
    """The first trained stage has no input gradient; a frozen one has no backward at all."""
    each = [
        row(*(text.replace("m", str(m)) for text in ("0Fm", "1Fm", "2Fm", "2Bm", "1Wm")))
        for m in range(2)
    ]
    plan = plan_of(
        [[stage(0)] * 3], Table(lanes=("main",), rows=((0, each[0] + each[1]),)), microbatches=2
    )
    rows = action_rows(plan)
    assert action_violations(plan, rows) == ()
    assert peaks(rows, held=lambda _: 1, stash=lambda _: 1) == [2]


HANGS = {
    "slice": (("0F0.1", "0F0.0", "0B0.1", "0B0.0"), 2, "0F0.1 for 0F0"),
    "slice back": (("0F0.0", "0F0.1", "0B0.0", "0B0.1"), 2, "0B0 for 0B0.1"),
    "recompute": (("0F0", "0B0", "0R0"), 0, "0B0 for 0R0"),
    "nothing to recompute": (("0R0", "0F0", "0B0"), 0, "0R0 for 0F0"),
    "lone weight gradient": (("0F0", "1F0", "0W0", "1B0"), 0, "0W0 for 1B0"),
    "weight gradient": (("0F0", "0W0", "0I0"), 0, "0W0 for 0I0"),
}


@pytest.mark.parametrize("case", HANGS)
def test_what_each_kind_waits_for(case: str) -> None:
    texts, slices, said = HANGS[case]
    actions = tuple(
        replace(one, slice=int(text[4:] or 0)) for one, text in zip(row(*texts), texts, strict=True)
    )
    stages = [stage(0)] * (1 + max(action.chunk for action in actions))
    plan = plan_of(
        [stages], Table(lanes=("main",), rows=((0, actions),)), microbatches=1, slices=(1,) * slices
    )
    (broken,) = action_violations(plan, action_rows(plan))
    assert broken.message == f"device 0 waits for ever at {said}"


@given(
    stages=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 2)), min_size=1, max_size=6
    )
)
@SOME
def test_classes_are_the_devices_with_the_same_stages(stages: list[tuple[int, int, int]]) -> None:
    plan = plan_of(
        [[stage(base, devices=n, step=step) for base, n, step in stages]],
        NamedOrder(schedule="1f1b", lanes=("main",)),
        microbatches=1,
    )
    found = participation(plan, lanes=(0,))
    takes: dict[int, frozenset[int]] = {}
    for chunk in range(len(stages)):
        for device in devices(plan, 0, chunk):
            takes[device] = takes.get(device, frozenset()) | {chunk}
    classes: dict[frozenset[int], list[int]] = {}
    for device in sorted(takes):
        classes.setdefault(takes[device], []).append(device)
    assert [list(one) for one in found.classes] == list(classes.values())
    for chunk in range(len(stages)):
        here = found.set_of[0, chunk]
        assert set(found.sets[here]) == devices(plan, 0, chunk)
        assert {d for row in found.members[here] for d in found.classes[row]} == devices(
            plan, 0, chunk
        )
    unlike = {frozenset(devices(plan, 0, chunk)) for chunk in range(len(stages))}
    assert found.disjoint == (sum(map(len, unlike)) == len(takes))


def test_trees_beside_the_first_device() -> None:
    """Plan 25: experts on devices of their own."""
    assert action_rows(zoo("25-afd")).devices == (DeviceList.run(0, 12),)


def test_stages_that_run_for_several_microbatches_are_waited_for_by_all() -> None:
    """An encoder runs once for two microbatches: its forward comes first, its backward last."""
    encoder = replace(stage(0), every=2)

    def plan(first: tuple[Action, ...], second: tuple[Action, ...]) -> Plan:
        return plan_of(
            [[encoder, stage(1)]],
            Table(lanes=("main",), rows=((0, first), (1, second))),
            microbatches=2,
        )

    good = plan(row("0F0", "0B0"), row("1F0", "1B0", "1F1", "1B1"))
    assert action_violations(good, action_rows(good)) == ()
    assert run_rows(good, action_rows(good)) == 6
    wrong = plan_of(
        [[encoder, stage(1), encoder]],
        Table(
            lanes=("main",),
            rows=((0, row("0F0", "2F0", "2B0", "0B0")), (1, row("1F0", "1B0", "1F1", "1B1"))),
        ),
        microbatches=2,
    )
    (broken,) = action_violations(wrong, action_rows(wrong))
    assert broken.message == "device 0 waits for ever at 2F0 for 1F1"
