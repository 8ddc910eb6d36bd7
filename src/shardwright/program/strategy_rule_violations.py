"""Rules that a strategy breaks for a problem: of its grid or plan, schedule and runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.program.training_problem import Problem, under
from shardwright.program.zero_sharding import shard_rules
from shardwright.schedules.check_grid_schedule_exists import order_violations
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts
from shardwright.strategy.grid.layers_per_chunk import unlike_chunks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.runtime_rules import unrunnable
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan, State
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.verify.block_coverage import stage_pieces
from shardwright.strategy.verify.check_structural_plan_rules import verify


def facts_of(problem: Problem) -> GridFacts:
    """The counts of a problem (devices, batch, layers, heads) that grids are checked against."""
    return grid_facts(
        problem.model,
        devices=problem.cluster.num_devices,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
        runtime=problem.runtime,
    )


def grid_violations(problem: Problem, grid: Grid) -> Iterator[Violation]:
    """Every rule that `grid` breaks for `problem`, with those of its schedule and runtime."""
    broken_rules = violations(grid, facts=facts_of(problem), general=True)
    yield from broken_rules
    if not broken_rules and grid.schedule not in SCHEDULES:
        yield from order_violations(
            grid, microbatches=problem.job.global_batch // (grid.dp * grid.microbatch)
        )
    yield from runtime_violations(problem, grid)


def runtime_violations(problem: Problem, grid: Grid) -> Iterator[Violation]:
    """Features of `grid` that the runtime of `problem` cannot run, as violations."""
    yield from unrunnable(problem.runtime, grid)
    yield from _zero_violations(problem, zero=grid.zero, pipeline=grid.pp > 1)
    if grid.host and (grid.pp > 1 or not problem.runtime.activation_offload):
        yield Violation(
            rule="runtime.host",
            message=(
                f"{problem.runtime.name} cannot keep layers' activations in host"
                f" memory{' with pp above 1' if grid.pp > 1 else ''}"
            ),
            hint="remove host=, or use Megatron-Core with pp 1",
        )


def plan_violations(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Every rule that `plan` breaks for `problem`, with those of the runtime.

    Not yet whether its orders can run.
    """
    if plan.devices > problem.cluster.num_devices:
        yield Violation(
            rule="plan.devices",
            message=(
                f"the plan is for {plan.devices} devices, the cluster has"
                f" {problem.cluster.num_devices}"
            ),
            hint="use a cluster of at least that many devices",
        )
    yield from verify(
        plan,
        model=problem.model,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
    )
    yield from _shard_violations(problem, plan)
    yield from _unfilled_pipelines(problem, plan)
    yield from _unequal_stages(problem, plan)
    if not problem.runtime.optimizer_offload and any(
        percent for rule in plan.shards for _, percent in rule.host
    ):
        yield Violation(
            rule="runtime.offload",
            message=f"{problem.runtime.name} cannot keep optimizer states in host memory",
            hint="remove host= from the plan's shards, or use another runtime",
        )
    yield from _host_share_violations(under(problem, plan.options), plan)


def _host_share_violations(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Violations where a plan's host shares differ from the shares that the runtime keeps.

    Shares of gradients and parameters in host memory.

    The runtime's shares follow from its options and from the share of the optimizer's states: a
    plan may state them, and change nothing.
    """
    runtime = problem.runtime
    for number, rule in enumerate(plan.shards):
        shares = dict(rule.host)
        zero = 3 if rule.parameter != 1 else 2 if rule.gradient != 1 else 1
        share_of_runtime = {
            State.GRADIENT: (
                shares.get(State.OPTIMIZER, 0) if runtime.gradients_on_host and zero >= 2 else 0
            ),
            State.PARAMETER: 100 if runtime.parameters_on_host and zero == 3 else 0,
        }
        for state, percent in rule.host:
            if percent != share_of_runtime.get(state, percent):
                yield Violation(
                    rule="runtime.host_share",
                    message=(
                        f"{runtime.name} keeps {share_of_runtime[state]} % of this rule's"
                        f" {_STATE_WORDS[state]} in host memory, not {percent} %"
                    ),
                    hint=f"without {state.value} in host="
                    + (
                        f", or with {state.value}:{share_of_runtime[state]}"
                        if share_of_runtime[state]
                        else ""
                    ),
                    path=f"shards {number}",
                )


_STATE_WORDS: Final = {State.GRADIENT: "gradients", State.PARAMETER: "parameters"}


def _unfilled_pipelines(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Violations where 1F1B has fewer microbatches than stages and the runtime refuses it."""
    lanes = {lane.name: lane for lane in plan.lanes}
    for order in plan.orders if problem.runtime.fills_pipeline else ():
        for lane in (
            lanes[name]
            for name in order.lanes
            if isinstance(order, NamedOrder) and order.schedule == "1f1b"
        ):
            if 1 < lane.microbatches < len(lane.stages):
                yield Violation(
                    rule="runtime.microbatches",
                    message=(
                        f"{lane.microbatches} microbatches are fewer than {len(lane.stages)}"
                        f" stages, which {problem.runtime.name}'s 1F1B refuses"
                    ),
                    hint="more microbatches, fewer stages, or the order as a table",
                    path=f"lane {lane.name}",
                )


def _unequal_stages(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Violations where stages have unequal layer counts that the runtime has no argument for."""
    runtime = problem.runtime
    for lane in plan.lanes if runtime.equal_stages or runtime.equal_between else ():
        pieces, violations_of_lane = stage_pieces(lane, model=problem.model)
        if violations_of_lane:
            continue
        blocks, runs = problem.model.blocks, problem.model.runs
        chunks = tuple(
            sum(piece.count for piece in stage if blocks[runs[piece.run].block].is_layer)
            for stage in pieces
        )
        has_cut_layers = any(
            piece.operator and blocks[runs[piece.run].block].is_layer
            for stage in pieces
            for piece in stage
        )
        ranks = len({stage.base for stage in lane.stages})
        unlike_stages = (
            2 if has_cut_layers or len(chunks) % ranks else unlike_chunks(chunks, ranks=ranks)
        )
        if unlike_stages > 1 - runtime.equal_stages:
            yield Violation(
                rule="runtime.layers",
                message=(
                    f"stages of {', '.join(map(str, chunks))[:60]} layers, which {runtime.name} has"
                    " no argument for"
                ),
                hint=(
                    "stages of as many layers each, or a runtime with a layout: megatron-core-0.12"
                ),
                path=f"lane {lane.name}",
            )


def _shard_violations(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Violations where the runtime cannot run the ZeRO stages of the plan's shards.

    Lanes that shard for themselves are checked one by one, all others as one.
    """
    zero_and_bases: dict[int, tuple[int, set[object]]] = {}
    rules = shard_rules(plan)
    for lane, rule, sum_group in zip(plan.lanes, rules.lanes, rules.parties, strict=True):
        zero = max(
            (3 if p != 1 else 2 if g != 1 else int(o != 1) for o, g, p in rule.degrees.values()),
            default=0,
        )
        zero_before, bases = zero_and_bases.get(sum_group, (0, set()))
        zero_and_bases[sum_group] = (
            max(zero_before, zero),
            bases | {(stage.base, stage.placements) for stage in lane.stages},
        )
    checks = {(zero, len(bases) > 1): None for zero, bases in zero_and_bases.values()}
    for zero, pipeline in checks:
        yield from _zero_violations(problem, zero=zero, pipeline=pipeline)


def _zero_violations(problem: Problem, *, zero: int, pipeline: bool) -> Iterator[Violation]:
    """The violation where the runtime cannot run a ZeRO stage, with or without a pipeline."""
    runtime = problem.runtime
    if zero not in runtime.zero_stages or (pipeline and zero > runtime.zero_with_pipeline):
        yield Violation(
            rule="runtime.zero",
            message=f"{runtime.name} has no zero{zero}{' with pp above 1' if pipeline else ''}",
            hint=(
                f"stages {', '.join(map(str, runtime.zero_stages))}, with a pipeline up to"
                f" {runtime.zero_with_pipeline}"
            ),
        )
