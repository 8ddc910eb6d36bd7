"""One strategy, simulated; and a stored simulation, verified."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.drawings import with_kinds
from shardwright.api.problems import facts_of, problem_of, with_defaults
from shardwright.api.rules import check_grid, check_plan
from shardwright.api.simulated import simulated
from shardwright.errors import DataError, InfeasibleError, StrategyError
from shardwright.files.leaves import require_same
from shardwright.files.plan_source import read_strategy
from shardwright.files.stored import StoredSimulation, document_of, stored_simulation
from shardwright.program.orders.action_rows import action_rows
from shardwright.program.orders.deadlocks import action_violations
from shardwright.program.problem import Problem
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.report.pictures.plan_picture import Picture, picture_of
from shardwright.search.orders.resolve_plan import is_open
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation, Verified
from shardwright.simulator.prediction import Prediction, host_lack
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.match import grid_of
from shardwright.strategy.grid.rules import canonical
from shardwright.strategy.plan.plan import Plan
from shardwright.units import format_bytes

SMALL = 16
"""Most devices, and stages, of a plan that is drawn beside its numbers."""


def simulate(request: Request, *, strategy: str) -> Prediction:
    """Time and memory of one strategy; see `simulation`."""
    return simulation(request, strategy=strategy).prediction


def simulation(request: Request, *, strategy: str) -> Simulation:
    """One strategy, simulated.

    A grid whose schedule is searched is lowered as it is, and so is a plan that such a grid says;
    every other one as a general plan. An order called ``table-search`` is found first.

    Args:
        strategy: a grid's text, or as people name it (``fsdp``); a text in the general notation; or
            the path of such a text or of a plan file.

    Raises:
        StrategyError: it cannot be read, or is not legal here. InfeasibleError: no order to be
        found keeps within the memory.
    """
    request = with_defaults(request)
    problem = problem_of(request)
    given = read_strategy(
        strategy, model=problem.model, model_name=request.model, devices=problem.cluster.num_devices
    )
    if isinstance(given.strategy, Grid):
        check_grid(problem, given.strategy)
        found = simulated(request, problem, name=given.name, grid=given.strategy)
        return (
            replace(found, notes=(*found.notes, f"read {given.read_as}"))
            if given.read_as
            else found
        )
    check_plan(problem, given.strategy)
    grid = None if is_open(given.strategy) else grid_of(given.strategy, model=problem.model)
    return simulated(request, problem, name=given.name, grid=grid, plan=given.strategy)


def verify(stored: StoredSimulation) -> Verified:
    """Verify a stored simulation: its rules, that its orders end, its memory, and every leaf of its
    file, all made again.

    Raises:
        StrategyError: a rule is broken. InfeasibleError: a device needs more memory than it has.
        DataError: a leaf differs.
    """
    again, verified = verified_strategy(stored.simulation)
    return replace(
        verified, leaves=require_same(document_of(stored), document_of(stored_simulation(again)))
    )


def verified_strategy(claim: Simulation) -> tuple[Simulation, Verified]:
    """A strategy, simulated again, and what holds of it whatever the claim's numbers are.

    Raises:
        StrategyError: a rule is broken. InfeasibleError: a device needs more memory than it has.
        DataError: grid and plan are two.
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
    again = replace(
        simulated(request, problem, name=claim.name, grid=claim.grid, plan=claim.plan),
        notes=claim.notes,
    )
    claimed, found = claim.prediction, again.prediction
    lack = host_lack(found.host_memory)
    if not found.fits and found.reserved_bytes > found.capacity_bytes:
        raise InfeasibleError(
            f"a device needs {format_bytes(found.reserved_bytes)}, more than its"
            f" {format_bytes(found.capacity_bytes)}",
            hint="recompute, shard or offload more, or another order",
        )
    if lack:
        raise InfeasibleError(
            f"the plan does not fit {lack}",
            hint="offload less, or shard what is offloaded over more nodes",
        )
    drift = (
        abs(found.step_time_s - claimed.step_time_s) / claimed.step_time_s
        if claimed.step_time_s > 0
        else 1.0
    )
    return again, Verified(
        devices=found.devices,
        actions=actions,
        drift=drift,
        full=found.reserved_bytes / found.capacity_bytes,
    )


def _check_actions(problem: Problem, plan: Plan) -> int:
    """How many actions the orders hold; StrategyError where one waits for ever."""
    rows = action_rows(plan)
    stages = plan_stages(plan, model=problem.model)
    edges = [
        tuple((e.source, e.target) for e in stage_edges(lane, model=problem.model))
        for lane in stages
    ]
    for broken in action_violations(plan, rows, edges=edges):
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule, path=broken.path)
    return len(rows.kind)


def small_picture(simulation: Simulation) -> Picture | None:
    """The picture of a general plan that no grid says, if it has few devices and stages. Raises as
    `check_plan` where it is none.
    """
    plan = simulation.plan
    if (
        plan is None
        or simulation.grid is not None
        or plan.devices > SMALL
        or sum(len(lane.stages) for lane in plan.lanes) > SMALL
    ):
        return None
    problem = problem_of(simulation.request)
    check_plan(problem, plan)
    return with_kinds(
        picture_of(plan, model=problem.model, name=simulation.name or "plan"), problem
    )
