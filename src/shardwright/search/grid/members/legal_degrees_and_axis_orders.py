"""Device meshes of a grid space: tp, cp, pp, ep, etp and dp degrees with distinct axis orders."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import Columns, select
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.strategy.grid.grid_rule_violations import legal_rows
from shardwright.strategy.grid.grid_rules import GridFacts

MESH: Final = ("tp", "cp", "pp", "ep", "etp", "dp")


class MemberCounts(NamedTuple):
    """Per mesh: legal combinations of the other axes, and the distinct strategies among them."""

    legal: IntArray
    distinct: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRows:
    """Legal device meshes as columns; axis orders with the same groups are one mesh.

    Args:
        columns: MESH; `order` as its place among the space's orders; the strides `s_tp`, `s_cp`,
            `s_dp`, `s_pp`; `copies`, the number of orders that a mesh stands for; and, if members
            are counted, `legal` and `distinct` (`MemberCounts`).
        each: number of combinations of the other axes.
        illegal: number of meshes, in any order, that break a rule.
    """

    columns: Columns
    each: int
    illegal: int = 0

    def __len__(self) -> int:
        return len(self.columns["copies"])

    @property
    def devices(self) -> IntArray:
        """(meshes,) number of devices that each mesh uses."""
        c = self.columns
        return c["tp"] * c["cp"] * c["pp"] * c["dp"]

    @property
    def enumerated(self) -> int:
        """Number of raw members: combinations of all axes over these and the illegal meshes."""
        return (int(self.columns["copies"].sum()) + self.illegal) * self.each

    def counted(self, counts: MemberCounts) -> MeshRows:
        """Add the numbers of legal and distinct members as columns."""
        return replace(self, columns=self.columns | counts._asdict())

    def joined(self, other: MeshRows) -> MeshRows:
        """Concatenate these meshes and the meshes of `other`."""
        columns = {
            name: np.concatenate([column, other.columns[name]])
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns, illegal=self.illegal + other.illegal)

    def take(self, rows: IntArray | BoolArray, *, illegal: int = 0) -> MeshRows:
        """Select meshes by row; `illegal` sets the number of illegal meshes counted with them."""
        return replace(
            self,
            columns={name: column[rows] for name, column in self.columns.items()},
            illegal=illegal,
        )


def full_meshes(space: Space, facts: GridFacts) -> MeshRows:
    """The legal meshes that use all devices: dp = devices / (tp cp pp), if whole."""
    table = _degree_table(space)
    dp, rest = np.divmod(space.devices, table["tp"] * table["cp"] * table["pp"])
    return _legal_meshes(
        space, facts, {name: column[rest == 0] for name, column in (table | {"dp": dp}).items()}
    )


def idle_meshes(space: Space, facts: GridFacts) -> MeshRows:
    """Legal meshes with idle devices: whole nodes or part of one, >= `space.fewest`, dp | batch.

    They use whole nodes, or a part of one node, with every dp that divides the batch.
    """
    batch = facts.global_batch
    replicas = np.array(
        [d for d in range(1, min(batch, space.devices) + 1) if batch % d == 0], dtype=np.int64
    )
    table = _degree_table(space)
    devices_per_replica = table["tp"] * table["cp"] * table["pp"]
    devices = devices_per_replica[:, None] * replicas
    least_devices = space.fewest or space.devices
    fills_nodes = (devices % space.node == 0) | (devices < space.node)
    row, column = np.nonzero((devices >= least_devices) & (devices < space.devices) & fills_nodes)
    return _legal_meshes(
        space,
        facts,
        {name: values[row] for name, values in table.items()} | {"dp": replicas[column]},
    )


def _degree_table(space: Space) -> Columns:
    """Cross product of the space's values of all mesh degrees but dp, as columns."""
    axes = np.meshgrid(
        *(np.array(space.of(axis), dtype=np.int64) for axis in MESH[:-1]), indexing="ij"
    )
    return {name: values.reshape(-1) for name, values in zip(MESH[:-1], axes, strict=True)}


def _legal_meshes(space: Space, facts: GridFacts, columns: Columns) -> MeshRows:
    """Keep the legal meshes of `columns` and cross them with their distinct axis orders."""
    if space.dp:
        columns = select(columns, np.isin(columns["dp"], space.dp))
    num_raw = len(columns["dp"])
    columns = select(columns, legal_rows(columns, facts))
    orders = space.orders
    num_choices = prod(len(space.of(axis)) for axis in AXES if axis not in (*MESH, "order")) * len(
        space.modules
    )
    copies = _equal_orders(columns, orders)
    row, order = np.nonzero(copies)
    meshes = {name: column[row] for name, column in columns.items()} | {"order": order}
    meshes |= _strides(meshes, orders) | {"copies": copies[row, order]}
    return MeshRows(
        columns=meshes, each=num_choices, illegal=(num_raw - len(columns["dp"])) * len(orders)
    )


def _equal_orders(columns: Columns, orders: tuple[tuple[str, ...], ...]) -> IntArray:
    """(meshes, orders) number of orders with the same groups; counted at the first, 0 elsewhere.

    Groups depend on the order of the axes larger than one, in the dense and in the expert mesh.
    """
    expert = columns["ep"] * columns["etp"]
    split = columns["tp"] * columns["cp"] * columns["dp"] // expert
    exceeds_one = [columns[axis] > 1 for axis in ("tp", "cp", "dp", "pp")]
    exceeds_one += [(expert > 1) & (size > 1) for size in (columns["etp"], columns["ep"], split)]
    shapes, shape = np.unique(np.stack(exceeds_one, axis=1), axis=0, return_inverse=True)
    counts = np.zeros((len(shapes), len(orders)), dtype=np.int64)
    for number, (tp, cp, dp, pp, etp, ep, edp) in enumerate(shapes.tolist()):
        dense, experts = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}, {"tp": etp, "ep": ep, "dp": edp}
        first_order: dict[tuple[tuple[str, ...], ...], int] = {}
        for place, order in enumerate(orders):
            groups = tuple(
                tuple(axis for axis in order if exceeds.get(axis)) for exceeds in (dense, experts)
            )
            counts[number, first_order.setdefault(groups, place)] += 1
    return counts[shape.reshape(-1)]


def _strides(columns: Columns, orders: tuple[tuple[str, ...], ...]) -> Columns:
    """Columns `s_<axis>`: device stride of each axis of the dense mesh under the mesh's order."""
    strides = {
        f"s_{axis}": np.ones(len(columns["dp"]), dtype=np.int64)
        for axis in ("tp", "cp", "dp", "pp")
    }
    for place, order in enumerate(orders):
        rows = columns["order"] == place
        stride = np.ones(int(rows.sum()), dtype=np.int64)
        for axis in (axis for axis in order if axis != "ep"):
            strides[f"s_{axis}"][rows] = stride
            stride = stride * columns[axis][rows]
    return strides
