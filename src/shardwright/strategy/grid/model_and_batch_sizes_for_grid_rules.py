"""Counts of a model, batch and runtime that the rules of a grid compare with."""

from __future__ import annotations

from functools import reduce
from math import gcd

from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.runtime.framework_description import Runtime
from shardwright.strategy.grid.grid_rules import MAX_STAGE, GridFacts, LoneStages

_OF_RUNTIME = ("fills_pipeline", "ties_experts", "equal_stages", "equal_between")
_DENSE = (OperatorClass.MLP, OperatorClass.SHARED)


def layer_runs(model: Model) -> tuple[Run, ...]:
    """Runs of blocks that count as layers: no embeddings, heads, side outputs (MTP) or teachers.

    The model's output (the last run) depends on them, and they have no embedding and no head among
    their operators. Side outputs, such as modules that predict further tokens, are not counted:
    they stay beside the head. A teacher's blocks are not counted either.
    """
    reached = model.before(model.runs[-1].name)
    return tuple(
        run for run in model.runs if run.name in reached and model.blocks[run.block].is_layer
    )


def num_layers(model: Model) -> int:
    """Number of layers that a grid's pipeline divides over its chunks.

    These are all blocks that the output depends on, except embeddings and heads.
    """
    return sum(run.count for run in layer_runs(model))


def _common_divisor(values: list[int]) -> int:
    """Greatest common divisor of numbers; 0 for an empty list."""
    return reduce(gcd, values, 0)


def _units_along(operators: list[Operator], dim: Dim) -> list[int]:
    """Indivisible units (heads, columns) along `dim`, one number for each tensor with that dim."""
    return [
        extent.runs
        for operator in operators
        for extent in (*operator.reads, *operator.writes)
        if extent.dim is dim
    ]


def has_experts(model: Model) -> bool:
    """True if some operator of the model is a mixture of experts."""
    return any(o.experts is not None for block in model.blocks for o in block.operators)


def lone_stages(runtime: Runtime) -> LoneStages:
    """Pairs (ZeRO stage, lowest of equal effect) that act without sharding, by host offload.

    On such a device only states kept in host memory make a difference.

    From ZeRO-2 on gradients are kept in host memory where the optimizer's states are
    (`Runtime.gradients_on_host`), and under ZeRO-3 the shards of parameters may be
    (`Runtime.parameters_on_host`), which are copied up even where nothing is gathered. Of stages
    that cut gradients the lowest stands for all.
    """
    gradient_stages = (
        [stage for stage in sorted(runtime.zero_stages) if stage >= 2]
        if runtime.gradients_on_host
        else []
    )
    equivalents = dict.fromkeys(gradient_stages, min(gradient_stages, default=0))
    return tuple(
        (
            equivalents | {MAX_STAGE: MAX_STAGE} if runtime.parameters_on_host else equivalents
        ).items()
    )


def grid_facts(
    model: Model,
    *,
    devices: int,
    global_batch: int,
    seq_len: int,
    runtime: Runtime | None = None,
    lone: LoneStages = (),
) -> GridFacts:
    """Collect the sizes of a model, batch, cluster and runtime for the rules of a grid.

    Args:
        devices: number of devices.
        global_batch: samples a step.
        seq_len: tokens a sample.
        runtime: the runtime of the job; None = no rule of a runtime applies.
        lone: `GridFacts.lone_stages` where no runtime is given.
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
        heads=_common_divisor([a.heads for a in attention]),
        kv_heads=_common_divisor([a.kv_heads for a in attention]),
        ffn=_common_divisor(_units_along([o for o in operators if o.klass in _DENSE], Dim.FFN)),
        experts=_common_divisor(experts),
        expert_ffn=_common_divisor(
            _units_along([o for o in operators if o.klass is OperatorClass.EXPERTS], Dim.FFN)
        ),
        scan_heads=_common_divisor([o.scan.heads for o in operators if o.scan is not None]),
        teacher=model.teacher_layers,
        **{} if runtime is None else {name: getattr(runtime, name) for name in _OF_RUNTIME},
        lone_stages=lone if runtime is None else lone_stages(runtime),
        causal=all(model.blocks[run.block].is_causal for run in model.runs),
    )
