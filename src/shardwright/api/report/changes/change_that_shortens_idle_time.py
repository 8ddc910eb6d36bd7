"""The simulated change that shortens the idle time of a stored plan's pipeline most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shardwright.api.report.changes.find_fastest_simulated_change import (
    best_grid_change,
    best_option_change,
    doubled_batch,
    proven_best,
)
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange
from shardwright.strategy.grid.parallelism_grid import Grid

OPTIONS_OF_WAITS: Final = ("p2p_overlap", "grad_overlap", "param_overlap")
"""Runtime options that decide which messages, reductions and gathers a device waits for."""


def timeline_change(
    saved: StoredSimulation, step: SimulatedStep, path: Path
) -> SimulatedChange | None:
    """Fastest gaining pipeline change, else the doubled batch, else any fitting change, else None.

    More sequences a step are simulated where a search has proven the pipeline best, or where no
    change of the pipeline is faster. Of a general plan, the options of overlap are changed.
    """
    if saved.grid is None:
        return best_option_change(saved, step, path, OPTIONS_OF_WAITS)
    changed = (
        None
        if proven_best(saved)
        else best_grid_change(
            saved, step, path, pipeline_words(saved.grid, step.problem.runtime.schedules)
        )
    )
    if changed is not None and changed.gain > 0.0:
        return changed
    return doubled_batch(saved, step, path) or changed


def pipeline_words(grid: Grid, schedules: Sequence[str]) -> Iterator[str]:
    """Yield grid words: vpp and microbatch halved or doubled, stages halved, other schedules.

    Args:
        schedules: those that the framework can run.
    """
    if grid.pp > 1:
        yield from (f"vpp{vpp}" for vpp in (2 * grid.vpp, grid.vpp // 2) if vpp)
        yield from (f"schedule={name}" for name in schedules if name != grid.schedule)
        yield f"pp{grid.pp // 2}"
    if grid.microbatch > 1:
        yield f"mbs{grid.microbatch // 2}"
    yield f"mbs{2 * grid.microbatch}"
