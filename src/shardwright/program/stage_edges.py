"""What flows between the stages of a lane: edges of the block graph that stages cut, and the messages of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """How one microbatch's tensor crosses an edge.

    Args:
        sends: (from, to, elements), devices as the cluster numbers them. collectives: (kind, devices, elements) that run on one side
            before or after them.
    """

    sends: tuple[tuple[int, int, int], ...]
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...] = ()


def stage_edges(stages: tuple[StageParts, ...], *, model: Model) -> tuple[StageEdge, ...]:
    """Every pair of different stages between which a block's output goes, in the order of the targets."""
    where: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for stage in stages:
        for segment in stage.segments:
            for block in range(segment.first, segment.first + segment.count):
                where.setdefault((segment.run, block), []).append((stage.chunk, segment.operator))
    names = {run.name: i for i, run in enumerate(model.runs)}
    found: dict[tuple[int, int], StageEdge] = {}
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


def _add(found: dict[tuple[int, int], StageEdge], edge: StageEdge) -> None:
    if edge.source != edge.target:
        found.setdefault((edge.source, edge.target), edge)


def edge_messages(
    source: StageParts, target: StageParts, *, width: int, length: int, island: int, minimal: bool
) -> tuple[Messages, Messages]:
    """Messages of an edge, forward and backward.

    Args:
        width: elements of one token. length: positions of the tensor's sequence. minimal: copies are sent once and gathered behind; else
            a device sends all that its counterpart needs where both stages are laid out alike.
    """
    made = _stream(source, source.segments[-1], width=width, length=length, out=True)
    wanted = _stream(target, target.segments[0], width=width, length=length, out=False)
    return tuple(_messages(*pair, island=island, minimal=minimal) for pair in ((made, wanted), (wanted, made)))  # type: ignore[return-value]


def _stream(stage: StageParts, segment: Segment, *, width: int, length: int, out: bool) -> Layout:
    found = border_layout(segment, width=width, length=length, out=out)
    return tuple(Holding(device=h.device + stage.base, box=h.box) for h in found)


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
        return Messages(sends=tuple((a.device, b.device, volume(a.box)) for a, b in pairs if a.device != b.device))
    base = min(min(h.device for h in made), min(h.device for h in wanted))
    base -= base % island if island else 0
    found = transition(_moved(made, -base), _moved(wanted, -base), across=True, island=island)
    sends: list[tuple[int, int, int]] = []
    collectives: list[tuple[Collective, tuple[int, ...], int]] = []
    for step in found.steps:
        if step.kind is StepKind.SEND:
            sends += [(a + base, b + base, n) for a, b, n in step.sends]
        else:
            kind = Collective.BROADCAST if step.kind is StepKind.REDUCE else Collective(step.kind.value)
            collectives += [(kind, tuple(d + base for d in group), step.elements) for group in step.groups]
    return Messages(sends=tuple(sends), collectives=tuple(collectives))


def _moved(layout: Layout, by: int) -> Layout:
    return tuple(Holding(device=h.device + by, box=h.box, part=h.part) for h in layout) if by else layout
