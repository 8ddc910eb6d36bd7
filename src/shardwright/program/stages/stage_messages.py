"""Tensors that cross from one stage of a lane to another, and the messages that carry them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.device_parts_of_dims import intervals
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    PARTS,
    projection,
    tokens,
)
from shardwright.program.layout.operator_tensor_layouts import made_layout, stream_operator
from shardwright.program.layout.tensor_layout import Holding, Layout, volume
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.transition.cheapest_layout_transition import transition
from shardwright.program.transition.transition_steps_and_symbolic_proof import StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Stage `target` of a lane reads a tensor that stage `source` makes.

    Args:
        run: run of the model whose output the tensor is.
        operator: operator whose output it is, where a cut lies inside a block; empty = the block's
            output.
    """

    source: int
    target: int
    run: int
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Messages that carry one microbatch's tensor across an edge; equal only to itself.

    Args:
        sends: (n, 3) from, to, elements; devices are counted from `base`.
        collectives: (kind, devices, elements) that run on one side before or after them.
    """

    base: int
    sends: IntArray
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEdge:
    """An edge between two stages of a lane, with its messages forward and backward."""

    lane: int
    edge: StageEdge
    forward: Messages
    backward: Messages


def stage_edges(stages: tuple[StageParts, ...], *, model: Model) -> tuple[StageEdge, ...]:
    """Every tensor that crosses between two different stages, in the order of the targets.

    Between whole blocks their outputs; where a cut lies inside a block each of its operators'
    outputs, and the block's input to every stage whose operators read it.
    """
    places_of_block: dict[tuple[int, int], list[tuple[int, str]]] = {}
    read = [_input_and_memory_blocks(model, run) for run in range(len(model.runs))]
    for stage in stages:
        for segment in stage.segments:
            for block in range(segment.first, segment.first + segment.count):
                places_of_block.setdefault((segment.run, block), []).append(
                    (stage.chunk, segment.operator)
                )
    edges: dict[StageEdge, None] = {}
    for (run, block), places in places_of_block.items():
        before, memory = ([(run, block - 1)] if block else read[run][0]), read[run][1]
        reading = {chunk: (True, True) for chunk, operator in places if not operator}
        inside = model.blocks[model.runs[run].block].operators
        place_of = {operator: chunk for chunk, operator in places if operator}
        for operator in inside if place_of else ():
            target = place_of[operator.name]
            from_input, from_memory = reading.get(target, (False, False))
            reading[target] = (
                from_input or INPUT in operator.inputs,
                from_memory or MEMORY in operator.inputs,
            )
            for name in operator.inputs:
                if name in place_of:
                    operator_output = "" if name == inside[-1].name else name
                    edges[
                        StageEdge(
                            source=place_of[name], target=target, run=run, operator=operator_output
                        )
                    ] = None
        for target, (from_input, from_memory) in reading.items():
            for source in (*(before if from_input else ()), *(memory if from_memory else ())):
                if source in places_of_block:
                    edges[
                        StageEdge(
                            source=places_of_block[source][-1][0], target=target, run=source[0]
                        )
                    ] = None
    return tuple(
        sorted(
            [e for e in edges if e.source != e.target], key=attrgetter("target", "source", "run")
        )
    )


Blocks = list[tuple[int, int]]


def _input_and_memory_blocks(model: Model, run: int) -> tuple[Blocks, Blocks]:
    """(run, block) of the blocks that a run reads as input, and of those it reads as memory.

    (run, block) of each: the input of the run's first block, and the memory of all its blocks.
    """
    names = {place.name: i for i, place in enumerate(model.runs)}
    inputs = [(names[n], model.runs[names[n]].count - 1) for n in model.runs[run].inputs]
    memory = [place for place in inputs if model.is_memory(run, place[0])]
    return [place for place in inputs if place not in memory], memory


def edge_extents(edge: StageEdge, *, model: Model) -> tuple[Extent, ...]:
    """Extents, per token, of the tensor that crosses an edge between stages.

    All outputs of an operator, or one row of the hidden state of a whole block.
    """
    block = model.blocks[model.runs[edge.run].block]
    if edge.operator:
        return next(o for o in block.operators if o.name == edge.operator).writes
    return (Extent(dim=Dim.HIDDEN, size=block.output_width or model.hidden),)


def edge_segments(
    edge: StageEdge, source: StageParts, target: StageParts, *, model: Model
) -> tuple[Segment, Segment]:
    """The last segment that makes the tensor of an edge, and the first segment that reads it."""
    name = model.runs[edge.run].name
    made = [s for s in source.segments if s.run == edge.run and edge.operator in ("", s.operator)]
    wanted = [s for s in target.segments if _may_read(s, edge, name=name, model=model)]
    return (made or list(source.segments))[-1], (wanted or list(target.segments))[0]


def _may_read(segment: Segment, edge: StageEdge, *, name: str, model: Model) -> bool:
    """True if a segment may be the reader of the tensor of an edge."""
    run = model.runs[segment.run]
    whole = segment.run == edge.run or (segment.first == 0 and name in run.inputs)
    if not segment.operator:
        return whole and not edge.operator
    inputs = next(o for o in model.blocks[run.block].operators if o.name == segment.operator).inputs
    return (
        edge.operator in inputs
        if edge.operator
        else whole and not {INPUT, MEMORY}.isdisjoint(inputs)
    )


def edge_messages(
    source: StageParts,
    target: StageParts,
    *,
    segments: tuple[Segment, Segment],
    extents: tuple[Extent, ...],
    length: int,
    islands: Units | None,
    minimal: bool,
) -> tuple[Messages, Messages]:
    """Messages of a microbatch over an edge (forward, gradient); `minimal`: each copy is sent once.

    Args:
        segments: the one that makes the tensor, and the one that reads it.
        extents: extents of the tensor, per token.
        length: positions of its sequence.
        minimal: copies are sent once and gathered behind; else a device sends all that its
            counterpart needs where both stages are laid out alike.
        islands: islands of the devices; None: no islands.
    """
    first_device = min(source.base, target.base)
    base, islands_seen = (
        islands.seen_from(first_device, (end.devices.last for end in (source, target)))
        if islands is not None
        else (first_device, None)
    )
    made, wanted = (
        (segment.cells, stage.base - base)
        for stage, segment in zip((source, target), segments, strict=True)
    )
    messages_both_ways = (
        _messages_between(sender, receiver, extents, length, islands_seen, minimal)
        for sender, receiver in ((made, wanted), (wanted, made))
    )
    forward, backward = (counted_from(messages, base) for messages in messages_both_ways)
    return forward, backward


@lru_cache(maxsize=8192)
def counted_from(messages: Messages, first_device: int) -> Messages:
    """The messages with their device numbers counted from `first_device`."""
    return replace(messages, base=first_device)


@lru_cache(maxsize=4096)
def _messages_between(
    sender: tuple[StageCells, int],
    receiver: tuple[StageCells, int],
    extents: tuple[Extent, ...],
    length: int,
    islands: Units | None,
    minimal: bool,
) -> Messages:
    """Messages between the cells of two stages that begin at given offsets (cached).

    Stages that repeat share them.
    """
    messages_of_extents = []
    for extent in extents:
        if sender[0] is receiver[0] and sender[1] != receiver[1] and not minimal:
            devices, sizes = _made_sizes(sender[0], extent, length)
            messages_of_extents.append(
                Messages(
                    base=0,
                    sends=np.stack([devices + sender[1], devices + receiver[1], sizes], axis=1),
                )
            )
            continue
        layouts = (_shifted_layout(*place, extent, length=length) for place in (sender, receiver))
        messages_of_extents.append(_messages_of_layouts(*layouts, islands=islands, minimal=minimal))
    return _joined_messages(messages_of_extents)


def _made_sizes(cells: StageCells, extent: Extent, length: int) -> tuple[IntArray, IntArray]:
    """Devices that hold some of the stream, and the number of elements that each holds."""
    operator = stream_operator((extent,))
    parts = projection(cells, operator.klass, PARTS)
    positions = tokens(cells, operator.klass, length).counts.prod(axis=1)
    elements = np.array(
        [high - low for low, high in intervals(parts.cells, operator, extent)], dtype=np.int64
    )[parts.number]
    return parts.devices[positions > 0], (positions * elements)[positions > 0]


def _shifted_layout(cells: StageCells, offset: int, extent: Extent, *, length: int) -> Layout:
    """Layout of the residual stream with its device numbers shifted by `offset`."""
    layout = made_layout(cells, stream_operator((extent,)), extent, length)
    return tuple(Holding(device=h.device + offset, box=h.box) for h in layout)


def _joined_messages(messages_of_extents: list[Messages]) -> Messages:
    """Messages of all extents of a tensor as one: elements summed for each pair of devices."""
    if len(messages_of_extents) == 1:
        return messages_of_extents[0]
    ends, place = np.unique(
        np.concatenate([m.sends[:, :2] for m in messages_of_extents]), axis=0, return_inverse=True
    )
    elements = np.zeros(len(ends), dtype=np.int64)
    np.add.at(
        elements, place.reshape(-1), np.concatenate([m.sends[:, 2] for m in messages_of_extents])
    )
    sends = np.concatenate([ends, elements[:, None]], axis=1)
    return Messages(
        base=0,
        sends=sends,
        collectives=tuple(collective for m in messages_of_extents for collective in m.collectives),
    )


def border_layout(segment: Segment, *, width: int, length: int, out: bool) -> Layout:
    """Layout of the residual stream at a stage's border: its output (`out`), else its input.

    Where a cut lies inside a block, of the tensor that its operator makes (`out`) or reads.
    """
    extent = Extent(dim=Dim.HIDDEN, size=width)
    if segment.operator:
        inside = segment.block.operators[0]
        extent = (inside.writes if out else inside.reads)[0]
    operator = stream_operator((extent,))
    return made_layout(segment.cells, operator, extent, length)


def _messages_of_layouts(
    made: Layout, wanted: Layout, *, islands: Units | None, minimal: bool
) -> Messages:
    """Messages from layout `made` to `wanted`: device by device if equal, unless `minimal`."""
    if not minimal and [h.box for h in made] == [h.box for h in wanted]:
        pairs = zip(made, wanted, strict=True)
        return Messages(
            base=0,
            sends=_columns(
                [(a.device, b.device, volume(a.box)) for a, b in pairs if a.device != b.device]
            ),
        )
    steps_found = transition(made, wanted, across=True, islands=islands)
    sends: list[tuple[int, int, int]] = []
    collectives: list[tuple[Collective, tuple[int, ...], int]] = []
    for step in steps_found.steps:
        if step.kind is StepKind.SEND:
            sends += step.sends
        else:
            kind = (
                Collective.BROADCAST
                if step.kind is StepKind.REDUCE
                else Collective(step.kind.value)
            )
            collectives += [
                (kind, group, size) for group, size in zip(step.groups, step.elements, strict=True)
            ]
    return Messages(base=0, sends=_columns(sends), collectives=tuple(collectives))


def _columns(sends: list[tuple[int, int, int]]) -> IntArray:
    """Sends as an (n, 3) array of from, to and elements."""
    return np.array(sends, dtype=np.int64).reshape(-1, 3)
