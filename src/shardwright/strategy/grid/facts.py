"""The counts of a model that a grid is checked against."""

from __future__ import annotations

from functools import reduce
from math import gcd

from shardwright.model.ir.graph import Model, Run
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor import Dim
from shardwright.runtime.runtime import Runtime
from shardwright.strategy.grid.rules import MAX_STAGE, GridFacts, LoneStages

_OF_RUNTIME = ("fills_pipeline", "ties_experts", "equal_stages", "equal_between")
_DENSE = (OperatorClass.MLP, OperatorClass.SHARED)


def layer_runs(model: Model) -> tuple[Run, ...]:
    """Runs whose blocks a grid counts as layers of its pipeline, in the model's order.

    They lie on a way to the model's output (the last run) and have no embedding and no head among
    their operators. Side outputs, such as modules that predict further tokens, are not counted:
    they stay beside the head. Nor are a teacher's blocks.
    """
    reached = model.before(model.runs[-1].name)
    return tuple(
        run for run in model.runs if run.name in reached and model.blocks[run.block].is_layer
    )


def num_layers(model: Model) -> int:
    """Blocks that a grid's pipeline spreads:
    all on the way to the output but embeddings and heads.
    """
    return sum(run.count for run in layer_runs(model))


def _common(values: list[int]) -> int:
    """Greatest common divisor; 0 of none."""
    return reduce(gcd, values, 0)


def _sizes(operators: list[Operator], dim: Dim) -> list[int]:
    """Runs that a split on `dim` may cut between, of every extent of that dim."""
    return [
        extent.runs
        for operator in operators
        for extent in (*operator.reads, *operator.writes)
        if extent.dim is dim
    ]


def has_experts(model: Model) -> bool:
    """Some operator of the model is of experts."""
    return any(o.experts is not None for block in model.blocks for o in block.operators)


def lone_stages(runtime: Runtime) -> LoneStages:
    """ZeRO stages that mean something where one device holds all, and the stage that each means.

    From ZeRO-2 on gradients wait in host memory where the optimizer's states do
    (`Runtime.gradients_on_host`), and under ZeRO-3 the shards of parameters may
    (`Runtime.parameters_on_host`), which are copied up even where nothing is gathered. Of stages
    that cut gradients the lowest stands for all.
    """
    cut = (
        [stage for stage in sorted(runtime.zero_stages) if stage >= 2]
        if runtime.gradients_on_host
        else []
    )
    found = dict.fromkeys(cut, min(cut, default=0))
    return tuple((found | {MAX_STAGE: MAX_STAGE} if runtime.parameters_on_host else found).items())


def grid_facts(
    model: Model,
    *,
    devices: int,
    global_batch: int,
    seq_len: int,
    runtime: Runtime | None = None,
    lone: LoneStages = (),
) -> GridFacts:
    """What a grid for `model` is checked against; devices and samples are counts, `seq_len` tokens
    a sample.

    Args:
        runtime: that runs it; None = no rule of a runtime, and `lone` are the lone stages.
    """
    operators = [operator for run in model.runs for operator in model.blocks[run.block].operators]
    attention = [o.attention for o in operators if o.attention is not None]
    experts = [o.experts.experts for o in operators if o.experts is not None]
    return GridFacts(
        devices=devices,
        global_batch=global_batch,
        seq_len=seq_len,
        layers=num_layers(model),
        vocab=model.vocab,
        heads=_common([a.heads for a in attention]),
        kv_heads=_common([a.kv_heads for a in attention]),
        ffn=_common(_sizes([o for o in operators if o.klass in _DENSE], Dim.FFN)),
        experts=_common(experts),
        expert_ffn=_common(
            _sizes([o for o in operators if o.klass is OperatorClass.EXPERTS], Dim.FFN)
        ),
        scan_heads=_common([o.scan.heads for o in operators if o.scan is not None]),
        teacher=model.teacher_layers,
        **{} if runtime is None else {name: getattr(runtime, name) for name in _OF_RUNTIME},
        lone_stages=lone if runtime is None else lone_stages(runtime),
        causal=all(model.blocks[run.block].is_causal for run in model.runs),
    )
