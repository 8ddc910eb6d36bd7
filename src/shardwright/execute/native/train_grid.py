"""Train a grid on PyTorch's own engine, with our batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.interpreter.device_walk import Batch
from shardwright.execute.interpreter.recorder import STEP_LEVEL, Recorder
from shardwright.execute.native.engine import Engine, engine
from shardwright.execute.native.step_events import Listener, listening, tell_actions, tell_shards
from shardwright.execute.native.tied_parameters import add_up
from shardwright.execute.native.torch_private import local
from shardwright.execute.training.optimizer import AdamW, clip_factor
from shardwright.execute.training.process_group import process_group
from shardwright.execute.training.training_loop import Batches, StepReport
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.step_trace import Track
from shardwright.program.task_arrays import TaskKind
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.order import Table


def _run(
    engine: Engine, tokens: torch.Tensor, labels: torch.Tensor, *, listener: Listener
) -> torch.Tensor:
    """Forward and backward of all microbatches of this replica: the loss, zero where the rank has
    not the last chunk.
    """
    if engine.runtime is not None:
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if engine.first else ()
        tell_actions(engine.runtime, listener)
        engine.runtime.step(
            *inputs, target=labels if engine.last else None, losses=losses, return_outputs=False
        )
        return (
            torch.stack([loss.detach() for loss in losses]).sum()
            if losses
            else torch.zeros((), device=engine.device)
        )
    (stage,) = engine.stages
    total = torch.zeros((), device=engine.device)
    pairs = zip(tokens.chunk(engine.microbatches), labels.chunk(engine.microbatches), strict=True)
    for number, (some, wanted) in enumerate(pairs):
        if isinstance(stage, FSDPModule):
            # zero 0 and 1 keep whole gradients until the last microbatch, 2 and 3 reduce them after
            # every one.
            last = number == engine.microbatches - 1
            stage.set_requires_gradient_sync(engine.grid.zero >= 2 or last)
            stage.set_is_last_backward(last)
        listener.tell(TaskKind.F, (0, 0, number, 0))
        if engine.balance is not None:
            engine.balance.begin()
        loss = engine.loss(stage(some), wanted)
        value = loss.detach()
        if engine.balance is not None:
            own, part = engine.balance.loss()
            loss, value = loss + own.to(loss.dtype), value + part.to(value.dtype)
        listener.tell(TaskKind.B, (0, 0, number, 0))
        loss.backward()
        total = total + value
    listener.tell(None, STEP_LEVEL)
    return total


def _settled(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient as the parameter lies: of one that all ranks of tp have whole, the sum of their
    parts.
    """
    gradient, there = parameter.grad, parameter
    if (
        isinstance(gradient, DTensor)
        and isinstance(there, DTensor)
        and gradient.placements != there.placements
    ):
        gradient = gradient.redistribute(placements=there.placements)
    assert gradient is not None
    return gradient


def _square(engine: Engine, gradient: torch.Tensor) -> torch.Tensor:
    """Sum of squares of this rank's elements over the number of ranks of the stage that have them
    too.
    """
    parts = 1
    if isinstance(gradient, DTensor):
        for dim, placement in enumerate(gradient.placements):
            parts *= 1 if isinstance(placement, Replicate) else gradient.device_mesh.size(dim)
    return local(gradient).double().square().sum() * (
        parts / (engine.grid.tp * engine.grid.cp * engine.grid.dp)
    )


def step(
    engine: Engine,
    batch: Batch,
    *,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> StepReport:
    """One step: the replica's samples forward and backward, clip by the global norm, update.

    Args:
        stop, recorder: as `execute.training.train.step_task` has them.
    """
    listener = listening(recorder, device=dist.get_rank())
    tokens, labels = engine.given(batch)
    with engine.computing():
        loss = _run(engine, tokens, labels, listener=listener)
    listener.tell(TaskKind.REDUCE, STEP_LEVEL)
    settled = {id(p): _settled(p) for p in engine.parameters if p.grad is not None}
    add_up(engine.shared, settled)
    listener.tell(TaskKind.STEP, STEP_LEVEL)
    trained = [
        (piece, settled[id(p)])
        for piece, p in zip(engine.pieces, engine.parameters, strict=True)
        if id(p) in settled
    ]
    again = {id(copy.last) for copy in engine.shared}
    none = torch.zeros((), dtype=torch.float64, device=engine.device)
    squares = sum(
        (_square(engine, grad) for number, grad in settled.items() if number not in again), none
    )
    asked = torch.full_like(squares, float(stop is not None and stop()))
    sums = torch.stack([loss.double() / engine.grid.tp, squares, asked])
    with listener.asking(Collective.ALL_REDUCE, track=Track.COLLECTIVES):
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
    listener.tell(None, STEP_LEVEL)
    return StepReport(
        step=engine.steps, loss=float(sums[0]), norm=float(norm), stopped=bool(sums[2] > 0)
    )


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
    recorder: Recorder | None = None,
) -> Iterator[StepReport]:
    """Steps of `grid` on this rank, the last where `stop` was true on any; all ranks call it.

    Args:
        source: first values of parameters.
        batches: the whole batch of a step, counted from 0.
        dtype, compute, order: see `engine`.
        begun: is given what the rank has before the first step, which may set how many were done.
        after: and behind every step.
        recorder: has the last step.

    Raises:
        StrategyError: ``run.world``; a rule ``native.*`` if PyTorch does not express the grid.
    """
    with process_group(timeout_s=timeout_s):
        own = engine(
            model,
            job,
            grid,
            source=source,
            rule=rule,
            settings=settings,
            dtype=dtype,
            compute=compute,
            order=order,
            device=device,
        )
        if recorder is not None:
            tell_shards(own.stages, recorder, device=dist.get_rank())
        if begun is not None:
            begun(own)
        for number in range(own.steps, steps):
            one = step(own, batches(number), stop=stop, recorder=recorder)
            yield one
            if after is not None:
                after(own, one)
            if one.stopped:
                return
