"""Simulate a legal strategy for a request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.api.one_axis_changes_that_fit_memory import changes_that_fit
from shardwright.api.request_to_problem import facts_of
from shardwright.program.training_problem import Problem
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.search.search_answer import Detail, GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.predict_plan import predict, predict_plan
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_plan
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan


def simulate_legal_strategy(
    request: Request, problem: Problem, *, name: str, grid: Grid | None, plan: Plan | None = None
) -> Simulation:
    """Simulate a legal strategy: a grid, or a plan with the grid that equals it, if any."""
    if grid is not None and is_direct(problem, grid):
        prediction = predict(problem, grid)
        fitting = () if prediction.fits else changes_that_fit(problem, grid)
        return Simulation(
            request=request, name=name, grid=grid, plan=None, prediction=prediction, fitting=fitting
        )
    if plan is None:
        assert grid is not None
        plan = plan_of_grid(problem, grid)
    resolved_plan = with_searched_orders(problem, plan)
    result = simulate_plan(problem, resolved_plan)
    replaced = [
        (order, resolved_order)
        for order, resolved_order in zip(plan.orders, resolved_plan.orders, strict=True)
        if isinstance(order, NamedOrder) and order != resolved_order
    ]
    return Simulation(
        request=request,
        name=name,
        grid=grid,
        plan=resolved_plan,
        prediction=predict_plan(problem, resolved_plan, result),
        classes=tuple(device_text(np.array(c.devices)) for c in result.program.classes),
        notes=tuple(
            f"order {order.schedule}({', '.join(order.lanes)}): {_phrase_for(resolved_order)}"
            " stands in its place"
            for order, resolved_order in replaced
        ),
    )


def with_simulation(
    request: Request, problem: Problem, answer: GeneralAnswer[Detail], *, name: str
) -> GeneralAnswer[Detail]:
    """Add the simulation of an answer's strategy to the answer."""
    grid = answer.strategy if isinstance(answer.strategy, Grid) else None
    simulation = simulate_legal_strategy(request, problem, name=name, grid=grid, plan=answer.plan)
    return replace(answer, simulation=simulation)


def _phrase_for(order: NamedOrder | Table) -> str:
    """Phrase for the schedule that an order search ended with: found table or named schedule."""
    return (
        "the best table found"
        if isinstance(order, Table)
        else f"{order.schedule}, which no table found beats,"
    )


def is_direct(problem: Problem, grid: Grid) -> bool:
    """True if `grid` is simulated as a grid: uniform cluster, legal, schedule not searched."""
    return problem.cluster.is_uniform and not violations(grid, facts=facts_of(problem))
