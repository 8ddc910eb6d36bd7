"""The best order together with the best memory options, with a proof, for small pipelines: one
CP-SAT model of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from shardwright.errors import UsageError
from shardwright.search.orders.chunk_memory_options import MemoryOptions, with_chosen_options
from shardwright.search.orders.find_order import make_found_order
from shardwright.search.orders.find_order_and_memory import (
    FoundOrderWithMemory,
    find_order_with_memory,
)
from shardwright.search.orders.found_order import evaluate_order
from shardwright.search.orders.makespan_bound_over_memory_options import makespan_bound
from shardwright.search.orders.makespan_lower_bounds import order_bounds
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays
from tests.search.orders.exact import LARGEST, decode, starts_of


def exact_order_with_memory(
    problem: OrderProblem,
    options: MemoryOptions,
    *,
    starts: Sequence[Sequence[int]] = (),
    time_limit_s: float = 60.0,
    workers: int = 2,
    effort: float = 0.2,
    seed: int = 0,
) -> FoundOrderWithMemory:
    """The order and choice that end first, proven as far as `time_limit_s` goes; its `lower_bound`
    says whether all the way.

    The model of `exact_order` with a literal for each chunk and option: it sets how long I and W
    take, what the chunk's microbatches take of its rank's memory, and what the rank leaves free for
    the work of I. Options that the bound rules out are left out. It starts from the answer of
    `find_order_with_memory`; whatever the solver answers is decoded and weighed anew.

    Args:
        time_limit_s: of the solver, elapsed.
        workers: its threads.
        starts, effort, seed: as in `find_order_with_memory`.

    Raises:
        UsageError: the problem is too large. InfeasibleError: no choice fits.
    """
    actions = 3 * problem.lanes * problem.chunks * problem.microbatches
    if actions > LARGEST:
        raise UsageError(
            f"an exact order of {actions} actions is out of reach; the limit is {LARGEST}",
            hint="use order_with_memory",
        )
    known = find_order_with_memory(problem, options, starts=starts, effort=effort, seed=seed)
    if known.order.makespan == known.lower_bound:
        return known
    from ortools.sat.python import cp_model

    left = makespan_bound(problem, options, below=known.order.makespan).left
    encoded = _Model(
        cp_model.CpModel(),
        problem,
        options,
        left,
        lower=known.lower_bound,
        upper=known.order.makespan,
    )
    _hint(encoded, known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    encoded.model.minimize(encoded.makespan)
    status = solver.solve(encoded.model)
    assert status != cp_model.MODEL_INVALID, "the model is sound"
    if status == cp_model.INFEASIBLE:
        # The options that are left hold every order that ends before the known one.
        return replace(known, lower_bound=known.order.makespan)
    proven = max(known.lower_bound, int(np.ceil(solver.best_objective_bound - 1e-6)) * encoded.unit)
    if (
        status == cp_model.UNKNOWN
        or round(solver.objective_value) * encoded.unit >= known.order.makespan
    ):
        return replace(known, lower_bound=min(proven, known.order.makespan))
    choice = tuple(
        next(place for place, literal in of.items() if solver.boolean_value(literal))
        for of in encoded.literals
    )
    made = with_chosen_options(problem, options, choice)
    values = (
        np.array(
            [
                solver.value(variable)
                for kind in encoded.start
                for chunk in kind
                for variable in chunk
            ],
            np.int64,
        )
        * encoded.unit
    )
    columns = problem_arrays(made)[0]
    order = evaluate_order(made, columns, *decode(made, columns, values), method="exact")
    assert 0 <= order.makespan <= round(solver.objective_value) * encoded.unit, (
        "the decoded order runs as the model says"
    )
    assert (order.peak <= made.limit).all(), "the decoded order fits"
    found = make_found_order(made, order, lower_bound=order_bounds(made).best)
    return FoundOrderWithMemory(
        order=found, choice=choice, problem=made, lower_bound=min(proven, found.makespan)
    )


@dataclass(slots=True, init=False)
class _Model:
    """Variables of the model: start by (kind, chunk, microbatch), a literal for each chunk and
    option that is left, the makespan."""

    model: Any
    start: list[list[list[Any]]]
    literals: list[dict[int, Any]]
    makespan: Any
    unit: int

    def __init__(
        self,
        model: Any,
        problem: OrderProblem,
        options: MemoryOptions,
        left: Sequence[Sequence[int]],
        *,
        lower: int,
        upper: int,
    ) -> None:
        table = problem_arrays(problem)[0]
        chunks, m = table.shape[1], problem.microbatches
        extras = [option.extra for of in options for option in of]
        self.unit = unit = max(gcd(*table[1:6].reshape(-1).tolist(), *extras), 1)
        horizon = upper // unit
        self.model, self.makespan = model, model.new_int_var(-(-lower // unit), horizon, "makespan")
        self.start = [
            [[model.new_int_var(0, horizon, "") for _ in range(m)] for _ in range(chunks)]
            for _ in range(3)
        ]
        self.literals = [{place: model.new_bool_var("") for place in mine} for mine in left]
        intervals: list[list[Any]] = [[] for _ in range(problem.ranks)]
        kept: list[list[tuple[Any, int]]] = [[] for _ in range(problem.ranks)]
        room = [model.new_int_var(0, int(limit), "") for limit in problem.limit]
        ends = [
            self._chunk(c, problem, options, table, intervals, kept, room, horizon)
            for c in range(chunks)
        ]
        self._chains(problem, table, ends)
        for rank in range(problem.ranks):
            model.add_no_overlap(intervals[rank])
            model.add_cumulative(
                [interval for interval, _ in kept[rank]],
                [amount for _, amount in kept[rank]],
                room[rank],
            )

    def _chunk(
        self,
        c: int,
        problem: OrderProblem,
        options: MemoryOptions,
        table: Any,
        intervals: Any,
        kept: Any,
        room: Any,
        horizon: int,
    ) -> Any:
        """A chunk's actions and what they keep; the ends of its actions by kind and microbatch."""
        model, m, rank = self.model, problem.microbatches, int(table[0, c])
        forward, inputs, weight = (int(time) // self.unit for time in table[1:4, c])
        literals = self.literals[c]
        model.add_exactly_one(list(literals.values()))
        length = [forward, model.new_int_var(0, horizon, ""), model.new_int_var(0, horizon, "")]
        ends = [[model.new_int_var(0, horizon, "") for _ in range(m)] for _ in range(3)]
        for place, literal in literals.items():
            option = options[c][place]
            model.add(
                length[1] == inputs + option.extra // self.unit + (weight if option.whole else 0)
            ).only_enforce_if(literal)
            model.add(length[2] == (0 if option.whole else weight)).only_enforce_if(literal)
            model.add(room[rank] <= int(problem.limit[rank]) - option.working).only_enforce_if(
                literal
            )
        for k in range(m):
            spans = []
            for kind in range(3):
                intervals[rank].append(
                    model.new_interval_var(self.start[kind][c][k], length[kind], ends[kind][k], "")
                )
                if k + 1 < m:
                    model.add(self.start[kind][c][k + 1] >= ends[kind][k])
                spans.append(model.new_int_var(0, horizon, ""))
            for place, literal in literals.items():
                option = options[c][place]
                for amount, kind in ((option.held - option.stash, 1), (option.stash, 2)):
                    if amount:
                        begin, end = self.start[0][c][k], ends[kind][k]
                        kept[rank].append(
                            (
                                model.new_optional_interval_var(
                                    begin, spans[kind], end, literal, ""
                                ),
                                amount,
                            )
                        )
            model.add(self.start[1][c][k] >= ends[0][k])
            model.add(self.start[2][c][k] >= ends[1][k])
            model.add(self.makespan >= ends[2][k])
        for place, literal in literals.items():
            option = options[c][place]
            # Of more microbatches than fit the first must have gone: implied by the resource, and
            # much quicker to propagate.
            for amount, kind in ((option.held, 1), (option.stash, 2)):
                most = (int(problem.limit[rank]) - option.working) // amount if amount else m
                for k in range(m - most):
                    model.add(self.start[0][c][k + most] >= ends[kind][k]).only_enforce_if(literal)
        return ends

    def _chains(self, problem: OrderProblem, table: Any, ends: Any) -> None:
        """Chunks wait for each other."""
        send_forward, send_backward = (-(-table[row] // self.unit) for row in (4, 5))
        for c in range(table.shape[1]):
            for k in range(problem.microbatches):
                if not table[8, c]:
                    self.model.add(
                        self.start[0][c][k] >= ends[c - 1][0][k] + int(send_forward[c - 1])
                    )
                if not table[9, c]:
                    self.model.add(
                        self.start[1][c][k] >= ends[c + 1][1][k] + int(send_backward[c + 1])
                    )


def _hint(encoded: _Model, known: FoundOrderWithMemory) -> None:
    """The known order and choice, as far as the model has them."""
    values = starts_of(known.problem, problem_arrays(known.problem)[0], known.order).tolist()
    variables = [variable for kind in encoded.start for chunk in kind for variable in chunk]
    for variable, value in zip(variables, values, strict=True):
        encoded.model.add_hint(variable, value // encoded.unit)
    for of, chosen in zip(encoded.literals, known.choice, strict=True):
        for place, literal in of.items():
            encoded.model.add_hint(literal, place == chosen)
