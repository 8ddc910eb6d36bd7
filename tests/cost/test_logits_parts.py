"""Logits in parts: a part of them at a time in memory, and their products once more in backward."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.part_phase_recompute_keys import PHASES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.strategies import dense_model

FORWARD, BACKWARD = PHASES.index("F"), PHASES.index("I")


def table(parts: int, *, seq_len: int = 256) -> LayerTable:
    runtime = load_runtime(f"maxtext logits_parts={parts}")
    return layer_table(
        problem_of(dense_model(), cluster_of(2, node=2), runtime=runtime, seq_len=seq_len),
        rows_of([Grid(dp=2)]),
    )


@pytest.mark.parametrize("parts", [2, 16])
def test_a_part_is_in_memory_and_all_products_run_again(parts: int) -> None:
    whole, cut = table(1), table(parts)
    assert cut.logits_bytes[0] * parts == whole.logits_bytes[0]
    assert np.array_equal(cut.seconds[:-1], whole.seconds[:-1])
    head = whole.seconds[-1]
    # All of the head's forward but its norm.
    more = (cut.seconds[-1, BACKWARD] - head[BACKWARD]).sum()
    assert 0 < more < head[FORWARD].sum()
    assert np.array_equal(cut.seconds[-1, FORWARD], head[FORWARD])


def test_a_part_is_rounded_up() -> None:
    assert table(16, seq_len=250).logits_bytes[0] == 16 * 1000 * 4
