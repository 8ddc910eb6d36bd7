"""Parallelisation of a rank's stages: DTensor for tp, FSDP2 for replicas and shards, experts."""

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

from shardwright.execute.device_state.stored_parameter_parts import Source, parameter_part
from shardwright.execute.native.decoder_stage_as_torch_modules import (
    NativeLayer,
    NativeStage,
    native_module_path,
)
from shardwright.execute.native.device_meshes import (
    GridMeshes,
    expert_owner_ranks,
    expert_shard_dims,
    replica_mesh,
)
from shardwright.execute.native.expert_modules import shard_expert_layer, shard_expert_width
from shardwright.execute.native.private_torch_api import local_shard, own_intervals
from shardwright.execute.native.rotary_and_attention_modules import NativeRotary
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.parallelism_grid import Grid

CUT = (Dim.HEADS, Dim.FFN, Dim.VOCAB)
"""Dims that tensor parallelism cuts."""


def _parallel_styles(operator: Operator, *, sp: bool) -> dict[str, ParallelStyle]:
    """Tensor-parallel styles of one operator's modules, by name inside the operator's module.

    An operator that writes a cut dim is sharded by columns, an operator that reads one by rows. The
    hidden states between them are replicated, or sharded by positions (sequence parallelism).
    """
    stream = Shard(1) if sp else Replicate()
    if operator.kind is OperatorKind.EMBEDDING:
        return {
            f"tables.{i}": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
            for i in range(len(operator.parameters))
        }
    if operator.kind is OperatorKind.NORM and operator.reads[0].dim is Dim.HEADS:
        # Heads of queries and keys are sharded: all have the same gain, and each rank has a part
        # of its gradient.
        return {
            f"parts.{i}": SequenceParallel(sequence_dim=2, use_local_output=True)
            for i in range(len(operator.reads))
        }
    if operator.kind is OperatorKind.NORM:
        return {"parts.0": SequenceParallel(use_local_output=True)} if sp else {}
    if operator.kind is not OperatorKind.LINEAR:
        return {}
    if operator.reads[0].dim not in CUT and operator.writes[0].dim not in CUT:
        # Router scores and latents: each rank of tp computes those of its own positions, and so a
        # part of the gradient.
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
    gathered_input = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    return {
        "": gathered_input,
        **{f"parts.{i}": ColwiseParallel() for i in range(len(operator.writes))},
    }


def apply_tensor_parallelism(layer: NativeLayer, mesh: DeviceMesh, *, sp: bool) -> None:
    """Shard a layer's modules over ``mesh``, by columns or rows, and by positions if `sp`.

    Values between operators stay local tensors.
    """
    plan = {
        f"{native_module_path(operator)}.{name}".rstrip("."): style
        for operator in layer.operators
        for name, style in _parallel_styles(operator, sp=sp).items()
    }
    if plan:
        parallelize_module(layer, mesh, plan)
    for step in layer.steps.values():
        if isinstance(step, NativeRotary):
            step.stream = mesh, Shard(1) if sp else Replicate()
    if not sp:
        shard_expert_width(layer.steps.values(), mesh)


def tie_parameters(stages: list[NativeStage]) -> None:
    """In each stage, make the parameters of one key (head and embedding) the same tensor."""
    for stage in stages:
        first: dict[object, nn.Parameter] = {}
        for name, key, _ in list(stage.parameter_keys()):
            place, _, leaf = name.rpartition(".")
            shared_parameter = first.setdefault(key, stage.get_parameter(name))
            setattr(stage.get_submodule(place), leaf, shared_parameter)


def shard_stage(
    stage: NativeStage, meshes: GridMeshes, grid: Grid, *, policy: MixedPrecisionPolicy
) -> None:
    """Apply FSDP2 over ``replicate`` x ``shard``, with each layer of a repeated block as a unit.

    The remaining parameters form the stage's own unit.

    Experts with a mesh of their own are units before that, over their mesh.

    zero 0: shards of one rank, gradients all-reduced. zero 1 and 2: parameters stay gathered from
    forward to backward. zero 3: they are gathered again in backward. Under a pipeline its runtime
    decides when they are gathered.
    """
    mesh = replica_mesh(meshes.dense, "replicate", "shard")
    gather_again = grid.zero == 3 and grid.pp == 1
    owners = expert_owner_ranks(meshes)
    for layer in stage.layers:
        if meshes.experts is not None:
            projections = shard_expert_layer(
                layer.steps.values(), expert_shard_dims(meshes), owners
            )
            if projections:
                expert_mesh = replica_mesh(meshes.experts, "expert_replicate", "expert_shard")
                shard_placement = partial(
                    _evenly_divided_dim, ranks=meshes.experts["expert_shard"].size()
                )
                fully_shard(
                    list(projections),
                    mesh=expert_mesh,
                    reshard_after_forward=gather_again,
                    mp_policy=policy,
                    shard_placement_fn=shard_placement,
                )
        if not any(o.klass in (OperatorClass.EMBED, OperatorClass.HEAD) for o in layer.operators):
            fully_shard(layer, mesh=mesh, reshard_after_forward=gather_again, mp_policy=policy)
    fully_shard(stage, mesh=mesh, reshard_after_forward=gather_again, mp_policy=policy)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            # The loss is a sum over tokens that is divided once: replicas add their gradients.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _evenly_divided_dim(experts: nn.Parameter, *, ranks: int) -> Shard:
    """FSDP2 placement Shard(first dim of the local experts that `ranks` divides), else Shard(0).

    Else dim 0.
    """
    return Shard(
        next((dim for dim, size in enumerate(local_shard(experts).shape) if size % ranks == 0), 0)
    )


def load_rank_parameters(
    stage: NativeStage, *, source: Source, dtype: torch.dtype, device: str
) -> None:
    """Move a stage to `device` in `dtype`, and load this rank's elements of its parameters."""
    stage.to(dtype)
    stage.to_empty(device=device)
    with torch.no_grad():
        for name, key, layout in stage.parameter_keys():
            parameter = stage.get_parameter(name)
            if local_shard(parameter).numel():
                box = tuple(
                    (interval,) for interval in layout.model_intervals(own_intervals(parameter))
                )
                local_shard(parameter).copy_(layout.to_module(parameter_part(source, key, box)))


def parallelize_stages(
    stages: list[NativeStage],
    meshes: GridMeshes,
    grid: Grid,
    *,
    source: Source,
    dtypes: tuple[torch.dtype, torch.dtype],
    device: str,
) -> None:
    """Apply tp, tie and shard the stages of this rank, and load their parameters.

    Args:
        dtypes: format of parameters between steps (and of gradient sums), and format of the
            computation. FSDP2 does the casts, so it wraps a single replica too where they differ.
    """
    stored, compute = dtypes
    if grid.tp > 1:
        for stage in stages:
            for layer in stage.layers:
                apply_tensor_parallelism(layer, meshes.dense["tp"], sp=grid.sp)
    tie_parameters(stages)
    policy = (
        MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=stored)
        if compute is not stored
        else MixedPrecisionPolicy()
    )
    for stage in stages:
        if grid.dp * grid.cp > 1 or meshes.experts is not None or compute is not stored:
            shard_stage(stage, meshes, grid, policy=policy)
        load_rank_parameters(stage, source=source, dtype=stored, device=device)
