"""Prepare a plan's training step or forward pass: the work that all devices share."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.execute.device_state.sum_each_parameter_gradient_over_devices import (
    Groups,
    gradient_groups,
)
from shardwright.execute.interpreter.prepared_step import PreparedStep
from shardwright.execute.interpreter.sum_router_counts_for_balancing_loss import lane_balances
from shardwright.execute.training.unsupported_image_cuts import require_images
from shardwright.execute.training.unsupported_key_selection_cuts import require_selections
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.block import TEACHER
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import largest_remainder
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid


def prepare_step(
    model: Model, job: TrainingJob, plan: Plan, *, islands: Units | None = None
) -> tuple[PreparedStep, Groups]:
    """(stages, batches and orders of a plan's step, device groups that sum gradients).

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_valid(plan, model=model, global_batch=job.global_batch)
    _require_executable(model)
    stages = plan_stages(plan, model=model, unfolded=True)
    require_images(model, job, stages)
    require_selections(
        stages, slices=[len(lane.slices) for lane in plan.lanes], length=job.sequence_length
    )
    lengths = {s.name: s.tokens for s in job.sequences} | {TEACHER: job.tokens(TEACHER)}
    first, begins = 0, []
    for lane in plan.lanes:
        begins.append(first)
        first += lane.samples
    length = job.sequence_length
    work = PreparedStep(
        model=model,
        lanes=plan.lanes,
        slices=tuple(
            largest_remainder(length, lane.slices) if lane.slices else (length,)
            for lane in plan.lanes
        ),
        stages=stages,
        rows=action_rows(plan),
        edges=tuple(stage_edges(lane, model=model) for lane in stages),
        lengths=lengths,
        widths=tuple(_output_width(model, run.block) for run in model.runs),
        first_sample=tuple(begins),
        scale=1.0 / (job.global_batch * length),
        islands=islands,
        balances=lane_balances(model, plan.lanes, stages, length=length, samples=job.global_batch),
    )
    return work, gradient_groups(stages, model=model, length=length, islands=islands)


def _require_executable(model: Model) -> None:
    """Raise StrategyError for a tower without patch details, or blocks merging several streams."""
    numbers = {run.name: i for i, run in enumerate(model.runs)}
    for number, run in enumerate(model.runs):
        block = model.blocks[run.block]
        first = block.operators[0]
        streams = [name for name in run.inputs if not model.is_memory(number, numbers[name])]
        reason = ""
        if (
            not run.inputs
            and first.kind is not OperatorKind.EMBEDDING
            and model.settings.image is None
        ):
            reason = (
                f"{run.name}.{first.name} reads features of {block.sequence}, and of this tower"
                " only the sizes are known"
            )
        elif len(streams) > 1 or (
            streams and first.kind is OperatorKind.EMBEDDING and first.inputs
        ):
            reason = f"{run.name}.{first.name} merges {' and '.join(streams)}"
        if reason:
            raise StrategyError(
                f"{reason}: that cannot be executed yet",
                hint=(
                    "choose a model of text alone, a LLaVA, Kimi-K2.5, MiniMax-M3, Qwen3-VL or"
                    " Gemma 4, or simulate the plan instead"
                ),
                rule="execute.operator",
                path=run.name,
            )


def prepare_forward(model: Model, plan: Plan, *, length: int = 1) -> PreparedStep:
    """Prepare a plan's forward pass over sequences of `length` positions.

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_valid(plan, model=model, global_batch=sum(lane.samples for lane in plan.lanes))
    _require_executable(model)
    stages = plan_stages(plan, model=model, unfolded=True)
    return PreparedStep(
        model=model,
        lanes=plan.lanes,
        slices=((length,),) * len(plan.lanes),
        stages=stages,
        rows=action_rows(plan),
        edges=tuple(stage_edges(lane, model=model) for lane in stages),
        lengths={block.sequence: length for block in model.blocks},
        widths=tuple(_output_width(model, run.block) for run in model.runs),
        first_sample=(0,) * len(plan.lanes),
        scale=1.0,
        islands=None,
    )


def _output_width(model: Model, block: int) -> int:
    """Number of elements a token in the output of block number `block`."""
    return model.blocks[block].output_width or model.hidden
