"""Layers of all members of some meshes, priced with process groups as near to each other as they
can lie: a lower bound of their seconds.

What layers take depends on few degrees; where replicas and pipeline ranks lie matters only to what
groups exchange.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.degree_columns import Rows
from shardwright.cost.tables.problem_tables import layer_table
from shardwright.cost.tables.row_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable
from shardwright.cost.time_parts import CP, EP, TP
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.grid.members.choice_columns import Columns, distinct, extended
from shardwright.search.grid.members.declared_space import Space
from shardwright.strategy.grid.grid_rules import GridFacts

KIND: Final = ("tp", "cp", "ep", "etp")
_SWITCHES: Final = ("sp", "ulysses", "gather")
LAYER: Final = (*KIND, *_SWITCHES, "mbs")
EXCHANGED: Final = (TP, CP, EP)
_MOST_ROWS: Final = 2**16
"""Rows over all sets of modules that are priced at once; of more, only those under the first set.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearLayers:
    """A layer table over distinct choices of degrees and switches.

    Args:
        table: of which seconds are not told apart by part.
        columns: of the rows.
        modules: sets that the table has all rows under.
    """

    table: LayerTable
    columns: Columns
    modules: tuple[Options, ...]

    def rows_of(self, columns: Columns) -> IntArray:
        """The row of each choice in `columns` under the first set of modules."""
        return _places(self.columns, columns)


def near_layers(problem: Problem, space: Space, facts: GridFacts, meshes: Columns) -> NearLayers:
    """Lower bounds of layers under every legal choice of switches and microbatches on some
    meshes.
    """
    columns, _ = distinct({name: meshes[name] for name in KIND})
    for axis in _SWITCHES:
        columns = extended(columns, axis, space.of(axis), facts)
    columns["gather"] = np.where(columns["ulysses"] == columns["cp"], 0, columns["gather"])
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
    return _priced(problem, rows, modules)


def near_rows(problem: Problem, columns: Columns, modules: tuple[Options, ...]) -> NearLayers:
    """Lower bounds of layers under the choices in `columns`."""
    few, _ = distinct({name: columns[name] for name in LAYER})
    return _priced(problem, few, modules)


def _priced(problem: Problem, rows: Columns, modules: tuple[Options, ...]) -> NearLayers:
    return cached_table(_near, problem, Rows(columns=rows), sets=len(modules), modules=modules)


def _near(problem: Problem, rows: Rows, *, modules: tuple[Options, ...]) -> NearLayers:
    columns = rows.columns
    table = layer_table(problem, Rows(columns=columns | _lying(columns)), modules=modules)
    # What seconds are made of nobody asks a bound.
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
    """True if no level of the network is faster than those inside it; else the bound has no
    exchange of groups.
    """
    return all(
        inner.bandwidth >= outer.bandwidth and inner.latency_s <= outer.latency_s
        for inner, outer in pairwise(problem.cluster.tiers())
    )


def _lying(rows: Columns) -> Columns:
    """Columns of replicas, and of strides of groups that lie one inside the next."""
    near, ones = rows["tp"] * rows["cp"], np.ones_like(rows["tp"])
    replicas = -(-rows["ep"] * rows["etp"] // near)
    return {
        "dp": replicas,
        "pp": ones,
        "s_tp": ones,
        "s_cp": rows["tp"],
        "s_dp": near,
        "s_pp": near * replicas,
    }


def _places(known: Columns, wanted: Columns) -> IntArray:
    """The place of each of the `wanted` choices among the `known` ones."""
    codes, asked = (np.zeros(len(columns["tp"]), dtype=np.int64) for columns in (known, wanted))
    for name in LAYER:
        radix = int(known[name].max(initial=0)) + 1
        codes, asked = codes * radix + known[name], asked * radix + wanted[name]
    order = np.argsort(codes, kind="stable")
    places: IntArray = order[np.searchsorted(codes[order], asked)]
    return places
