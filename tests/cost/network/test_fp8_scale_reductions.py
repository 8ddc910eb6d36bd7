"""Reductions of magnitudes under delayed scaling, by hand: who takes part, which passes wait, and
where nothing is reduced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.step.strategy_task_seconds import PART_NAMES, StepCosts, step_costs
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ScaleGroup, Scaling
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.simulator.step_breakdown import breakdown
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model

MODEL = dense_model(layers=8)
SCALES = PART_NAMES.index("scales")


def problem(
    grid: Grid,
    *,
    group: ScaleGroup = ScaleGroup.STAGE,
    compute: Dtype = Dtype.FP8,
    scaling: Scaling = Scaling.DELAYED,
) -> Problem:
    runtime = replace(
        RUNTIME,
        name=f"scales-{group}-{scaling}",
        schedules=("1f1b", "interleaved-1f1b"),
        scaling=scaling,
        scales_reduced=group,
    )
    made = problem_of(
        MODEL,
        cluster_of(grid.devices, node=8, accelerator="h100-sxm"),
        runtime=runtime,
        seq_len=512,
        global_batch=grid.dp * 8,
    )
    return replace(made, job=replace(made.job, compute=compute))


def costs(grid: Grid, **changes: object) -> StepCosts:
    made = problem(grid, **changes)  # type: ignore[arg-type]
    return step_costs(made, grid, price_grid(made, grid))


def each(grid: Grid, **changes: object) -> float:
    """Seconds that a pass waits; the same for every chunk, forward and backward."""
    waits = costs(grid, **changes).parts[:, :, SCALES]
    assert np.ptp(waits) == 0.0
    return float(waits[0, 0])


def test_each_pass_waits_for_the_last_of_the_stage() -> None:
    grid = Grid(tp=8, dp=4)
    assert each(grid) > SHIPPED.collective_wait_s * 5
    assert each(grid) < each(Grid(tp=8, dp=8)) < each(Grid(tp=8, dp=32))


def test_a_group_without_data_parallelism_does_not_grow() -> None:
    assert each(Grid(tp=4, dp=2), group=ScaleGroup.TENSOR) == each(
        Grid(tp=4, dp=16), group=ScaleGroup.TENSOR
    )
    assert 0.0 < each(Grid(tp=4, dp=16), group=ScaleGroup.TENSOR) < each(Grid(tp=4, dp=16))


@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        (Grid(dp=8), {"compute": Dtype.BF16}),
        (Grid(dp=8), {"group": ScaleGroup.NONE}),
        (Grid(dp=8), {"group": ScaleGroup.TENSOR}),
        (Grid(pp=8), {}),
        (Grid(dp=8), {"scaling": Scaling.CURRENT}),
    ],
)
def test_nothing_is_reduced(grid: Grid, changes: dict[str, object]) -> None:
    assert each(grid, **changes) == 0.0


def test_a_step_pays_for_every_chunk_and_microbatch() -> None:
    """Virtual stages multiply the passes: 8 microbatches, forward and back, on each chunk of a
    rank."""
    for vpp in (1, 2):
        grid = Grid(tp=4, dp=4, pp=2, vpp=vpp, schedule="interleaved-1f1b" if vpp > 1 else "1f1b")
        parts = dict(breakdown(simulate_grid(problem(grid), grid)))
        assert parts["scales"] == pytest.approx(2 * 8 * vpp * each(grid))
