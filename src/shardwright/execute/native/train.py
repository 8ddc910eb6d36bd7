"""Train a grid on PyTorch's own engine: DTensor, FSDP2 and pipelining, with our order, our weights and our batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.interpreter.device import Batch
from shardwright.execute.native.context import Tokens, context_of, tokens_of
from shardwright.execute.native.decoder import Stage
from shardwright.execute.native.meshes import Meshes, grid_meshes
from shardwright.execute.native.parallel import place
from shardwright.execute.native.rules import require_expressible
from shardwright.execute.native.tied import Copies, add_up, copies
from shardwright.execute.native.torch_private import local, pipeline
from shardwright.execute.numerics.logits import logits_of
from shardwright.execute.shares.parameters import Source, parameter_of
from shardwright.execute.training.optimizer import AdamW, clip_factor
from shardwright.execute.training.process_group import process_group
from shardwright.execute.training.spared import is_spared
from shardwright.execute.training.train import Batches, StepReport
from shardwright.job.training import TrainingJob
from shardwright.model.ir.graph import Model
from shardwright.model.ir.settings import Settings
from shardwright.program.orders.pytorch_csv import schedule_csv
from shardwright.program.stages.parts import plan_stages
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.expand import plan_of
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.grid.rules import require_legal
from shardwright.strategy.plan.order import Table
from shardwright.strategy.verify.check import require_valid

IGNORED = -100
"""PyTorch's label of a token without a loss."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """What a rank has of a run.

    Args:
        tokens: of a batch. stages: its chunks. runtime: of the pipeline; None without one.
        loss: (logits, labels) -> sum over tokens / the step's tokens.
        pieces: this rank's elements of each of `parameters`; optimizer: of those. microbatches: of a replica. shared: parameters of which
            another stage has a copy.
    """

    grid: Grid
    meshes: Meshes
    tokens: Tokens
    stages: list[Stage]
    runtime: Any
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    pieces: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    rule: AdamW
    microbatches: int
    device: str
    first: bool
    last: bool
    shared: tuple[Copies, ...]
    steps: int = 0

    def writes(self, parameter: torch.nn.Parameter, number: int) -> bool:
        """Whether this rank is the one that keeps these elements of a parameter, among those that have them; they take turns by number."""
        if any(parameter is copy.last for copy in self.shared):
            return False
        mesh, cut = self.meshes.dense, set()
        if isinstance(parameter, DTensor):
            names = parameter.device_mesh.mesh_dim_names or ()
            mesh = self.meshes.of(names)
            cut = {name for name, placement in zip(names, parameter.placements, strict=True) if not isinstance(placement, Replicate)}
        own, ranks = 0, 1
        for name in mesh.mesh_dim_names or ():
            if name != "pp" and name not in cut:
                size = int(mesh[name].size())
                own, ranks = own * size + int(mesh.get_local_rank(name)), ranks * size
        return number % ranks == own

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All that are trained on this rank, each once."""
        return _trained(self.stages)


def _trained(stages: list[Stage]) -> list[torch.nn.Parameter]:
    return list(dict.fromkeys(p for stage in stages for p in stage.parameters() if p.requires_grad))


def _by_decay(stages: list[Stage], pieces: list[torch.Tensor], rule: AdamW, *, model: Model) -> list[dict[str, Any]]:
    """Groups for PyTorch's optimizer of the pieces of all trained parameters: those with weight decay, and those that it spares."""
    keys = {id(stage.get_parameter(name)): key for stage in stages for name, key, _ in stage.keyed()}
    spared = [is_spared(parameter_of(model, keys[id(p)]), rule.spared) for p in _trained(stages)]
    groups = ((False, rule.decay), (True, 0.0))
    return [
        {"params": own, "weight_decay": decay}
        for kind, decay in groups
        if (own := [piece for piece, one in zip(pieces, spared, strict=True) if one == kind])
    ]


def _loss(grid: Grid, meshes: Meshes, *, settings: Settings, scale: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Cross-entropy of logits whose vocabulary is cut by tp, summed over tokens; negative labels have none."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = torch.where(labels < 0, IGNORED, labels).flatten()
        flat: torch.Tensor = logits.flatten(0, 1)
        if flat.dtype.itemsize < 4:
            flat = flat.float()
        flat = logits_of(flat, settings)
        if grid.tp > 1:
            flat = DTensor.from_local(flat, meshes.dense["tp"], [Shard(-1)], run_check=False)
            wanted = DTensor.from_local(wanted, meshes.dense["tp"], [Replicate()], run_check=False)
        found = functional.cross_entropy(flat, wanted, reduction="sum", ignore_index=IGNORED)
        # Scaled last: the pipeline detaches a loss in place, which a view of a DTensor does not allow.
        return (found.to_local() if isinstance(found, DTensor) else found) * scale

    return loss


def engine(
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
) -> Engine:
    """This rank's part of `grid`, ready for its first step. All ranks of the process group call it.

    Args:
        dtype: of parameters, gradients and states between steps. compute: of products and activations; None = `dtype`.
        order: of the stages' actions instead of the grid's schedule, which then only says where they are.

    Raises:
        StrategyError: ``run.world``: another number of ranks than the grid's devices; rules ``native.*``, ``grid.*`` and of plans.
    """
    require_expressible(model, grid, job=job)
    facts = grid_facts(model, devices=grid.devices, global_batch=job.global_batch, seq_len=job.sequence_length)
    require_legal(grid, facts=facts, general=True)
    if dist.get_world_size() != grid.devices:
        raise StrategyError(
            f"the grid has {grid.devices} devices, {dist.get_world_size()} ranks run", hint=f"start {grid.devices} ranks", rule="run.world"
        )
    plan = plan_of(grid, model=model, global_batch=job.global_batch)
    if order is not None:
        plan = replace(plan, orders=(order,))
    require_valid(plan, model=model, global_batch=job.global_batch)
    meshes, chosen = grid_meshes(grid, experts=facts.experts > 0, device=device), rule or AdamW()
    (parts,) = plan_stages(plan, model=model)
    rank = dist.get_rank()
    mine = [part for part in parts if rank in part.devices]
    context = context_of(mine[0], meshes.context, rank=rank, length=job.sequence_length)
    stages = [Stage(part, model=model, settings=settings or model.settings, context=context) for part in mine]
    place(stages, meshes, grid, source=source, dtypes=(dtype, compute or dtype), device=device)
    loss = _loss(grid, meshes, settings=settings or model.settings, scale=1.0 / (job.global_batch * job.sequence_length))
    runtime = None
    microbatches = plan.lanes[0].microbatches
    if grid.pp > 1:
        held = [
            PipelineStage(stage, part.chunk, len(parts), torch.device(device), group=meshes.dense["pp"].get_group())
            for stage, part in zip(stages, mine, strict=True)
        ]
        runtime = pipeline(held, csv=schedule_csv(plan), microbatches=microbatches, loss=loss)
    # The update is element by element: of a DTensor it would work out anew how each of its products is cut.
    pieces = [local(p.detach()) for p in _trained(stages)]
    optimizer = torch.optim.AdamW(
        _by_decay(stages, pieces, chosen, model=model),
        lr=chosen.rate,
        betas=chosen.betas,
        eps=chosen.eps,
        foreach=True,
    )
    return Engine(
        grid=grid,
        meshes=meshes,
        tokens=tokens_of(mine[0], rank=rank, microbatches=microbatches, length=job.sequence_length),
        stages=stages,
        runtime=runtime,
        loss=loss,
        pieces=pieces,
        optimizer=optimizer,
        rule=chosen,
        microbatches=microbatches,
        device=device,
        first=mine[0].chunk == 0,
        last=mine[-1].chunk == len(parts) - 1,
        shared=copies(model, stages, mine, parts, rank=rank),
    )


def _run(engine: Engine, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Forward and backward of all microbatches of this replica: the loss, zero where the rank has not the last chunk."""
    if engine.runtime is not None:
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if engine.first else ()
        engine.runtime.step(*inputs, target=labels if engine.last else None, losses=losses, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())
    (stage,) = engine.stages
    total = torch.zeros((), device=engine.device)
    pairs = zip(tokens.chunk(engine.microbatches), labels.chunk(engine.microbatches), strict=True)
    for number, (some, wanted) in enumerate(pairs):
        if isinstance(stage, FSDPModule):
            # zero 0 and 1 keep whole gradients until the last microbatch, 2 and 3 reduce them after every one.
            last = number == engine.microbatches - 1
            stage.set_requires_gradient_sync(engine.grid.zero >= 2 or last)
            stage.set_is_last_backward(last)
        loss = engine.loss(stage(some), wanted)
        loss.backward()
        total = total + loss.detach()
    return total


def _settled(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient as the parameter lies: of one that all ranks of tp have whole, the sum of their parts."""
    gradient, there = parameter.grad, parameter
    if isinstance(gradient, DTensor) and isinstance(there, DTensor) and gradient.placements != there.placements:
        gradient = gradient.redistribute(placements=there.placements)
    assert gradient is not None
    return gradient


def _square(engine: Engine, gradient: torch.Tensor) -> torch.Tensor:
    """Sum of squares of this rank's elements over the number of ranks of the stage that have them too."""
    parts = 1
    if isinstance(gradient, DTensor):
        for dim, placement in enumerate(gradient.placements):
            parts *= 1 if isinstance(placement, Replicate) else gradient.device_mesh.size(dim)
    return local(gradient).double().square().sum() * (parts / (engine.grid.tp * engine.grid.cp * engine.grid.dp))


def step(engine: Engine, batch: Batch, *, stop: Callable[[], bool] | None = None) -> StepReport:
    """One step: the replica's samples forward and backward, clip by the global norm, update; `stop` as `execute.train.step_task` has it."""
    tokens, labels = (engine.tokens.of(batch[name]).to(engine.device) for name in ("text", "labels"))
    shards: AbstractContextManager[object] = loss_parallel() if engine.grid.tp > 1 else nullcontext()
    with shards, warnings.catch_warnings():
        # Logits are a view of a DTensor's local part; nothing here writes into them.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        loss = _run(engine, tokens, labels)
    settled = {id(p): _settled(p) for p in engine.parameters if p.grad is not None}
    add_up(engine.shared, settled)
    trained = [(piece, settled[id(p)]) for piece, p in zip(engine.pieces, engine.parameters, strict=True) if id(p) in settled]
    again = {id(copy.last) for copy in engine.shared}
    none = torch.zeros((), dtype=torch.float64, device=engine.device)
    squares = sum((_square(engine, grad) for number, grad in settled.items() if number not in again), none)
    asked = torch.full_like(squares, float(stop is not None and stop()))
    sums = torch.stack([loss.double() / engine.grid.tp, squares, asked])
    dist.all_reduce(sums)
    norm = sums[1].sqrt()
    factor = clip_factor(norm, engine.rule)
    for piece, grad in trained:
        piece.grad = local(grad).mul_(factor.to(grad.dtype))
    for group in engine.optimizer.param_groups:
        group["lr"] = engine.rule.rate_at(engine.steps + 1)
    engine.optimizer.step()
    engine.optimizer.zero_grad()
    for stage in engine.stages:
        stage.zero_grad()
    engine.steps += 1
    return StepReport(step=engine.steps, loss=float(sums[0]), norm=float(norm), stopped=bool(sums[2] > 0))


def train_native(
    model: Model,
    job: TrainingJob,
    grid: Grid,
    *,
    source: Source,
    batches: Batches,
    steps: int,
    rule: AdamW | None = None,
    settings: Settings | None = None,
    dtype: torch.dtype = torch.float32,
    compute: torch.dtype | None = None,
    order: Table | None = None,
    device: str = "cpu",
    timeout_s: float = 300.0,
    stop: Callable[[], bool] | None = None,
    begun: Callable[[Engine], None] | None = None,
    after: Callable[[Engine, StepReport], None] | None = None,
) -> Iterator[StepReport]:
    """Steps of `grid` on this rank, the last where `stop` was true on any; all ranks call it.

    Args:
        source: first values of parameters. batches: the whole batch of a step, counted from 0. dtype, compute, order: see `engine`.
        begun: is given what the rank has before the first step, which may set how many were done. after: and behind every step.

    Raises:
        StrategyError: ``run.world``; a rule ``native.*`` if PyTorch does not express the grid.
    """
    with process_group(timeout_s=timeout_s):
        own = engine(
            model, job, grid, source=source, rule=rule, settings=settings, dtype=dtype, compute=compute, order=order, device=device
        )
        if begun is not None:
            begun(own)
        for number in range(own.steps, steps):
            one = step(own, batches(number), stop=stop)
            yield one
            if after is not None:
                after(own, one)
            if one.stopped:
                return
