"""Layers of a pipeline stage in order, with the outputs that each one reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from shardwright.cost.tables.apply_recompute_and_offload_policy import named_operators
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import (
    operator_block,
    stream_extents,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.model.tensors_without_gradient import without_gradient
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy

Output = tuple[int, str]
"""(run, operator): the output of a run's layer ("" as operator), or of one operator of a divided
layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """One layer of a stage, or one operator of a layer that a pipeline cut divides.

    Args:
        number: position in the stage.
        segment: the segment of the stage that holds the layer.
        layer: number of the layer in its run.
        block: the operators of the layer.
        reads: (name in the block, output that has this name).
        makes: the output of the layer.
        recomputed: full recomputation: only the layer's inputs are kept.
        again: operators that run again before backward.
        dropped: operators that run again and whose output is not kept.
        hosted: by operator, percent of its kept tensors that are offloaded to the host.
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
def _nodes(key: _Key) -> tuple[StageNode, ...]:
    """Layers (or single operators) of a stage with their inputs and recompute rules, cached."""
    nodes: list[StageNode] = []
    for segment in key.stage.segments:
        names = {
            name
            for keep in segment.keeps
            if keep.how is ActivationPolicy.RECOMPUTE
            for name in keep.operators
        }
        run_again, dropped = _recomputed(segment)
        hosted = _offload_percents(segment)
        block_of_run = key.model.blocks[key.model.runs[segment.run].block]
        block = (
            operator_block(block_of_run, segment.operator) if segment.operator else segment.block
        )
        operator_name = (
            segment.operator if segment.operator != block_of_run.operators[-1].name else ""
        )
        for layer in range(segment.first, segment.first + segment.count):
            nodes.append(
                StageNode(
                    number=len(nodes),
                    segment=segment,
                    layer=layer,
                    block=block,
                    reads=_reads(key.model, segment, layer, block_of_run),
                    makes=(segment.run, operator_name),
                    recomputed="full" in names,
                    again=run_again,
                    dropped=dropped,
                    hosted=hosted,
                )
            )
    return tuple(nodes)


def _recomputed(segment: Segment) -> tuple[frozenset[str], frozenset[str]]:
    """(operators to run again before backward, those whose outputs drop); empty for ``full``.

    If only attention cores are recomputed, their outputs are kept, because the output projection
    reads them.
    """
    run_again: set[str] = set()
    dropped: set[str] = set()
    keeps = [keep for keep in segment.keeps if keep.how is ActivationPolicy.RECOMPUTE]
    for keep in keeps if all("full" not in k.operators for k in keeps) else ():
        named = named_operators(segment.block.operators, keep.operators)
        if set(keep.operators) == {"core"}:
            run_again |= {
                o.name
                for o in segment.block.operators
                if o.name in named and o.attention is not None
            }
        else:
            run_again, dropped = run_again | named, dropped | named
    constant = without_gradient(segment.block)
    return frozenset(run_again) - constant, frozenset(dropped) - constant


def _offload_percents(segment: Segment) -> dict[str, int]:
    """Operator name -> percent of its kept tensors that is offloaded to the host.

    Tensors that a plan moves to NVMe are offloaded to the host as well.
    """
    percents: dict[str, int] = {}
    for keep in (k for k in segment.keeps if k.how is not ActivationPolicy.RECOMPUTE):
        percents |= dict.fromkeys(
            named_operators(segment.block.operators, keep.operators), keep.percent
        )
    return percents


class _Key:
    """Dictionary key of a (stage, model) pair, compared by identity."""

    __slots__ = ("model", "stage")

    def __init__(self, stage: StageParts, model: Model) -> None:
        self.stage, self.model = stage, model

    def __hash__(self) -> int:
        return hash((id(self.stage), id(self.model)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.stage is other.stage and self.model is other.model


def stage_nodes(stage: StageParts, model: Model) -> tuple[StageNode, ...]:
    """The layers of a stage in the order of the forward pass."""
    return _nodes(_Key(stage, model))


def _reads(
    model: Model, segment: Segment, layer: int, block: Block
) -> tuple[tuple[str, Output], ...]:
    """Inputs of a layer, or of one operator: (name in the block, (run, operator) it comes from)."""
    names = {run.name: i for i, run in enumerate(model.runs)}
    inputs = [names[name] for name in model.runs[segment.run].inputs]
    memory = next((i for i in inputs if model.is_memory(segment.run, i)), None)
    stream = segment.run if layer else next((i for i in inputs if i != memory), None)
    outside = {INPUT: stream, MEMORY: memory}
    if not segment.operator:
        return tuple((name, (run, "")) for name, run in outside.items() if run is not None)
    operator = next(o for o in block.operators if o.name == segment.operator)
    if operator.kind is OperatorKind.EMBEDDING:
        return ()
    named_runs = ((name, outside.get(name, segment.run)) for name in dict.fromkeys(operator.inputs))
    return tuple(
        (name, (run, "" if name in outside else name))
        for name, run in named_runs
        if run is not None
    )


def output_extents(model: Model, output: Output, *, width: int) -> tuple[Extent, ...]:
    """The extents of an output for each token; `width`: hidden width of the run's layers."""
    run, name = output
    if not name:
        return (Extent(dim=Dim.HIDDEN, size=width),)
    return stream_extents(
        next(o for o in model.blocks[model.runs[run].block].operators if o.name == name)
    )


def output_sequence(model: Model, output: Output) -> str:
    """Name of the sequence (such as text, or encoder input) over whose positions an output runs."""
    run, name = output
    block = model.blocks[model.runs[run].block]
    inputs = next((o.inputs for o in block.operators if o.name == name), ())
    return block.memory if inputs == (MEMORY,) else block.sequence
