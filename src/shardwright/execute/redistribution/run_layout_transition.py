"""Redistribution of a tensor between layouts by one device, as requests to its transport.

The steps are those of `program.transition.cheapest_layout_transition`.

A device's tensor of a holding has the shape of its box, in index order: (samples, positions,
elements). Sums are made in the order of the devices, so that all copies of a sum are equal to the
last bit.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from math import prod
from typing import cast

import torch

from shardwright.errors import StrategyError
from shardwright.execute.redistribution.copy_overlap_of_tensor_boxes import box_shape, copy_overlap
from shardwright.execute.redistribution.device_transition_steps import (
    DeviceMoves,
    DeviceStep,
    Range,
    ReceivedRange,
    device_moves,
)
from shardwright.execute.transport.communication_requests import (
    Answer,
    GroupExchange,
    Post,
    Reduce,
    Request,
    Take,
    Task,
)
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Layout
from shardwright.program.transition.transition_steps_and_symbolic_proof import StepKind

Tensors = tuple[torch.Tensor, ...]
"""One tensor for each box of the device in a layout, in the layout's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeState:
    """A device's own tensors and step buffer, kept between sending and receiving over an edge."""

    tensors: Tensors
    buffer: torch.Tensor


def redistribute(
    tensors: Sequence[torch.Tensor],
    source: Layout,
    target: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype | None = None,
    on: torch.device | str = "cpu",
    across: bool = False,
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[Tensors]:
    """Redistribute a tensor from layout `source` to `target`, and return this device's tensors.

    Every device in either layout calls it with the same layouts, flags and key. The result may be
    some of `tensors` where nothing changes.

    Args:
        tensors: one for each holding of the device in `source`, shaped as its box.
        dtype, on: of the tensor, and where it is, for a device that `source` has not.
        across, collectives, islands: as in `program.transition.cheapest_layout_transition`.

    Raises:
        StrategyError: execute.shape if a tensor is not shaped as its box; else as `transition`.
    """
    moves = device_moves(
        source, target, device=device, across=across, collectives=collectives, islands=islands
    )
    _require_box_shapes(tensors, moves, device)
    if moves.same is not None:
        return tuple(tensors[i] for i in moves.same)
    like = _empty_like_moved(tensors, dtype, on)
    buffer = _filled_buffer(tensors, moves, like)
    for step in moves.steps:
        yield from _run_step(step, buffer, device=device, key=(key, step.number))
    return _results(tensors, moves, buffer)


def send_edge(
    tensors: Sequence[torch.Tensor],
    source: Layout,
    target: Layout,
    *,
    device: int,
    key: Hashable,
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[EdgeState | None]:
    """Sending side of a stage edge: collectives, then sends; EdgeState, or None if not in `target`.

    It never waits for the other stage.

    Every device of `source` calls it. The result is the input of `receive_edge` for a device that
    is in `target` too, and None for others.

    Args: as `redistribute`.
    """
    moves = device_moves(
        source, target, device=device, across=True, collectives=collectives, islands=islands
    )
    _require_box_shapes(tensors, moves, device)
    buffer = _filled_buffer(tensors, moves, _empty_like_moved(tensors, None, "cpu"))
    for step in moves.steps:
        if step.kind is StepKind.SEND:
            yield from _send_ranges(step, buffer, key=(key, step.number))
        elif not step.late:
            yield from _run_step(step, buffer, device=device, key=(key, step.number))
    return EdgeState(tensors=tuple(tensors), buffer=buffer) if moves.wanted else None


def receive_edge(
    edge_state: EdgeState | None,
    source: Layout,
    target: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype,
    on: torch.device | str = "cpu",
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[Tensors]:
    """Run the receiver's side of an edge: receives, then collectives; returns tensors of `target`.

    Every device of `target` calls it.

    Args:
        edge_state: the result of `send_edge`; None for a device that is not in `source`.
        dtype, on: format and torch device of the tensor. Others as in `redistribute`.
    """
    moves = device_moves(
        source, target, device=device, across=True, collectives=collectives, islands=islands
    )
    tensors = edge_state.tensors if edge_state is not None else ()
    _require_box_shapes(tensors, moves, device)
    if moves.same is not None:
        return tuple(tensors[i] for i in moves.same)
    buffer = (
        edge_state.buffer
        if edge_state is not None
        else torch.empty(moves.size, dtype=dtype, device=on)
    )
    for step in moves.steps:
        if step.kind is StepKind.SEND:
            yield from _receive_ranges(step, buffer, device=device, key=(key, step.number))
        elif step.late:
            yield from _run_step(step, buffer, device=device, key=(key, step.number))
    return _results(tensors, moves, buffer)


def _require_box_shapes(tensors: Sequence[torch.Tensor], moves: DeviceMoves, device: int) -> None:
    """Raise `StrategyError` unless the tensors have the shapes of the device's source boxes."""
    shapes, expected = (
        [tuple(tensor.shape) for tensor in tensors],
        [box_shape(box) for box in moves.sources],
    )
    if shapes != expected:
        raise StrategyError(
            f"device {device} gives tensors of shapes {shapes} for boxes of shapes {expected}",
            hint="one tensor for each holding, in the order of the layout",
            rule="execute.shape",
        )


def _empty_like_moved(
    tensors: Sequence[torch.Tensor], dtype: torch.dtype | None, on: torch.device | str
) -> torch.Tensor:
    """Tensor of 0 elements with the dtype and device of the moved tensors, else the given ones."""
    return tensors[0].new_empty(0) if tensors else torch.empty(0, dtype=dtype, device=on)


def _filled_buffer(
    tensors: Sequence[torch.Tensor], moves: DeviceMoves, like: torch.Tensor
) -> torch.Tensor:
    """Buffer for sends and reductions, filled (or summed) from the device's own tensors."""
    buffer = (
        like.new_zeros(moves.size)
        if any(fill.add for fill in moves.fills)
        else like.new_empty(moves.size)
    )
    views = _views(moves, buffer)
    for fill in moves.fills:
        copy_overlap(fill.places, source=tensors[fill.holding], into=views[fill.box], add=fill.add)
    return buffer


def _views(moves: DeviceMoves, buffer: torch.Tensor) -> list[torch.Tensor]:
    """Views of the buffer, one for each box, with the boxes' shapes."""
    shapes = [box_shape(boxed.box) for boxed in moves.boxes]
    return [
        buffer[b.start : b.start + prod(s)].view(s)
        for b, s in zip(moves.boxes, shapes, strict=True)
    ]


def _results(tensors: Sequence[torch.Tensor], moves: DeviceMoves, buffer: torch.Tensor) -> Tensors:
    """Tensors of the target layout on this device, from its own tensors and received data."""
    if (
        not moves.kept
        and len(moves.wanted) == 1
        and [boxed.box for boxed in moves.boxes] == list(moves.wanted)
    ):
        return tuple(_views(moves, buffer))
    added = {fill.box for fill in moves.kept if fill.add}
    results = [
        buffer.new_zeros(box_shape(box)) if i in added else buffer.new_empty(box_shape(box))
        for i, box in enumerate(moves.wanted)
    ]
    for fill in moves.kept:
        copy_overlap(
            fill.places, source=tensors[fill.holding], into=results[fill.box], add=fill.add
        )
    views = _views(moves, buffer)
    for fill in moves.results:
        copy_overlap(fill.places, source=views[fill.box], into=results[fill.holding])
    return tuple(results)


def _run_step(
    step: DeviceStep, buffer: torch.Tensor, *, device: int, key: Hashable
) -> Generator[Request, Answer, None]:
    """Run one step of a transition: send ranges, receive ranges and write or sum them."""
    if step.kind is StepKind.SEND:
        yield from _send_ranges(step, buffer, key=key)
        yield from _receive_ranges(step, buffer, device=device, key=key)
        return
    if step.kind is StepKind.ALL_REDUCE:
        ((low, high),) = (received_range.at for received_range in step.received_ranges)
        part = buffer[low:high]
        total = cast(
            torch.Tensor, (yield Reduce(group=step.group, tensor=part, key=key, used_up=True))
        )
        if total.data_ptr() != part.data_ptr():
            part.copy_(total)
        return
    # Ranges that several devices receive are joined once.
    sent_tensors = {
        ranges: _joined(buffer, ranges)
        for ranges in dict.fromkeys(ranges for _, ranges in step.sends)
    }
    received = yield GroupExchange(
        group=step.group,
        sends={peer: sent_tensors[ranges] for peer, ranges in step.sends},
        receives={peer: (elements,) for peer, elements in step.receives},
        key=key,
        kind=step.kind.value,
        elements=step.elements,
        dtype=buffer.dtype,
    )
    _write_received(
        step.received_ranges, cast(dict[int, torch.Tensor], received), buffer, device=device
    )


def _send_ranges(
    step: DeviceStep, buffer: torch.Tensor, *, key: Hashable
) -> Generator[Request, Answer, None]:
    """Send the step's ranges of the buffer to each peer."""
    for peer, ranges in step.sends:
        yield Post(to=peer, tensor=_joined(buffer, ranges), key=key)


def _receive_ranges(
    step: DeviceStep, buffer: torch.Tensor, *, device: int, key: Hashable
) -> Generator[Request, Answer, None]:
    """Receive the step's ranges from each peer and write their sums to the buffer."""
    received: dict[int, torch.Tensor] = {}
    for peer, elements in step.receives:
        received[peer] = cast(
            torch.Tensor, (yield Take(source=peer, shape=(elements,), key=key, dtype=buffer.dtype))
        )
    _write_received(step.received_ranges, received, buffer, device=device)


def _joined(buffer: torch.Tensor, ranges: Sequence[Range]) -> torch.Tensor:
    """Concatenate the element ranges of the flat buffer."""
    parts = [buffer[low:high] for low, high in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _write_received(
    received_ranges: Sequence[ReceivedRange],
    received: dict[int, torch.Tensor],
    buffer: torch.Tensor,
    *,
    device: int,
) -> None:
    """Write received ranges to the buffer, summed in the order of the devices.

    The ranges of one step do not overlap, and a sum reads the range that it writes.
    """
    for received_range in received_ranges:
        low, high = received_range.at
        parts = [
            buffer[low:high] if peer == device else received[peer][start : start + high - low]
            for peer, start in received_range.terms
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        buffer[low:high] = total
