"""Layouts of a tensor at its producer and its reader, and the way of its gradient back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

import torch

from shardwright.execute.device_state.decide_operator_inputs_to_gather import (
    is_gathered,
    reads_other_positions,
)
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import (
    is_expert_choice,
    is_stand_in,
)
from shardwright.execute.redistribution.copy_overlap_of_tensor_boxes import overlap
from shardwright.execute.redistribution.redistribute_one_tensor import move_tensor
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.routes_that_return_shared_key_gradients import (
    CotangentRoute,
    shared_cotangent_routes,
)
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices
from shardwright.program.layout.operator_tensor_layouts import (
    cotangent_layout,
    made_layout,
    stream_operator,
    wanted_layout,
)
from shardwright.program.layout.tensor_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One extent of a tensor between two operators: its layouts at producer and reader, and back.

    It has the number of the extent, the layouts at the producer and at the reader, and the routes
    on which its gradient returns.
    """

    name: str
    index: int
    extent: Extent
    made: Layout
    wanted: Layout
    back: tuple[CotangentRoute, ...]


def at_devices(layout: Layout, first_device: int) -> Layout:
    """Layout with `first_device` added to every device number."""
    return (
        tuple(h._replace(device=h.device + first_device) for h in layout)
        if first_device
        else layout
    )


def stays_on_device(block: Block, reader: Operator, name: str) -> bool:
    """True if the value is not moved: between operators of routed experts, or from the router."""
    maker = next((o for o in block.operators if o.name == name), None)
    return (
        maker is not None
        and is_routed(reader)
        and (is_routed(maker) or maker.kind is OperatorKind.ROUTE)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One extent of a layer's output: its layout at the last operator and in the residual stream.

    `back`: the routes on which its gradient returns.
    """

    extent: Extent
    made: Layout
    streamed: Layout
    back: tuple[CotangentRoute, ...]


@lru_cache(maxsize=65536)
def layer_exits(
    cells: StageCells, last: Operator, *, first_device: int, length: int
) -> tuple[Exit, ...]:
    """For each extent of a layer's output, its layouts at the last operator and in the stream."""
    exits = []
    for extent in last.writes:
        producer_layout, stream = (
            _layout(cells, last, extent, length, "made"),
            stream_operator((extent,)),
        )
        streamed = made_layout(cells, stream, extent, length)
        routes = (
            ()
            if is_expert_choice(extent)
            else shared_cotangent_routes(
                cells, last, stream, extent, made=producer_layout, returned=streamed
            )
        )
        shifted = tuple(_route_at_devices(route, first_device) for route in routes)
        exits.append(
            Exit(
                extent=extent,
                made=at_devices(producer_layout, first_device),
                streamed=at_devices(streamed, first_device),
                back=shifted,
            )
        )
    return tuple(exits)


def stream_layout(cells: StageCells, extent: Extent, *, first_device: int, length: int) -> Layout:
    """Layout of an extent in the residual stream between layers, by the plan's device numbers.

    Tensors that a cut inside a block leaves use it too.
    """
    return at_devices(made_layout(cells, stream_operator((extent,)), extent, length), first_device)


@lru_cache(maxsize=65536)
def input_edges(
    cells: StageCells,
    block: Block,
    reader: Operator,
    name: str,
    *,
    first_device: int,
    length: int,
    memory_length: int,
) -> tuple[Edge, ...]:
    """Layouts of each extent of an input at its producer and `reader`, by device number.

    Args:
        first_device: number of the stage's first device.
        length: positions of the block's sequence, or of the current slice.
        memory_length: positions of the block's memory.
    """
    maker = _maker(block, name, reader)
    tensor_length = memory_length if name == MEMORY or maker.inputs == (MEMORY,) else length
    earlier_extents = sum(
        len(_maker(block, n, reader).writes) for n in reader.inputs[: reader.inputs.index(name)]
    )
    gathered = is_gathered(cells, reader, length=length, memory_length=memory_length)
    edges, writes = [], maker.writes
    for index, extent in enumerate(writes):
        if is_stand_in(maker):
            maker = replace(maker, writes=(extent,))  # every extent lies by itself
        producer_layout = _layout(cells, maker, extent, tensor_length, "made")
        reader_layout = _layout(cells, reader, extent, tensor_length, "wanted")
        returned = _layout(cells, reader, extent, tensor_length, "returned")
        if gathered and reads_other_positions(reader, earlier_extents + index):
            reader_layout, returned = (
                _with_all_positions(part, tensor_length)
                for part in (reader_layout, _as_sums_over_queries(cells, reader, returned, length))
            )
        routes = (
            ()
            if is_expert_choice(extent)
            else shared_cotangent_routes(
                cells, maker, reader, extent, made=producer_layout, returned=returned
            )
        )
        shifted = tuple(_route_at_devices(route, first_device) for route in routes)
        edges.append(
            Edge(
                name=name,
                index=index,
                extent=extent,
                made=at_devices(producer_layout, first_device),
                wanted=at_devices(reader_layout, first_device),
                back=shifted,
            )
        )
    return tuple(edges)


def _route_at_devices(route: CotangentRoute, first_device: int) -> CotangentRoute:
    """Gradient route with `first_device` added to every device number."""
    answered = tuple((device + first_device, box, inside) for device, box, inside in route.answered)
    return CotangentRoute(
        source=at_devices(route.source, first_device),
        wanted=at_devices(route.wanted, first_device),
        answered=answered,
    )


def _with_all_positions(layout: Layout, length: int) -> Layout:
    """The layout in which every device has all `length` positions."""
    return tuple(h._replace(box=(h.box[0], ((0, length),), *h.box[2:])) for h in layout)


def _as_sums_over_queries(
    cells: StageCells, reader: Operator, returned: Layout, length: int
) -> Layout:
    """Layout in which gradients are partial sums, one for each set of query positions."""
    reader_cells = cells.cells[reader.klass]
    return tuple(
        h._replace(part=(h.part, indices(reader_cells[h.device].way(Dim.SEQUENCE), length)))
        for h in returned
    )


def _maker(block: Block, name: str, reader: Operator) -> Operator:
    """Operator that makes input `name`; if none in the block does, one for the residual stream."""
    producer = next((o for o in block.operators if o.name == name), None)
    return (
        producer if producer is not None else stream_operator(_stream_extents(block, reader, name))
    )


def _stream_extents(block: Block, reader: Operator, name: str) -> tuple[Extent, ...]:
    """Extents of the residual stream or memory that input `name` of `reader` takes."""
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
    """Layout (boxes by device) of an extent that an operator made, wanted or returned.

    Operators that move tokens to experts and back use the layout of routed tokens.
    """
    if is_routed(operator):
        router_stream = replace(stream_operator((extent,)), klass=OperatorClass.ROUTER)
        return made_layout(cells, router_stream, extent, length)
    return {"made": made_layout, "wanted": wanted_layout, "returned": cotangent_layout}[kind](
        cells, operator, extent, length
    )


def cotangent_at_maker(
    value: torch.Tensor | None,
    routes: tuple[CotangentRoute, ...],
    *,
    device: int,
    key: tuple[Hashable, ...],
    dtype: torch.dtype,
    on: torch.device | str,
) -> Task[torch.Tensor | None]:
    """Send a gradient from readers to the tensor's maker devices, summed; None elsewhere.

    Args:
        value: the gradient that the readers on this device computed.
        dtype, on: as in `move_tensor`.
    """
    result: torch.Tensor | None = None
    for number, route in enumerate(routes):
        sends, receives = (
            any(h.device == device for h in layout) for layout in (route.source, route.wanted)
        )
        if not sends and not receives:
            continue
        moved = yield from move_tensor(
            value, route.source, route.wanted, device=device, key=(*key, number), dtype=dtype, on=on
        )
        if receives:
            result = moved
            for _, box, inside in (answer for answer in route.answered if answer[0] == device):
                assert result is not None
                result = result.clone()
                for place, _ in overlap(box, inside, inside):
                    result[place] = 0
    return result
