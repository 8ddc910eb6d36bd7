"""Rows to price: degrees, strides and microbatch of many strategies as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.strategy.grid.axes import Grid

COLUMNS = ("tp", "sp", "cp", "ulysses", "gather", "ep", "etp", "dp", "pp", "mbs", "s_tp", "s_cp", "s_dp", "s_pp")
"""Degrees and switches, then the device stride of each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of equal length, named as in COLUMNS."""

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["tp"].shape[0])

    def __getitem__(self, name: str) -> IntArray:
        return self.columns[name]

    def take(self, index: IntArray | BoolArray) -> Rows:
        """The rows at `index`."""
        return Rows(columns={k: v[index] for k, v in self.columns.items()})

    def degrees(self) -> dict[str, IntArray]:
        """Degrees of the axes that structures cut by, and ``mbs``."""
        c = self.columns
        return {
            "mbs": c["mbs"],
            "tp": c["tp"],
            "ring": c["cp"] // c["ulysses"],
            "ulysses": c["ulysses"],
            "ep": c["ep"],
            "etp": c["etp"],
        }


def rows_of(grids: Iterable[Grid]) -> Rows:
    """One row a grid."""
    listed = []
    for g in grids:
        s = g.strides()
        listed.append(
            (g.tp, int(g.sp), g.cp, g.ulysses, int(g.gather), g.ep, g.etp, g.dp, g.pp, g.microbatch, s["tp"], s["cp"], s["dp"], s["pp"])
        )
    table = np.array(listed, dtype=np.int64).reshape(-1, len(COLUMNS))
    return Rows(columns={name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)})
