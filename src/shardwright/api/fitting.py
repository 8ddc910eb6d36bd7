"""What would make a strategy fit that does not: other values of one axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwright.api.rules import check_grid
from shardwright.errors import ShardwrightError
from shardwright.program.problem import Problem
from shardwright.simulator.simulate import simulate_grid
from shardwright.strategy.grid.axes import Grid, Recompute

TOLD = 3
"""Most changes that are named."""
_GROWN = (2, 4, 8)


def changes_that_fit(problem: Problem, grid: Grid) -> tuple[str, ...]:
    """Changes of one axis of `grid` under which every device has room, the fastest first.

    Data parallelism makes room for a larger tensor, context or pipeline degree, so that as many devices are used. Of an axis the fastest
    value alone is named: ``recompute=selective``, ``pp8``, ``mbs1``.
    """
    best: dict[str, tuple[float, str]] = {}
    for axis, text, other in _changes(grid):
        try:
            check_grid(problem, other)
            done = simulate_grid(problem, other)
        except ShardwrightError:
            continue
        if done.fits:
            best[axis] = min(best.get(axis, (float("inf"), "")), (done.step_time_s, text))
    return tuple(text for _, text in sorted(best.values())[:TOLD])


def _changes(grid: Grid) -> Iterator[tuple[str, str, Grid]]:
    """(axis, its new value as text, the grid) of every change that is tried."""
    kept = tuple(Recompute)
    for recompute in kept[kept.index(grid.recompute) + 1 :]:
        yield "recompute", f"recompute={recompute}", replace(grid, recompute=recompute, recompute_layers=0)
    for zero in range(grid.zero + 1, 4):
        yield "zero", f"zero{zero}", replace(grid, zero=zero)
    for factor in _GROWN:
        if grid.microbatch % factor == 0:
            yield "mbs", f"mbs{grid.microbatch // factor}", replace(grid, microbatch=grid.microbatch // factor)
        if grid.dp % factor:
            continue
        dp = grid.dp // factor
        yield "tp", f"tp{grid.tp * factor}", replace(grid, tp=grid.tp * factor, sp=True, dp=dp)
        yield "cp", f"cp{grid.cp * factor}", replace(grid, cp=grid.cp * factor, dp=dp)
        if not grid.layers:
            vpp = max(grid.vpp // factor, 1)
            chunks = "" if vpp == grid.vpp else f" vpp{vpp}"
            yield "pp", f"pp{grid.pp * factor}{chunks}", replace(grid, pp=grid.pp * factor, vpp=vpp, dp=dp)
