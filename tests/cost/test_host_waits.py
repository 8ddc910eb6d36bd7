"""A host that waits for the device round each tensor-parallel collective launches nothing ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.kernels.launch_overhead import segments
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.part_phase_recompute_keys import LAUNCH, TP
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.training_problem import Problem
from shardwright.simulator.predict_plan import predict, predict_plan
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model

MODEL = dense_model(layers=4)
LAYER = next(i for i, b in enumerate(MODEL.blocks) if b.name == "layer")
WAITS = replace(RUNTIME, name="waits", tp_synchronises=True)
AHEAD = replace(RUNTIME, name="ahead", tp_synchronises=False)
LAUNCHES = (1e-6, 5e-6, 2e-5, 2e-4)


def problem(*, waits: bool, host_launch: float) -> Problem:
    made = problem_of(MODEL, cluster_of(8, node=8), runtime=WAITS if waits else AHEAD, seq_len=4096)
    return replace(made, constants=replace(SHIPPED, host_launch=host_launch))


def layer(*, waits: bool, host_launch: float = 2e-5) -> np.ndarray:
    """(phases, parts, rows) seconds of a layer on one and on four devices."""
    rows = rows_of([Grid(tp=tp, dp=8 // tp) for tp in (1, 4)])
    return np.asarray(
        layer_table(problem(waits=waits, host_launch=host_launch), rows).seconds[LAYER]
    )


def test_each_collective_begins_a_segment_and_the_last_joins_the_next_layer() -> None:
    programs = programs_of(
        problem(waits=True, host_launch=2e-5),
        Structure(sequence_parallel=False, gather=False, routed=False),
    )
    program = next(p for p in programs if p.block == "layer")
    found = segments(program)
    order = [o.name for o in program.operators]
    assert {found[name, True] for name in order} == {found[name, False] for name in order} == {0, 1}
    # forward both sums are of what a residual adds: its own kernel and all up to the next one lie
    # behind
    assert (
        found["norm1", True]
        == found["qkv", True]
        == found["proj", True]
        == found["residual2", True]
        == 0
    )
    assert found["residual1", True] == found["up", True] == found["down", True] == 1
    # backward the gradients of the two inputs are summed
    assert found["down", False] == found["up", False] == found["norm1", False] == 0
    assert found["norm2", False] == found["proj", False] == found["qkv", False] == 1


@pytest.mark.parametrize("launch", LAUNCHES)
def test_waiting_never_helps_and_costs_at_most_the_collectives_and_the_idle_segments(
    launch: float,
) -> None:
    waited, ahead = layer(waits=True, host_launch=launch), layer(waits=False, host_launch=launch)
    others = [part for part in range(waited.shape[1]) if part != LAUNCH]
    assert np.array_equal(waited[:, others], ahead[:, others])
    assert np.array_equal(waited[:, :, 0], ahead[:, :, 0]), (
        "a device alone has no collective to wait round"
    )
    assert (waited[:, LAUNCH] >= ahead[:, LAUNCH] - 1e-15).all()


def test_a_slow_host_is_waited_for_beside_no_collective() -> None:
    """Far above the device's seconds a pass lasts as long as the host, and where the host waits as
    long as both."""
    waited, ahead = (
        layer(waits=True, host_launch=2e-3)[:, :, 1],
        layer(waits=False, host_launch=2e-3)[:, :, 1],
    )
    late = waited[:3, LAUNCH].sum() - ahead[:3, LAUNCH].sum()
    assert late == pytest.approx(ahead[:3, TP].sum())
    assert late > 0.0


@pytest.mark.parametrize(
    "grid", [Grid(tp=2, pp=2, dp=2), Grid(tp=4, dp=2), Grid(pp=2, dp=4)], ids=str
)
def test_a_grid_on_cards_without_tables_is_its_plan(grid: Grid) -> None:
    """Waits, waves and odd widths, bit for bit."""
    model = dense_model(layers=4, ffn=8190)
    made = problem_of(
        model, cluster_of(8, node=4, accelerator="t4"), runtime=WAITS, global_batch=8, seq_len=256
    )
    assert predict(made, grid) == predict_plan(made, plan_of(grid, model=model, global_batch=8))


def test_waiting_round_collectives_adds_nothing_where_every_launch_is_waited_for() -> None:
    rows = rows_of([Grid(tp=4, dp=2)])
    tables = []
    for waits in (True, False):
        runtime = replace(
            RUNTIME, name=f"blocks {waits}", tp_synchronises=waits, launches_block=True
        )
        made = replace(
            problem_of(MODEL, cluster_of(8, node=8), runtime=runtime, seq_len=4096),
            constants=replace(SHIPPED, host_launch=2e-4),
        )
        tables.append(np.asarray(layer_table(made, rows).seconds[LAYER]))
    assert np.array_equal(*tables)
