"""Runtime options that a search does not vary although they change no numerics, and their gain."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, OF_EXPERTS
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.neighbour_strategies import option_changes, simulated_change
from shardwright.search.search_answer import OptionChange, Unsearched
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan

LEAST_GAIN: Final = 0.001
"""Smallest fraction of the step time that a reported change must save."""


def unsearched_options(problem: Problem, space: Space, *, decided: Collection[str] = ()) -> Options:
    """(option, kept value) of numerics-neutral options that `space` fixes although others exist.

    Args:
        decided: options that the user set; they are not counted.
    """
    experts, searched = has_experts(problem.model), dict(space.options)
    option_values = offered_values(problem.runtime)
    return tuple(
        (name, value)
        for name, value in space.runtime_options
        if name not in (*decided, *searched, *LADDER)
        and not BY_NAME[name].numerics
        and len(option_values[name]) > 1
        and (experts or name not in OF_EXPERTS)
    )


def unsearched(
    problem: Problem,
    space: Space,
    strategy: Grid | Plan,
    *,
    step_time_s: float,
    capacity: int | None,
    decided: Collection[str] = (),
) -> Unsearched:
    """Options that a search kept fixed, and the fastest change of one (None if below 0.1 % gain).

    Args:
        strategy: the best strategy of the space.
        step_time_s: its step seconds.
        capacity: see `simulated_change`.
        decided: options that the user set.
    """
    fixed = unsearched_options(problem, space, decided=decided)
    best, best_s = None, step_time_s * (1 - LEAST_GAIN)
    for name, value, changed in option_changes(problem, strategy, names=dict(fixed)):
        # The strategy itself is among the changes, once for each option.
        simulated = (
            None if changed == strategy else simulated_change(problem, changed, capacity=capacity)
        )
        if simulated is not None and simulated.step_time_s < best_s:
            best_s = simulated.step_time_s
            best = OptionChange(
                option=name, value=value, step_time_s=best_s, gain=1 - best_s / step_time_s
            )
    return Unsearched(fixed=fixed, best=best)


def with_helping_options(
    problem: Problem, grid: Grid, *, step_time_s: float, capacity: int
) -> tuple[Grid, float]:
    """Add each numerics-neutral option that saves 0.1 % of a step, best first; grid, step seconds.

    Options are tried in the order of their gain alone. An option that saves less than `LEAST_GAIN`
    on top of the others is left out.
    """
    single_gains: list[tuple[float, str, str]] = []
    for name, value, candidate in option_changes(problem, grid):
        simulated = simulated_change(problem, candidate, capacity=capacity)
        if simulated is not None and simulated.step_time_s < step_time_s * (1 - LEAST_GAIN):
            single_gains.append((simulated.step_time_s, name, value))
    changed: set[str] = set()
    for _, name, value in sorted(single_gains):
        if name in changed:
            continue
        for _, _, candidate in option_changes(problem, grid, names=(name,), values=(value,)):
            simulated = simulated_change(problem, candidate, capacity=capacity)
            if simulated is not None and simulated.step_time_s < step_time_s * (1 - LEAST_GAIN):
                grid, step_time_s = candidate, simulated.step_time_s
                changed.add(name)
    return grid, step_time_s
