"""Grids as rows of the tables that the search prices, and the tables of one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.grid_rows_and_memory_settings import TableRows
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.cost.tables.pipeline_chunk_layout import layout_of
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.parallelism_grid import Grid

COLUMNS = (
    "tp",
    "sp",
    "cp",
    "ulysses",
    "gather",
    "ep",
    "etp",
    "dp",
    "pp",
    "mbs",
    "s_tp",
    "s_cp",
    "s_dp",
    "s_pp",
)
"""Degrees and switches, then the device stride of each axis."""


def rows_of(grids: Iterable[Grid]) -> DegreeRows:
    """One row a grid."""
    listed = []
    for g in grids:
        s = g.strides()
        listed.append(
            (
                g.tp,
                int(g.sp),
                g.cp,
                g.ulysses,
                int(g.gather),
                g.ep,
                g.etp,
                g.dp,
                g.pp,
                g.microbatch,
                s["tp"],
                s["cp"],
                s["dp"],
                s["pp"],
            )
        )
    table = np.array(listed, dtype=np.int64).reshape(-1, len(COLUMNS))
    return DegreeRows(
        columns={name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)}
    )


def price_grid(problem: Problem, grid: Grid) -> TableRows:
    """Tables of one row for one grid."""
    rows = rows_of([grid])
    shard = np.array([grid.shard or grid.dp * grid.cp], dtype=np.int64)
    return TableRows(
        layers=layer_table(problem, rows),
        layer_row=0,
        meshes=mesh_table(problem, rows, shard),
        mesh_row=0,
        layout=layout_of(
            problem.model,
            pp=grid.pp,
            vpp=grid.vpp,
            first=grid.first,
            last=grid.last,
            layers=grid.layers,
        ),
    )
