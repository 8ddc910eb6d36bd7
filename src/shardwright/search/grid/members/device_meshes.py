"""Meshes of a grid space: the degrees that place devices,
with the distinct orders of their axes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.search.grid.members.choice_columns import Columns, select
from shardwright.search.grid.members.declared_space import AXES, Space
from shardwright.strategy.grid.grid_rules import GridFacts, legal_rows

MESH: Final = ("tp", "cp", "pp", "ep", "etp", "dp")


class MemberCounts(NamedTuple):
    """(meshes,) combinations of axis values that break no rule,
    and distinct strategies among them.
    """

    legal: IntArray
    distinct: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Legal meshes, one for all orders of their axes that have the same groups.

    Args:
        columns: MESH, `order` as its place among the space's, the strides `s_tp`, `s_cp`, `s_dp`,
            `s_pp`, and `copies`, the orders that a mesh stands for; where they are counted, `legal`
            and `distinct` (`MemberCounts`).
        each: choices of the other axes.
        illegal: meshes in any order that break a rule.
    """

    columns: Columns
    each: int
    illegal: int = 0

    def __len__(self) -> int:
        return len(self.columns["copies"])

    @property
    def devices(self) -> IntArray:
        """(meshes,) number of devices of each."""
        c = self.columns
        return c["tp"] * c["cp"] * c["pp"] * c["dp"]

    @property
    def enumerated(self) -> int:
        """Number of raw members: choices of all axes over these meshes and over those that break
        a rule.
        """
        return (int(self.columns["copies"].sum()) + self.illegal) * self.each

    def counted(self, counts: MemberCounts) -> Meshes:
        """The meshes with the numbers of their members."""
        return replace(self, columns=self.columns | counts._asdict())

    def joined(self, other: Meshes) -> Meshes:
        """The meshes, then those of `other`."""
        columns = {
            name: np.concatenate([column, other.columns[name]])
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns, illegal=self.illegal + other.illegal)

    def take(self, rows: IntArray | BoolArray, *, illegal: int = 0) -> Meshes:
        """Some of the meshes, with `illegal` of those that break a rule."""
        return replace(
            self,
            columns={name: column[rows] for name, column in self.columns.items()},
            illegal=illegal,
        )


def full_meshes(space: Space, facts: GridFacts) -> Meshes:
    """The meshes that use all devices: dp = devices / (tp cp pp) where that is whole."""
    table = _table(space)
    dp, rest = np.divmod(space.devices, table["tp"] * table["cp"] * table["pp"])
    return _meshes(
        space, facts, {name: column[rest == 0] for name, column in (table | {"dp": dp}).items()}
    )


def idle_meshes(space: Space, facts: GridFacts) -> Meshes:
    """The meshes that leave devices idle: on fewer nodes, or on a part of one, of at least
    `space.fewest` devices, with every dp that divides the batch.
    """
    batch = facts.global_batch
    replicas = np.array(
        [d for d in range(1, min(batch, space.devices) + 1) if batch % d == 0], dtype=np.int64
    )
    table = _table(space)
    unit = table["tp"] * table["cp"] * table["pp"]
    devices = unit[:, None] * replicas
    fewest = space.fewest or space.devices
    lies = (devices % space.node == 0) | (devices < space.node)
    row, column = np.nonzero((devices >= fewest) & (devices < space.devices) & lies)
    return _meshes(
        space,
        facts,
        {name: values[row] for name, values in table.items()} | {"dp": replicas[column]},
    )


def _table(space: Space) -> Columns:
    """The space's choices of the degrees but dp."""
    axes = np.meshgrid(
        *(np.array(space.of(axis), dtype=np.int64) for axis in MESH[:-1]), indexing="ij"
    )
    return {name: values.reshape(-1) for name, values in zip(MESH[:-1], axes, strict=True)}


def _meshes(space: Space, facts: GridFacts, columns: Columns) -> Meshes:
    """The legal meshes among `columns`, in every distinct order."""
    if space.dp:
        columns = select(columns, np.isin(columns["dp"], space.dp))
    raw = len(columns["dp"])
    columns = select(columns, legal_rows(columns, facts))
    orders = space.orders
    each = prod(len(space.of(axis)) for axis in AXES if axis not in (*MESH, "order")) * len(
        space.modules
    )
    copies = _copies(columns, orders)
    row, order = np.nonzero(copies)
    found = {name: column[row] for name, column in columns.items()} | {"order": order}
    found |= _strides(found, orders) | {"copies": copies[row, order]}
    return Meshes(columns=found, each=each, illegal=(raw - len(columns["dp"])) * len(orders))


def _copies(columns: Columns, orders: tuple[tuple[str, ...], ...]) -> IntArray:
    """(meshes, orders) number of orders with the same groups that an order stands for; 0 for all
    but the first.

    Groups depend on the axes that exceed one, in their order, of the dense and of the expert mesh.
    """
    expert = columns["ep"] * columns["etp"]
    split = columns["tp"] * columns["cp"] * columns["dp"] // expert
    wide = [columns[axis] > 1 for axis in ("tp", "cp", "dp", "pp")]
    wide += [(expert > 1) & (size > 1) for size in (columns["etp"], columns["ep"], split)]
    kinds, kind = np.unique(np.stack(wide, axis=1), axis=0, return_inverse=True)
    table = np.zeros((len(kinds), len(orders)), dtype=np.int64)
    for number, (tp, cp, dp, pp, etp, ep, edp) in enumerate(kinds.tolist()):
        dense, experts = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}, {"tp": etp, "ep": ep, "dp": edp}
        first: dict[tuple[tuple[str, ...], ...], int] = {}
        for place, order in enumerate(orders):
            groups = tuple(
                tuple(axis for axis in order if exceeds.get(axis)) for exceeds in (dense, experts)
            )
            table[number, first.setdefault(groups, place)] += 1
    return table[kind.reshape(-1)]


def _strides(columns: Columns, orders: tuple[tuple[str, ...], ...]) -> Columns:
    """Device stride of each axis of the dense mesh, from the innermost on."""
    found = {
        f"s_{axis}": np.ones(len(columns["dp"]), dtype=np.int64)
        for axis in ("tp", "cp", "dp", "pp")
    }
    for place, order in enumerate(orders):
        at = columns["order"] == place
        stride = np.ones(int(at.sum()), dtype=np.int64)
        for axis in (axis for axis in order if axis != "ep"):
            found[f"s_{axis}"][at] = stride
            stride = stride * columns[axis][at]
    return found
