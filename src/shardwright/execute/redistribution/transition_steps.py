"""One device's steps of a layout transition, as slices and ranges computed once: a repeated step
computes no geometry.

The device keeps the boxes that its steps touch one after another in a flat buffer (its ranges);
steps give ranges to other devices and land what comes from them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from shardwright.execute.redistribution.box_overlaps import Overlap, overlap
from shardwright.hardware.device_topology import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import (
    Box,
    Holding,
    Layout,
    difference,
    intersection,
    joined_intervals,
    volume,
)
from shardwright.program.transition.find_transition import best_acts, transition
from shardwright.program.transition.layout_pieces import Component, Group, PlacedPiece
from shardwright.program.transition.transition_steps import Flow, StepKind

Range = tuple[int, int]
"""[low, high) of the buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Elements of a tensor of the device to a box in the buffer, or to a wanted tensor.

    Args:
        holding: which of the device's holdings.
        box: which of `Moves.boxes`, or which wanted holding.
        places: where.
        add: to what is there.
    """

    holding: int
    box: int
    places: Overlap
    add: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A range of the buffer becomes a sum of what devices gave, in the order of the devices.

    Args:
        terms: (device, first of the elements in what it gave).
    """

    at: Range
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The device's part in one step.

    Args:
        number: of the step.
        group: sorted devices; empty for messages.
        elements: the full buffer, as lowering counts it.
        gives: ranges for each other device.
        receives: elements from each other device.
        landings: in any order.
        late: a collective that runs with the receiver's side of an edge, not with the sender's.
    """

    number: int
    kind: StepKind
    group: tuple[int, ...]
    elements: int
    gives: tuple[tuple[int, tuple[Range, ...]], ...]
    receives: tuple[tuple[int, int], ...]
    landings: tuple[Landing, ...]
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """A box of the buffer: where it starts, and its shape."""

    box: Box
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """All that one device does.

    Args:
        size: elements of the buffer.
        boxes: of the buffer.
        sources, wanted: boxes of the device's holdings in both layouts.
        fills: what the buffer starts with.
        kept: what wanted tensors take from the device's own.
        results: what they take from the buffer (`holding`: wanted holding, `box`: of the buffer).
        same: for each wanted holding, the own holding that it equals, where no step is taken and
            all equal one.
    """

    size: int
    boxes: tuple[Boxed, ...]
    sources: tuple[Box, ...]
    wanted: tuple[Box, ...]
    fills: tuple[Fill, ...]
    kept: tuple[Fill, ...]
    results: tuple[Fill, ...]
    turns: tuple[Turn, ...]
    same: tuple[int, ...] | None


@lru_cache(maxsize=16384)
def moves(
    source: Layout,
    wanted: Layout,
    *,
    device: int,
    across: bool,
    collectives: bool,
    islands: Units | None,
) -> Moves:
    """The steps of `device` that bring a tensor from one layout to another; see
    `program.transition.transition`.

    Raises:
        StrategyError: as `transition`.
    """
    found = transition(source, wanted, across=across, collectives=collectives, islands=islands)
    one = next((placed for placed in found.placed if device in placed.devices), None)
    own = tuple(h for h in source if h.device == device)
    boxes = tuple(h.box for h in wanted if h.device == device)
    if one is None:
        return _moves((), (), own, boxes, frozenset())
    me = one.devices.index(device)
    flows = [own.get(me, ()) for own in flows_by_device(one.component)]
    buffer = _buffer(one, flows)
    turns = tuple(_turns(one, flows, me, buffer))
    lacking = frozenset(
        number for number, piece in enumerate(one.component.pieces) if me in piece.lacking
    )
    return _moves(
        tuple(buffer.values()),
        turns,
        own,
        boxes,
        frozenset(box for n in lacking for box in one.boxes[n]),
    )


def _moves(
    boxed: tuple[Boxed, ...],
    turns: tuple[Turn, ...],
    own: tuple[Holding, ...],
    wanted: tuple[Box, ...],
    got: frozenset[Box],
) -> Moves:
    terms = tuple(_terms(own))
    buffer = tuple(b.box for b in boxed)
    new = [(number, b.box) for number, b in enumerate(boxed) if b.box in got]
    kept: list[Fill] = []
    results: list[Fill] = []
    for number, box in enumerate(wanted):
        taken = [
            (n, shared) for n, other in new if (shared := intersection(box, other)) is not None
        ]
        results += [
            Fill(holding=number, box=n, places=overlap(buffer[n], box, buffer[n]), add=False)
            for n, _ in taken
        ]
        if sum(volume(shared) for _, shared in taken) < volume(box):
            kept += _fills(terms, own, (box,), first=number)
    same = None
    if not turns and all(not fill.add for fill in kept):
        equal = [next((i for i, h in enumerate(own) if h.box == box), -1) for box in wanted]
        same = tuple(equal) if -1 not in equal else None
    return Moves(
        size=sum(volume(box) for box in buffer),
        boxes=boxed,
        sources=tuple(h.box for h in own),
        wanted=wanted,
        fills=tuple(_fills(terms, own, buffer)),
        kept=tuple(kept),
        results=tuple(results),
        turns=turns,
        same=same,
    )


def _fills(
    terms: Sequence[tuple[int, Box, bool]],
    own: Sequence[Holding],
    boxes: Sequence[Box],
    *,
    first: int = 0,
) -> list[Fill]:
    return [
        Fill(holding=holding, box=first + number, places=places, add=add)
        for number, box in enumerate(boxes)
        for holding, part, add in terms
        if (places := overlap(own[holding].box, box, part))
    ]


def _terms(own: Sequence[Holding]) -> list[tuple[int, Box, bool]]:
    """(holding, box, whether it is added): what the device holds at an index is the sum of the
    boxes there.

    Full values stand alone; of parts of a sum, equal ones count once.
    """
    result: list[tuple[int, Box, bool]] = []
    tags = sorted(
        {h.part for h in own},
        key=lambda part: (part is not None, [h.part for h in own].index(part)),
    )
    covered: list[Box] = []
    full: list[Box] = []
    for place, tag in enumerate(tags):
        covered = list(full)
        for number, holding in enumerate(own):
            if holding.part != tag:
                continue
            rest = [holding.box]
            for other in covered:
                rest = [part for box in rest for part in difference(box, other)]
            result += [(number, box, tag is not None and place > 0) for box in rest]
            covered.append(holding.box)
        if tag is None:
            full = list(covered)
    return result


@lru_cache(maxsize=4096)
def flows_by_device(component: Component) -> tuple[dict[int, tuple[Flow, ...]], ...]:
    """Of each step, the flows that each device gives to or gets from, in their order."""
    result = []
    for act in best_acts(component):
        own: dict[int, list[Flow]] = {}
        for flow in act.flows:
            for device in dict.fromkeys((*flow.sources, *flow.targets)):
                own.setdefault(device, []).append(flow)
        result.append({device: tuple(found) for device, found in own.items()})
    return tuple(result)


def _buffer(one: PlacedPiece, flows: Sequence[Sequence[Flow]]) -> dict[int, Boxed]:
    """Boxes that the device's flows touch, by their first element in the component."""
    spans = joined_intervals((flow.low, flow.high) for own in flows for flow in own)
    result: dict[int, Boxed] = {}
    start = low = at = 0
    for box in (box for boxes in one.boxes for box in boxes):
        high = low + volume(box)
        while at < len(spans) and spans[at][1] <= low:
            at += 1
        if at < len(spans) and spans[at][0] < high:
            result[low] = Boxed(box=box, start=start)
            start += high - low
        low = high
    return result


def _turns(
    one: PlacedPiece, flows: Sequence[Sequence[Flow]], me: int, buffer: dict[int, Boxed]
) -> Iterator[Turn]:
    """The steps in which the device takes part."""
    starts = sorted(buffer)

    def at(flow: Flow) -> Range:
        # Boxes that a flow touches are all in the buffer, one behind the other.
        first = starts[bisect_right(starts, flow.low) - 1]
        low = buffer[first].start + flow.low - first
        return low, low + flow.high - flow.low

    late = late_groups(one.component)
    for number, act in enumerate(best_acts(one.component)):
        pairs = zip(act.step.groups, act.step.elements, strict=True)
        group, elements = next(((g, size) for g, size in pairs if me in g), ((), 0))
        gives: dict[int, list[Range]] = {}
        received: dict[int, int] = {}
        landings: list[Landing] = []
        for flow in flows[number]:
            if me in flow.sources:
                for target in flow.targets:
                    if target != me:
                        gives.setdefault(one.devices[target], []).append(at(flow))
            if me in flow.targets:
                terms = []
                for device in sorted(one.devices[i] for i in flow.sources):
                    terms.append((device, received.get(device, 0)))
                    received[device] = received.get(device, 0) + flow.high - flow.low
                landings.append(Landing(at=at(flow), terms=tuple(terms)))
        received.pop(one.devices[me], None)
        if group or gives or received:
            yield Turn(
                number=number,
                kind=act.step.kind,
                group=tuple(sorted(one.devices[i] for i in group)),
                elements=elements,
                gives=tuple((device, tuple(gives[device])) for device in sorted(gives)),
                receives=tuple(sorted(received.items())),
                landings=tuple(landings),
                late=(number, group) in late,
            )


@lru_cache(maxsize=4096)
def late_groups(component: Component) -> frozenset[tuple[int, Group]]:
    """(step, group) of the component's collectives that run with the receiver's side of an edge
    between two stages: those with a device that is only there, and those that need what such a step
    or a message brings.
    """
    if component.sides is None:
        return frozenset()
    givers, takers = component.sides
    brought: dict[int, list[Range]] = {}
    late = set()

    def needs(flow: Flow) -> bool:
        return any(
            a < flow.high and flow.low < b
            for device in flow.sources
            for a, b in brought.get(device, ())
        )

    for number, act in enumerate(best_acts(component)):
        after: list[Flow] = []
        if not act.step.groups:
            assert not any(map(needs, act.flows)), (
                "a message never carries what the receiver's side made"
            )
            after += act.flows
        for group in act.step.groups:
            own = [flow for flow in act.flows if flow.sources[0] in group]
            if givers.issuperset(group) and not any(map(needs, own)):
                continue
            assert takers.issuperset(group), (
                "a sender's side never needs what the receiver's side makes"
            )
            late.add((number, group))
            after += own
        for flow in after:
            for device in flow.targets:
                brought.setdefault(device, []).append((flow.low, flow.high))
    return frozenset(late)
