"""Stages, edges, device families and action rows of a plan on a cluster, without prices."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from functools import lru_cache

from shardwright.cost.network.list_stage_edges_of_lane_with_messages import lane_edges
from shardwright.cost.network.networks_of_plan_devices import plan_units
from shardwright.cost.step.stage_action_seconds import slice_lengths
from shardwright.cost.tables.plan_block_costs import blocking_groups, divided_by_work
from shardwright.hardware.cluster_network_levels import group_ends
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.device_classes_with_equal_actions import DeviceClass, device_classes
from shardwright.program.identity_cache_keys import Same
from shardwright.program.orders.plan_action_rows import ActionRows, action_rows
from shardwright.program.stages.device_colour_refinement import StageDevices, refine_families
from shardwright.program.stages.device_equivalence_traits import Grouping
from shardwright.program.stages.held_parameters import Summing, parameter_sums
from shardwright.program.stages.stage_messages import LaneEdge
from shardwright.program.stages.stage_segments import Segment, StageParts, plan_stages
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import shard_rules
from shardwright.simulator.simulation_memory_limit import ACTION_BYTES, num_actions, require_room
from shardwright.simulator.stage_kinds_priced_once import PlacedKind, stage_kinds
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutKey:
    """Cache key of a plan's layout: equal for plans with equal inputs of the layout.

    Fits, folds and sensitivities request the layout of one plan under many prices.
    """

    alike: Hashable
    problem: Problem = field(compare=False)
    plan: Plan = field(compare=False)
    unfolded: bool

    @staticmethod
    def of(problem: Problem, plan: Plan, *, unfolded: bool) -> LayoutKey:
        """Build the cache key of a plan's layout: stages, orders, network units and shard parties.

        Neither the placement of states nor the speed of links is part of the key, only the units
        that links join.
        """
        units, kinds = plan_units(problem), _kind_ends(problem)
        plan_key = (
            plan.devices,
            Same(plan.lanes),
            Same(plan.orders),
            shard_rules(plan).parties,
        )
        alike = (
            plan_key,
            Same(problem.model),
            problem.job,
            units,
            kinds,
            problem.runtime.p2p_scatter_gather,
        )
        return LayoutKey(alike=alike, problem=problem, plan=plan, unfolded=unfolded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResolvedPlan:
    """The parts of a plan on a cluster that do not depend on prices."""

    plan: Plan
    stages: tuple[tuple[StageParts, ...], ...]
    edges: tuple[LaneEdge, ...]
    kinds: tuple[PlacedKind, ...]
    rows: ActionRows
    classes: tuple[DeviceClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValidityKey:
    """Cache key of a check of a plan: equal for plans of which the same rules hold."""

    alike: Hashable
    plan: Plan = field(compare=False)
    model: Same[Model]
    job: TrainingJob


def layout_of_plan(
    problem: Problem, plan: Plan, *, unfolded: bool = False, verified: bool = False
) -> ResolvedPlan:
    """The layout of a plan that breaks no rule, cached by the inputs of the layout.

    Args:
        unfolded: see `simulate_plan.lower`.
        verified: True = the plan is known to break no rule.

    Raises:
        StrategyError: the plan breaks a rule.
    """
    if not verified:
        plan_key = (plan.devices, Same(plan.lanes), Same(plan.orders), plan.shards)
        _require_valid_once(
            _ValidityKey(alike=plan_key, plan=plan, model=Same(problem.model), job=problem.job)
        )
    return resolved_plan(LayoutKey.of(problem, plan, unfolded=unfolded))


@lru_cache(maxsize=8)
def _require_valid_once(question: _ValidityKey) -> None:
    """Raise StrategyError if a plan breaks a rule; plans that break none are not checked again."""
    require_valid(
        question.plan,
        model=question.model.value,
        global_batch=question.job.global_batch,
        seq_len=question.job.sequence_length,
    )


@lru_cache(maxsize=8)
def resolved_plan(question: LayoutKey) -> ResolvedPlan:
    """Resolve a plan's stages, edges, kinds, rows and device classes, cached by their inputs."""
    problem, plan = question.problem, question.plan
    stages = plan_stages(plan, model=problem.model, unfolded=question.unfolded)
    edges = tuple([edge for lane in stages for edge in lane_edges(problem, lane)])
    summings = summings_of(problem, stages)
    if not question.unfolded:
        stages = with_refined_families(problem, plan, stages, edges, summings)
    actions = num_actions(
        plan, {(stage.lane, stage.chunk): len(stage.families) for lane in stages for stage in lane}
    )
    require_room(actions, action_bytes=ACTION_BYTES, doing=f"a simulation of {actions:,} actions")
    rows = action_rows(plan)
    kinds = stage_kinds(problem, stages, summings)
    return ResolvedPlan(
        plan=plan,
        stages=stages,
        edges=edges,
        kinds=kinds,
        rows=rows,
        classes=device_classes(stages, rows),
    )


def summings_of(
    problem: Problem, stages: tuple[tuple[StageParts, ...], ...]
) -> tuple[Summing, ...]:
    """The gradient reductions of all stages: parameters with the devices that sum them."""
    islands = plan_units(problem)[0]
    return tuple(
        parameter_sums(
            stages, model=problem.model, length=problem.job.sequence_length, islands=islands
        )
    )


def _kind_ends(problem: Problem) -> tuple[int, ...]:
    """First device after each node group; empty if the cluster is uniform."""
    return () if problem.cluster.is_uniform else group_ends(problem.cluster)


def with_refined_families(
    problem: Problem,
    plan: Plan,
    stages: tuple[tuple[StageParts, ...], ...],
    edges: tuple[LaneEdge, ...],
    summings: tuple[Summing, ...],
) -> tuple[tuple[StageParts, ...], ...]:
    """Divide the families of all stages until devices of a family have equal costs.

    Devices of one family hold as many parameters, have equal network placement and equal work.
    """
    job = problem.job

    def lengths(lane: int, segment: Segment) -> tuple[int, ...]:
        """Tokens of each sequence slice in a segment of a lane."""
        length = job.tokens(segment.block.sequence) or job.sequence_length
        return slice_lengths(plan, lane, length=length)

    ground = StageDevices(
        lengths=lengths,
        units=plan_units(problem),
        kinds=_kind_ends(problem),
        parties=shard_rules(plan).parties if shard_rules(plan).devices else (),
    )
    count, exchanges = 0, list[Grouping]()
    while count != (count := sum(len(stage.families) for lane in stages for stage in lane)):
        stages = refine_families(
            stages, edges=edges, summings=summings, ground=ground, exchanges=exchanges
        )
        exchanges = [
            grouping
            for lane in stages
            for stage in lane
            if (grouping := blocking_groups(problem, stage)) is not None
        ]
        before_work_split, stages = (
            stages,
            tuple(tuple([divided_by_work(problem, stage) for stage in lane]) for lane in stages),
        )
        if not exchanges and False not in [
            before is after
            for lanes in zip(before_work_split, stages, strict=True)
            for before, after in zip(*lanes, strict=True)
        ]:
            break
    return stages
