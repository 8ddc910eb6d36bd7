"""A core that runs again exchanges its keys again; a policy that keeps its output does neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.arrays import FloatArray
from shardwright.cost.part_phase_recompute_keys import ATTENTION, CP, PHASES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import SelectiveRecompute
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model

LAYER = 1
FORWARD, AGAIN = PHASES.index("F"), PHASES.index("R_selective")


def seconds(policy: SelectiveRecompute, *, gather: bool) -> FloatArray:
    """(phases, parts) of a layer whose keys go round, or are gathered, among four nodes: too slow
    for the core to hide."""
    problem = problem_of(
        dense_model(),
        cluster_of(4, node=1),
        runtime=replace(RUNTIME, name="any", selective_recompute=policy),
        seq_len=4096,
    )
    grid = Grid(cp=4, gather=gather)
    return layer_table(problem, rows_of([grid])).seconds[LAYER, :, :, 0]


@pytest.mark.parametrize("gather", [False, True])
def test_a_core_that_runs_again_exchanges_its_keys_again(gather: bool) -> None:
    spent = seconds(SelectiveRecompute.CORE, gather=gather)
    assert spent[FORWARD, CP] > 0
    assert spent[AGAIN, CP] == spent[FORWARD, CP]
    assert spent[AGAIN, ATTENTION] == spent[FORWARD, ATTENTION]


@pytest.mark.parametrize("gather", [False, True])
def test_a_policy_that_keeps_the_core_does_not(gather: bool) -> None:
    spent = seconds(SelectiveRecompute.OPERATORS, gather=gather)
    assert spent[FORWARD, CP] > 0
    assert spent[AGAIN, CP] == 0
    assert spent[AGAIN, ATTENTION] == 0
