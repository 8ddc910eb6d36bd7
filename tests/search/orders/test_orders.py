"""Order search: what it returns runs, fits, and is as good as it says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InfeasibleError, UsageError
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.schedules.action_table_to_csv import format_csv
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.search.orders.find_and_unroll_repeating_action_blocks import repetends, unroll
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.found_order import (
    CodedOrder,
    codes_of_table,
    evaluate_order,
    table_of_codes,
)
from shardwright.search.orders.list_scheduling import deeper_chunk_bytes, list_schedule
from shardwright.search.orders.makespan_lower_bounds import order_bounds
from shardwright.search.orders.named_schedules_with_same_placement import named_tables
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays
from tests.schedules.csv_reader import parse_csv
from tests.search.orders.replay import chain, problem_of, problems, replay
from tests.tiers import examples, seeds

SOME = examples(25, 300)


@given(problem=problems())
@SOME
def test_found_orders_run_fit_and_are_no_worse_than_any_named(problem: OrderProblem) -> None:
    found = find_order(problem, effort=0.02)
    makespan, peaks = replay(problem, found.table)
    assert makespan == found.makespan
    assert tuple(peaks) == found.peak
    assert (np.array(peaks) <= problem.limit).all()
    assert found.classical_bound <= found.lower_bound <= found.makespan
    for name, table in named_tables(problem):
        theirs, kept = replay(problem, table)
        assert found.makespan <= theirs or (np.array(kept) > problem.limit).any(), name


def orders_of_two_microbatches() -> list[tuple[tuple[str, int], ...]]:
    """All rows of two microbatches in which F, I and W of each stand in this order: 20, overtaking
    allowed."""
    rows: list[tuple[tuple[str, int], ...]] = [()]
    for _ in range(6):
        rows = [
            (*row, ("FIW"[done], k))
            for row in rows
            for k in (0, 1)
            if (done := sum(1 for _, other in row if other == k)) < 3
        ]
    return rows


def brute(problem: OrderProblem, rows: list[tuple[tuple[str, int], ...]]) -> int:
    """The earliest end over all combinations of rows of a chain with one chunk a rank."""
    fitting = []
    for c in range(problem.ranks):
        held, stash = int(problem.held[0, c]), int(problem.stash[0, c])
        step = {"F": held, "I": stash - held, "W": -stash}
        fitting.append(
            [
                row
                for row in rows
                if np.cumsum([step[letter] for letter, _ in row]).max() <= problem.limit[c]
            ]
        )
    times = {
        "F": problem.forward[0].tolist(),
        "I": problem.input[0].tolist(),
        "W": problem.weight[0].tolist(),
    }
    ahead, behind = problem.send_forward[0].tolist(), problem.send_backward[0].tolist()
    best = 2**60
    for combination in product(*fitting):
        end: dict[tuple[str, int, int], int] = {}
        at, free, moving = [0] * problem.ranks, [0] * problem.ranks, True
        while moving:
            moving = False
            for c, row in enumerate(combination):
                while at[c] < len(row):
                    letter, k = row[at[c]]
                    arrived = 0
                    if letter == "F" and c:
                        arrived = (
                            end.get(("F", c - 1, k), -1) + ahead[c - 1]
                            if ("F", c - 1, k) in end
                            else -1
                        )
                    elif letter == "I" and c + 1 < problem.ranks:
                        arrived = (
                            end["I", c + 1, k] + behind[c + 1] if ("I", c + 1, k) in end else -1
                        )
                    if arrived < 0:
                        break
                    free[c] = max(free[c], arrived) + times[letter][c]
                    end[letter, c, k] = free[c]
                    at[c] += 1
                    moving = True
        if all(at[c] == len(row) for c, row in enumerate(combination)):
            best = min(best, max(free))
    return best


@given(problem=problems(most_ranks=2, most_microbatches=1, single=True))
@examples(25, 200)
def test_bounds_and_orders_against_all_orders_of_two_microbatches(problem: OrderProblem) -> None:
    """Bound <= best of all orders, overtaking included, and the search finds the best of so few."""
    two = OrderProblem(
        **{
            name: getattr(problem, name)
            for name in OrderProblem.__dataclass_fields__
            if name != "microbatches"
        },
        microbatches=2,
    )
    best = brute(two, orders_of_two_microbatches())
    found = find_order(two, effort=0.2)
    assert order_bounds(two).best <= best <= found.makespan
    assert found.makespan == best


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_three_ranks_against_all_orders(seed: int) -> None:
    """8,000 combinations of rows; memory for two, or for one and a half."""
    random = np.random.default_rng(seed)
    times = {name: random.integers(1, 9, 3)[None] for name in ("forward", "input", "weight")}
    problem = chain(
        3,
        2,
        **times,
        send=int(random.integers(0, 3)),
        held=2,
        stash=1 + seed % 2,
        limit=3 + seed % 2,
    )
    best = brute(problem, orders_of_two_microbatches())
    found = find_order(problem, effort=0.2)
    assert order_bounds(problem).best <= best == found.makespan


def rows_in_turn(microbatches: int) -> list[tuple[int, ...]]:
    """All rows of kinds 0, 1, 2 in which microbatches take turns: as many F as I as W, never more
    of the later: 42 for three."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(3 * microbatches):
        rows = [
            (*row, kind)
            for row in rows
            for kind in range(3)
            if row.count(kind) < (microbatches if kind == 0 else row.count(kind - 1))
        ]
    return rows


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_two_ranks_and_three_microbatches_against_all_orders(seed: int) -> None:
    """1,764 combinations of rows in memory for one, two or three microbatches: the bound holds and
    the search finds the best."""
    random = np.random.default_rng(seed)
    times = {name: random.integers(1, 9, 2)[None] for name in ("forward", "input", "weight")}
    problem = chain(
        2,
        3,
        **times,
        send=int(random.integers(0, 4)),
        held=2,
        stash=int(random.integers(0, 3)),
        limit=2 + seed % 5,
    )
    columns, row_start = problem_arrays(problem)[0], np.array([0, 9, 18])
    best = 2**60
    for first, second in product(rows_in_turn(3), repeat=2):
        codes = np.array([2 * kind for kind in first] + [2 * kind + 1 for kind in second])
        order = evaluate_order(problem, columns, codes, row_start, method="")
        if order.makespan >= 0 and (order.peak <= problem.limit).all():
            best = min(best, order.makespan)
    assert order_bounds(problem).best <= best == find_order(problem, effort=0.2).makespan


def test_uniform_pipelines_meet_the_bound() -> None:
    """ZB-H1's length in 1F1B's memory is head + work of the last rank, so it is proven best."""
    for ranks, microbatches in ((4, 8), (8, 16), (16, 64)):
        found = find_order(chain(ranks, microbatches, limit=ranks))
        assert found.makespan == found.lower_bound
        assert found.makespan == 3 * microbatches + ranks - 1
        assert max(found.peak) == ranks


def test_transfers_cost_two_round_trips_in_the_memory_of_1f1b() -> None:
    """ZB-H1 is best there, which no classical bound says: rank 0 waits before its first gradient
    and again after its last forward."""
    found = find_order(chain(16, 64, forward=10, input=10, weight=10, send=1, limit=16))
    assert found.makespan == found.lower_bound
    assert found.makespan == 64 * 30 + 15 * 10 + 4 * 15
    assert found.classical_bound == 64 * 30 + 15 * 11


def test_memory_binds() -> None:
    """With room for one microbatch a rank, two ranks take turns: the memory bound says so, the
    classical one does not."""
    problem = chain(2, 5, limit=1)
    found = find_order(problem)
    assert found.makespan == found.lower_bound > found.classical_bound


def test_the_same_arguments_give_the_same_order() -> None:
    problem = chain(4, 9, forward=[[3, 5, 4, 6]], send=1, limit=4)
    first, second = find_order(problem, seed=3), find_order(problem, seed=3)
    assert first.makespan == second.makespan
    assert format_csv(first.table) == format_csv(second.table)


def test_full_backwards_where_weight_gradients_take_no_time() -> None:
    """Such a problem's table holds F and B only and is as good as 1F1B."""
    problem = chain(4, 8, forward=2, input=4, weight=0, stash=0, limit=4)
    found = find_order(problem)
    assert {KINDS[kind] for kind in found.table.kind} == {"F", "B"}
    assert found.makespan == (8 + 3) * 6
    assert parse_csv(format_csv(found.table)).num_microbatches == 8


@pytest.mark.parametrize(
    "name",
    [
        "1f1b",
        "zb-h1",
        "zb-v",
        "interleaved-1f1b",
        "chimera",
        "dualpipe",
        "gems",
        "hanayo",
        "looped-bfs",
    ],
)
def test_tables_are_codes_and_back(name: str) -> None:
    placement, each = {
        "zb-v": (ChunkPlacement.WAVE, 2),
        "hanayo": (ChunkPlacement.WAVE, 2),
        "interleaved-1f1b": (ChunkPlacement.LOOPED, 2),
        "chimera": (ChunkPlacement.OPPOSITE, 1),
        "dualpipe": (ChunkPlacement.OPPOSITE, 1),
        "gems": (ChunkPlacement.OPPOSITE, 1),
    }.get(name, (ChunkPlacement.LOOPED, 1))
    problem = problem_of(
        chunk_ranks(placement, num_ranks=4, chunks_per_rank=each).astype(np.int64),
        8,
        forward=2,
        limit=99,
    )
    table = schedule_table(name, num_ranks=4, chunks_per_rank=each, num_microbatches=8)
    order: CodedOrder = evaluate_order(
        problem, problem_arrays(problem)[0], *codes_of_table(problem, table), method=name
    )
    again = table_of_codes(problem, order)
    assert replay(problem, again) == (order.makespan, order.peak.tolist())
    assert replay(problem, table)[0] >= order.makespan
    assert name in dict(named_tables(problem))


@given(problem=problems(single=True))
@SOME
def test_repetends_repeat(problem: OrderProblem) -> None:
    """Actions of a rank never meet modulo the period, chains hold, a proven period is the longest
    rank's work."""
    for block in repetends(problem):
        times = np.stack([problem.forward[0], problem.input[0], problem.weight[0]])
        for rank in range(problem.ranks):
            spans = sorted(
                (int(s) % block.period, int(t))
                for s, t in zip(block.start[:, rank], times[:, rank], strict=True)
                if t
            )
            for (at, length), (following, _) in zip(
                spans, [*spans[1:], (spans[0][0] + block.period, 0)], strict=True
            ):
                assert at + length <= following
        ends = block.start + times
        assert (block.start[0, 1:] >= ends[0, :-1] + problem.send_forward[0, :-1]).all()
        assert (block.start[1, :-1] >= ends[1, 1:] + problem.send_backward[0, 1:]).all()
        assert (block.start[1] >= ends[0]).all()
        assert (block.start[2] >= ends[1]).all()
        assert block.proven == (block.period == times.sum(axis=0).max())
        order = evaluate_order(
            problem, problem_arrays(problem)[0], *unroll(problem, block), method="repetend"
        )
        assert 0 <= order.makespan <= int(ends.max()) + (problem.microbatches - 1) * block.period


@given(
    problem=problems(),
    patience=st.integers(0, 40),
    prefer=st.integers(0, 1),
    most=st.integers(1, 9),
)
@SOME
def test_list_schedules_never_stick_on_one_lane(
    problem: OrderProblem, patience: int, prefer: int, most: int
) -> None:
    """Room is kept for deeper chunks: any policy ends, and fits."""
    columns, limit, local = problem_arrays(problem)
    policy = np.tile(np.array([[patience], [prefer], [most]]), problem.ranks)
    makespan, codes, row_start = list_schedule(
        columns, limit, local, deeper_chunk_bytes(columns, local), problem.microbatches, policy
    )
    if problem.lanes == 1:
        assert makespan > 0
    if makespan > 0:
        order = evaluate_order(problem, columns, codes, row_start, method="list")
        assert order.makespan <= makespan
        assert (order.peak <= problem.limit).all()
        assert replay(problem, table_of_codes(problem, order))[0] == order.makespan


def test_what_is_no_problem() -> None:
    with pytest.raises(
        InfeasibleError, match="rank 0 may keep 1 and one microbatch of lane 0 takes 2"
    ):
        chain(2, 3, held=2, limit=1)
    with pytest.raises(UsageError, match="whole numbers"):
        chain(2, 3, forward=-1)
    with pytest.raises(UsageError, match="stash is the part of held"):
        chain(2, 3, held=1, stash=2, limit=9)
    with pytest.raises(UsageError, match="at least 1"):
        chain(2, 0)
    with pytest.raises(UsageError, match="every rank"):
        problem_of(np.array([[0, 2]]), 3, limit=[1, 1, 1])
