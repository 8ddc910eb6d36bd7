"""A shorter step of the same structure: fewer layers a stage and fewer microbatches, every device,
tree, stage and order kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shardwright.errors import ShardwrightError
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.action_rows import action_rows
from shardwright.program.orders.deadlocks import action_violations
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.strategy.plan.lane import Lane, Role
from shardwright.strategy.plan.order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stages import Item, Stage
from shardwright.strategy.verify.check_plan import require_valid

LAYERS = (4, 2, 1)
"""Layers of an item that are kept, the most first."""

Question = tuple[Model, TrainingJob, Plan]


def shorter_step(model: Model, job: TrainingJob, plan: Plan, *, most: int) -> Question:
    """The question with as few layers and then as few microbatches as it takes to run no more than
    `most` operators one way.

    Blocks at the ends of what a placement or a recompute rule names stay, so a rule that differs
    inside a stage still does. Microbatches are halved as far as the orders allow; a table has an
    action of each, so it keeps them. What cannot be shortened stays as it is.
    """
    found = model, job, plan
    for layers in LAYERS:
        if num_operators(found) <= most:
            return found
        found = _with_layers(model, job, plan, layers) or found
    while num_operators(found) > most:
        fewer = _with_half(*found)
        if fewer is None:
            break
        found = fewer
    return found


def num_operators(
    question: Question, stages: tuple[tuple[StageParts, ...], ...] | None = None
) -> int:
    """Operators that all devices run in a step, one way."""
    model, _, plan = question
    count = 0
    for lane, parts in zip(plan.lanes, stages or plan_stages(plan, model=model), strict=True):
        turns = lane.microbatches * max(len(lane.slices), 1)
        count += turns * sum(
            len(stage.devices) * s.count * len(s.block.operators)
            for stage in parts
            for s in stage.segments
        )
    return count


def _with_layers(model: Model, job: TrainingJob, plan: Plan, layers: int) -> Question | None:
    """At most so many layers of each item, but for those that a rule ends at; None where lanes
    would then differ.
    """
    of_teacher = frozenset(run.name for run in model.runs if model.blocks[run.block].is_teachers)
    lanes = tuple(
        replace(lane, stages=tuple(_stage(stage, layers, of_teacher) for stage in lane.stages))
        for lane in plan.lanes
    )
    long = [run.name for run in model.runs if run.count > 1 and run.name not in of_teacher]
    counts = [_counts(lane, any_run=long[0] if len(long) == 1 else "") for lane in lanes]
    if any(other != counts[0] for other in counts) or "" in counts[0]:
        return None
    runs = tuple(replace(run, count=counts[0].get(run.name, run.count)) for run in model.runs)
    return _valid(replace(model, runs=runs), job, replace(plan, lanes=lanes))


def _counts(lane: Lane, *, any_run: str) -> Counter[str]:
    """Layers of each run that has several;
    `any_run` is the one that an item without a name is of.
    """
    found: Counter[str] = Counter()
    for item in (item for stage in lane.stages for item in stage.items):
        found[item.name or any_run] += item.count
    return +found


def _stage(stage: Stage, layers: int, of_teacher: frozenset[str]) -> Stage:
    """A stage with fewer layers; ranges of blocks, in which items by name alone and a teacher's do
    not count, are those of what is left.
    """
    ranges = [p.select.blocks for p in stage.placements if p.select.blocks] + [
        k.blocks for k in stage.keeps
    ]
    ends = {end for pair in ranges for end in pair}
    items: list[Item] = []
    left: list[int] = []
    first = 0
    for item in stage.items:
        if not item.count or item.name in of_teacher:
            items.append(replace(item, count=min(item.count, layers)))
            continue
        blocks = range(first, first + item.count)
        stay = [block for block in blocks if block - first < layers or block in ends]
        items.append(replace(item, count=len(stay)))
        left += stay
        first = blocks.stop

    def moved(pair: tuple[int, int]) -> tuple[int, int]:
        return left.index(pair[0]), left.index(pair[1])

    placements = tuple(
        (
            replace(p, select=replace(p.select, blocks=moved(p.select.blocks)))
            if p.select.blocks
            else p
        )
        for p in stage.placements
    )
    keeps = tuple(replace(keep, blocks=moved(keep.blocks)) for keep in stage.keeps)
    return replace(stage, items=tuple(items), placements=placements, keeps=keeps)


def _with_half(model: Model, job: TrainingJob, plan: Plan) -> Question | None:
    """Half the microbatches of every lane, as large as they were; None where the rules or an order
    forbid it.
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
    return _valid(model, replace(job, global_batch=batch), replace(plan, lanes=lanes))


def _valid(model: Model, job: TrainingJob, plan: Plan) -> Question | None:
    """The question if it breaks no rule, and its orders end."""
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
