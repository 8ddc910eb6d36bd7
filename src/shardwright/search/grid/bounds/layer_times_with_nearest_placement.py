"""Layers of meshes priced with process groups placed as near as possible: a lower bound.

A layer's seconds depend on few degrees; where replicas and pipeline ranks lie matters only to
communication in groups.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.part_phase_recompute_keys import CP, EP, TP
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import with_free_parts_of_blocks
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.cost.tables.table_cache import cached_table
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    Columns,
    distinct,
    extended,
    ring_gather,
)
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.strategy.grid.grid_rules import GridFacts

KIND: Final = ("tp", "cp", "ep", "etp")
_SWITCHES: Final = ("sp", "ulysses", "gather")
LAYER: Final = (*KIND, *_SWITCHES, "mbs")
EXCHANGED: Final = (TP, CP, EP)
_MOST_ROWS: Final = 2**16
"""Most rows over all module sets that are priced at once; beyond, only the first set is priced.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearLayers:
    """A table of least layer seconds over distinct choices of degrees and switches.

    Args:
        table: layer table whose seconds are summed over parts.
        columns: choices of the rows.
        modules: module sets under which the table has all rows.
    """

    table: LayerTable
    columns: Columns
    modules: tuple[Options, ...]

    def rows_of(self, columns: Columns) -> IntArray:
        """Layer-table row of each choice in `columns`, with the first set of recomputed modules."""
        return _places(self.columns, columns)


def near_layers(problem: Problem, space: Space, facts: GridFacts, meshes: Columns) -> NearLayers:
    """Least layer seconds for each legal sp, ulysses, gather and microbatch size of some meshes."""
    columns, _ = distinct({name: meshes[name] for name in KIND})
    for axis in _SWITCHES:
        columns = extended(columns, axis, space.of(axis), facts)
    columns["gather"] = ring_gather(columns)
    # Rows of one structure side by side, as they are priced together.
    columns, _ = distinct({"sp": columns["sp"], **columns})
    sizes = np.array([int(size) for size in space.of("mbs")], dtype=np.int64)
    count = len(columns["tp"])
    rows = {name: np.repeat(column, len(sizes)) for name, column in columns.items()} | {
        "mbs": np.tile(sizes, count)
    }
    modules = (
        space.modules
        if count * len(sizes) * len(space.modules) <= _MOST_ROWS
        else space.modules[:1]
    )
    return _cached_near_table(problem, rows, modules)


def near_rows(problem: Problem, columns: Columns, modules: tuple[Options, ...]) -> NearLayers:
    """Least layer seconds for the distinct degrees, switches and microbatch sizes in `columns`."""
    distinct_rows, _ = distinct({name: columns[name] for name in LAYER})
    return _cached_near_table(problem, distinct_rows, modules)


def _cached_near_table(problem: Problem, rows: Columns, modules: tuple[Options, ...]) -> NearLayers:
    """The table of nearest layers, computed once for each problem and set of rows."""
    return cached_table(
        _near_table,
        with_free_parts_of_blocks(problem),
        DegreeRows(columns=rows),
        sets=len(modules),
        modules=modules,
    )


def _near_table(problem: Problem, rows: DegreeRows, *, modules: tuple[Options, ...]) -> NearLayers:
    """Price layers with nested groups and sum their parts into one bound."""
    columns = rows.columns
    table = layer_table(
        problem, DegreeRows(columns=columns | _nested_strides(columns)), modules=modules
    )
    # A bound needs no breakdown by part.
    parts = [
        part
        for part in range(table.seconds.shape[2])
        if part not in EXCHANGED or _nearest_is_fastest(problem)
    ]
    return NearLayers(
        table=replace(table, seconds=table.seconds[:, :, parts].sum(axis=2, keepdims=True)),
        columns=columns,
        modules=modules,
    )


def _nearest_is_fastest(problem: Problem) -> bool:
    """True if no network tier is faster than the tiers inside it.

    Otherwise the bound leaves out the communication in groups.
    """
    return all(
        inner.bandwidth >= outer.bandwidth and inner.latency_s <= outer.latency_s
        for inner, outer in pairwise(problem.cluster.tiers())
    )


def _nested_strides(rows: Columns) -> Columns:
    """Columns of replicas, and of strides of groups nested one inside the next."""
    replica_devices, ones = rows["tp"] * rows["cp"], np.ones_like(rows["tp"])
    replicas = -(-rows["ep"] * rows["etp"] // replica_devices)
    return {
        "dp": replicas,
        "pp": ones,
        "s_tp": ones,
        "s_cp": rows["tp"],
        "s_dp": replica_devices,
        "s_pp": replica_devices * replicas,
    }


def _places(table_columns: Columns, wanted: Columns) -> IntArray:
    """Place of each `wanted` choice among the `table_columns` choices."""
    codes, wanted_codes = (
        np.zeros(len(columns["tp"]), dtype=np.int64) for columns in (table_columns, wanted)
    )
    for name in LAYER:
        radix = int(table_columns[name].max(initial=0)) + 1
        codes, wanted_codes = (
            codes * radix + table_columns[name],
            wanted_codes * radix + wanted[name],
        )
    order = np.argsort(codes, kind="stable")
    places: IntArray = order[np.searchsorted(codes[order], wanted_codes)]
    return places
