"""Simulate a few changes of a stored strategy or its batch, and return the fastest of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.api.raise_first_broken_strategy_rule import check_grid
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.api.request_to_command import (
    command_text,
    strategy_options,
    without_search_values,
)
from shardwright.api.request_to_problem import problem_of
from shardwright.errors import ShardwrightError
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange
from shardwright.runtime.runtime_registry import options_in_text
from shardwright.search.grid.neighbour_strategies import option_changes, simulated_change
from shardwright.search.orders.search_orders_of_plan import has_searched_orders
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import changed_grid, print_grid

MOST_TASKS: Final = 150_000
"""Most tasks of all simulations of a view, so that a report takes little time."""


def proven_best(saved: StoredSimulation) -> bool:
    """True if a search over all axes proved that no other grid of its space is faster."""
    return (
        isinstance(saved, StoredPlan)
        and saved.certificate.optimal
        and saved.request.objective == "time"
        and not (saved.request.pins or saved.request.excludes or saved.request.scenarios)
    )


def best_grid_change(
    saved: StoredSimulation, step: SimulatedStep, path: Path, words: Iterable[str]
) -> SimulatedChange | None:
    """The fastest of several changes of a grid that are legal and fit; None if there is none.

    Args:
        words: changes in the notation of strategies, the most promising first. Those beyond the
            limit of tasks are not simulated.
    """
    if saved.grid is None:
        return None
    found: list[SimulatedChange] = []
    tasks = 0
    for text in words:
        try:
            grid = changed_grid(saved.grid, text, schedules=step.problem.runtime.schedules)
            check_grid(step.problem, grid)
            tasks += _estimated_tasks(step, saved.grid, grid)
            if grid == saved.grid or tasks > MOST_TASKS:
                continue
            simulated = simulate_grid(step.problem, grid)
        except ShardwrightError:
            continue
        if simulated.fits:
            command = shlex.join(["shardwright", "why", path.name, text])
            found.append(
                _change(saved, step, simulated, text, strategy=print_grid(grid), command=command)
            )
    return _fastest(found)


def best_option_change(
    saved: StoredSimulation, step: SimulatedStep, path: Path, names: Collection[str]
) -> SimulatedChange | None:
    """The fastest other value of a runtime option for a general plan; None if there is none.

    Also None for a grid, and for a plan with searched orders, as each change would need a new
    search of its order; and if no short command repeats the simulation. Options that the plan or
    its request sets keep their values.

    Args:
        names: options to change; those that change numerics are left out.
    """
    if saved.plan is None or saved.grid is not None or has_searched_orders(saved.plan):
        return None
    found: list[SimulatedChange] = []
    tasks, chosen = 0, {*dict(step.plan.options), *options_in_text(saved.runtime)}
    free = [name for name in names if name not in chosen]
    for name, value, changed in option_changes(step.problem, step.plan, names=free):
        request = replace(saved.request, runtime=f"{saved.runtime} {name}={value}")
        command = _simulate_command(request, path)
        if changed == step.plan or not command:
            continue
        tasks += len(step.simulated.program.instances)
        simulated = None if tasks > MOST_TASKS else simulated_change(step.problem, changed)
        if simulated is not None:
            text = f"{name}={value}"
            found.append(
                _change(saved, step, simulated, text, strategy=saved.name, command=command)
            )
    return _fastest(found)


def _change(
    saved: StoredSimulation,
    step: SimulatedStep,
    simulated: SimulatedPlan,
    change: str,
    *,
    strategy: str,
    command: str,
    batches: int = 1,
) -> SimulatedChange:
    """A simulated change of a step, against as many stored steps as it has batches."""
    ratio = simulated.step_time_s / (batches * step.prediction.step_time_s)
    return SimulatedChange(
        change=change,
        strategy=strategy,
        command=command,
        step_s=simulated.step_time_s,
        sequences=batches * saved.request.global_batch,
        gain=1.0 - ratio,
        difference=ratio - 1.0,
        simulated=1,
    )


def _fastest(changes: Sequence[SimulatedChange]) -> SimulatedChange | None:
    """The change that gains most, with the number of all changes; None if there is none."""
    if not changes:
        return None
    return replace(max(changes, key=lambda change: change.gain), simulated=len(changes))


def _estimated_tasks(step: SimulatedStep, grid: Grid, changed: Grid) -> int:
    """Estimated number of tasks of a changed grid's step, from the tasks of the stored one."""
    actions = [one.pp * one.vpp / (one.dp * one.microbatch) for one in (grid, changed)]
    return round(len(step.simulated.program.instances) * actions[1] / actions[0])


def doubled_batch(
    saved: StoredSimulation, step: SimulatedStep, path: Path
) -> SimulatedChange | None:
    """The stored grid with twice the sequences a step; None if it is illegal or does not fit.

    Also None if the step has over `MOST_TASKS` tasks, or no short command repeats the simulation.
    """
    request = replace(saved.request, global_batch=2 * saved.request.global_batch)
    command = _simulate_command(request, path)
    if saved.grid is None or not command or 2 * len(step.simulated.program.instances) > MOST_TASKS:
        return None
    try:
        problem = problem_of(request)
        check_grid(problem, saved.grid)
        simulated = simulate_grid(problem, saved.grid)
    except ShardwrightError:
        return None
    if not simulated.fits:
        return None
    return _change(
        saved,
        step,
        simulated,
        "twice as many sequences a step",
        strategy=print_grid(saved.grid),
        command=command,
        batches=2,
    )


def _simulate_command(request: Request, path: Path) -> str:
    """Command that simulates the strategy of a file for a request; empty if it needs options."""
    options = strategy_options([path.name])
    return command_text(without_search_values(request), verb="simulate", options=options)
