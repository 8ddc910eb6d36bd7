"""Orders chosen together with memory options."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InfeasibleError, UsageError
from shardwright.search.orders.best_memory_options_of_given_order import (
    best_choice_for_order,
    option_combinations,
)
from shardwright.search.orders.chunk_memory_options import (
    MemoryOption,
    MemoryOptions,
    pareto_options,
    with_chosen_options,
)
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.find_order_and_memory import find_order_with_memory
from shardwright.search.orders.found_order import codes_of_table, evaluate_order
from shardwright.search.orders.makespan_bound_over_memory_options import makespan_bound
from shardwright.search.orders.named_schedules_with_same_placement import named_tables
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays
from tests.search.orders.memory_exact import exact_order_with_memory
from tests.search.orders.replay import chain, problems, replay
from tests.tiers import examples, many

needs_solver = pytest.importorskip
KEEP_ALL = MemoryOption(extra=0, held=8, stash=8)


def draw_options(
    draw: st.DrawFn, problem: OrderProblem, count: int = 3
) -> list[list[MemoryOption]]:
    """As many options for each chunk: from cheap and large to long and small, some with a whole
    backward, some with work beside."""
    result = []
    for _ in range(problem.lanes * problem.chunks):
        mine = []
        for place in range(count):
            held = draw(st.integers(0, 3)) + 3 * (count - 1 - place)
            whole = place > 0 and draw(st.booleans())
            stash = 0 if whole else draw(st.integers(0, held))
            mine.append(
                MemoryOption(
                    extra=3 * place,
                    held=held,
                    stash=stash,
                    working=draw(st.integers(0, 2)),
                    whole=whole,
                )
            )
        result.append(mine)
    return result


def layer_options(count: int, *, stash: int = 0) -> list[MemoryOption]:
    """So many layers, each of which keeps 10, 6 or 1 for 0, 3 or 25; what keeps less than W reads
    has a whole backward."""
    result = []
    for lean, some in ((x, y) for x in range(count + 1) for y in range(count + 1 - x)):
        kept = 10 * (count - lean - some) + 6 * some + lean
        result.append(
            MemoryOption(
                extra=25 * lean + 3 * some,
                held=kept,
                stash=stash if stash <= kept else 0,
                whole=stash > kept,
            )
        )
    return [result[place] for place in pareto_options(result)]


@st.composite
def with_options(draw: st.DrawFn) -> tuple[OrderProblem, list[list[MemoryOption]]]:
    """A random problem of any placement, three options a chunk, and room for somewhere between the
    leanest and everything."""
    problem = draw(problems(most_ranks=3, most_microbatches=many(3, 4)))
    return replace(problem, limit=problem.limit + draw(st.integers(0, 20))), draw_options(
        draw, problem
    )


@st.composite
def tiny(draw: st.DrawFn) -> tuple[OrderProblem, list[list[MemoryOption]]]:
    """Two ranks and two microbatches, two options each (three in a proof)."""
    times = {
        name: [[draw(st.integers(1, 9)), draw(st.integers(1, 9))]]
        for name in ("forward", "input", "weight")
    }
    problem = chain(2, 2, **times, send=draw(st.integers(0, 3)), limit=draw(st.integers(6, 24)))
    return problem, draw_options(draw, problem, many(2, 3))


def fits(
    problem: OrderProblem, options: MemoryOptions, choice: tuple[int, ...]
) -> OrderProblem | None:
    """The problem of a choice, if a microbatch fits."""
    try:
        return with_chosen_options(problem, options, choice)
    except InfeasibleError:
        return None


@given(case=with_options())
@examples(25)
def test_found_run_fit_and_are_no_worse_than_named_with_one_option_everywhere(
    case: tuple[OrderProblem, list[list[MemoryOption]]],
) -> None:
    problem, options = case
    uniform = [fits(problem, options, (place,) * len(options)) for place in range(3)]
    try:
        found = find_order_with_memory(problem, options, effort=0.02)
    except InfeasibleError:
        assert uniform == [None] * 3
        return
    assert replay(found.problem, found.order.table) == (
        found.order.makespan,
        list(found.order.peak),
    )
    chosen = [of[place] for of, place in zip(options, found.choice, strict=True)]
    owner = problem.owner.reshape(-1).tolist()
    for rank, peak in enumerate(found.order.peak):
        beside = max(option.working for option, of in zip(chosen, owner, strict=True) if of == rank)
        assert peak + beside <= problem.limit[rank]
    assert found.problem.held.reshape(-1).tolist() == [option.held for option in chosen]
    backward = (found.problem.input + found.problem.weight).reshape(-1)
    assert (
        backward.tolist()
        == (
            (problem.input + problem.weight).reshape(-1) + [option.extra for option in chosen]
        ).tolist()
    )
    assert found.lower_bound <= found.order.makespan
    for same in uniform:
        for name, table in named_tables(problem) if same is not None else ():
            assert same is not None
            theirs, kept = replay(same, table)
            assert found.order.makespan <= theirs or (np.array(kept) > same.limit).any(), name


def rows_of_two() -> list[tuple[int, ...]]:
    """All rows of two microbatches in turn: five."""
    rows: list[tuple[int, ...]] = [()]
    for _ in range(6):
        rows = [
            (*row, kind)
            for row in rows
            for kind in range(3)
            if row.count(kind) < (2 if kind == 0 else row.count(kind - 1))
        ]
    return rows


def brute(problem: OrderProblem, options: MemoryOptions) -> tuple[int, int] | None:
    """The earliest end over all choices and orders of a `tiny` problem, and how many were run."""
    ends, tried = [], 0
    for choice in product(*(range(len(of)) for of in options)):
        made = fits(problem, options, choice)
        if made is None:
            continue
        for first, second in product(rows_of_two(), repeat=2):
            codes = np.array([2 * kind for kind in first] + [2 * kind + 1 for kind in second])
            order = evaluate_order(
                made, problem_arrays(made)[0], codes, np.array([0, 6, 12]), method=""
            )
            tried += 1
            if order.makespan >= 0 and (order.peak <= made.limit).all():
                ends.append(order.makespan)
    return (min(ends), tried) if ends else None


@given(case=tiny())
@examples(25, 200)
def test_bound_search_and_solver_against_all_choices_and_orders(
    case: tuple[OrderProblem, list[list[MemoryOption]]],
) -> None:
    """Bound <= best <= found, whatever known order the bound is given; the solver's answer is the
    best."""
    problem, options = case
    known = brute(problem, options)
    if known is None:
        with pytest.raises(InfeasibleError):
            find_order_with_memory(problem, options, effort=0.02)
        return
    best, tried = known
    assert tried >= 25
    assert makespan_bound(problem, options).value <= best
    for below in (best, best + 1, best + 7):
        bound = makespan_bound(problem, options, below=below)
        assert bound.value <= best
        assert all(bound.left)
    found = find_order_with_memory(problem, options, effort=0.1)
    assert found.lower_bound <= best <= found.order.makespan
    needs_solver("ortools")
    exact = exact_order_with_memory(problem, options, effort=0.02)
    assert exact.order.makespan == exact.lower_bound
    assert exact.order.makespan == best == replay(exact.problem, exact.order.table)[0]


@given(case=with_options())
@examples(25)
def test_the_best_options_of_an_order(case: tuple[OrderProblem, list[list[MemoryOption]]]) -> None:
    """Against all choices for named orders: fits where any does, no worse; the best itself with a
    chunk a rank and no whole backwards."""
    problem, options = case
    exact = problem.lanes * problem.chunks == problem.ranks and not any(
        option.whole for of in options for option in of
    )
    if problem.lanes * problem.chunks > 4:
        return
    for _, table in list(named_tables(problem))[:3]:
        codes, row_start = codes_of_table(problem, table)
        ends = []
        for choice in product(range(3), repeat=len(options)):
            made = fits(problem, options, choice)
            if made is not None:
                order = evaluate_order(made, problem_arrays(made)[0], codes, row_start, method="")
                if (order.peak <= made.limit).all():
                    ends.append(order.makespan)
        chosen = best_choice_for_order(
            problem, option_combinations(problem, options), codes, row_start
        )
        assert (chosen is None) == (not ends)
        if chosen is not None:
            made = with_chosen_options(problem, options, chosen[1])
            order = evaluate_order(made, problem_arrays(made)[0], codes, row_start, method="")
            assert chosen[0] == order.makespan >= min(ends)
            assert (order.peak <= made.limit).all()
            assert not exact or chosen[0] == min(ends)


def test_mixed_options_beat_one_everywhere() -> None:
    """In 0.6 of what 1F1B keeps without recompute, deep ranks keep everything and the first ones
    recompute some layers."""
    options = [layer_options(4)] * 4
    problem = chain(4, 8, forward=100, input=100, weight=100, send=5, held=0, stash=0, limit=96)
    found = find_order_with_memory(problem, options, effort=0.2)
    one = [fits(problem, options, (place,) * 4) for place in range(len(options[0]))]
    alone = min(find_order(same, effort=0.2).makespan for same in one if same is not None)
    assert found.order.makespan < alone
    assert len(set(found.choice)) > 1
    assert (
        found.order.makespan == find_order_with_memory(problem, options, effort=0.2).order.makespan
    )


def test_more_memory_is_never_proven_worse() -> None:
    """Bounds fall with the limit, and with nothing to choose they are the order's own."""
    options = [[KEEP_ALL, MemoryOption(extra=4, held=2, stash=0, whole=True)] for _ in range(4)]
    bounds = [
        makespan_bound(
            chain(4, 8, forward=5, input=5, weight=5, send=1, limit=limit), options
        ).value
        for limit in (8, 16, 24, 32)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]
    single = [[KEEP_ALL]] * 4
    problem = chain(4, 8, forward=5, input=5, weight=5, send=1, held=8, stash=8, limit=32)
    assert find_order_with_memory(problem, single).order.makespan == find_order(problem).makespan


def test_what_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="at least one memory option"):
        find_order_with_memory(chain(2, 2, limit=9), [[KEEP_ALL]])
    with pytest.raises(UsageError, match="stash is the part of held"):
        MemoryOption(extra=0, held=1, stash=1, whole=True)
    with pytest.raises(UsageError, match="whole numbers"):
        MemoryOption(extra=-1, held=1)
    with pytest.raises(InfeasibleError, match="no memory option"):
        find_order_with_memory(chain(2, 2, held=0, stash=0, limit=7), [[KEEP_ALL]] * 2)
    lean = MemoryOption(extra=0, held=8, stash=8)
    assert pareto_options([KEEP_ALL, lean, MemoryOption(extra=1, held=9)]) == (0, 2)
    assert pareto_options([KEEP_ALL, MemoryOption(extra=1, held=9, stash=9)]) == (0,)


def test_solver_and_search_agree_on_four_by_eight() -> None:
    """Proven together with the choice; the search is at most 2 % above."""
    needs_solver("ortools")
    options = [layer_options(2, stash=10)] * 4
    for limit in (40, 60):
        problem = chain(
            4,
            8,
            forward=[[50, 55, 48, 60]],
            input=50,
            weight=50,
            send=4,
            held=0,
            stash=0,
            limit=limit,
        )
        found = find_order_with_memory(problem, options, effort=0.1)
        exact = exact_order_with_memory(problem, options, effort=0.1)
        assert exact.order.makespan == exact.lower_bound
        assert (
            found.lower_bound
            <= exact.order.makespan
            <= found.order.makespan
            <= 1.02 * exact.order.makespan
        )
        assert replay(exact.problem, exact.order.table) == (
            exact.order.makespan,
            list(exact.order.peak),
        )
