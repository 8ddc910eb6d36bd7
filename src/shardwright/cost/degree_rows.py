"""Rows to price: degrees, strides and microbatch of many strategies as columns."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of equal length: degrees and switches (tp, sp, cp, ulysses, gather, ep, etp, dp, pp, mbs), then the device stride of each
    axis (s_tp, s_cp, s_dp, s_pp).
    """

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
