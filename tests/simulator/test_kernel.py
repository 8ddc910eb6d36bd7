"""The event kernel against slow references, and the invariances that folding relies on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright.kernel_compilation
from shardwright.simulator.kernel.event_kernel import SCALE, simulate
from tests.simulator.levels import peak_levels
from tests.simulator.paths import longest_path
from tests.tiers import examples

MANY = examples(25, 500)
FEW = examples(25, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """A case in plain lists: work, edges (before, after), uses (resource, weight) by task."""

    work: list[int]
    edges: list[tuple[int, int]]
    uses: list[list[tuple[int, int]]]
    num_resources: int

    def graph(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        after: list[list[int]] = [[] for _ in self.work]
        indegree = [0] * len(self.work)
        for first, second in self.edges:
            after[first].append(second)
            indegree[second] += 1
        start = np.cumsum([0, *map(len, after)])
        return (
            np.array(self.work, np.int64),
            np.array(indegree),
            start,
            np.array([t for row in after for t in row], np.int64),
        )

    def arguments(self) -> tuple[Any, ...]:
        flat = [use for row in self.uses for use in row]
        start = np.cumsum([0, *map(len, self.uses)])
        return (
            *self.graph(),
            start,
            np.array([r for r, _ in flat], int),
            np.array([w for _, w in flat], int),
            self.num_resources,
        )


@st.composite
def tasks(draw: st.DrawFn, *, largest_work: int = 40, largest_weight: int = 2 * SCALE) -> Tasks:
    count, num_resources = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    label = draw(st.permutations(range(count)))
    pairs = draw(
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2 * count)
    )
    weight = st.sampled_from([0, 1, SCALE // 3, SCALE // 2, SCALE, largest_weight]) | st.integers(
        0, largest_weight
    )
    use = st.tuples(st.integers(0, num_resources - 1), weight)
    return Tasks(
        work=draw(
            st.lists(st.just(0) | st.integers(0, largest_work), min_size=count, max_size=count)
        ),
        edges=[(label[a], label[b]) for a, b in sorted(pairs) if a < b],
        uses=draw(st.lists(st.lists(use, max_size=3), min_size=count, max_size=count)),
        num_resources=num_resources,
    )


def naive(case: Tasks, *, exact: bool) -> tuple[list[Fraction], list[Fraction]]:
    """The fluid rule, all running tasks looked at in every instant: in whole picoseconds, or
    `exact` in fractions."""
    count = len(case.work)
    left, since, slow = [Fraction(w) for w in case.work], [Fraction(0)] * count, [SCALE] * count
    start, finish = [Fraction(-1)] * count, [Fraction(-1)] * count
    due: dict[int, Fraction] = {}
    now = Fraction(0)
    while True:
        moving = True
        while moving:
            moving = False
            for task in [t for t, at in due.items() if at == now]:
                finish[task] = now
                del due[task]
                moving = True
            for task in range(count):
                if start[task] < 0 and all(
                    0 <= finish[a] <= now for a, b in case.edges if b == task
                ):
                    start[task] = since[task] = now
                    due[task] = now + case.work[task]
                    moving = True
        load = [0] * case.num_resources
        for task in due:
            for resource, weight in case.uses[task]:
                load[resource] += weight
        for task in due:
            slowest = max([SCALE, *(load[r] for r, _ in case.uses[task])])
            if slowest != slow[task]:
                progress = (now - since[task]) * SCALE / slow[task]
                left[task] -= progress if exact else progress.__floor__()
                since[task], slow[task] = now, slowest
                rest = left[task] * slowest / SCALE
                due[task] = now + (rest if exact else rest.__ceil__())
        if not due:
            return start, finish
        now = min(due.values())


@given(tasks())
@MANY
def test_agrees_with_the_naive_rule_in_whole_picoseconds(case: Tasks) -> None:
    start, finish, done = simulate(*case.arguments())
    expected_start, expected_finish = naive(case, exact=False)
    assert done == len(case.work)
    assert start.tolist() == expected_start
    assert finish.tolist() == expected_finish


@given(tasks(largest_work=10**9))
@FEW
def test_agrees_with_exact_fractions_but_for_rounding(case: Tasks) -> None:
    _, finish, _ = simulate(*case.arguments())
    _, expected = naive(case, exact=True)
    assert max(abs(a - b) for a, b in zip(finish.tolist(), expected, strict=True)) < 1000


@given(tasks(largest_work=10**16, largest_weight=64 * SCALE))
@FEW
def test_hours_of_work_do_not_overflow(case: Tasks) -> None:
    start, finish, _ = simulate(*case.arguments())
    expected_start, expected_finish = naive(case, exact=False)
    assert start.tolist() == expected_start
    assert finish.tolist() == expected_finish


@given(tasks())
@MANY
def test_never_earlier_than_the_longest_path(case: Tasks) -> None:
    start, finish, _ = simulate(*case.arguments())
    free_start, free_finish = longest_path(*case.graph())
    assert (start >= free_start).all()
    assert (finish >= free_finish).all()
    assert (finish - start >= np.array(case.work)).all()


@given(tasks(largest_weight=SCALE // 36))
@MANY
def test_equal_to_the_longest_path_when_nothing_is_overloaded(case: Tasks) -> None:
    light = [[(resource, weight % (SCALE // 36)) for resource, weight in row] for row in case.uses]
    case = Tasks(work=case.work, edges=case.edges, uses=light, num_resources=case.num_resources)
    start, finish, _ = simulate(*case.arguments())
    free_start, free_finish = longest_path(*case.graph())
    assert (start == free_start).all()
    assert (finish == free_finish).all()


@given(tasks(), st.randoms(use_true_random=False))
@MANY
def test_numbering_does_not_matter(case: Tasks, random: Random) -> None:
    count = len(case.work)
    task_label, resource_label = list(range(count)), list(range(case.num_resources))
    random.shuffle(task_label)
    random.shuffle(resource_label)
    old = {label: task for task, label in enumerate(task_label)}
    renamed = Tasks(
        work=[case.work[old[label]] for label in range(count)],
        edges=[(task_label[a], task_label[b]) for a, b in reversed(case.edges)],
        uses=[
            [(resource_label[r], w) for r, w in reversed(case.uses[old[label]])]
            for label in range(count)
        ],
        num_resources=case.num_resources,
    )
    start, finish, _ = simulate(*case.arguments())
    new_start, new_finish, _ = simulate(*renamed.arguments())
    assert (new_start[task_label] == start).all()
    assert (new_finish[task_label] == finish).all()


@given(tasks(), st.integers(2, 5))
@MANY
def test_one_task_of_k_times_the_weight_stands_for_k_copies(case: Tasks, copies: int) -> None:
    count = len(case.work)
    unfolded = Tasks(
        work=case.work * copies,
        edges=[(a + k * count, b + k * count) for a, b in case.edges for k in range(copies)],
        uses=case.uses * copies,
        num_resources=case.num_resources,
    )
    folded = Tasks(
        work=case.work,
        edges=case.edges,
        uses=[[(r, w * copies) for r, w in row] for row in case.uses],
        num_resources=case.num_resources,
    )
    start, finish, _ = simulate(*folded.arguments())
    many_start, many_finish, _ = simulate(*unfolded.arguments())
    assert (many_start.reshape(copies, count) == start).all()
    assert (many_finish.reshape(copies, count) == finish).all()


@given(st.lists(st.integers(10**6, 10**9), min_size=1, max_size=12), st.integers(0, 10**8))
@MANY
def test_work_is_conserved_on_a_full_resource(work: list[int], head: int) -> None:
    """Tasks that each fill one resource, the last of them from `head` on: as long as it is busy, it
    does one picosecond of work in one."""
    count = len(work)
    case = Tasks(
        work=[*work, head],
        edges=[(count, count - 1)],
        uses=[*([[(0, SCALE)]] * count), []],
        num_resources=1,
    )
    _, finish, _ = simulate(*case.arguments())
    total = work[-1] + max(sum(work[:-1]), head)
    assert 0 <= finish.max() - total <= 4 * count**2


def test_two_flows_share_a_link_as_by_hand() -> None:
    """Alone until 100, shared at half rate until the second is done at 300, then alone again: 100 +
    200 + 100."""
    case = Tasks(
        work=[300, 100, 100], edges=[(2, 1)], uses=[[(0, SCALE)], [(0, SCALE)], []], num_resources=1
    )
    start, finish, _ = simulate(*case.arguments())
    assert start.tolist() == [0, 100, 0]
    assert finish.tolist() == [400, 300, 100]


def test_a_task_without_work_disturbs_nobody() -> None:
    case = Tasks(
        work=[100, 50, 0], edges=[(1, 2)], uses=[[(0, SCALE)], [], [(0, SCALE)]], num_resources=1
    )
    start, finish, _ = simulate(*case.arguments())
    assert start.tolist() == [0, 0, 50]
    assert finish.tolist() == [100, 50, 50]


def test_deadlock_is_counted_and_does_not_hang() -> None:
    case = Tasks(
        work=[5, 5, 5, 5],
        edges=[(1, 2), (2, 1), (2, 3)],
        uses=[[(0, SCALE)], [(0, SCALE)], [], []],
        num_resources=1,
    )
    start, finish, done = simulate(*case.arguments())
    assert done == 1
    assert start.tolist() == [0, -1, -1, -1]
    assert finish.tolist() == [5, -1, -1, -1]
    assert [times.tolist() for times in longest_path(*case.graph())] == [
        [0, -1, -1, -1],
        [5, -1, -1, -1],
    ]


def test_nothing_to_do() -> None:
    case = Tasks(work=[], edges=[], uses=[], num_resources=0)
    start, finish, done = simulate(*case.arguments())
    assert (start.size, finish.size, done) == (0, 0, 0)


def test_a_graph_that_points_outside_is_refused() -> None:
    with pytest.raises(AssertionError):
        simulate([1], [0], [0, 1], [7], [0, 0], [], [], 1)
    with pytest.raises(AssertionError):
        simulate([1], [0], [0, 0], [], [0, 1], [3], [SCALE], 1)


def test_inputs_may_be_read_only_and_are_left_alone() -> None:
    case = Tasks(work=[3, 4], edges=[(0, 1)], uses=[[(0, SCALE)], [(0, SCALE)]], num_resources=1)
    arguments = case.arguments()
    for array in arguments[:-1]:
        array.flags.writeable = False
    assert simulate(*arguments)[1].tolist() == [3, 7]
    assert simulate(*arguments)[1].tolist() == [3, 7]


@pytest.fixture(scope="module")
def interpreted() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The kernels (events, longest path) as they are without numba."""
    names = [
        f"shardwright.simulator.kernel.{name}"
        for name in ("fixed_width_kernel_arguments", "task_heaps", "event_kernel", "longest_path")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardwright.kernel_compilation, "form", "python")
        patch.setattr(shardwright.kernel_compilation, "_numba", None)
        for name in names:
            patch.delitem(sys.modules, name)
        modules = [importlib.import_module(name) for name in names]
        yield modules[2], modules[3]


@given(case=tasks(largest_work=10**6))
@FEW
def test_the_same_integers_without_numba(
    interpreted: tuple[ModuleType, ModuleType], case: Tasks
) -> None:
    events, path = interpreted
    assert not hasattr(events.run_events, "py_func")
    assert not hasattr(path.longest_path, "py_func")
    for compiled_result, plain_result in zip(
        simulate(*case.arguments()), events.simulate(*case.arguments()), strict=True
    ):
        assert np.array_equal(np.asarray(compiled_result), np.asarray(plain_result))
    for compiled_result, plain_result in zip(
        longest_path(*case.graph()), longest_path(*case.graph(), module=path), strict=True
    ):
        assert np.array_equal(np.asarray(compiled_result), np.asarray(plain_result))


changes = st.lists(
    st.tuples(st.integers(-3, 6), st.integers(-9, 9), st.integers(0, 2)), max_size=30
)


@given(changes)
@MANY
def test_peak_levels_against_sorting(entries: list[tuple[int, int, int]]) -> None:
    expected = []
    for who in range(3):
        level = peak = 0
        for _, delta, _ in sorted((e for e in entries if e[2] == who), key=lambda e: (e[0], -e[1])):
            level += delta
            peak = max(peak, level)
        expected.append(peak)
    times, deltas, owner = ([e[column] for e in entries] for column in range(3))
    assert peak_levels(times, deltas, owner, 3).tolist() == expected


def test_allocations_come_before_frees_of_the_same_instant() -> None:
    assert peak_levels([0, 5, 5], [10, -10, 10], [0, 0, 0], 1).tolist() == [20]
