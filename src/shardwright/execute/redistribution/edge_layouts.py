"""Layouts of a tensor between the operator that makes it and one that reads it, and of its
cotangent on the way back, by extent.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

import torch

from shardwright.execute.device_state.gathered_positions import is_spread, looks_around
from shardwright.execute.numerics.base.cut_operator import is_expert_choice, is_stand_in
from shardwright.execute.redistribution.box_overlaps import overlap
from shardwright.execute.redistribution.move_tensor import moved
from shardwright.execute.transport.requests import Task
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.block.operator_placement import is_routed
from shardwright.program.block.shared_key_cotangents import CotangentRoute, shared_cotangent_routes
from shardwright.program.layout.device_cells import StageCells, indices
from shardwright.program.layout.stage_layouts import (
    cotangent_layout,
    made_layout,
    stream_operator,
    wanted_layout,
)
from shardwright.program.layout.tensor_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One extent between a producer and a reader: number of the extent, layouts made and wanted,
    and how its cotangent returns.
    """

    name: str
    index: int
    extent: Extent
    made: Layout
    wanted: Layout
    back: tuple[CotangentRoute, ...]


def at(layout: Layout, base: int) -> Layout:
    """The layout with devices as the cluster numbers them."""
    return tuple(h._replace(device=h.device + base) for h in layout) if base else layout


def is_passed(block: Block, reader: Operator, name: str) -> bool:
    """The value stays as it is on the device: between an expert's operators, and from the choice of
    experts to what moves tokens.
    """
    maker = next((o for o in block.operators if o.name == name), None)
    return (
        maker is not None
        and is_routed(reader)
        and (is_routed(maker) or maker.kind is OperatorKind.ROUTE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The layout of an extent after the last operator, its layout in the stream, and the layout of
    its returning cotangent.
    """

    extent: Extent
    made: Layout
    streamed: Layout
    back: tuple[CotangentRoute, ...]


@lru_cache(maxsize=65536)
def exits(cells: StageCells, last: Operator, *, base: int, length: int) -> tuple[Exit, ...]:
    """The exit of every extent of a layer's last operator into the stream's layout."""
    found = []
    for extent in last.writes:
        made, stream = _layout(cells, last, extent, length, "made"), stream_operator((extent,))
        streamed = made_layout(cells, stream, extent, length)
        back = (
            ()
            if is_expert_choice(extent)
            else shared_cotangent_routes(cells, last, stream, extent, made=made, returned=streamed)
        )
        shifted = tuple(_back_at(way, base) for way in back)
        found.append(
            Exit(extent=extent, made=at(made, base), streamed=at(streamed, base), back=shifted)
        )
    return tuple(found)


def stream_layout(cells: StageCells, extent: Extent, *, base: int, length: int) -> Layout:
    """The layout of an extent of the stream, or of a tensor that a cut inside a block leaves in the
    stream's layout.
    """
    return at(made_layout(cells, stream_operator((extent,)), extent, length), base)


@lru_cache(maxsize=65536)
def edges(
    cells: StageCells,
    block: Block,
    reader: Operator,
    name: str,
    *,
    base: int,
    length: int,
    memory_length: int,
) -> tuple[Edge, ...]:
    """The edge of every extent of an input of `reader`.

    Args:
        base: of the stage.
        length: positions of the block's sequence, or of the slice at work.
        memory_length: of its memory.
    """
    maker = _maker(block, name, reader)
    tensor_length = memory_length if name == MEMORY or maker.inputs == (MEMORY,) else length
    before = sum(
        len(_maker(block, n, reader).writes) for n in reader.inputs[: reader.inputs.index(name)]
    )
    spread = is_spread(cells, reader, length=length, memory_length=memory_length)
    found, writes = [], maker.writes
    for index, extent in enumerate(writes):
        if is_stand_in(maker):
            maker = replace(maker, writes=(extent,))  # every extent lies by itself
        made = _layout(cells, maker, extent, tensor_length, "made")
        wanted = _layout(cells, reader, extent, tensor_length, "wanted")
        returned = _layout(cells, reader, extent, tensor_length, "returned")
        if spread and looks_around(reader, before + index):
            wanted, returned = (
                _whole(part, tensor_length)
                for part in (wanted, _by_queries(cells, reader, returned, length))
            )
        back = (
            ()
            if is_expert_choice(extent)
            else shared_cotangent_routes(cells, maker, reader, extent, made=made, returned=returned)
        )
        shifted = tuple(_back_at(way, base) for way in back)
        found.append(
            Edge(
                name=name,
                index=index,
                extent=extent,
                made=at(made, base),
                wanted=at(wanted, base),
                back=shifted,
            )
        )
    return tuple(found)


def _back_at(way: CotangentRoute, base: int) -> CotangentRoute:
    answered = tuple((device + base, box, inside) for device, box, inside in way.answered)
    return CotangentRoute(
        source=at(way.source, base), wanted=at(way.wanted, base), answered=answered
    )


def _whole(layout: Layout, length: int) -> Layout:
    """The layout with all positions everywhere."""
    return tuple(h._replace(box=(h.box[0], ((0, length),), *h.box[2:])) for h in layout)


def _by_queries(cells: StageCells, reader: Operator, returned: Layout, length: int) -> Layout:
    """Cotangents as parts of a sum over the readers' own positions."""
    own = cells.cells[reader.klass]
    return tuple(
        h._replace(part=(h.part, indices(own[h.device].way(Dim.SEQUENCE), length)))
        for h in returned
    )


def _maker(block: Block, name: str, reader: Operator) -> Operator:
    """The operator that makes an input, or the stream that it comes in."""
    found = next((o for o in block.operators if o.name == name), None)
    return found if found is not None else stream_operator(_stream_extents(block, reader, name))


def _stream_extents(block: Block, reader: Operator, name: str) -> tuple[Extent, ...]:
    """The block's input is one tensor: hidden wide, or as its only operator reads it."""
    if len(block.operators) == 1 and name == INPUT:
        return reader.reads[:1]
    hidden = next(
        (
            e
            for o in block.operators
            for e in (*o.reads, *o.writes)
            if e.dim is Dim.HIDDEN and e.size > 1
        ),
        reader.reads[0],
    )
    if name == MEMORY and reader.merges:
        return (replace(reader.reads[0], size=reader.memory_width),)
    if name == MEMORY or not any(e.dim is Dim.HIDDEN for e in reader.reads):
        return reader.reads[:1]
    return (
        (hidden,)
        if all(e.size != hidden.size for e in reader.reads)
        else (next(e for e in reader.reads if e.size == hidden.size),)
    )


def _layout(
    cells: StageCells, operator: Operator, extent: Extent, length: int, kind: str
) -> Layout:
    """The layout in which an operator makes, wants or returns an extent. Operators that move tokens
    to experts and back use the layout of routed tokens.
    """
    if is_routed(operator):
        held = replace(stream_operator((extent,)), klass=OperatorClass.ROUTER)
        return made_layout(cells, held, extent, length)
    return {"made": made_layout, "wanted": wanted_layout, "returned": cotangent_layout}[kind](
        cells, operator, extent, length
    )


def given_back(
    value: torch.Tensor | None,
    back: tuple[CotangentRoute, ...],
    *,
    device: int,
    key: tuple[Hashable, ...],
    dtype: torch.dtype,
    on: torch.device | str,
) -> Task[torch.Tensor | None]:
    """The device's part of a cotangent where its tensor was made; None where it was not.

    Args:
        value: what the device's readers return.
        dtype, on: as in `moved`.
    """
    result: torch.Tensor | None = None
    for number, way in enumerate(back):
        gives, gets = (
            any(h.device == device for h in layout) for layout in (way.source, way.wanted)
        )
        if not gives and not gets:
            continue
        found = yield from moved(
            value, way.source, way.wanted, device=device, key=(*key, number), dtype=dtype, on=on
        )
        if gets:
            result = found
            for _, box, inside in (one for one in way.answered if one[0] == device):
                assert result is not None
                result = result.clone()
                for place, _ in overlap(box, inside, inside):
                    result[place] = 0
    return result
