"""Steps of a transition: kind, elements moved and symbolic execution."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.transition.pieces_by_holding_and_wanting_devices import Component, Group

Load = dict[int, int]
Message = tuple[int, int, int]


class StepKind(StrEnum):
    """Kinds of steps, in the words of `Collective`.

    A reduce is a broadcast the other way round.
    """

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SCATTER = "scatter"
    GATHER = "gather"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionStep:
    """One communication that groups of devices run at once, with its elements.

    Attributes:
        groups: devices of each group that runs the collective; the root first where there is one.
            Empty for sends.
        elements: the full buffer of each group, as `Collective` counts it. An uneven all-to-all,
            scatter or gather of n counts n / (n - 1) of the elements that its busiest member sends
            or receives.
        sends: (source, target, elements) of each message.
    """

    kind: StepKind
    groups: tuple[Group, ...] = ()
    elements: tuple[int, ...] = ()
    sends: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """The elements [low, high) of every target become the sum of the elements of the sources."""

    low: int
    high: int
    sources: Group
    targets: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A step of one component, with its data flows and loads.

    All flows read the values from before the step.

    Attributes:
        sent, received: elements by device.
        crossing: elements that cross islands, or stages where there are two.
    """

    step: TransitionStep
    flows: tuple[Flow, ...]
    sent: Load
    received: Load
    crossing: int = 0


def add(load: Load, device: int, elements: int) -> None:
    """Add a number of elements to a device's load."""
    load[device] = load.get(device, 0) + elements


def even_ranges(low: int, high: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Divide [low, high) into parts as equal as integers can be, in order.

    Parts may be empty.
    """
    size = high - low
    return tuple((low + size * i // parts, low + size * (i + 1) // parts) for i in range(parts))


def _island_borders(component: Component, group: Group) -> int:
    """Number of island borders that a chain through the group crosses.

    One fewer than its islands.
    """
    return len({component.island(device) for device in group}) - 1


def all_gather_act(
    component: Component,
    kind: StepKind,
    groups: Sequence[Group],
    flows: Sequence[Sequence[Flow]],
    sums: bool = False,
) -> Act:
    """The act of an all-gather, or with `sums` of a reduce-scatter, in each group.

    The reduce-scatter is the transpose of the all-gather: flows of each group have one owner each.
    """
    sent: Load = {}
    elements: list[int] = []
    crossing = 0
    for group, moved in zip(groups, flows, strict=True):
        owned: Load = {}
        for flow in moved:
            for owner in flow.targets if sums else flow.sources:
                add(owned, owner, flow.high - flow.low)
        total = sum(owned.values())
        elements.append(total)
        crossing += total * _island_borders(component, group)
        for device in group:
            add(sent, device, total - owned.get(device, 0))
    step = TransitionStep(kind=kind, groups=tuple(groups), elements=tuple(elements))
    return Act(
        step=step,
        flows=tuple(flow for moved in flows for flow in moved),
        sent=sent,
        received=sent,
        crossing=crossing,
    )


def all_reduce_act(
    component: Component, groups: Sequence[Group], spans: Sequence[tuple[int, int]]
) -> Act:
    """The act of an all-reduce: all members of each group get the sum of a span."""
    sent: Load = {}
    crossing = 0
    for group, (low, high) in zip(groups, spans, strict=True):
        crossing += 2 * (high - low) * _island_borders(component, group)
        for device, (a, b) in zip(group, even_ranges(low, high, len(group)), strict=True):
            add(sent, device, 2 * (high - low - b + a))
    step = TransitionStep(
        kind=StepKind.ALL_REDUCE,
        groups=tuple(groups),
        elements=tuple(high - low for low, high in spans),
    )
    flows = tuple(
        Flow(low, high, group, group) for group, (low, high) in zip(groups, spans, strict=True)
    )
    return Act(step=step, flows=flows, sent=sent, received=sent, crossing=crossing)


def rooted_act(
    component: Component,
    kind: StepKind,
    groups: Sequence[Group],
    spans: Sequence[Sequence[tuple[int, int]]],
) -> Act:
    """The act of broadcasts from the first member of each group, or of reduces to it, as chains."""
    out: Load = {}
    into: Load = {}
    flows = []
    crossing = 0
    sizes = [sum(high - low for low, high in ranges) for ranges in spans]
    for group, ranges, size in zip(groups, spans, sizes, strict=True):
        crossing += size * _island_borders(component, group)
        for device in group[:-1]:
            add(out, device, size)
        for device in group[1:]:
            add(into, device, size)
        flows += [
            Flow(low, high, group[:1], group[1:])
            if kind is StepKind.BROADCAST
            else Flow(low, high, group, group[:1])
            for low, high in ranges
        ]
    step = TransitionStep(kind=kind, groups=tuple(groups), elements=tuple(sizes))
    if kind is StepKind.REDUCE:
        out, into = into, out
    return Act(step=step, flows=tuple(flows), sent=out, received=into, crossing=crossing)


def message_loads(component: Component, flows: Sequence[Flow]) -> tuple[Load, Load, int]:
    """Elements sent and received by device, and number of elements that cross islands, of flows."""
    sent: Load = {}
    received: Load = {}
    crossing = 0
    for flow in flows:
        (source,), size = flow.sources, flow.high - flow.low
        for target in flow.targets:
            add(sent, source, size)
            add(received, target, size)
            if component.sides is not None:
                crossing += 0 if component.may_gather((source, target)) else size
            elif component.island(source) != component.island(target):
                crossing += size
    return sent, received, crossing


def delivers_wanted_values(component: Component, acts: Iterable[Act]) -> bool:
    """True if the steps leave every device with the full values that it wants.

    Proven by running the steps on symbols.

    A symbol is the set of parts that a device's elements are the sum of. A sum of overlapping sets
    is no value, and neither is a message of elements that its sender does not hold.
    """
    acts = tuple(acts)
    points = {0, *(piece.high for piece in component.pieces)}
    points.update(point for act in acts for flow in act.flows for point in (flow.low, flow.high))
    cuts = sorted(points)
    place = {point: i for i, point in enumerate(cuts)}
    value: NDArray[np.int32] = np.zeros((len(component.islands), len(cuts) - 1), dtype=np.int32)
    symbols: dict[int, int] = {
        0: 0,
        -1: 1,
    }  # bit mask of parts -> symbol; the mask -1 is a full value
    masks = [0, -1]
    ends = [piece.high for piece in component.pieces]

    def symbol(mask: int) -> int:
        """Number of the symbol for a mask of summed parts, created when new."""
        if mask not in symbols:
            symbols[mask] = len(masks)
            masks.append(mask)
        return symbols[mask]

    for piece in component.pieces:
        cells = slice(place[piece.low], place[piece.high])
        if piece.full:
            value[list(piece.full), cells] = 1
        for part, holders in enumerate(piece.parts):
            value[list(holders), cells] = symbol(1 << part)
    sums: dict[tuple[int, bytes], int] = {}

    def total(cell: int, column: NDArray[np.int32]) -> int:
        """Symbol of the sum of a column of symbols; of 0 if a part is twice in it, or missing."""
        parts = len(component.pieces[bisect_left(ends, cuts[cell] + 1)].parts)
        key = parts, column.tobytes()
        if key not in sums:
            part_masks = [masks[symbol_there] for symbol_there in column.tolist()]
            mask = 0
            for part_mask in part_masks:
                mask = 0 if part_mask <= 0 or mask & part_mask else mask | part_mask
                if not mask:
                    break
            sums[key] = symbol(-1 if mask == (1 << parts) - 1 else mask)
        return sums[key]

    for act in acts:
        before_step = value.copy()
        for flow in act.flows:
            low, high = place[flow.low], place[flow.high]
            if len(flow.sources) == 1:
                value[list(flow.targets), low:high] = before_step[flow.sources[0], low:high]
                continue
            for cell in range(low, high):
                value[list(flow.targets), cell] = total(cell, before_step[list(flow.sources), cell])
    return all(
        bool((value[list(piece.wanted), place[piece.low] : place[piece.high]] == 1).all())
        for piece in component.pieces
    )
