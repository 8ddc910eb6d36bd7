"""Training of a grid on PyTorch's own engine, with the same batches as the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.interpreter.step_recorder import STEP_LEVEL, Recorder
from shardwright.execute.native.private_torch_api import local_shard
from shardwright.execute.native.rank_stages_optimizer_and_pipeline import (
    NativeEngine,
    create_engine,
)
from shardwright.execute.native.step_events import (
    Listener,
    listener_of_step,
    record_actions,
    record_shard_collectives,
)
from shardwright.execute.native.tied_parameter_gradients import sum_tied_gradients
from shardwright.execute.training.adamw_optimizer import AdamW, clip_factor
from shardwright.execute.training.training_loop import Batches, StepReport
from shardwright.execute.training.world_process_group import process_group
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.step_trace import Track
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import Table


def _forward_and_backward(
    engine: NativeEngine, tokens: torch.Tensor, labels: torch.Tensor, *, listener: Listener
) -> torch.Tensor:
    """Run forward and backward; return this rank's share of the mean loss, 0 off the last chunk.

    The loss is zero where the rank does not have the last chunk.
    """
    if engine.runtime is not None:
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if engine.first else ()
        record_actions(engine.runtime, listener)
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
    for number, (microbatch_tokens, microbatch_labels) in enumerate(pairs):
        if isinstance(stage, FSDPModule):
            # zero 0 and 1 keep full gradients until the last microbatch, 2 and 3 reduce them after
            # every microbatch.
            last = number == engine.microbatches - 1
            stage.set_requires_gradient_sync(engine.grid.zero >= 2 or last)
            stage.set_is_last_backward(last)
        listener.tell(TaskKind.F, (0, 0, number, 0))
        if engine.balance is not None:
            engine.balance.begin()
        loss = engine.loss(stage(microbatch_tokens), microbatch_labels)
        value = loss.detach()
        if engine.balance is not None:
            local_balance_loss, balance_value = engine.balance.loss()
            loss, value = (
                loss + local_balance_loss.to(loss.dtype),
                value + balance_value.to(value.dtype),
            )
        listener.tell(TaskKind.B, (0, 0, number, 0))
        loss.backward()
        total = total + value
    listener.tell(None, STEP_LEVEL)
    return total


def _gradient_as_sharded(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The parameter's gradient, redistributed to the parameter's own DTensor placements."""
    gradient, parameter_tensor = parameter.grad, parameter
    if (
        isinstance(gradient, DTensor)
        and isinstance(parameter_tensor, DTensor)
        and gradient.placements != parameter_tensor.placements
    ):
        gradient = gradient.redistribute(placements=parameter_tensor.placements)
    assert gradient is not None
    return gradient


def _share_of_square_norm(engine: NativeEngine, gradient: torch.Tensor) -> torch.Tensor:
    """Squared norm of this rank's gradient elements, divided by the number of their copies."""
    parts = 1
    if isinstance(gradient, DTensor):
        for dim, placement in enumerate(gradient.placements):
            parts *= 1 if isinstance(placement, Replicate) else gradient.device_mesh.size(dim)
    return local_shard(gradient).double().square().sum() * (
        parts / (engine.grid.tp * engine.grid.cp * engine.grid.dp)
    )


def train_step(
    engine: NativeEngine,
    batch: Batch,
    *,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> StepReport:
    """Run one training step on this rank: forward, backward, gradient clipping and update.

    Args:
        stop, recorder: as in `execute.training.training_loop.step_task`.
    """
    listener = listener_of_step(recorder, device=dist.get_rank())
    tokens, labels = engine.local_batch(batch)
    with engine.computing():
        loss = _forward_and_backward(engine, tokens, labels, listener=listener)
    listener.tell(TaskKind.REDUCE, STEP_LEVEL)
    gradient_of = {id(p): _gradient_as_sharded(p) for p in engine.parameters if p.grad is not None}
    sum_tied_gradients(engine.shared, gradient_of)
    listener.tell(TaskKind.STEP, STEP_LEVEL)
    trained = [
        (piece, gradient_of[id(p)])
        for piece, p in zip(engine.pieces, engine.parameters, strict=True)
        if id(p) in gradient_of
    ]
    second_copies = {id(copy.last) for copy in engine.shared}
    zero = torch.zeros((), dtype=torch.float64, device=engine.device)
    squares = sum(
        (
            _share_of_square_norm(engine, grad)
            for number, grad in gradient_of.items()
            if number not in second_copies
        ),
        zero,
    )
    stop_request = torch.full_like(squares, float(stop is not None and stop()))
    sums = torch.stack([loss.double() / engine.grid.tp, squares, stop_request])
    with listener.record_request(Collective.ALL_REDUCE, track=Track.COLLECTIVES):
        dist.all_reduce(sums)
    norm = sums[1].sqrt()
    factor = clip_factor(norm, engine.rule)
    for piece, grad in trained:
        piece.grad = local_shard(grad).mul_(factor.to(grad.dtype))
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
    begun: Callable[[NativeEngine], None] | None = None,
    after: Callable[[NativeEngine, StepReport], None] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[StepReport]:
    """Train `grid` on this rank, yielding a report after each step; all ranks must call it.

    Training ends after `steps` steps, or after a step in which `stop` was true on any rank.

    Args:
        source: initial values of parameters.
        batches: the whole batch of a step, counted from 0.
        dtype, compute, order: see `create_engine`.
        begun: called with the engine before the first step; may set the number of steps done.
        after: called with the engine and the report after every step.
        recorder: records every step, and keeps the last one.

    Raises:
        StrategyError: ``run.world``; a rule ``native.*`` if PyTorch does not express the grid.
    """
    with process_group(timeout_s=timeout_s):
        engine = create_engine(
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
            record_shard_collectives(engine.stages, recorder, device=dist.get_rank())
        if begun is not None:
            begun(engine)
        for number in range(engine.steps, steps):
            report = train_step(engine, batches(number), stop=stop, recorder=recorder)
            yield report
            if after is not None:
                after(engine, report)
            if report.stopped:
                return
