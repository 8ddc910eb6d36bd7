"""A tensor from one layout to another, as one device asks for it: the steps of
`program.transition.transition` as requests.

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
from shardwright.execute.redistribution.box_overlaps import copy, shape
from shardwright.execute.redistribution.transition_steps import Landing, Moves, Range, Turn, moves
from shardwright.execute.transport.requests import (
    Answer,
    Exchange,
    Post,
    Reduce,
    Request,
    Take,
    Task,
)
from shardwright.hardware.device_topology import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Layout
from shardwright.program.transition.transition_steps import StepKind

Tensors = tuple[torch.Tensor, ...]
"""One for each holding of the device in a layout, in the layout's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halfway:
    """State that a device keeps between both sides of an edge: its own tensors and the buffer of
    its steps.
    """

    tensors: Tensors
    buffer: torch.Tensor


def redistribute(
    tensors: Sequence[torch.Tensor],
    source: Layout,
    wanted: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype | None = None,
    on: torch.device | str = "cpu",
    across: bool = False,
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[Tensors]:
    """The device's tensors of `wanted`, of its tensors of `source`.

    Everybody in either layout calls it with the same layouts, flags and key. The result may be one
    of `tensors` where nothing changes.

    Args:
        tensors: one for each holding of the device in `source`, shaped as its box.
        dtype, on: of the tensor, and where it is, for a device that `source` has not.
        across, collectives, islands: as in `program.transition.transition`.

    Raises:
        StrategyError: execute.shape if a tensor is not shaped as its box; else as `transition`.
    """
    found = moves(
        source, wanted, device=device, across=across, collectives=collectives, islands=islands
    )
    _check(tensors, found, device)
    if found.same is not None:
        return tuple(tensors[i] for i in found.same)
    like = _like(tensors, dtype, on)
    buffer = _filled(tensors, found, like)
    for turn in found.turns:
        yield from _turn(turn, buffer, device=device, key=(key, turn.number))
    return _results(tensors, found, buffer)


def post(
    tensors: Sequence[torch.Tensor],
    source: Layout,
    wanted: Layout,
    *,
    device: int,
    key: Hashable,
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[Halfway | None]:
    """The sender's side of an edge between two stages: collectives among senders, then messages.
    Nothing waits for the other stage.

    Every device of `source` calls it; one that `wanted` has too gives the answer to `take`, of
    others it is None.

    Args: as `redistribute`.
    """
    found = moves(
        source, wanted, device=device, across=True, collectives=collectives, islands=islands
    )
    _check(tensors, found, device)
    buffer = _filled(tensors, found, _like(tensors, None, "cpu"))
    for turn in found.turns:
        if turn.kind is StepKind.SEND:
            yield from _posts(turn, buffer, key=(key, turn.number))
        elif not turn.late:
            yield from _turn(turn, buffer, device=device, key=(key, turn.number))
    return Halfway(tensors=tuple(tensors), buffer=buffer) if found.wanted else None


def take(
    halfway: Halfway | None,
    source: Layout,
    wanted: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype,
    on: torch.device | str = "cpu",
    collectives: bool = True,
    islands: Units | None = None,
) -> Task[Tensors]:
    """The receiver's side of an edge between two stages: messages, then collectives among
    receivers. Answer: tensors of `wanted`.

    Every device of `wanted` calls it.

    Args:
        halfway: what `post` answered; None for a device that `source` has not.
        dtype, on: of the tensor, and where it is.
        Others as in `redistribute`.
    """
    found = moves(
        source, wanted, device=device, across=True, collectives=collectives, islands=islands
    )
    tensors = halfway.tensors if halfway is not None else ()
    _check(tensors, found, device)
    if found.same is not None:
        return tuple(tensors[i] for i in found.same)
    buffer = (
        halfway.buffer if halfway is not None else torch.empty(found.size, dtype=dtype, device=on)
    )
    for turn in found.turns:
        if turn.kind is StepKind.SEND:
            yield from _takes(turn, buffer, device=device, key=(key, turn.number))
        elif turn.late:
            yield from _turn(turn, buffer, device=device, key=(key, turn.number))
    return _results(tensors, found, buffer)


def _check(tensors: Sequence[torch.Tensor], found: Moves, device: int) -> None:
    given, expected = (
        [tuple(tensor.shape) for tensor in tensors],
        [shape(box) for box in found.sources],
    )
    if given != expected:
        raise StrategyError(
            f"device {device} gives tensors of shapes {given} for boxes of shapes {expected}",
            hint="one tensor for each holding, in the order of the layout",
            rule="execute.shape",
        )


def _like(
    tensors: Sequence[torch.Tensor], dtype: torch.dtype | None, on: torch.device | str
) -> torch.Tensor:
    """An empty tensor like what moves."""
    return tensors[0].new_empty(0) if tensors else torch.empty(0, dtype=dtype, device=on)


def _filled(tensors: Sequence[torch.Tensor], found: Moves, like: torch.Tensor) -> torch.Tensor:
    buffer = (
        like.new_zeros(found.size)
        if any(fill.add for fill in found.fills)
        else like.new_empty(found.size)
    )
    views = _views(found, buffer)
    for fill in found.fills:
        copy(fill.places, source=tensors[fill.holding], into=views[fill.box], add=fill.add)
    return buffer


def _views(found: Moves, buffer: torch.Tensor) -> list[torch.Tensor]:
    """The boxes of the buffer as tensors of their shapes."""
    shapes = [shape(boxed.box) for boxed in found.boxes]
    return [
        buffer[b.start : b.start + prod(s)].view(s)
        for b, s in zip(found.boxes, shapes, strict=True)
    ]


def _results(tensors: Sequence[torch.Tensor], found: Moves, buffer: torch.Tensor) -> Tensors:
    if (
        not found.kept
        and len(found.wanted) == 1
        and [boxed.box for boxed in found.boxes] == list(found.wanted)
    ):
        return tuple(_views(found, buffer))
    added = {fill.box for fill in found.kept if fill.add}
    own = [
        buffer.new_zeros(shape(box)) if i in added else buffer.new_empty(shape(box))
        for i, box in enumerate(found.wanted)
    ]
    for fill in found.kept:
        copy(fill.places, source=tensors[fill.holding], into=own[fill.box], add=fill.add)
    views = _views(found, buffer)
    for fill in found.results:
        copy(fill.places, source=views[fill.box], into=own[fill.holding])
    return tuple(own)


def _turn(
    turn: Turn, buffer: torch.Tensor, *, device: int, key: Hashable
) -> Generator[Request, Answer, None]:
    """One step: give, receive, land."""
    if turn.kind is StepKind.SEND:
        yield from _posts(turn, buffer, key=key)
        yield from _takes(turn, buffer, device=device, key=key)
        return
    if turn.kind is StepKind.ALL_REDUCE:
        ((low, high),) = (landing.at for landing in turn.landings)
        part = buffer[low:high]
        total = cast(
            torch.Tensor, (yield Reduce(group=turn.group, tensor=part, key=key, used_up=True))
        )
        if total.data_ptr() != part.data_ptr():
            part.copy_(total)
        return
    # What several are given is joined once.
    joined = {
        ranges: _joined(buffer, ranges)
        for ranges in dict.fromkeys(ranges for _, ranges in turn.gives)
    }
    came = yield Exchange(
        group=turn.group,
        gives={other: joined[ranges] for other, ranges in turn.gives},
        receives={other: (elements,) for other, elements in turn.receives},
        key=key,
        kind=turn.kind.value,
        elements=turn.elements,
        dtype=buffer.dtype,
    )
    _land(turn.landings, cast(dict[int, torch.Tensor], came), buffer, device=device)


def _posts(turn: Turn, buffer: torch.Tensor, *, key: Hashable) -> Generator[Request, Answer, None]:
    for other, ranges in turn.gives:
        yield Post(to=other, tensor=_joined(buffer, ranges), key=key)


def _takes(
    turn: Turn, buffer: torch.Tensor, *, device: int, key: Hashable
) -> Generator[Request, Answer, None]:
    came: dict[int, torch.Tensor] = {}
    for other, elements in turn.receives:
        came[other] = cast(
            torch.Tensor, (yield Take(source=other, shape=(elements,), key=key, dtype=buffer.dtype))
        )
    _land(turn.landings, came, buffer, device=device)


def _joined(buffer: torch.Tensor, ranges: Sequence[Range]) -> torch.Tensor:
    parts = [buffer[low:high] for low, high in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _land(
    landings: Sequence[Landing], came: dict[int, torch.Tensor], buffer: torch.Tensor, *, device: int
) -> None:
    """Ranges of one step do not meet, and a sum reads the range that it writes."""
    for landing in landings:
        low, high = landing.at
        parts = [
            buffer[low:high] if other == device else came[other][first : first + high - low]
            for other, first in landing.terms
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        buffer[low:high] = total
