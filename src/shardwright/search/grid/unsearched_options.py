"""Options of a runtime that a search keeps at one value although they change no numerics, and
the gain of other values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.runtime.runtime_options import BY_NAME, OF_EXPERTS, offered_values
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.grid.members.searched_options import LADDER
from shardwright.search.grid.single_changes import option_changes, simulated_change
from shardwright.search.search_answer import OptionChange, Unsearched
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.model_counts import has_experts
from shardwright.strategy.plan.plan import Plan

LEAST_GAIN: Final = 0.001
"""Smallest share of a step that a change must save to be told."""


def unsearched_options(problem: Problem, space: Space, *, decided: Collection[str] = ()) -> Options:
    """(option, value) of each option that changes no numerics and of which `space` has one value
    though the runtime has more.

    Args:
        decided: options that the user set; they are not counted.
    """
    experts, searched = has_experts(problem.model), dict(space.options)
    offered = offered_values(problem.runtime)
    return tuple(
        (name, value)
        for name, value in space.runtime_options
        if name not in (*decided, *searched, *LADDER)
        and not BY_NAME[name].numerics
        and len(offered[name]) > 1
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
    """The options that a search of `space` kept at one value, and the change of one of them that
    gains most for the best strategy.

    Args:
        strategy: the best one of the space.
        step_time_s: of it.
        capacity: see `simulated_change`.
        decided: options that the user set.
    """
    fixed = unsearched_options(problem, space, decided=decided)
    best, known_s = None, step_time_s * (1 - LEAST_GAIN)
    for name, value, other in option_changes(problem, strategy, names=dict(fixed)):
        # The strategy itself is among them, once for each option.
        done = None if other == strategy else simulated_change(problem, other, capacity=capacity)
        if done is not None and done.step_time_s < known_s:
            known_s = done.step_time_s
            best = OptionChange(
                option=name, value=value, step_time_s=known_s, gain=1 - known_s / step_time_s
            )
    return Unsearched(fixed=fixed, best=best)


def with_helping_options(
    problem: Problem, grid: Grid, *, step_time_s: float, capacity: int
) -> tuple[Grid, float]:
    """`grid` with options that change no numerics and that each make it faster after the ones
    before, and the seconds of its step.

    Options come in the order of what each gains alone; one that gains less than `LEAST_GAIN` on top
    of the others is left out.
    """
    alone: list[tuple[float, str, str]] = []
    for name, value, other in option_changes(problem, grid):
        done = simulated_change(problem, other, capacity=capacity)
        if done is not None and done.step_time_s < step_time_s * (1 - LEAST_GAIN):
            alone.append((done.step_time_s, name, value))
    changed: set[str] = set()
    for _, name, value in sorted(alone):
        if name in changed:
            continue
        for _, _, other in option_changes(problem, grid, names=(name,), values=(value,)):
            done = simulated_change(problem, other, capacity=capacity)
            if done is not None and done.step_time_s < step_time_s * (1 - LEAST_GAIN):
                grid, step_time_s = other, done.step_time_s
                changed.add(name)
    return grid, step_time_s
