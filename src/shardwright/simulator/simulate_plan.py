"""Simulation of the step of a general plan: resolve, price, lower and simulate its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from shardwright.arrays import IntArray
from shardwright.cost.bounds.straggler_jitter import jitter_factor_of_devices
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.network.networks_of_plan_devices import group_problem
from shardwright.cost.step.model_flops import model_flops
from shardwright.cost.step.stage_action_seconds import StageCosts
from shardwright.errors import StrategyError
from shardwright.hardware.cluster_network_levels import counts_by_group
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.device_classes_with_equal_actions import DeviceClass, TaskShape, chunks_of
from shardwright.program.identity_cache_keys import Same
from shardwright.program.lower_plan_to_tasks import lower_plan
from shardwright.program.lowered_program import Program
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_segments import working_devices
from shardwright.program.training_problem import Problem, under
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.peak_host_memory import host_memory, may_offload
from shardwright.simulator.prediction import HostMemory, StageMemory
from shardwright.simulator.price_device_families_of_stages import price_stages
from shardwright.simulator.resolve_stages_edges_and_device_classes import (
    ResolvedPlan,
    layout_of_plan,
)
from shardwright.strategy.grid.grid_rules import LoneStages
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and finish of every task instance, and its uncontended work, in picoseconds."""

    start: IntArray
    finish: IntArray
    work: IntArray

    @property
    def seconds(self) -> float:
        """Seconds from the step's start to the end of the last task, without the step's jitter."""
        return int(self.finish.max()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    """The simulated step of a plan: its time, memory and timeline.

    Args:
        program, costs, timeline: the tasks, their prices and their times.
        step_time_s: seconds, with jitter.
        memory: peak memory of each class of devices.
        host_memory: host memory of nodes with offloading devices, the fullest first.
    """

    program: Program
    costs: StageCosts
    timeline: Timeline
    step_time_s: float
    memory: tuple[StageMemory, ...]
    host_memory: tuple[HostMemory, ...]
    mfu_causal: float

    @property
    def fits(self) -> bool:
        """True if every device fits its own memory and every node its host memory."""
        return all(m.reserved <= m.capacity for m in self.memory) and self.fits_hosts

    @property
    def fits_hosts(self) -> bool:
        """True if no node needs more host memory than it has."""
        return not any(host.lacking for host in self.host_memory)

    def fits_in(self, capacity: float) -> bool:
        """True if no device needs more than `capacity` bytes and every node's host memory fits."""
        return self.need <= capacity and self.fits_hosts

    @property
    def need(self) -> int:
        """Peak bytes, buffers and context included, of the device class that needs most."""
        return max(m.reserved for m in self.memory)


def lower(
    problem: Problem, plan: Plan, *, unfolded: bool = False, verified: bool = False
) -> tuple[Program, StageCosts]:
    """Lower `plan` to the program of its tasks, and compute the costs of the tasks.

    Args:
        unfolded: True = every device is a class of its own (for a proof, or the exact form if
            replicas lie unequally in nodes).
        verified: True = the plan is known to break no rule, as it was written from a legal grid.

    Raises:
        StrategyError: the plan breaks a rule, or has a feature that lowering does not support.
    """
    problem = under(problem, plan.options)
    laid_out = layout_of_plan(problem, plan, unfolded=unfolded, verified=verified)
    costs = price_stages(problem, plan, laid_out.stages, laid_out.kinds)
    shape = TaskShape(
        tied=costs.holders_of(laid_out.classes, tied=True),
        pieces=costs.pieces,
        coupled=costs.coupled,
        holders=costs.holders_of(laid_out.classes),
        gathers=costs.gathers,
        blocking=_blocks_sends(problem, laid_out.classes, laid_out.rows),
        reduces_last=not problem.runtime.overlap_grad_reduce,
    )
    return replace(_program(Same(laid_out), shape), plan=plan), costs


def _blocks_sends(problem: Problem, classes: tuple[DeviceClass, ...], rows: ActionRows) -> bool:
    """True if a rank computes nothing while it sends.

    With paired actions a rank computes one action while the other communicates.
    """
    chunks = chunks_of(classes)
    return problem.runtime.blocks_sends(chunks if rows.overlapped is None else max(chunks, 2))


@lru_cache(maxsize=8)
def _program(laid_plan: Same[ResolvedPlan], shape: TaskShape) -> Program:
    """Lower a resolved plan to its tasks, cached by plan and task shape."""
    laid = laid_plan.value
    return lower_plan(
        laid.plan,
        stages=laid.stages,
        rows=laid.rows,
        classes=laid.classes,
        edges=laid.edges,
        shape=shape,
    )


def simulate_plan(
    problem: Problem, plan: Plan, *, unfolded: bool = False, verified: bool = False
) -> SimulatedPlan:
    """Simulate the step of a general plan (tier S): step time and memory of each device class.

    Raises:
        StrategyError: as `lower`; or the order deadlocks (rule ``order.deadlock``).
    """
    if plan.devices > problem.cluster.num_devices:
        raise StrategyError(
            f"the plan is for {plan.devices} devices, the cluster has"
            f" {problem.cluster.num_devices}",
            rule="plan.devices",
        )
    problem = under(problem, plan.options)
    program, costs = lower(problem, plan, unfolded=unfolded, verified=verified)
    tasks = plan_kernel_tasks(problem, program, costs)
    start, finish, finished = simulate(*tasks)
    if finished != len(start):
        raise StrategyError(
            "the order deadlocks: some action waits for an action that stands after it",
            hint=(
                "actions that share devices or collectives stand in one relative order in all rows"
                if not _blocks_sends(problem, program.classes, program.rows)
                else (
                    f"{problem.runtime.name} computes nothing while it sends: ranks that send to"
                    " each other at once need one that does"
                )
            ),
            rule="order.deadlock",
        )
    devices = working_devices(Same(program.stages))
    seconds = (
        int(finish.max()) / PICOSECONDS_PER_SECOND * jitter_factor_of_devices(problem, devices)
    )
    causal, _ = model_flops(problem)
    mfu = causal / seconds / peak_flops(problem, devices)
    assert 0 < mfu <= 1 or problem.free_parts, f"a step at {mfu:.3g} of the devices' peak"
    return SimulatedPlan(
        program=program,
        costs=costs,
        timeline=Timeline(start=start, finish=finish, work=tasks[0]),
        step_time_s=seconds,
        memory=plan_memory(problem, program, costs),
        host_memory=host_memory(problem, program, costs),
        mfu_causal=mfu,
    )


def peak_flops(problem: Problem, devices: Sequence[int]) -> float:
    """Sum of the devices' peak FLOP/s in the number format that the job multiplies in."""
    counts = enumerate(counts_by_group(problem.cluster, devices))
    return sum(
        problem_machine(group_problem(problem, group)).peak * count
        for group, count in counts
        if count
    )


def plan_of_grid(problem: Problem, grid: Grid) -> Plan:
    """The general plan of a grid, for the problem's model and batch."""
    return _plan_of(
        Same(problem.model), grid, problem.job.global_batch, lone_stages(problem.runtime)
    )


@lru_cache(maxsize=64)
def _plan_of(model: Same[Model], grid: Grid, global_batch: int, lone: LoneStages) -> Plan:
    """Cached `plan_of` for a model, grid, batch and lone ZeRO stages."""
    return plan_of(grid, model=model.value, global_batch=global_batch, lone=lone)


def simulate_grid(problem: Problem, grid: Grid) -> SimulatedPlan:
    """Simulate the step of the plan of a grid (tier S)."""
    return simulate_plan(problem, plan_of_grid(problem, grid), verified=True)


def fits_hosts(problem: Problem, plan: Plan) -> bool:
    """True if every node has host memory for what a plan offloads; found without simulation."""
    problem_with_options = under(problem, plan.options)
    return not may_offload(problem_with_options.runtime, plan) or not any(
        host.lacking for host in host_memory(problem_with_options, *lower(problem, plan))
    )


def footprint_of_grid(
    problem: Problem, grid: Grid
) -> tuple[tuple[StageMemory, ...], tuple[HostMemory, ...]]:
    """(peak memory of each device class, host memory of the nodes) of a grid, without step time."""
    problem_with_options, lowered = (
        under(problem, grid.options),
        lower(problem, plan_of_grid(problem, grid), verified=True),
    )
    return plan_memory(problem_with_options, *lowered), host_memory(problem_with_options, *lowered)
