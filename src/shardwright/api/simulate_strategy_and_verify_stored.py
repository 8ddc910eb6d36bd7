"""Simulate one strategy, and verify a stored simulation."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.compute_plan_picture import with_device_kinds
from shardwright.api.raise_first_broken_strategy_rule import check_grid, check_plan
from shardwright.api.request_to_problem import facts_of, problem_of, with_defaults
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.errors import DataError, InfeasibleError
from shardwright.files.compare_documents import require_same
from shardwright.files.plan_and_simulation_file_contents import (
    StoredSimulation,
    document_of,
    stored_simulation,
)
from shardwright.files.plan_argument import read_strategy
from shardwright.program.orders.deadlock_check import action_violations
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.program.training_problem import Problem
from shardwright.report.pictures.plan_picture_content import PlanPicture, plan_picture
from shardwright.search.orders.search_orders_of_plan import has_searched_orders
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation, Verified
from shardwright.simulator.prediction import Prediction, host_lack
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.rule_violations import raise_first
from shardwright.units import format_bytes

MAX_DRAWN = 16
"""Most devices, and most stages, of a plan that is drawn with its numbers."""


def simulate(request: Request, *, strategy: str) -> Prediction:
    """Predict the step time and memory of a strategy, given as text, for a request."""
    return simulation(request, strategy=strategy).prediction


def simulation(request: Request, *, strategy: str) -> Simulation:
    """Parse a strategy's text, check it for a request, and simulate its step.

    A grid whose schedule is searched is lowered as it is, and so is a plan that equals such a grid;
    every other one as a general plan. An order called ``table-search`` is found first. A pipeline
    without a schedule has that of the training framework.

    Args:
        strategy: a grid's text, or an everyday phrase (``fsdp``); a text in the general notation;
            or the path of such a text or of a plan file.

    Raises:
        StrategyError: the strategy cannot be read, or is not legal for the request.
        InfeasibleError: no schedule within the memory is found.
    """
    request = with_defaults(request)
    problem = problem_of(request)
    source = read_strategy(
        strategy,
        model=problem.model,
        model_name=request.model,
        devices=problem.cluster.num_devices,
        schedules=problem.runtime.schedules,
    )
    if isinstance(source.strategy, Grid):
        check_grid(problem, source.strategy)
        grid_simulation = simulate_legal_strategy(
            request, problem, name=source.name, grid=source.strategy
        )
        read = [f"read {source.read_as}"] if source.read_as else []
        assumed = (
            [f"assumed {source.assumed}: {problem.runtime.name} has no 1f1b"]
            if source.assumed
            else []
        )
        return replace(grid_simulation, notes=(*grid_simulation.notes, *read, *assumed))
    check_plan(problem, source.strategy)
    grid = (
        None
        if has_searched_orders(source.strategy)
        else grid_of(source.strategy, model=problem.model)
    )
    return simulate_legal_strategy(
        request, problem, name=source.name, grid=grid, plan=source.strategy
    )


def verify(stored: StoredSimulation) -> Verified:
    """Verify a stored simulation: repeat rules, schedules, memory and every field of its file.

    Raises:
        StrategyError: a rule is broken.
        InfeasibleError: a device needs more memory than it has.
        DataError: a field differs.
    """
    repeated, verified = verified_strategy(stored.simulation)
    return replace(
        verified, leaves=require_same(document_of(stored), document_of(stored_simulation(repeated)))
    )


def verified_strategy(claim: Simulation) -> tuple[Simulation, Verified]:
    """(repeated simulation, results of the checks) of a claimed strategy; raise if one fails.

    Raises:
        StrategyError: a rule is broken.
        InfeasibleError: a device needs more memory than it has.
        DataError: grid and plan differ.
    """
    request, actions = claim.request, 0
    problem = problem_of(request)
    if claim.plan is not None:
        check_plan(problem, claim.plan)
        actions = _check_actions(problem, claim.plan)
        if claim.grid is not None and grid_of(claim.plan, model=problem.model) != canonical(
            claim.grid, facts=facts_of(problem)
        ):
            raise DataError("the stored plan is not that of the stored grid", hint="simulate again")
    else:
        assert claim.grid is not None
        check_grid(problem, claim.grid)
    repeated = replace(
        simulate_legal_strategy(
            request, problem, name=claim.name, grid=claim.grid, plan=claim.plan
        ),
        notes=claim.notes,
    )
    claimed_prediction, prediction = claim.prediction, repeated.prediction
    host_shortage = host_lack(prediction.host_memory)
    if not prediction.fits and prediction.reserved_bytes > prediction.capacity_bytes:
        raise InfeasibleError(
            f"a device needs {format_bytes(prediction.reserved_bytes)}, more than its"
            f" {format_bytes(prediction.capacity_bytes)}",
            hint="recompute, shard or offload more, or another order",
        )
    if host_shortage:
        raise InfeasibleError(
            f"the plan does not fit {host_shortage}",
            hint="offload less, or shard what is offloaded over more nodes",
        )
    drift = (
        abs(prediction.step_time_s - claimed_prediction.step_time_s)
        / claimed_prediction.step_time_s
        if claimed_prediction.step_time_s > 0
        else 1.0
    )
    return repeated, Verified(
        devices=prediction.devices,
        actions=actions,
        drift=drift,
        full=prediction.reserved_bytes / prediction.capacity_bytes,
    )


def _check_actions(problem: Problem, plan: Plan) -> int:
    """Number of actions in the plan's schedules; raises StrategyError for a deadlock."""
    rows = action_rows(plan)
    stages = plan_stages(plan, model=problem.model)
    edges = [
        tuple((e.source, e.target) for e in stage_edges(lane, model=problem.model))
        for lane in stages
    ]
    raise_first(action_violations(plan, rows, edges=edges))
    return len(rows.kind)


def small_picture(simulation: Simulation) -> PlanPicture | None:
    """Picture of a general plan with few devices and stages; None for grids and large plans."""
    plan = simulation.plan
    if (
        plan is None
        or simulation.grid is not None
        or plan.devices > MAX_DRAWN
        or sum(len(lane.stages) for lane in plan.lanes) > MAX_DRAWN
    ):
        return None
    problem = problem_of(simulation.request)
    check_plan(problem, plan)
    return with_device_kinds(
        plan_picture(plan, model=problem.model, name=simulation.name or "plan"), problem
    )
