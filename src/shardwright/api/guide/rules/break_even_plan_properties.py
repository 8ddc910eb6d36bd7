"""Properties of plans whose break-evens rules ask for."""

from __future__ import annotations

from shardwright.strategy.grid.parallelism_grid import Grid, Recompute


def splits_model(grid: Grid) -> bool:
    """True of a plan with tensor, context or pipeline parallelism."""
    return grid.tp * grid.cp * grid.pp > 1


def recomputes(grid: Grid) -> bool:
    """True of a plan that recomputes layers, attention or single modules."""
    modules = (value == "on" for name, value in grid.options if name.startswith("recompute_"))
    return grid.recompute is not Recompute.NONE or any(modules)
