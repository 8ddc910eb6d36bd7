"""A stage on its devices: tensor parallelism by DTensor, replicas and shards by FSDP2, experts on
ranks of their own.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardwright.execute.device_state.device_parameters import Source, part
from shardwright.execute.native.attention_modules import NativeRotary
from shardwright.execute.native.decoder_module import Layer, Stage, step_path
from shardwright.execute.native.device_meshes import Meshes, holders, owned_by, owners_of
from shardwright.execute.native.expert_modules import cut_experts, spread_experts
from shardwright.execute.native.torch_private import local, own_intervals
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.grid import Grid

CUT = (Dim.HEADS, Dim.FFN, Dim.VOCAB)
"""Dims that tensor parallelism cuts."""


def _style(operator: Operator, *, sp: bool) -> dict[str, ParallelStyle]:
    """The parallel styles of one operator's modules, by name inside its step.

    An operator that writes a cut dim from the stream is cut by columns, one that reads it by rows;
    the stream between them is whole on every rank, or cut by positions.
    """
    stream = Shard(1) if sp else Replicate()
    if operator.kind is OperatorKind.EMBEDDING:
        return {
            f"tables.{i}": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
            for i in range(len(operator.parameters))
        }
    if operator.kind is OperatorKind.NORM and operator.reads[0].dim is Dim.HEADS:
        # Heads of queries and keys are cut: the same gain for all of them, a part of its gradient
        # on each rank.
        return {
            f"parts.{i}": SequenceParallel(sequence_dim=2, use_local_output=True)
            for i in range(len(operator.reads))
        }
    if operator.kind is OperatorKind.NORM:
        return {"parts.0": SequenceParallel(use_local_output=True)} if sp else {}
    if operator.kind is not OperatorKind.LINEAR:
        return {}
    if operator.reads[0].dim not in CUT and operator.writes[0].dim not in CUT:
        # Scores of a router, latents: each rank of tp has those of its own positions, so a part of
        # the gradient.
        return (
            {
                f"parts.{i}": SequenceParallel(use_local_output=True)
                for i in range(len(operator.writes))
            }
            if sp
            else {}
        )
    if operator.reads[0].dim in CUT:
        return {"parts.0": RowwiseParallel(output_layouts=stream)}
    whole = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    return {"": whole, **{f"parts.{i}": ColwiseParallel() for i in range(len(operator.writes))}}


def cut_layer(layer: Layer, mesh: DeviceMesh, *, sp: bool) -> None:
    """Tensor parallelism over ``mesh`` for one layer; tensors between operators stay local ones."""
    plan = {
        f"{step_path(operator)}.{name}".rstrip("."): style
        for operator in layer.operators
        for name, style in _style(operator, sp=sp).items()
    }
    if plan:
        parallelize_module(layer, mesh, plan)
    for step in layer.steps.values():
        if isinstance(step, NativeRotary):
            step.stream = mesh, Shard(1) if sp else Replicate()
    if not sp:
        cut_experts(layer.steps.values(), mesh)


def tie(stages: list[Stage]) -> None:
    """Give parameters of one key, such as a head's and the embedding's, the same tensor, where one
    rank has both in one stage.
    """
    for stage in stages:
        first: dict[object, nn.Parameter] = {}
        for name, key, _ in list(stage.keyed()):
            place, _, leaf = name.rpartition(".")
            own = first.setdefault(key, stage.get_parameter(name))
            setattr(stage.get_submodule(place), leaf, own)


def shard_stage(stage: Stage, meshes: Meshes, grid: Grid, *, policy: MixedPrecisionPolicy) -> None:
    """FSDP2 over ``replicate`` x ``shard``: every layer with recurring blocks is a unit, what is
    left is the stage's own.

    Experts that lie otherwise than the rest are units before, over meshes of their own.

    zero 0: shards of one rank, gradients all-reduced. zero 1 and 2: parameters stay gathered from
    forward to backward. zero 3: they are gathered again in backward. Under a pipeline its runtime
    decides when they are gathered.
    """
    over = holders(meshes.dense, "replicate", "shard")
    again = grid.zero == 3 and grid.pp == 1
    owners = owners_of(meshes)
    for layer in stage.layers:
        if meshes.experts is not None:
            products = spread_experts(layer.steps.values(), owned_by(meshes), owners)
            if products:
                mesh = holders(meshes.experts, "expert_replicate", "expert_shard")
                placed = partial(_even, ranks=meshes.experts["expert_shard"].size())
                fully_shard(
                    list(products),
                    mesh=mesh,
                    reshard_after_forward=again,
                    mp_policy=policy,
                    shard_placement_fn=placed,
                )
        if not any(o.klass in (OperatorClass.EMBED, OperatorClass.HEAD) for o in layer.operators):
            fully_shard(layer, mesh=over, reshard_after_forward=again, mp_policy=policy)
    fully_shard(stage, mesh=over, reshard_after_forward=again, mp_policy=policy)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            # The loss is a sum over tokens that is divided once: replicas add their gradients.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _even(experts: nn.Parameter, *, ranks: int) -> Shard:
    """The first dim of this rank's experts that so many ranks cut evenly: FSDP2 cuts no other where
    one dim is cut twice.
    """
    return Shard(
        next((dim for dim, size in enumerate(local(experts).shape) if size % ranks == 0), 0)
    )


def fill(stage: Stage, *, source: Source, dtype: torch.dtype, device: str) -> None:
    """Give every rank its elements of all parameters, and read no others."""
    stage.to(dtype)
    stage.to_empty(device=device)
    with torch.no_grad():
        for name, key, turn in stage.keyed():
            held = stage.get_parameter(name)
            if local(held).numel():
                box = tuple((interval,) for interval in turn.intervals(own_intervals(held)))
                local(held).copy_(turn.to_module(part(source, key, box)))


def place(
    stages: list[Stage],
    meshes: Meshes,
    grid: Grid,
    *,
    source: Source,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: str,
) -> None:
    """Cut, tie, shard and fill the stages of this rank.

    Args:
        dtypes: of parameters between steps (their gradients are summed in it), and of computing;
            FSDP2 casts, so where they differ a single replica is under it too.
    """
    kept, compute = dtypes
    if grid.tp > 1:
        for stage in stages:
            for layer in stage.layers:
                cut_layer(layer, meshes.dense["tp"], sp=grid.sp)
    tie(stages)
    policy = (
        MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=kept)
        if compute is not kept
        else MixedPrecisionPolicy()
    )
    for stage in stages:
        if grid.dp * grid.cp > 1 or meshes.experts is not None or compute is not kept:
            shard_stage(stage, meshes, grid, policy=policy)
        fill(stage, source=source, dtype=kept, device=device)
