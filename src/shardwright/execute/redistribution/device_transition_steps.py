"""One device's steps of a layout transition, as slices and ranges that are computed once.

The device keeps the boxes that its steps read or write one after another in a flat buffer (its
ranges). Steps send ranges to other devices and write the ranges that arrive.

A repeated step computes no geometry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from shardwright.execute.redistribution.copy_overlap_of_tensor_boxes import Overlap, overlap
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import (
    Box,
    Holding,
    Layout,
    difference,
    intersection,
    joined_intervals,
    volume,
)
from shardwright.program.transition.cheapest_layout_transition import best_acts, transition
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import (
    Component,
    Group,
    PlacedPiece,
)
from shardwright.program.transition.transition_steps_and_symbolic_proof import Flow, StepKind

Range = tuple[int, int]
"""Elements [low, high) of the buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A copy of elements of the device's tensor into a box of the buffer or into a wanted tensor.

    Args:
        holding: number of the device's source tensor.
        box: number of the box in `DeviceMoves.boxes`, or of the wanted tensor.
        places: slices of both tensors.
        add: add to the elements that are there.
    """

    holding: int
    box: int
    places: Overlap
    add: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRange:
    """A range of the buffer that becomes the sum of received ranges, in the order of the devices.

    Args:
        at: the range of the buffer.
        terms: (device, first element in the data that it sent).
    """

    at: Range
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """One device's part in one step of a layout transition.

    Args:
        number: number of the step.
        group: sorted devices; empty for messages.
        elements: elements of the full buffer, as `Collective` counts them.
        sends: ranges sent to each other device.
        receives: number of elements from each other device.
        received_ranges: received ranges and their places, in any order.
        late: a collective that runs with the receiver's side of an edge, not with the sender's.
    """

    number: int
    kind: StepKind
    group: tuple[int, ...]
    elements: int
    sends: tuple[tuple[int, tuple[Range, ...]], ...]
    receives: tuple[tuple[int, int], ...]
    received_ranges: tuple[ReceivedRange, ...]
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferBox:
    """A box of the global tensor and its first element in the buffer."""

    box: Box
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMoves:
    """All copies and steps of one device in a layout transition.

    Args:
        size: elements of the buffer.
        boxes: boxes that the buffer holds.
        sources, wanted: the device's boxes in both layouts.
        fills: copies of the device's tensors into the buffer before the steps.
        kept: copies of the device's tensors into wanted tensors.
        results: copies of the buffer into wanted tensors (`holding`: wanted tensor, `box`: box of
            the buffer).
        steps: the device's steps, in order.
        same: for each wanted tensor, the number of the equal source tensor, if all have one and no
            step runs; else None.
    """

    size: int
    boxes: tuple[BufferBox, ...]
    sources: tuple[Box, ...]
    wanted: tuple[Box, ...]
    fills: tuple[Fill, ...]
    kept: tuple[Fill, ...]
    results: tuple[Fill, ...]
    steps: tuple[DeviceStep, ...]
    same: tuple[int, ...] | None


@lru_cache(maxsize=16384)
def device_moves(
    source: Layout,
    target: Layout,
    *,
    device: int,
    across: bool,
    collectives: bool,
    islands: Units | None,
) -> DeviceMoves:
    """Copies, sends and receives of `device` in a layout change (`across`: between two stages).

    See `program.transition.cheapest_layout_transition`.

    Raises:
        StrategyError: as `transition`.
    """
    whole_transition = transition(
        source, target, across=across, collectives=collectives, islands=islands
    )
    placed_piece = next(
        (placed for placed in whole_transition.placed if device in placed.devices), None
    )
    source_holdings = tuple(h for h in source if h.device == device)
    boxes = tuple(h.box for h in target if h.device == device)
    if placed_piece is None:
        return _moves((), (), source_holdings, boxes, frozenset())
    index = placed_piece.devices.index(device)
    flows = [
        source_holdings.get(index, ())
        for source_holdings in flows_by_device(placed_piece.component)
    ]
    buffer = _buffer(placed_piece, flows)
    steps = tuple(_device_steps(placed_piece, flows, index, buffer))
    lacking = frozenset(
        number
        for number, piece in enumerate(placed_piece.component.pieces)
        if index in piece.lacking
    )
    return _moves(
        tuple(buffer.values()),
        steps,
        source_holdings,
        boxes,
        frozenset(box for n in lacking for box in placed_piece.boxes[n]),
    )


def _moves(
    buffer_boxes: tuple[BufferBox, ...],
    steps: tuple[DeviceStep, ...],
    sources: tuple[Holding, ...],
    target_boxes: tuple[Box, ...],
    received_boxes: frozenset[Box],
) -> DeviceMoves:
    """Sort a device's copies: into the send buffer, straight to results, from buffer to results."""
    terms = tuple(_terms(sources))
    buffer = tuple(b.box for b in buffer_boxes)
    received = [(number, b.box) for number, b in enumerate(buffer_boxes) if b.box in received_boxes]
    direct_copies: list[Fill] = []
    results: list[Fill] = []
    for number, box in enumerate(target_boxes):
        overlapping = [
            (n, shared)
            for n, received_box in received
            if (shared := intersection(box, received_box)) is not None
        ]
        results += [
            Fill(holding=number, box=n, places=overlap(buffer[n], box, buffer[n]), add=False)
            for n, _ in overlapping
        ]
        if sum(volume(shared) for _, shared in overlapping) < volume(box):
            direct_copies += _fills(terms, sources, (box,), first=number)
    same = None
    if not steps and all(not fill.add for fill in direct_copies):
        equal = [
            next((i for i, h in enumerate(sources) if h.box == box), -1) for box in target_boxes
        ]
        same = tuple(equal) if -1 not in equal else None
    return DeviceMoves(
        size=sum(volume(box) for box in buffer),
        boxes=buffer_boxes,
        sources=tuple(h.box for h in sources),
        wanted=target_boxes,
        fills=tuple(_fills(terms, sources, buffer)),
        kept=tuple(direct_copies),
        results=tuple(results),
        steps=steps,
        same=same,
    )


def _fills(
    terms: Sequence[tuple[int, Box, bool]],
    sources: Sequence[Holding],
    boxes: Sequence[Box],
    *,
    first: int = 0,
) -> list[Fill]:
    """Copies of the device's own tensors, by `terms`, into each box that they overlap."""
    return [
        Fill(holding=holding, box=first + number, places=places, add=add)
        for number, box in enumerate(boxes)
        for holding, part, add in terms
        if (places := overlap(sources[holding].box, box, part))
    ]


def _terms(holdings: Sequence[Holding]) -> list[tuple[int, Box, bool]]:
    """(holding number, box, add): copies and sums that make each value once from the holdings.

    Full values stand alone. Of equal parts of a sum, one counts.
    """
    result: list[tuple[int, Box, bool]] = []
    tags = sorted(
        {h.part for h in holdings},
        key=lambda part: (part is not None, [h.part for h in holdings].index(part)),
    )
    covered: list[Box] = []
    full: list[Box] = []
    for place, tag in enumerate(tags):
        covered = list(full)
        for number, holding in enumerate(holdings):
            if holding.part != tag:
                continue
            rest = [holding.box]
            for covered_box in covered:
                rest = [part for box in rest for part in difference(box, covered_box)]
            result += [(number, box, tag is not None and place > 0) for box in rest]
            covered.append(holding.box)
        if tag is None:
            full = list(covered)
    return result


@lru_cache(maxsize=4096)
def flows_by_device(component: Component) -> tuple[dict[int, tuple[Flow, ...]], ...]:
    """For each step of a component, member number -> flows that it sends or receives."""
    result = []
    for act in best_acts(component):
        flows_of_device: dict[int, list[Flow]] = {}
        for flow in act.flows:
            for device in dict.fromkeys((*flow.sources, *flow.targets)):
                flows_of_device.setdefault(device, []).append(flow)
        result.append({device: tuple(flows) for device, flows in flows_of_device.items()})
    return tuple(result)


def _buffer(placed_piece: PlacedPiece, flows: Sequence[Sequence[Flow]]) -> dict[int, BufferBox]:
    """Boxes of the buffer that the device's flows use, by first element in the component."""
    spans = joined_intervals((flow.low, flow.high) for step_flows in flows for flow in step_flows)
    result: dict[int, BufferBox] = {}
    start = low = at = 0
    for box in (box for boxes in placed_piece.boxes for box in boxes):
        high = low + volume(box)
        while at < len(spans) and spans[at][1] <= low:
            at += 1
        if at < len(spans) and spans[at][0] < high:
            result[low] = BufferBox(box=box, start=start)
            start += high - low
        low = high
    return result


def _device_steps(
    placed_piece: PlacedPiece,
    flows: Sequence[Sequence[Flow]],
    index: int,
    buffer: dict[int, BufferBox],
) -> Iterator[DeviceStep]:
    """Steps of a component in which this device (member `index`) sends, receives or reduces."""
    starts = sorted(buffer)

    def buffer_range(flow: Flow) -> Range:
        """[low, high) of the buffer in which a flow's elements lie."""
        # All boxes of a flow are in the buffer, one behind the other.
        first = starts[bisect_right(starts, flow.low) - 1]
        low = buffer[first].start + flow.low - first
        return low, low + flow.high - flow.low

    late = late_groups(placed_piece.component)
    for number, act in enumerate(best_acts(placed_piece.component)):
        pairs = zip(act.step.groups, act.step.elements, strict=True)
        group, elements = next(((g, size) for g, size in pairs if index in g), ((), 0))
        sends: dict[int, list[Range]] = {}
        received: dict[int, int] = {}
        received_ranges: list[ReceivedRange] = []
        for flow in flows[number]:
            if index in flow.sources:
                for target in flow.targets:
                    if target != index:
                        sends.setdefault(placed_piece.devices[target], []).append(
                            buffer_range(flow)
                        )
            if index in flow.targets:
                terms = []
                for device in sorted(placed_piece.devices[i] for i in flow.sources):
                    terms.append((device, received.get(device, 0)))
                    received[device] = received.get(device, 0) + flow.high - flow.low
                received_ranges.append(ReceivedRange(at=buffer_range(flow), terms=tuple(terms)))
        received.pop(placed_piece.devices[index], None)
        if group or sends or received:
            yield DeviceStep(
                number=number,
                kind=act.step.kind,
                group=tuple(sorted(placed_piece.devices[i] for i in group)),
                elements=elements,
                sends=tuple((device, tuple(sends[device])) for device in sorted(sends)),
                receives=tuple(sorted(received.items())),
                received_ranges=tuple(received_ranges),
                late=(number, group) in late,
            )


@lru_cache(maxsize=4096)
def late_groups(component: Component) -> frozenset[tuple[int, Group]]:
    """(step, group) of an edge's collectives that wait for the receiving stage's side.

    They include a device that is only on that side, or need data that such a collective or a
    message brings.
    """
    if component.sides is None:
        return frozenset()
    givers, takers = component.sides
    brought: dict[int, list[Range]] = {}
    late = set()

    def needs_late_data(flow: Flow) -> bool:
        """True if a source of the flow got elements of it from a late collective or a message."""
        return any(
            a < flow.high and flow.low < b
            for device in flow.sources
            for a, b in brought.get(device, ())
        )

    for number, act in enumerate(best_acts(component)):
        after: list[Flow] = []
        if not act.step.groups:
            assert not any(map(needs_late_data, act.flows)), (
                "a message never carries data that the receiver's side made"
            )
            after += act.flows
        for group in act.step.groups:
            group_flows = [flow for flow in act.flows if flow.sources[0] in group]
            if givers.issuperset(group) and not any(map(needs_late_data, group_flows)):
                continue
            assert takers.issuperset(group), (
                "a sender's side never needs data that the receiver's side makes"
            )
            late.add((number, group))
            after += group_flows
        for flow in after:
            for device in flow.targets:
                brought.setdefault(device, []).append((flow.low, flow.high))
    return frozenset(late)
