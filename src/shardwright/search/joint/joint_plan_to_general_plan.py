"""Conversion of a joint plan to a general plan, and to one line of text."""

from __future__ import annotations

from shardwright.program.training_problem import Problem
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import row_entries
from shardwright.search.joint.joint_plan_and_step_costs import ChunkChoice, JointPlan
from shardwright.strategy.grid.grid_to_plan import (
    FULL,
    MAIN,
    chunk_items,
    grid_placements,
    grid_shards,
)
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep, Stage


def general_plan(problem: Problem, plan: JointPlan) -> Plan:
    """Convert a joint plan to a general plan: one lane of stages with their placements."""
    model, job = problem.model, problem.job
    grid = plan.grids[0]
    facts = grid_facts(
        model, devices=grid.devices, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    trees = {
        g: grid_placements(g, experts=facts.experts > 0, attention=facts.heads > 0)
        for g in dict.fromkeys(plan.grids)
    }
    items = chunk_items(model, chunks=tuple(chunk.layers for chunk in plan.chunks))
    stride = grid.strides()["pp"]
    stages = tuple(
        Stage(
            items=item,
            base=rank * stride,
            placements=trees[plan.grids[rank]],
            keeps=_recompute_rules(chunk),
        )
        for item, chunk, rank in zip(items, plan.chunks, plan.owners, strict=True)
    )
    return Plan(
        devices=grid.devices,
        lanes=(
            Lane(
                name=MAIN, samples=job.global_batch, microbatches=plan.microbatches, stages=stages
            ),
        ),
        orders=(_order(plan, stride),),
        shards=grid_shards(grid, experts=facts.experts > 0),
        options=grid.options,
    )


def _order(plan: JointPlan, stride: int) -> NamedOrder | Table:
    """The plan's order as a named schedule, or as a table with a row for each rank.

    A row is named by the lowest device of its rank.
    """
    if plan.table is None:
        return NamedOrder(schedule=plan.schedule, lanes=(MAIN,))
    rows = tuple((rank * stride, row_entries(plan.table, rank=rank)) for rank in range(plan.ranks))
    return Table(lanes=(MAIN,), rows=rows)


def _recompute_rules(chunk: ChunkChoice) -> tuple[Keep, ...]:
    """Recomputation rules of a chunk: its first layers in full, the next ones selectively."""
    ranges = ((0, chunk.redone, FULL), (chunk.redone, chunk.redone + chunk.selective, "core"))
    return tuple(
        Keep(blocks=(a, b - 1), how=ActivationPolicy.RECOMPUTE, operators=(what,))
        for a, b, what in ranges
        if a < b
    )


def joint_plan_text(plan: JointPlan) -> str:
    """Describe a joint plan in one line: the degrees of each split and the layers of each chunk.

    ``x2s3``: two layers recomputed in full, then three selectively.
    """
    runs: list[list[str | int]] = []
    for chunk in plan.chunks:
        text = (
            f"{chunk.layers}"
            + (f"x{chunk.redone}" if chunk.redone else "")
            + (f"s{chunk.selective}" if chunk.selective else "")
        )
        if runs and runs[-1][0] == text:
            runs[-1][1] = int(runs[-1][1]) + 1
        else:
            runs.append([text, 1])
    layers = " ".join(f"{text}*{count}" if int(count) > 1 else str(text) for text, count in runs)
    splits = []
    for g in dict.fromkeys(plan.grids):
        words = [
            f"tp{g.tp}",
            *([f"cp{g.cp}"] if g.cp > 1 else []),
            *([f"ep{g.ep}"] if g.ep > 1 else []),
            f"dp{g.dp}",
            f"mbs{g.microbatch}",
        ]
        ranks = [str(r) for r, other in enumerate(plan.grids) if other == g]
        splits.append(" ".join(words) + ("" if plan.is_uniform else f" on ranks {','.join(ranks)}"))
    g = plan.grids[0]
    order = (
        ", found order"
        if plan.table is not None
        else f", {plan.schedule}"
        if len(plan.chunks) > 1
        else ""
    )
    order += " on a V" if plan.folded else ""
    options = " ".join(f"{name}={value}" for name, value in g.options)
    text = (
        f"pp{g.pp} vpp{g.vpp} zero{g.zero} {', '.join(splits)}; {plan.microbatches}"
        f" microbatches{order}, layers {layers}"
    )
    return f"{text}; {options}" if options else text
