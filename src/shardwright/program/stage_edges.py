"""What flows between the stages of a lane: edges of the block graph that stages cut, and the messages of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardwright.collectives.algorithm import Collective
from shardwright.model.graph import Model
from shardwright.model.tensor import Dim, Extent
from shardwright.program.cell_structure import made_layout, stream_operator
from shardwright.program.layout import Holding, Layout, volume
from shardwright.program.stage_parts import Segment, StageParts
from shardwright.program.transition import StepKind, transition


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Stage `target` of a lane reads what `source` makes; `run`: of the model, whose output it is."""

    source: int
    target: int
    run: int


Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """How one microbatch's tensor crosses an edge. Equal only to itself.

    Args:
        sends: (n, 3) from, to, elements; devices are counted from `base`. collectives: (kind, devices, elements) that run on one side
            before or after them.
    """

    base: int
    sends: Int64
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...] = ()


class EdgeCache:
    """Messages of pairs of layouts, by what they are counted from a base: stages that repeat share them."""

    def __init__(self) -> None:
        self.found: dict[object, Messages] = {}


def stage_edges(stages: tuple[StageParts, ...], *, model: Model) -> tuple[StageEdge, ...]:
    """Every pair of different stages between which a block's output goes, in the order of the targets."""
    where: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for stage in stages:
        for segment in stage.segments:
            for block in range(segment.first, segment.first + segment.count):
                where.setdefault((segment.run, block), []).append((stage.chunk, segment.operator))
    names = {run.name: i for i, run in enumerate(model.runs)}
    found: dict[tuple[int, int, int], StageEdge] = {}
    for (run, block), places in where.items():
        before = [(run, block - 1)] if block else [(names[n], model.runs[names[n]].count - 1) for n in model.runs[run].inputs]
        if block and model.blocks[model.runs[run].block].memory:
            before += [(names[n], model.runs[names[n]].count - 1) for n in model.runs[run].inputs if _is_memory(model, run, names[n])]
        for source in before:
            if source in where:
                made = where[source][-1][0]
                _add(found, StageEdge(source=made, target=places[0][0], run=source[0]))
        for (one, _), (other, _) in pairwise(places):
            _add(found, StageEdge(source=one, target=other, run=run))
    return tuple(sorted(found.values(), key=lambda e: (e.target, e.source)))


def _is_memory(model: Model, run: int, source: int) -> bool:
    return model.blocks[model.runs[source].block].sequence == model.blocks[model.runs[run].block].memory


def _add(found: dict[tuple[int, int, int], StageEdge], edge: StageEdge) -> None:
    if edge.source != edge.target:
        found.setdefault((edge.source, edge.target, edge.run), edge)


def edge_segments(edge: StageEdge, source: StageParts, target: StageParts, *, model: Model) -> tuple[Segment, Segment]:
    """The segment that makes what crosses an edge, and the first one that reads it."""
    name = model.runs[edge.run].name
    made = [s for s in source.segments if s.run == edge.run]
    wanted = [s for s in target.segments if s.run == edge.run or (s.first == 0 and name in model.runs[s.run].inputs)]
    return (made or list(source.segments))[-1], (wanted or list(target.segments))[0]


def edge_messages(
    source: StageParts,
    target: StageParts,
    *,
    segments: tuple[Segment, Segment],
    width: int,
    length: int,
    island: int,
    minimal: bool,
    cache: EdgeCache,
) -> tuple[Messages, Messages]:
    """Messages of an edge, forward and backward.

    Args:
        segments: the one that makes the tensor, and the one that reads it.
        width: elements of one token. length: positions of the tensor's sequence. minimal: copies are sent once and gathered behind; else
            a device sends all that its counterpart needs where both stages are laid out alike. cache: of the plan.
    """
    base = min(source.base, target.base)
    base -= base % island if island else 0
    key = tuple((id(s.cells), s.operator and s.block.name, stage.base - base) for stage, s in zip((source, target), segments, strict=True))
    made = (source, segments[0], True)
    wanted = (target, segments[1], False)
    result = []
    for way, (one, other) in enumerate(((made, wanted), (wanted, made))):
        whole = (key, way, width, length, minimal)
        if whole not in cache.found:
            layouts = (_stream(s, segment, base=base, width=width, length=length, out=out) for s, segment, out in (one, other))
            cache.found[whole] = _messages(*layouts, island=island, minimal=minimal)
        found = cache.found[whole]
        result.append(found if found.base == base else replace(found, base=base))
    return result[0], result[1]


def _stream(stage: StageParts, segment: Segment, *, base: int, width: int, length: int, out: bool) -> Layout:
    found = border_layout(segment, width=width, length=length, out=out)
    return tuple(Holding(device=h.device + stage.base - base, box=h.box) for h in found)


def border_layout(segment: Segment, *, width: int, length: int, out: bool) -> Layout:
    """Where the stream lies at a stage's border; where a cut lies inside a block, the tensor that its operator makes (`out`) or reads."""
    extent = Extent(dim=Dim.HIDDEN, size=width)
    if segment.operator:
        inside = segment.block.operators[0]
        extent = (inside.writes if out else inside.reads)[0]
    operator = stream_operator((extent,))
    return made_layout(segment.cells, operator, extent, length)


def _messages(made: Layout, wanted: Layout, *, island: int, minimal: bool) -> Messages:
    if not minimal and [h.box for h in made] == [h.box for h in wanted]:
        pairs = zip(made, wanted, strict=True)
        return Messages(base=0, sends=_columns([(a.device, b.device, volume(a.box)) for a, b in pairs if a.device != b.device]))
    found = transition(made, wanted, across=True, island=island)
    sends: list[tuple[int, int, int]] = []
    collectives: list[tuple[Collective, tuple[int, ...], int]] = []
    for step in found.steps:
        if step.kind is StepKind.SEND:
            sends += step.sends
        else:
            kind = Collective.BROADCAST if step.kind is StepKind.REDUCE else Collective(step.kind.value)
            collectives += [(kind, group, step.elements) for group in step.groups]
    return Messages(base=0, sends=_columns(sends), collectives=tuple(collectives))


def _columns(sends: list[tuple[int, int, int]]) -> Int64:
    return np.array(sends, dtype=np.int64).reshape(-1, 3)
