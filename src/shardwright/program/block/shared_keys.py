"""Cotangents of key heads that several parts of the query heads read: parts of a sum until the
gradient of the weights that made them.

A maker that was cut by query heads answers for its own part of them: what it is given back for a
key head is the sum over those queries, and makers with other parts of the same key head add theirs
when gradients are summed (`program.stages.holdings` counts them so).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import Extent
from shardwright.program.block.placement import is_routed
from shardwright.program.layout.cells import StageCells, cut_dims, image, reference_runs
from shardwright.program.layout.layout import Box, Interval, Layout, intersection
from shardwright.program.layout.stage_layouts import cotangent_layout, made_layout, one_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """One way of a cotangent to where its tensor was made.

    Args:
        source: parts of it that readers return.
        wanted: makers that get the sum.
        answered: (device, its box, box inside that another maker answers for): zeros there.
    """

    source: Layout
    wanted: Layout
    answered: tuple[tuple[int, Box, Box], ...] = ()


@lru_cache(maxsize=4096)
def backs(
    cells: StageCells, maker: Operator, reader: Operator, extent: Extent, length: int
) -> tuple[Back, ...]:
    """`shared_backs` of what the operators themselves make and return for `length` tokens; one
    object for equal layouts of a stage.
    """
    made, returned = (
        made_layout(cells, maker, extent, length),
        cotangent_layout(cells, reader, extent, length),
    )
    found = shared_backs(cells, maker, reader, extent, made=made, returned=returned)
    return tuple(
        replace(b, source=one_layout(cells, b.source), wanted=one_layout(cells, b.wanted))
        for b in found
    )


def shared_backs(
    cells: StageCells,
    maker: Operator,
    reader: Operator,
    extent: Extent,
    *,
    made: Layout,
    returned: Layout,
) -> tuple[Back, ...]:
    """How the cotangent of an extent returns: once for every part of the finer list that its makers
    have.

    Every reader's part lies in one of the makers' parts: sums over those inside, which is what
    lowering prices. Otherwise the sum over all readers goes to every maker of a key head, and the
    one with the first query heads answers for it.

    Args:
        made: where `maker` left the extent.
        returned: what `reader` returns for it.
    """
    whole = (
        tuple([h._replace(part=None) for h in made])
        if any(h.part is not None for h in made)
        else made
    )
    runs = max(reference_runs(one, extent.dim) for one in (maker, reader))
    coarse = extent.runs < runs and any(e.dim is extent.dim for e in reader.reads)
    if not coarse or is_routed(maker) or is_routed(reader):
        return (Back(source=returned, wanted=whole),)
    owns = {h.device: _fine(cells, maker, h.device, extent, runs) for h in made}
    reads = {h.device: _fine(cells, reader, h.device, extent, runs) for h in returned}
    if not _shared(whole, owns) and not _shared(returned, reads):
        return (Back(source=returned, wanted=whole),)
    meeting = [
        (reads[r.device], owns[m.device])
        for r in returned
        for m in whole
        if intersection(r.box, m.box) is not None
    ]
    if not all(_inside(r, m) for r, m in meeting if r[0] < m[1] and m[0] < r[1]):
        source = tuple(h._replace(part=(h.part, reads[h.device])) for h in returned)
        return (Back(source=source, wanted=whole, answered=_answered(whole, owns)),)
    result = []
    for part in sorted(set(owns.values())):
        inside = (h for h in returned if _inside(reads[h.device], part))
        source = tuple(
            h if reads[h.device] == part else h._replace(part=(h.part, reads[h.device]))
            for h in inside
        )
        result.append(Back(source=source, wanted=tuple(h for h in whole if owns[h.device] == part)))
    return tuple(result)


def _fine(
    cells: StageCells, operator: Operator, device: int, extent: Extent, runs: int
) -> Interval:
    """A device's part of the dim, in the finer list of `runs`."""
    own = reference_runs(operator, extent.dim)
    low, high = image(
        cut_dims(cells.cells[operator.klass][device], operator).get(extent.dim, ()), own, own
    )
    return low * runs // own, -(-high * runs // own)


def _shared(layout: Layout, parts: Mapping[int, Interval]) -> bool:
    """Elements of a box lie in boxes of other parts too. Where not even their last dim meets, no
    tokens are looked at.
    """

    def meet(boxes: Iterable[tuple[Box, Interval]]) -> bool:
        pairs = combinations(dict.fromkeys(boxes), 2)
        return any(
            one[1] != other[1] and intersection(one[0], other[0]) is not None
            for one, other in pairs
        )

    return meet((h.box[-1:], parts[h.device]) for h in layout) and meet(
        (h.box, parts[h.device]) for h in layout
    )


def _inside(inner: Interval, outer: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _answered(made: Layout, owns: Mapping[int, Interval]) -> tuple[tuple[int, Box, Box], ...]:
    found = []
    for h in made:
        before = dict.fromkeys(m.box for m in made if owns[m.device] < owns[h.device])
        inside = (intersection(h.box, box) for box in before)
        found += [(h.device, h.box, box) for box in inside if box is not None]
    return tuple(found)
