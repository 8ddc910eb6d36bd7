"""The verb `trace`: what the devices of a stored plan do in a step, as simulated; and beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.api import problem_of
from shardwright.errors import DataError, UsageError
from shardwright.program.step_trace import StepTrace
from shardwright.program.trace_times import Compared, compared
from shardwright.report.simulation_file import Saved
from shardwright.search.orders.resolve_plan import resolved
from shardwright.search.simulation import Simulation
from shardwright.simulator.plan_trace import simulated_trace
from shardwright.simulator.plans import simulate_plan
from shardwright.strategy.grid_notation import print_grid
from shardwright.strategy.grid_plan import plan_of


def trace(saved: Saved, *, devices: Sequence[int] = ()) -> StepTrace:
    """The simulated step of a stored plan; a grid is simulated as the general plan that it means.

    Args:
        devices: whose; none = the first of each class of devices that do the same.

    Raises:
        UsageError: a device runs nothing. StrategyError: the plan breaks a rule.
    """
    request = saved.request if isinstance(saved, Simulation) else saved[0]
    problem = problem_of(request)
    plan, grid = (saved.plan, saved.grid) if isinstance(saved, Simulation) else (saved[1].plan, saved[1].grid)
    if plan is None:
        assert grid is not None, "a stored plan has one of both"
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    result = simulate_plan(problem, resolved(problem, plan))
    return simulated_trace(result, plan=plan_name(saved), devices=devices)


def plan_name(saved: Saved) -> str:
    """What a trace of a stored plan calls it."""
    if isinstance(saved, Simulation):
        return saved.name or (print_grid(saved.grid) if saved.grid is not None else "plan")
    return print_grid(saved[1].grid)


def compare_traces(saved: Saved, measured: StepTrace) -> Compared:
    """The simulated step of a stored plan beside a measured one, for the devices that were measured.

    Raises:
        DataError: the measured step is not of this plan. StrategyError: the plan breaks a rule.
    """
    try:
        simulated = trace(saved, devices=[d.device for d in measured.devices])
    except UsageError as error:
        raise DataError(f"the measured trace is not of this plan: {error.message}", hint=error.hint) from error
    return compared(simulated, measured)
