"""Find changes of one axis that make a strategy fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.api.raise_first_broken_strategy_rule import check_grid
from shardwright.errors import ShardwrightError
from shardwright.program.training_problem import Problem
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import changed_grid

MAX_CHANGES = 3
"""Largest number of changes in the result."""
FACTORS = (2, 4, 8)
"""Factors by which degrees grow and the microbatch shrinks."""


def changes_that_fit(problem: Problem, grid: Grid) -> tuple[str, ...]:
    """Up to 3 changes of one axis of `grid` that make all devices and hosts fit, fastest first.

    Data parallelism is reduced for a larger tensor, context or pipeline degree, so that as many
    devices are used. Of an axis only the fastest value is listed: ``recompute=selective``, ``pp8``,
    ``mbs1``.
    """
    best: dict[str, tuple[float, str]] = {}
    for axis, text in memory_saving_words(grid):
        try:
            changed = changed_grid(grid, text, schedules=problem.runtime.schedules)
            check_grid(problem, changed)
            result = simulate_grid(problem, changed)
        except ShardwrightError:
            continue
        if result.fits:
            best[axis] = min(best.get(axis, (float("inf"), "")), (result.step_time_s, text))
    return tuple(text for _, text in sorted(best.values())[:MAX_CHANGES])


def memory_saving_words(
    grid: Grid, *, factors: Sequence[int] = FACTORS
) -> Iterator[tuple[str, str]]:
    """Yield (axis, grid word) of changes that may save memory: recompute, ZeRO, offload, degrees.

    Args:
        factors: by which degrees grow and the microbatch shrinks.
    """
    levels = tuple(Recompute)
    for recompute in levels[levels.index(grid.recompute) + 1 :]:
        yield "recompute", f"recompute={recompute}"
    for zero in range(grid.zero + 1, 4):
        yield "zero", f"zero{zero}"
    for offload in (0, 50, 100):
        if offload != grid.offload:
            yield "offload", f"offload={offload}"
    for factor in factors:
        if grid.microbatch % factor == 0:
            yield "mbs", f"mbs{grid.microbatch // factor}"
        if grid.dp % factor:
            continue
        yield "tp", f"tp{grid.tp * factor}{'' if grid.sp else ' sp'}"
        yield "cp", f"cp{grid.cp * factor}"
        if not grid.layers:
            vpp = max(grid.vpp // factor, 1)
            yield "pp", f"pp{grid.pp * factor}{'' if vpp == grid.vpp else f' vpp{vpp}'}"
