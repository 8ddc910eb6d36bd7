"""Shorter step of the same structure: fewer layers in a stage and fewer microbatches.

All devices, trees, stages and orders are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shardwright.errors import ShardwrightError
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.deadlock_check import action_violations
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Item, Stage
from shardwright.strategy.verify.check_structural_plan_rules import require_valid

LAYERS = (4, 2, 1)
"""Numbers of layers of an item to try, the most first."""

ModelJobPlan = tuple[Model, TrainingJob, Plan]


def shorter_step(model: Model, job: TrainingJob, plan: Plan, *, most: int) -> ModelJobPlan:
    """Shorten model, job and plan until a step runs at most `most` operators, if possible.

    Blocks at the ends of the ranges of placement and recompute rules stay, so that a rule that
    differs inside a stage still does. Microbatches are halved as far as the orders allow; an order
    table keeps them, because it has an action for each. If no shortening is possible, the inputs
    are returned.
    """
    shortened = model, job, plan
    for layers in LAYERS:
        if num_operators(shortened) <= most:
            return shortened
        shortened = _with_fewer_layers(model, job, plan, layers) or shortened
    while num_operators(shortened) > most:
        fewer = _with_half_the_microbatches(*shortened)
        if fewer is None:
            break
        shortened = fewer
    return shortened


def num_operators(
    model_job_plan: ModelJobPlan, stages: tuple[tuple[StageParts, ...], ...] | None = None
) -> int:
    """Operators run forward in a step, summed over devices, layers, microbatches and slices."""
    model, _, plan = model_job_plan
    count = 0
    for lane, parts in zip(plan.lanes, stages or plan_stages(plan, model=model), strict=True):
        passes = lane.microbatches * max(len(lane.slices), 1)
        count += passes * sum(
            len(stage.devices) * s.count * len(s.block.operators)
            for stage in parts
            for s in stage.segments
        )
    return count


def _with_fewer_layers(
    model: Model, job: TrainingJob, plan: Plan, layers: int
) -> ModelJobPlan | None:
    """Model, job, plan with at most `layers` layers an item, and those where rules end; or None.

    None if lanes would differ.
    """
    of_teacher = frozenset(run.name for run in model.runs if model.blocks[run.block].is_of_teacher)
    lanes = tuple(
        replace(
            lane,
            stages=tuple(_stage_with_layers(stage, layers, of_teacher) for stage in lane.stages),
        )
        for lane in plan.lanes
    )
    long = [run.name for run in model.runs if run.count > 1 and run.name not in of_teacher]
    counts = [_layers_by_run(lane, any_run=long[0] if len(long) == 1 else "") for lane in lanes]
    if any(other != counts[0] for other in counts) or "" in counts[0]:
        return None
    runs = tuple(replace(run, count=counts[0].get(run.name, run.count)) for run in model.runs)
    return _if_valid(replace(model, runs=runs), job, replace(plan, lanes=lanes))


def _layers_by_run(lane: Lane, *, any_run: str) -> Counter[str]:
    """Number of layers by run name, over a lane's stage items; `any_run` names unnamed items.

    `any_run` is the run of items without a name.
    """
    counts: Counter[str] = Counter()
    for item in (item for stage in lane.stages for item in stage.items):
        counts[item.name or any_run] += item.count
    return +counts


def _stage_with_layers(stage: Stage, layers: int, of_teacher: frozenset[str]) -> Stage:
    """Stage of at most `layers` layers an item, plus blocks where rules end; rules renumbered."""
    ranges = [p.select.blocks for p in stage.placements if p.select.blocks] + [
        k.blocks for k in stage.keeps
    ]
    ends = {end for pair in ranges for end in pair}
    items: list[Item] = []
    kept_blocks: list[int] = []
    first = 0
    for item in stage.items:
        if not item.count or item.name in of_teacher:
            items.append(replace(item, count=min(item.count, layers)))
            continue
        blocks = range(first, first + item.count)
        stay = [block for block in blocks if block - first < layers or block in ends]
        items.append(replace(item, count=len(stay)))
        kept_blocks += stay
        first = blocks.stop

    def moved_range(pair: tuple[int, int]) -> tuple[int, int]:
        """Block range of a rule, renumbered to the blocks that are kept."""
        return kept_blocks.index(pair[0]), kept_blocks.index(pair[1])

    placements = tuple(
        (
            replace(p, select=replace(p.select, blocks=moved_range(p.select.blocks)))
            if p.select.blocks
            else p
        )
        for p in stage.placements
    )
    keeps = tuple(replace(keep, blocks=moved_range(keep.blocks)) for keep in stage.keeps)
    return replace(stage, items=tuple(items), placements=placements, keeps=keeps)


def _with_half_the_microbatches(model: Model, job: TrainingJob, plan: Plan) -> ModelJobPlan | None:
    """Model, job, plan with half the microbatches a lane; None if odd, fixed by a table or invalid.

    None if a rule or order forbids it.
    """
    if any(not isinstance(order, NamedOrder) for order in plan.orders) or any(
        lane.microbatches % 2 for lane in plan.lanes
    ):
        return None
    lanes = tuple(
        replace(lane, samples=lane.samples // 2, microbatches=lane.microbatches // 2)
        for lane in plan.lanes
    )
    batch = sum(lane.samples for lane in lanes if lane.role is Role.TRAIN)
    return _if_valid(model, replace(job, global_batch=batch), replace(plan, lanes=lanes))


def _if_valid(model: Model, job: TrainingJob, plan: Plan) -> ModelJobPlan | None:
    """Return (model, job, plan) if the plan is valid and its orders do not deadlock; else None."""
    try:
        require_valid(plan, model=model, global_batch=job.global_batch)
        edges = [
            tuple((e.source, e.target) for e in stage_edges(lane, model=model))
            for lane in plan_stages(plan, model=model)
        ]
        return (
            None if action_violations(plan, action_rows(plan), edges=edges) else (model, job, plan)
        )
    except ShardwrightError:
        return None
