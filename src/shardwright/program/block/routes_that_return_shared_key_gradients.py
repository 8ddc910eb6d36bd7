"""Cotangents of key heads that several parts of the query heads read (grouped-query attention).

Each reader returns a part of a sum.

A maker that was cut by query heads owns its own part of them: the cotangent that it receives for a
key head is the sum over those queries, and makers with other parts of the same key head add theirs
when gradients are summed (`plan_holdings` counts them so).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Extent
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.device_parts_of_dims import cut_dims, reference_runs
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import covered_runs
from shardwright.program.layout.operator_tensor_layouts import (
    cotangent_layout,
    interned_layout,
    made_layout,
)
from shardwright.program.layout.tensor_layout import Box, Interval, Layout, intersection


@dataclass(frozen=True, slots=True, kw_only=True)
class CotangentRoute:
    """The redistribution that brings a tensor's cotangent back to the devices that made the tensor.

    Args:
        source: parts of the cotangent that readers return.
        wanted: makers that get the sum.
        answered: (device, its box, box inside that another maker owns): zeros there.
    """

    source: Layout
    wanted: Layout
    answered: tuple[tuple[int, Box, Box], ...] = ()


@lru_cache(maxsize=4096)
def cotangent_routes(
    cells: StageCells, maker: Operator, reader: Operator, extent: Extent, length: int
) -> tuple[CotangentRoute, ...]:
    """Redistributions that return an extent's cotangent, over `length` tokens, to its maker.

    `shared_cotangent_routes` of the layouts that the operators themselves make and return; one
    object for equal layouts of a stage.
    """
    made, returned = (
        made_layout(cells, maker, extent, length),
        cotangent_layout(cells, reader, extent, length),
    )
    routes = shared_cotangent_routes(cells, maker, reader, extent, made=made, returned=returned)
    return tuple(
        replace(b, source=interned_layout(cells, b.source), wanted=interned_layout(cells, b.wanted))
        for b in routes
    )


def shared_cotangent_routes(
    cells: StageCells,
    maker: Operator,
    reader: Operator,
    extent: Extent,
    *,
    made: Layout,
    returned: Layout,
) -> tuple[CotangentRoute, ...]:
    """Redistributions that return the cotangent of an extent from readers to makers.

    One for every part of the finer list that its makers have.

    Every reader's part lies in one of the makers' parts: sums over the readers inside, which is
    what lowering prices. Otherwise the sum over all readers goes to every maker of a key head, and
    the maker with the first query heads owns it.

    Args:
        made: layout in which `maker` left the extent.
        returned: layout that `reader` returns for it.
    """
    summed = (
        tuple([h._replace(part=None) for h in made])
        if any(h.part is not None for h in made)
        else made
    )
    runs = max(reference_runs(one, extent.dim) for one in (maker, reader))
    coarse = extent.runs < runs and any(e.dim is extent.dim for e in reader.reads)
    if not coarse or is_routed(maker) or is_routed(reader):
        return (CotangentRoute(source=returned, wanted=summed),)
    maker_parts = {h.device: _part_of_device(cells, maker, h.device, extent, runs) for h in made}
    reader_parts = {
        h.device: _part_of_device(cells, reader, h.device, extent, runs) for h in returned
    }
    if not _parts_overlap(summed, maker_parts) and not _parts_overlap(returned, reader_parts):
        return (CotangentRoute(source=returned, wanted=summed),)
    overlapping = [
        (reader_parts[r.device], maker_parts[m.device])
        for r in returned
        for m in summed
        if intersection(r.box, m.box) is not None
    ]
    if not all(_inside(r, m) for r, m in overlapping if r[0] < m[1] and m[0] < r[1]):
        source = tuple(h._replace(part=(h.part, reader_parts[h.device])) for h in returned)
        return (
            CotangentRoute(
                source=source, wanted=summed, answered=_owned_by_earlier_makers(summed, maker_parts)
            ),
        )
    routes = []
    for part in sorted(set(maker_parts.values())):
        inside = (h for h in returned if _inside(reader_parts[h.device], part))
        source = tuple(
            h
            if reader_parts[h.device] == part
            else h._replace(part=(h.part, reader_parts[h.device]))
            for h in inside
        )
        routes.append(
            CotangentRoute(
                source=source, wanted=tuple(h for h in summed if maker_parts[h.device] == part)
            )
        )
    return tuple(routes)


def _part_of_device(
    cells: StageCells, operator: Operator, device: int, extent: Extent, runs: int
) -> Interval:
    """(low, high) of `runs` equal runs of the extent's dim that a device's part of it covers."""
    operator_runs = reference_runs(operator, extent.dim)
    low, high = covered_runs(
        cut_dims(cells.cells[operator.klass][device], operator).get(extent.dim, ()),
        operator_runs,
        operator_runs,
    )
    return low * runs // operator_runs, -(-high * runs // operator_runs)


def _parts_overlap(layout: Layout, parts: Mapping[int, Interval]) -> bool:
    """True if some element lies in boxes of two different parts.

    Where not even the last dim overlaps, no tokens are compared.
    """

    def meet(boxes: Iterable[tuple[Box, Interval]]) -> bool:
        """True if two boxes with different intervals share an element."""
        pairs = combinations(dict.fromkeys(boxes), 2)
        return any(
            first_box[1] != second_box[1] and intersection(first_box[0], second_box[0]) is not None
            for first_box, second_box in pairs
        )

    return meet((h.box[-1:], parts[h.device]) for h in layout) and meet(
        (h.box, parts[h.device]) for h in layout
    )


def _inside(inner: Interval, outer: Interval) -> bool:
    """True if interval `inner` lies in interval `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _owned_by_earlier_makers(
    made: Layout, owns: Mapping[int, Interval]
) -> tuple[tuple[int, Box, Box], ...]:
    """(device, its box, box inside that a maker with earlier query heads owns) of each overlap."""
    zero_boxes = []
    for h in made:
        before = dict.fromkeys(m.box for m in made if owns[m.device] < owns[h.device])
        inside = (intersection(h.box, box) for box in before)
        zero_boxes += [(h.device, h.box, box) for box in inside if box is not None]
    return tuple(zero_boxes)
