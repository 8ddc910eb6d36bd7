"""The layers of a stage in order, and which outputs each reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from shardwright.cost.tables.recompute_and_offload import named_operators
from shardwright.execute.numerics.base.cut_operator import operator_block, stream_extents
from shardwright.lazy_dataclass import dataclass
from shardwright.model.backward_reach import without_gradient
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.strategy.plan.stages import ActivationPolicy

Output = tuple[int, str]
"""What a run's layer makes; or what an operator makes inside a layer that a cut lies in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One layer (or one operator of a cut block) of a stage.

    Args:
        number: in the stage.
        segment: of which it is a layer.
        layer: of its run.
        block: what it runs.
        reads: (name in the block, whose latest output it is).
        makes: its output.
        recomputed: only its inputs are kept.
        again: operators that run again before backward.
        dropped: those of them whose output nobody keeps.
        hosted: percent of what is kept of an operator that waits on the host.
    """

    number: int
    segment: Segment
    layer: int
    block: Block
    reads: tuple[tuple[str, Output], ...]
    makes: Output
    recomputed: bool
    again: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    hosted: Mapping[str, int] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _nodes(key: _Key) -> tuple[Node, ...]:
    found: list[Node] = []
    for segment in key.stage.segments:
        names = {
            name
            for keep in segment.keeps
            if keep.how is ActivationPolicy.RECOMPUTE
            for name in keep.operators
        }
        again, dropped = _recomputed(segment)
        hosted = _hosted(segment)
        whole = key.model.blocks[key.model.runs[segment.run].block]
        block = operator_block(whole, segment.operator) if segment.operator else segment.block
        inside = segment.operator if segment.operator != whole.operators[-1].name else ""
        for layer in range(segment.first, segment.first + segment.count):
            found.append(
                Node(
                    number=len(found),
                    segment=segment,
                    layer=layer,
                    block=block,
                    reads=_reads(key.model, segment, layer, whole),
                    makes=(segment.run, inside),
                    recomputed="full" in names,
                    again=again,
                    dropped=dropped,
                    hosted=hosted,
                )
            )
    return tuple(found)


def _recomputed(segment: Segment) -> tuple[frozenset[str], frozenset[str]]:
    """(operators that run again, those whose output is not kept): cores alone keep what the
    projection behind them reads, as lowered.
    """
    again: set[str] = set()
    dropped: set[str] = set()
    keeps = [keep for keep in segment.keeps if keep.how is ActivationPolicy.RECOMPUTE]
    for keep in keeps if all("full" not in k.operators for k in keeps) else ():
        found = named_operators(segment.block.operators, keep.operators)
        if set(keep.operators) == {"core"}:
            again |= {
                o.name
                for o in segment.block.operators
                if o.name in found and o.attention is not None
            }
        else:
            again, dropped = again | found, dropped | found
    constant = without_gradient(segment.block)
    return frozenset(again) - constant, frozenset(dropped) - constant


def _hosted(segment: Segment) -> dict[str, int]:
    """Percent by operator. What a plan moves to NVMe waits on the host as well."""
    found: dict[str, int] = {}
    for keep in (k for k in segment.keeps if k.how is not ActivationPolicy.RECOMPUTE):
        found |= dict.fromkeys(
            named_operators(segment.block.operators, keep.operators), keep.percent
        )
    return found


class _Key:
    """A stage as a dictionary key: by identity."""

    __slots__ = ("model", "stage")

    def __init__(self, stage: StageParts, model: Model) -> None:
        self.stage, self.model = stage, model

    def __hash__(self) -> int:
        return hash((id(self.stage), id(self.model)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.stage is other.stage and self.model is other.model


def stage_nodes(stage: StageParts, model: Model) -> tuple[Node, ...]:
    """The nodes of a stage in the order that forward runs them."""
    return _nodes(_Key(stage, model))


def _reads(
    model: Model, segment: Segment, layer: int, whole: Block
) -> tuple[tuple[str, Output], ...]:
    """The outputs that a layer, or an operator of it, reads."""
    names = {other.name: i for i, other in enumerate(model.runs)}
    inputs = [names[name] for name in model.runs[segment.run].inputs]
    memory = next((i for i in inputs if model.is_memory(segment.run, i)), None)
    stream = segment.run if layer else next((i for i in inputs if i != memory), None)
    outside = {INPUT: stream, MEMORY: memory}
    if not segment.operator:
        return tuple((name, (run, "")) for name, run in outside.items() if run is not None)
    operator = next(o for o in whole.operators if o.name == segment.operator)
    if operator.kind is OperatorKind.EMBEDDING:
        return ()
    found = ((name, outside.get(name, segment.run)) for name in dict.fromkeys(operator.inputs))
    return tuple(
        (name, (run, "" if name in outside else name)) for name, run in found if run is not None
    )


def output_extents(model: Model, output: Output, *, width: int) -> tuple[Extent, ...]:
    """The extents of an output per token; `width`: of the run's layers."""
    run, name = output
    if not name:
        return (Extent(dim=Dim.HIDDEN, size=width),)
    return stream_extents(
        next(o for o in model.blocks[model.runs[run].block].operators if o.name == name)
    )


def output_sequence(model: Model, output: Output) -> str:
    """The name of the sequence that an output belongs to."""
    run, name = output
    block = model.blocks[model.runs[run].block]
    inputs = next((o.inputs for o in block.operators if o.name == name), ())
    return block.memory if inputs == (MEMORY,) else block.sequence
