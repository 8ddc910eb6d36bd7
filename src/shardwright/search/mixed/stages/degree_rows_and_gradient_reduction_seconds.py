"""Cost-table rows for stages of mixed plans, and their reduction and all-gather seconds."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.gradients.layer_synchronisation_table_classes import KINDS, SyncTable
from shardwright.cost.gradients.price_layer_synchronisation_on_grids import sync_table
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.network.grid_groups_and_collective_seconds import Axes, network_of
from shardwright.cost.network.networks_of_plan_devices import working_problem
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables.mesh_synchronisation_table import shared_parameters
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.training_problem import Problem


def stage_rows(
    tp: IntArray,
    mbs: IntArray,
    *,
    sp: bool,
    dp: IntArray | int = 1,
    ep: IntArray | int = 1,
    stride: IntArray | int = 1,
) -> DegreeRows:
    """Cost-table rows of stages, whose data-parallel members are `stride` devices apart.

    Args:
        mbs: samples of a microbatch of each member.
    """
    ones = np.ones_like(tp)
    columns = dict.fromkeys(("cp", "etp", "pp", "ulysses", "s_tp", "s_cp", "s_pp"), ones)
    columns |= {"tp": tp, "mbs": mbs, "ep": ones * ep, "dp": ones * dp, "s_dp": ones * stride}
    columns |= {"sp": (tp > 1).astype(np.int64) * sp, "gather": 0 * ones}
    return DegreeRows(columns=columns)


def with_full_nodes(pool_problem: Problem, *, set_size: int) -> Problem:
    """The problem with only as many devices of each node as sets of `set_size` devices fill.

    With fewer devices of a node in use, no transfer out of the node takes longer: each device then
    has more of the node's network cards, and more to send.
    """
    node = pool_problem.cluster.node.num_devices
    return (
        working_problem(pool_problem, range(node - node % set_size))
        if set_size < node
        else pool_problem
    )


def reductions_table(
    pool_problem: Problem,
    rows: DegreeRows,
    shard: IntArray,
    *,
    parts: tuple[str, ...] = KINDS,
    copies: Axes | None = None,
) -> SyncTable:
    """Seconds of gradient reductions and all-gathers of one layer of each block.

    Args:
        pool_problem: a problem on a uniform cluster.
        rows, shard, parts, copies: as of `sync_table`.
    """
    repeats = [0] * len(pool_problem.model.blocks)
    for run in pool_problem.model.runs:
        repeats[run.block] += run.count
    return sync_table(
        programs_of(pool_problem, Structure(sequence_parallel=True, routed=True)),
        unrouted=(),
        repeats=tuple(repeats),
        rows=rows,
        shard=shard,
        network=network_of(pool_problem.cluster, library=pool_problem.runtime.collective_library),
        job=pool_problem.job,
        runtime=pool_problem.runtime,
        shared=shared_parameters(pool_problem.model),
        parts=parts,
        copies=copies,
    )
