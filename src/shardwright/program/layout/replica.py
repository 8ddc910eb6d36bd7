"""The devices of a stage that work on a device's samples: what it may exchange inside the stage, without the other replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from shardwright.model.ir.tensor import Dim
from shardwright.program.layout.cells import Cell, StageCells, indices, regular_levels


@lru_cache(maxsize=4096)
def replica(cells: StageCells, device: int) -> StageCells:
    """`cells` on the devices that may work on samples of `device`; all of them where trees are unequal or cut samples crosswise.

    Every tree's cuts of the batch are intervals of device strides, [step, step x parts); on what all trees have in common the samples of
    one coordinate are nobody else's. On 1,024 devices under ``b128 t8`` a replica has the 8 devices of one batch part.

    Args:
        device: counted from the stage's first.
    """
    common = _common_strides(cells)
    if not common:
        return cells
    here = {d for d in cells.devices if all(d // low % (high // low) == device // low % (high // low) for low, high in common)}
    copies = prod(high // low for low, high in common)
    known: dict[int, dict[int, Cell]] = {}
    taken: set[frozenset[int]] = set()
    for tree in {id(t): t for t in cells.cells.values()}.values():
        own = {d: cell for d, cell in tree.items() if d in here}
        known[id(tree)] = own
        parts = {indices(cell.way(Dim.BATCH), cells.samples) for cell in own.values()}
        taken.add(frozenset(i for part in parts for a, b in part for i in range(a, b)))
    if len(taken) != 1 or len(next(iter(taken))) * copies != cells.samples:
        return cells
    return replace(
        cells,
        cells={klass: known[id(tree)] for klass, tree in cells.cells.items()},
        devices=tuple(d for d in cells.devices if d in here),
        families=tuple(f for family in cells.families if (f := tuple(d for d in family if d in here))),
        boxes={},
    )


def _common_strides(cells: StageCells) -> tuple[tuple[int, int], ...]:
    """The intervals of device strides along which every tree cuts the batch; none if a tree is not regular on all devices."""
    common: list[tuple[int, int]] | None = None
    for klass, tree in cells.cells.items():
        levels = regular_levels(cells.splits.get(klass))
        if levels is None or len(tree) != len(cells.devices) or prod(level.num_parts for level in levels) != len(tree):
            return ()
        own = [(int(s.step), int(s.step) * s.num_parts) for s in levels if s.dim is Dim.BATCH and not isinstance(s.step, tuple)]
        if common is None:
            common = own
            continue
        met = [(max(a, c), min(b, d)) for a, b in common for c, d in own if max(a, c) < min(b, d)]
        common = [(low, high) for low, high in met if high % low == 0]
    return tuple(common or ())
