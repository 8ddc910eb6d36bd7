"""The layers of a stage in order, and which runs' outputs each reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from shardwright.cost.kept import named
from shardwright.model.graph import Model
from shardwright.program.stage_parts import Segment, StageParts
from shardwright.strategy.stages import How


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One layer (or one operator of a cut block) of a stage.

    Args:
        number: in the stage. segment: of which it is a layer. layer: of its run.
        input_run, memory_run: runs whose latest output it reads; None = the data, or nothing. recomputed: only its input is kept.
        again: operators that run again before backward. dropped: those of them whose output nobody keeps.
        hosted: percent of what is kept of an operator that waits on the host.
    """

    number: int
    segment: Segment
    layer: int
    input_run: int | None
    memory_run: int | None
    recomputed: bool
    again: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    hosted: Mapping[str, int] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _nodes(key: _Key) -> tuple[Node, ...]:
    found: list[Node] = []
    for segment in key.stage.segments:
        names = {name for keep in segment.keeps if keep.how is How.RECOMPUTE for name in keep.operators}
        again, dropped = _recomputed(segment)
        hosted = _hosted(segment)
        for layer in range(segment.first, segment.first + segment.count):
            inputs = _runs(key.model, segment, layer)
            found.append(
                Node(
                    number=len(found),
                    segment=segment,
                    layer=layer,
                    input_run=inputs[0],
                    memory_run=inputs[1],
                    recomputed="full" in names,
                    again=again,
                    dropped=dropped,
                    hosted=hosted,
                )
            )
    return tuple(found)


def _recomputed(segment: Segment) -> tuple[frozenset[str], frozenset[str]]:
    """(operators that run again, those whose output is not kept): cores alone keep what the projection behind them reads, as lowered."""
    again: set[str] = set()
    dropped: set[str] = set()
    keeps = [keep for keep in segment.keeps if keep.how is How.RECOMPUTE]
    for keep in keeps if all("full" not in k.operators for k in keeps) else ():
        found = named(segment.block.operators, keep.operators)
        if set(keep.operators) == {"core"}:
            again |= {o.name for o in segment.block.operators if o.name in found and o.attention is not None}
        else:
            again, dropped = again | found, dropped | found
    return frozenset(again), frozenset(dropped)


def _hosted(segment: Segment) -> dict[str, int]:
    """Percent by operator. What a plan moves to NVMe waits on the host as well."""
    found: dict[str, int] = {}
    for keep in (k for k in segment.keeps if k.how is not How.RECOMPUTE):
        found |= dict.fromkeys(named(segment.block.operators, keep.operators), keep.percent)
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


def _runs(model: Model, segment: Segment, layer: int) -> tuple[int | None, int | None]:
    """(run of the stream, run of the memory) that a layer reads."""
    run = model.runs[segment.run]
    block = model.blocks[run.block]
    names = {other.name: i for i, other in enumerate(model.runs)}
    inputs = [names[name] for name in run.inputs]
    memory = next((i for i in inputs if block.memory and model.blocks[model.runs[i].block].sequence == block.memory), None)
    streams = [i for i in inputs if i != memory]
    inside = layer > 0 or (segment.operator and segment.operator != block.operators[0].name)
    return (segment.run if inside else streams[0] if streams else None), memory
