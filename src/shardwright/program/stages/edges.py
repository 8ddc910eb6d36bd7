"""What flows between the stages of a lane: edges of the block graph that stages cut, and the
messages of each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.graph import Model
from shardwright.model.ir.tensor import Dim, Extent
from shardwright.program.layout.cells import StageCells, intervals
from shardwright.program.layout.layout import Holding, Layout, volume
from shardwright.program.layout.projection import PARTS, projection, tokens
from shardwright.program.layout.stage_layouts import made_layout, stream_operator
from shardwright.program.stages.parts import Segment, StageParts
from shardwright.program.transition.steps import StepKind
from shardwright.program.transition.transition import transition


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Stage `target` of a lane reads what `source` makes.

    Args:
        run: of the model, whose output it is.
        operator: of a block that a cut lies in, whose output it is; empty = the block's.
    """

    source: int
    target: int
    run: int
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """How one microbatch's tensor crosses an edge. Equal only to itself.

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
    """Every tensor that goes between two different stages, in the order of the targets.

    Between whole blocks their outputs; where a cut lies inside a block each of its operators'
    outputs, and the block's input to every stage whose operators read it.
    """
    where: dict[tuple[int, int], list[tuple[int, str]]] = {}
    read = [_sources(model, run) for run in range(len(model.runs))]
    for stage in stages:
        for segment in stage.segments:
            for block in range(segment.first, segment.first + segment.count):
                where.setdefault((segment.run, block), []).append((stage.chunk, segment.operator))
    found: dict[StageEdge, None] = {}
    for (run, block), places in where.items():
        before, memory = ([(run, block - 1)] if block else read[run][0]), read[run][1]
        reading = {chunk: (True, True) for chunk, operator in places if not operator}
        inside = model.blocks[model.runs[run].block].operators
        place_of = {operator: chunk for chunk, operator in places if operator}
        for operator in inside if place_of else ():
            target = place_of[operator.name]
            main, other = reading.get(target, (False, False))
            reading[target] = (main or INPUT in operator.inputs, other or MEMORY in operator.inputs)
            for name in operator.inputs:
                if name in place_of:
                    last = "" if name == inside[-1].name else name
                    found[
                        StageEdge(source=place_of[name], target=target, run=run, operator=last)
                    ] = None
        for target, (main, other) in reading.items():
            for source in (*(before if main else ()), *(memory if other else ())):
                if source in where:
                    found[StageEdge(source=where[source][-1][0], target=target, run=source[0])] = (
                        None
                    )
    return tuple(
        sorted(
            [e for e in found if e.source != e.target], key=attrgetter("target", "source", "run")
        )
    )


Blocks = list[tuple[int, int]]


def _sources(model: Model, run: int) -> tuple[Blocks, Blocks]:
    """(run, block) of the blocks whose outputs are the input of a run's first block, and those
    whose outputs are the memory of all.
    """
    names = {one.name: i for i, one in enumerate(model.runs)}
    inputs = [(names[n], model.runs[names[n]].count - 1) for n in model.runs[run].inputs]
    memory = [one for one in inputs if model.is_memory(run, one[0])]
    return [one for one in inputs if one not in memory], memory


def edge_extents(edge: StageEdge, *, model: Model) -> tuple[Extent, ...]:
    """What crosses an edge, per token: all that the operator writes; of a whole block its output,
    one row of the hidden state.
    """
    block = model.blocks[model.runs[edge.run].block]
    if edge.operator:
        return next(o for o in block.operators if o.name == edge.operator).writes
    return (Extent(dim=Dim.HIDDEN, size=block.output_width or model.hidden),)


def edge_segments(
    edge: StageEdge, source: StageParts, target: StageParts, *, model: Model
) -> tuple[Segment, Segment]:
    """The segment that makes what crosses an edge, and the first one that reads it."""
    name = model.runs[edge.run].name
    made = [s for s in source.segments if s.run == edge.run and edge.operator in ("", s.operator)]
    wanted = [s for s in target.segments if _reads(s, edge, name=name, model=model)]
    return (made or list(source.segments))[-1], (wanted or list(target.segments))[0]


def _reads(segment: Segment, edge: StageEdge, *, name: str, model: Model) -> bool:
    """Whether a segment may be the one that takes the tensor of an edge."""
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
    """Messages of an edge, forward and backward.

    Args:
        segments: the one that makes the tensor, and the one that reads it.
        extents: of the tensor, per token.
        length: positions of its sequence.
        minimal: copies are sent once and gathered behind; else a device sends all that its
            counterpart needs where both stages are laid out alike.
        islands: that devices lie in; None: no islands.
    """
    first = min(source.base, target.base)
    base, near = (
        islands.seen_from(first, (end.devices.last for end in (source, target)))
        if islands is not None
        else (first, None)
    )
    made, wanted = (
        (segment.cells, stage.base - base)
        for stage, segment in zip((source, target), segments, strict=True)
    )
    found = (
        _between(one, other, extents, length, near, minimal)
        for one, other in ((made, wanted), (wanted, made))
    )
    forward, backward = (counted_from(one, base) for one in found)
    return forward, backward


@lru_cache(maxsize=8192)
def counted_from(messages: Messages, base: int) -> Messages:
    """The messages counted from another base."""
    return replace(messages, base=base)


@lru_cache(maxsize=4096)
def _between(
    one: tuple[StageCells, int],
    other: tuple[StageCells, int],
    extents: tuple[Extent, ...],
    length: int,
    islands: Units | None,
    minimal: bool,
) -> Messages:
    """Messages between cells that begin at an offset: stages that repeat share them."""
    each = []
    for extent in extents:
        if one[0] is other[0] and one[1] != other[1] and not minimal:
            devices, sizes = _made_sizes(one[0], extent, length)
            each.append(
                Messages(
                    base=0, sends=np.stack([devices + one[1], devices + other[1], sizes], axis=1)
                )
            )
            continue
        layouts = (_lying(*place, extent, length=length) for place in (one, other))
        each.append(_messages(*layouts, islands=islands, minimal=minimal))
    return _all_of(each)


def _made_sizes(cells: StageCells, extent: Extent, length: int) -> tuple[IntArray, IntArray]:
    """Devices that the stream's `made_layout` names, and elements that each of them holds."""
    operator = stream_operator((extent,))
    parts = projection(cells, operator.klass, PARTS)
    positions = tokens(cells, operator.klass, length).counts.prod(axis=1)
    elements = np.array(
        [high - low for low, high in intervals(parts.cells, operator, extent)], dtype=np.int64
    )[parts.number]
    return parts.devices[positions > 0], (positions * elements)[positions > 0]


def _lying(cells: StageCells, offset: int, extent: Extent, *, length: int) -> Layout:
    found = made_layout(cells, stream_operator((extent,)), extent, length)
    return tuple(Holding(device=h.device + offset, box=h.box) for h in found)


def _all_of(each: list[Messages]) -> Messages:
    """Messages of all extents of a tensor: they go together."""
    if len(each) == 1:
        return each[0]
    ends, place = np.unique(
        np.concatenate([m.sends[:, :2] for m in each]), axis=0, return_inverse=True
    )
    elements = np.zeros(len(ends), dtype=np.int64)
    np.add.at(elements, place.reshape(-1), np.concatenate([m.sends[:, 2] for m in each]))
    sends = np.concatenate([ends, elements[:, None]], axis=1)
    return Messages(
        base=0, sends=sends, collectives=tuple(one for m in each for one in m.collectives)
    )


def border_layout(segment: Segment, *, width: int, length: int, out: bool) -> Layout:
    """Where the stream lies at a stage's border; where a cut lies inside a block, the tensor that
    its operator makes (`out`) or reads.
    """
    extent = Extent(dim=Dim.HIDDEN, size=width)
    if segment.operator:
        inside = segment.block.operators[0]
        extent = (inside.writes if out else inside.reads)[0]
    operator = stream_operator((extent,))
    return made_layout(segment.cells, operator, extent, length)


def _messages(made: Layout, wanted: Layout, *, islands: Units | None, minimal: bool) -> Messages:
    if not minimal and [h.box for h in made] == [h.box for h in wanted]:
        pairs = zip(made, wanted, strict=True)
        return Messages(
            base=0,
            sends=_columns(
                [(a.device, b.device, volume(a.box)) for a, b in pairs if a.device != b.device]
            ),
        )
    found = transition(made, wanted, across=True, islands=islands)
    sends: list[tuple[int, int, int]] = []
    collectives: list[tuple[Collective, tuple[int, ...], int]] = []
    for step in found.steps:
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
    return np.array(sends, dtype=np.int64).reshape(-1, 3)
