"""Columns of many strategies: the degrees, strides and microbatch of the rows to price."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.arrays import BoolArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRows:
    """Columns of equal length, one row a strategy: parallel degrees, switches and device strides.

    Degrees and switches are tp, sp, cp, ulysses, gather, ep, etp, dp, pp, mbs; then the device
    stride of each axis (s_tp, s_cp, s_dp, s_pp).

    Rows of devices whose groups lie in a known way have columns for it too (`lying`, `where`) and
    no strides. `within`, if present, says that all tensor-parallel groups of the row's mesh lie in
    islands.
    """

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["tp"].shape[0])

    def __getitem__(self, name: str) -> IntArray:
        return self.columns[name]

    def lying(self, axis: str) -> tuple[IntArray, ...]:
        """(n,) most members of an axis's groups in one unit, by tier but the last; may be empty.

        Empty where strides say how the groups lie.
        """
        most_members: list[IntArray] = []
        while (name := f"{axis} below {len(most_members)}") in self.columns:
            most_members.append(self.columns[name])
        return tuple(most_members)

    def where(self, axis: str, below: Iterable[IntArray]) -> DegreeRows:
        """The rows plus (n,) columns: most members of an axis's groups in a unit, by tier."""
        return DegreeRows(
            columns=self.columns
            | {f"{axis} below {tier}": count for tier, count in enumerate(below)}
        )

    def take(self, index: IntArray | BoolArray) -> DegreeRows:
        """The rows at `index`, as new columns."""
        return DegreeRows(columns={k: v[index] for k, v in self.columns.items()})

    def degrees(self) -> dict[str, IntArray]:
        """Degrees of the axes that block structures are cut by, and the microbatch size ``mbs``."""
        c = self.columns
        return {
            "mbs": c["mbs"],
            "tp": c["tp"],
            "ring": c["cp"] // c["ulysses"],
            "ulysses": c["ulysses"],
            "ep": c["ep"],
            "etp": c["etp"],
        }
