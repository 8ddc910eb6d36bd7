"""One rank's state on PyTorch's own engine: DTensor, FSDP2 and pipelining in the plan's order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Source, parameter_of
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.native.apply_dtensor_and_fsdp_to_stages import parallelize_stages
from shardwright.execute.native.decoder_stage_as_torch_modules import NativeStage
from shardwright.execute.native.device_meshes import GridMeshes, grid_meshes
from shardwright.execute.native.expert_load_balancing_loss import NativeBalance, native_balance
from shardwright.execute.native.grids_that_torch_can_run import require_expressible_grid
from shardwright.execute.native.private_torch_api import create_pipeline_runtime, local_shard
from shardwright.execute.native.rank_samples_and_positions import (
    RankTokens,
    rank_context,
    rank_tokens,
)
from shardwright.execute.native.tied_parameter_gradients import TiedCopies, tied_copies
from shardwright.execute.numerics.losses.logit_scaling import scaled_logits
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.weight_decay_exemptions import is_exempt
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.orders.write_pytorch_schedule_csv import schedule_csv
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.grid.grid_rule_violations import require_legal
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid

IGNORED = -100
"""Label of tokens without a loss in PyTorch."""


@dataclass(slots=True, kw_only=True)
class NativeEngine:
    """State of one rank in a run on PyTorch's own engine.

    Args:
        plan: the plan of the grid.
        tokens: samples and positions of a batch that this rank processes.
        stages: modules of the rank's chunks.
        places: numbers of the rank's chunks among all `chunks`.
        runtime: PyTorch's pipeline runtime; None without a pipeline.
        loss: (logits, labels) -> sum over tokens / the step's tokens.
        balance: the load-balancing loss; None: no such loss is computed.
        pieces: this rank's elements of each of `parameters`.
        optimizer: the optimizer of the pieces.
        microbatches: number of microbatches of a replica.
        shared: tied parameters of which another stage has a copy.
    """

    grid: Grid
    plan: Plan
    meshes: GridMeshes
    tokens: RankTokens
    stages: list[NativeStage]
    places: tuple[int, ...]
    chunks: int
    runtime: Any
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    pieces: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    rule: AdamW
    microbatches: int
    device: str
    shared: tuple[TiedCopies, ...]
    balance: NativeBalance | None = None
    steps: int = 0

    def local_batch(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(token ids, labels) of a step's batch that this rank processes, on its device."""
        tokens, labels = (
            self.tokens.take(batch[name]).to(self.device) for name in ("text", "labels")
        )
        return tokens, labels

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context for passes: vocabulary-parallel loss where tp > 1, one FSDP2 warning off."""
        shards: AbstractContextManager[object] = (
            loss_parallel() if self.grid.tp > 1 else nullcontext()
        )
        with shards, warnings.catch_warnings():
            # Logits are a view of a DTensor's local part; nothing here writes into them.
            warnings.filterwarnings(
                "ignore", message="FSDP2-wrapped module .* returned a view tensor"
            )
            yield

    def pipeline(self) -> Any:
        """Create a pipeline runtime of this rank's stages, with the plan's action order."""
        group, on = self.meshes.dense["pp"].get_group(), torch.device(self.device)
        pipeline_stages = [
            PipelineStage(stage, place, self.chunks, on, group=group)
            for stage, place in zip(self.stages, self.places, strict=True)
        ]
        return create_pipeline_runtime(
            pipeline_stages,
            csv=schedule_csv(self.plan),
            microbatches=self.microbatches,
            loss=self.loss,
        )

    def writes(self, parameter: torch.nn.Parameter, number: int) -> bool:
        """True if this rank, of those with the same elements, saves parameter `number` (by turns).

        Ranks that hold the same elements take turns by `number`.
        """
        if any(parameter is copy.last for copy in self.shared):
            return False
        mesh, cut = self.meshes.dense, set()
        if isinstance(parameter, DTensor):
            names = parameter.device_mesh.mesh_dim_names or ()
            mesh = self.meshes.with_dims(names)
            cut = {
                name
                for name, placement in zip(names, parameter.placements, strict=True)
                if not isinstance(placement, Replicate)
            }
        replica_number, replica_count = 0, 1
        for name in mesh.mesh_dim_names or ():
            if name != "pp" and name not in cut:
                size = int(mesh[name].size())
                replica_number, replica_count = (
                    replica_number * size + int(mesh.get_local_rank(name)),
                    replica_count * size,
                )
        return number % replica_count == replica_number

    @property
    def first(self) -> bool:
        """True if this rank has the pipeline's first chunk."""
        return self.places[0] == 0

    @property
    def last(self) -> bool:
        """True if this rank has the pipeline's last chunk, which computes the loss."""
        return self.places[-1] == self.chunks - 1

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Trained parameters of this rank's stages, a shared parameter once."""
        return _trained_parameters(self.stages)


def _trained_parameters(stages: list[NativeStage]) -> list[torch.nn.Parameter]:
    """Trained parameters of some stages, a shared parameter once."""
    return list(dict.fromkeys(p for stage in stages for p in stage.parameters() if p.requires_grad))


def _decay_groups(
    stages: list[NativeStage], pieces: list[torch.Tensor], rule: AdamW, *, model: Model
) -> list[dict[str, Any]]:
    """Parameter groups for torch's AdamW: pieces with weight decay, and pieces exempt from it."""
    keys = {
        id(stage.get_parameter(name)): key
        for stage in stages
        for name, key, _ in stage.parameter_keys()
    }
    exempt = [
        is_exempt(parameter_of(model, keys[id(p)]), rule.no_decay)
        for p in _trained_parameters(stages)
    ]
    groups = ((False, rule.decay), (True, 0.0))
    return [
        {"params": group_pieces, "weight_decay": decay}
        for kind, decay in groups
        if (
            group_pieces := [
                piece
                for piece, is_in_group in zip(pieces, exempt, strict=True)
                if is_in_group == kind
            ]
        )
    ]


def _loss_function(
    grid: Grid, meshes: GridMeshes, *, settings: Settings, scale: float
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Make the loss function: summed cross-entropy (over tp-sharded vocabulary) x `scale`.

    Tokens with negative labels have no loss.
    """

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum of the cross-entropies of tokens with labels >= 0, times the scale."""
        targets = torch.where(labels < 0, IGNORED, labels).flatten()
        flat: torch.Tensor = logits.flatten(0, 1)
        if flat.dtype.itemsize < 4:
            flat = flat.float()
        flat = scaled_logits(flat, settings)
        if grid.tp > 1:
            flat = DTensor.from_local(flat, meshes.dense["tp"], [Shard(-1)], run_check=False)
            targets = DTensor.from_local(
                targets, meshes.dense["tp"], [Replicate()], run_check=False
            )
        summed = functional.cross_entropy(flat, targets, reduction="sum", ignore_index=IGNORED)
        # Scaled last: the pipeline detaches a loss in place, which a view of a DTensor does not
        # allow.
        return (summed.to_local() if isinstance(summed, DTensor) else summed) * scale

    return loss


def create_engine(
    model: Model,
    job: TrainingJob,
    grid: Grid,
    *,
    source: Source,
    rule: AdamW | None = None,
    settings: Settings | None = None,
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    order: Table | None = None,
    device: str = "cpu",
) -> NativeEngine:
    """Create this rank's engine for `grid`, ready for the first step; all ranks must call it.

    Args:
        dtype: format of parameters, gradients and states between steps.
        compute: format of matrix products and activations; None = `dtype`.
        order: order of the stages' actions instead of the grid's schedule, which then only places
            the stages.

    Raises:
        StrategyError: ``run.world``: another number of ranks than the grid's devices; rules
        ``native.*``, ``grid.*`` and of plans.
    """
    chosen_settings = settings or model.settings
    require_expressible_grid(replace(model, settings=chosen_settings), grid, job=job)
    facts = grid_facts(
        model, devices=grid.devices, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    require_legal(grid, facts=facts, general=True)
    if dist.get_world_size() != grid.devices:
        raise StrategyError(
            f"the grid has {grid.devices} devices, {dist.get_world_size()} ranks run",
            hint=f"start {grid.devices} ranks",
            rule="run.world",
        )
    plan = plan_of(grid, model=model, global_batch=job.global_batch)
    if order is not None:
        plan = replace(plan, orders=(order,))
    require_valid(plan, model=model, global_batch=job.global_batch)
    meshes, optimizer_settings = (
        grid_meshes(grid, experts=facts.experts > 0, device=device),
        rule or AdamW(),
    )
    (parts,) = plan_stages(plan, model=model)
    rank = dist.get_rank()
    local_parts = [part for part in parts if rank in part.devices]
    context = rank_context(
        local_parts[0], meshes.context, rank=rank, length=job.sequence_length, gather=grid.gather
    )
    stages = [
        NativeStage(part, model=model, settings=chosen_settings, context=context)
        for part in local_parts
    ]
    parallelize_stages(
        stages, meshes, grid, source=source, dtypes=(dtype, compute or dtype), device=device
    )
    loss = _loss_function(
        grid, meshes, settings=chosen_settings, scale=1.0 / (job.global_batch * job.sequence_length)
    )
    microbatches = plan.lanes[0].microbatches
    # The update is element-wise: on DTensors it would propagate the sharding of every operation
    # anew.
    pieces = [local_shard(p.detach()) for p in _trained_parameters(stages)]
    optimizer = torch.optim.AdamW(
        _decay_groups(stages, pieces, optimizer_settings, model=model),
        lr=optimizer_settings.rate,
        betas=optimizer_settings.betas,
        eps=optimizer_settings.eps,
        foreach=True,
    )
    created = NativeEngine(
        grid=grid,
        plan=plan,
        meshes=meshes,
        tokens=rank_tokens(
            local_parts[0], rank=rank, microbatches=microbatches, length=job.sequence_length
        ),
        stages=stages,
        places=tuple(part.chunk for part in local_parts),
        chunks=len(parts),
        runtime=None,
        loss=loss,
        pieces=pieces,
        optimizer=optimizer,
        rule=optimizer_settings,
        microbatches=microbatches,
        device=device,
        shared=tied_copies(model, stages, local_parts, parts, rank=rank),
        balance=native_balance(
            stages, grid, coefficient=chosen_settings.load_balancing, microbatches=microbatches
        ),
    )
    if grid.pp > 1:
        created.runtime = created.pipeline()
    return created
