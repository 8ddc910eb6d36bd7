"""The verbs of the command line as functions of the same names: plan, simulate, draw, check, calibrate (validate: `calibrate.accuracy`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np

from shardwright.calibrate.request import Calibration, calibrate, check_calibration
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, DataError, InfeasibleError, StrategyError, UsageError, nearest
from shardwright.execute.proof import Proof
from shardwright.hardware.catalog import accelerator
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.expression import parse_cluster
from shardwright.hardware.overrides import effective_memory, limit_devices, reserve_memory, scale_network
from shardwright.hardware.profile_apply import apply_profile, profiled_cluster
from shardwright.job.border import job_from_flags
from shardwright.model.catalog import load_model
from shardwright.program.action_check import action_violations
from shardwright.program.action_rows import action_rows
from shardwright.program.problem import Problem
from shardwright.program.stage_edges import stage_edges
from shardwright.program.stage_parts import plan_stages
from shardwright.report.plan_picture import Picture, picture_of
from shardwright.report.plan_source import read_plan, read_strategy
from shardwright.report.plan_ways import device_text
from shardwright.report.profile_file import read_profile
from shardwright.report.simulation_file import Saved
from shardwright.runtime.registry import load_runtime
from shardwright.schedules.grid_order import order_violations
from shardwright.search.answer import Answer, Goodput, Sensitivity
from shardwright.search.find import find
from shardwright.search.joint.find import FOUND_ORDERS, JointAnswer, find_joint
from shardwright.search.joint.written import short_text, written
from shardwright.search.orders.resolve_plan import is_open, resolved
from shardwright.search.recheck import DRIFT, Recheck, recheck
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation, Verified
from shardwright.search.space import Space, exhaustive_space, restricted, standard_space
from shardwright.simulator.evaluate import predict, simulate_grid
from shardwright.simulator.plan_prediction import predict_plan
from shardwright.simulator.plans import simulate_plan
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_facts import grid_facts
from shardwright.strategy.grid_match import grid_of
from shardwright.strategy.grid_notation import print_grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.grid_rules import SCHEDULES, GridFacts, canonical, require_legal, violations
from shardwright.strategy.lane import Role
from shardwright.strategy.order import Named
from shardwright.strategy.plan import Plan
from shardwright.strategy.verify import require_valid
from shardwright.units import format_bytes

Progress = Callable[[str, int, int], None]

SPACES = {"standard": standard_space, "exhaustive": exhaustive_space}
FAILURES_PER_DEVICE_HOUR = 419 / (16384 * 54 * 24)
"""Unexpected interruptions of the Llama 3 405B run: 419 in 54 days on 16,384 devices (Llama Team 2024, section 3.3.4)."""
CHECKPOINT_BYTES_PER_S = 1e9
RESTART_S = 600.0
NOTABLE_DEVICES = 512
SMALL = 16
"""Most devices, and stages, of a plan that is drawn beside its numbers."""


def problem_of(request: Request) -> Problem:
    """The problem that a request means.

    Raises:
        ModelError, ClusterError, RuntimeModelError, UsageError: by what is wrong with it.
    """
    model = load_model(request.model)
    needed = {b.sequence for b in model.blocks} | {b.memory for b in model.blocks if b.memory}
    job = job_from_flags(
        seq_len=request.seq_len,
        global_batch=request.global_batch,
        precision=request.precision,
        encoder_len=request.encoder_len,
        image_tokens=request.image_tokens,
        needed=needed | {"text"},
    )
    cluster = _cluster(request)
    device = cluster.node.accelerator
    if not any(map(device.peak, (job.compute, Dtype.BF16, Dtype.FP16))):
        known = ", ".join(dtype.value for dtype, _ in device.peak_flops)
        raise ClusterError(f"{device.name} has no units for {job.compute.value}, nor for another 16-bit dtype", hint=f"--precision {known}")
    return Problem(model=model, cluster=cluster, job=job, runtime=load_runtime(request.runtime))


def _cluster(request: Request) -> Cluster:
    cluster = _profiled(request.cluster, Path(request.profile)) if request.profile else _load_cluster(request.cluster)
    if request.max_devices:
        cluster = limit_devices(cluster, num_devices=request.max_devices)
    reserve = request.reserve_bytes + int(request.reserve_fraction * effective_memory(cluster))
    return reserve_memory(cluster, reserve_bytes=reserve) if reserve else cluster


def _profiled(text: str, path: Path) -> Cluster:
    profile = read_profile(path)
    return apply_profile(_load_cluster(text), profile) if _is_file(text) else profiled_cluster(text, profile)


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "\n" in text


def _load_cluster(text: str) -> Cluster:
    if _is_file(text):
        from shardwright.hardware.yaml_cluster import load_cluster  # pydantic and yaml only where a file is read

        return load_cluster(text)
    return parse_cluster(text)


def facts_of(problem: Problem) -> GridFacts:
    """The counts that grids are checked against."""
    return grid_facts(
        problem.model,
        devices=problem.cluster.num_devices,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
    )


def space_of(request: Request, problem: Problem, facts: GridFacts) -> Space:
    """The space that a request asks for."""
    if request.space not in SPACES:
        raise UsageError(f"unknown space {request.space!r}", hint=nearest(request.space, SPACES))
    if not problem.cluster.is_uniform:
        raise UsageError("mixed clusters are not searched yet", hint="plan each kind of device alone")
    return restricted(SPACES[request.space](problem, facts), pins=dict(request.pins), excludes=dict(request.excludes))


def plan(request: Request, *, time_limit_s: float = float("inf"), progress: Progress | None = None) -> Answer:
    """The best strategy of the space, certified; with the next best ones, what 10 % less network costs, and goodput at scale.

    Raises:
        InfeasibleError: nothing fits.
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space = space_of(request, problem, facts)
    capacity = effective_memory(problem.cluster)
    answer = find(problem, space, facts, capacity=capacity, top=request.top + 1, time_limit_s=time_limit_s, progress=progress)
    return replace(
        answer,
        sensitivity=_sensitivity(problem, space, facts, answer.grid, progress) if time_limit_s == float("inf") else None,
        goodput=_goodput(problem, answer) if problem.cluster.num_devices >= NOTABLE_DEVICES else None,
        plan=plan_of(answer.grid, model=problem.model, global_batch=problem.job.global_batch),
        request=request,
    )


def plan_joint(
    request: Request,
    *,
    orders: str = FOUND_ORDERS,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    progress: Progress | None = None,
) -> JointAnswer:
    """The best plan of the joint space over the grids that the request asks for: cut, splits, recompute, microbatches and order together.

    Args:
        orders: "found" or "named" (`search.joint.find.find_joint`). tolerance: gap that is good enough.

    Raises:
        InfeasibleError: nothing fits.
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), effective_memory(problem.cluster)
    answer = find_joint(
        problem, space, facts, capacity=capacity, orders=orders, tolerance=tolerance, time_limit_s=time_limit_s, progress=progress
    )
    return replace(answer, simulation=_joint_simulation(request, problem, answer))


def _joint_simulation(request: Request, problem: Problem, answer: JointAnswer) -> Simulation:
    """The best plan as `simulation` gives it: as a general plan, or the grid where that is best."""
    if answer.best is None:
        assert answer.grid is not None
        return _simulated(request, problem, name=print_grid(answer.grid.grid), grid=answer.grid.grid)
    return _simulated(request, problem, name=short_text(answer.best.plan), grid=None, plan=written(problem, answer.best.plan))


def _sensitivity(problem: Problem, space: Space, facts: GridFacts, grid: Grid, progress: Progress | None) -> Sensitivity | None:
    if problem.cluster.num_devices <= problem.cluster.node.island:
        return None
    slower = replace(problem, cluster=scale_network(problem.cluster, factor=0.9))
    again = find(slower, space, facts, capacity=effective_memory(slower.cluster), top=1, progress=progress)
    return Sensitivity(
        change="10 % less bandwidth between nodes",
        same_plan_s=simulate_grid(slower, grid).step_time_s,
        best_s=again.prediction.step_time_s,
        best_grid=again.grid,
    )


def _goodput(problem: Problem, answer: Answer) -> Goodput:
    """Young 1974, equation 1: the interval sqrt(2 c M) loses least to checkpoints of c seconds and failures every M seconds."""
    devices = problem.cluster.num_devices
    rate = problem.cluster.node.accelerator.failures_per_device_hour or FAILURES_PER_DEVICE_HOUR
    between = 3600.0 / (rate * devices)
    state = problem.model.num_parameters * (problem.job.optimizer.state_bytes + problem.job.parameter.bits // 8)
    cost = max(state / (CHECKPOINT_BYTES_PER_S * devices), 1.0)
    interval = sqrt(2 * cost * between)
    lost = cost / interval + (interval / 2 + RESTART_S) / between
    return Goodput(
        failures_per_day=86400.0 / between,
        checkpoint_interval_s=interval,
        goodput=max(1.0 - lost, 0.0),
        assumptions=(
            f"{rate:.3g} failures a device-hour (Llama 3 405B: 419 in 54 days on 16,384 devices)",
            f"a checkpoint takes {cost:.3g} s: {state / 1e12:.3g} TB at {CHECKPOINT_BYTES_PER_S / 1e9:g} GB/s a device, nothing hidden",
            f"a restart takes {RESTART_S:g} s",
        ),
    )


def simulate(request: Request, *, strategy: str) -> Prediction:
    """Time and memory of one strategy; see `simulation`."""
    return simulation(request, strategy=strategy).prediction


def simulation(request: Request, *, strategy: str) -> Simulation:
    """One strategy, simulated.

    A grid whose schedule is searched is lowered as it is, and so is a plan that such a grid says; every other one as a general plan. An
    order called ``table-search`` is found first.

    Args:
        strategy: a grid's text, a text in the general notation, or the path of such a text or of a plan file.

    Raises:
        StrategyError: it cannot be read, or is not legal here. InfeasibleError: no order to be found keeps within the memory.
    """
    problem = problem_of(request)
    given = read_strategy(strategy, model=problem.model, model_name=request.model)
    if isinstance(given.strategy, Grid):
        check_grid(problem, given.strategy)
        return _simulated(request, problem, name=given.name, grid=given.strategy)
    check_plan(problem, given.strategy)
    grid = None if is_open(given.strategy) else grid_of(given.strategy, model=problem.model)
    return _simulated(request, problem, name=given.name, grid=grid, plan=given.strategy)


def _simulated(request: Request, problem: Problem, *, name: str, grid: Grid | None, plan: Plan | None = None) -> Simulation:
    """The simulation of what was found legal: a grid, or a plan and the grid, if any, that says it."""
    if grid is not None and is_direct(problem, grid):
        return Simulation(request=request, name=name, grid=grid, plan=None, prediction=predict(problem, grid))
    if plan is None:
        assert grid is not None
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    found = resolved(problem, plan)
    done = simulate_plan(problem, found)
    searched = [f"order {o.schedule}({', '.join(o.lanes)})" for o in plan.orders if isinstance(o, Named) and o not in found.orders]
    return Simulation(
        request=request,
        name=name,
        grid=grid,
        plan=found,
        prediction=predict_plan(problem, found, done),
        classes=tuple(device_text(np.array(c.devices)) for c in done.program.classes),
        notes=tuple(f"{order}: the best table found stands in its place" for order in searched),
    )


def is_direct(problem: Problem, grid: Grid) -> bool:
    """`grid` is simulated as it is, not as a general plan: its schedule is a searched one, it is legal, and devices are of one kind."""
    return problem.cluster.is_uniform and not violations(grid, facts=facts_of(problem))


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, the schedule's and the runtime's own included."""
    require_legal(grid, facts=facts_of(problem), general=True)
    if grid.schedule not in SCHEDULES:
        for broken in order_violations(grid, microbatches=problem.job.global_batch // (grid.dp * grid.microbatch)):
            raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule)
    _check_zero(problem, zero=grid.zero, pipeline=grid.pp > 1)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, the runtime's own included; not yet whether its orders can run."""
    if plan.devices > problem.cluster.num_devices:
        raise StrategyError(
            f"the plan is for {plan.devices} devices, the cluster has {problem.cluster.num_devices}",
            hint="a cluster of as many devices or more",
            rule="plan.devices",
        )
    require_valid(plan, model=problem.model, global_batch=problem.job.global_batch, seq_len=problem.job.sequence_length)
    zero = max((3 if s.parameter != 1 else 2 if s.gradient != 1 else int(s.optimizer != 1) for s in plan.shards), default=0)
    bases = {(stage.base, stage.placements) for lane in plan.lanes for stage in lane.stages}
    _check_zero(problem, zero=zero, pipeline=len(bases) > 1)


def _check_zero(problem: Problem, *, zero: int, pipeline: bool) -> None:
    runtime = problem.runtime
    if zero not in runtime.zero_stages or (pipeline and zero > runtime.zero_with_pipeline):
        raise StrategyError(
            f"{runtime.name} has no zero{zero}{' with pp above 1' if pipeline else ''}",
            hint=f"stages {', '.join(map(str, runtime.zero_stages))}, with a pipeline up to {runtime.zero_with_pipeline}",
            rule="runtime.zero",
        )


def verify(stored: Simulation) -> Verified:
    """Verify a stored simulation: its rules, that its orders end, its memory, and its seconds, all made again.

    Raises:
        StrategyError: a rule is broken. InfeasibleError: a device needs more memory than it has. DataError: the claim does not hold.
    """
    request, actions = stored.request, 0
    problem = problem_of(request)
    if stored.plan is not None:
        check_plan(problem, stored.plan)
        actions = _check_actions(problem, stored.plan)
        if stored.grid is not None and grid_of(stored.plan, model=problem.model) != _canonical(problem, stored.grid):
            raise DataError("the stored plan is not that of the stored grid", hint="simulate again")
    else:
        assert stored.grid is not None
        check_grid(problem, stored.grid)
    again = _simulated(request, problem, name=stored.name, grid=stored.grid, plan=stored.plan)
    claimed, found = stored.prediction, again.prediction
    if not again.fits:
        raise InfeasibleError(
            f"a device needs {format_bytes(found.reserved_bytes)}, more than its {format_bytes(found.capacity_bytes)}",
            hint="recompute, shard or offload more, or another order",
        )
    drift = abs(found.step_time_s - claimed.step_time_s) / claimed.step_time_s if claimed.step_time_s > 0 else 1.0
    if drift > DRIFT or (found.reserved_bytes, found.allocated_bytes) != (claimed.reserved_bytes, claimed.allocated_bytes):
        raise DataError(
            f"simulated again it takes {found.step_time_s:.9g} s and {format_bytes(found.reserved_bytes)}, the file says "
            f"{claimed.step_time_s:.9g} s and {format_bytes(claimed.reserved_bytes)}",
            hint="was the file edited, or made by another version?",
        )
    devices = stored.plan.devices if stored.plan else stored.grid.devices if stored.grid else 0
    return Verified(devices=devices, actions=actions, drift=drift, full=found.reserved_bytes / found.capacity_bytes)


def _canonical(problem: Problem, grid: Grid) -> Grid:
    return canonical(grid, facts=facts_of(problem))


def _check_actions(problem: Problem, plan: Plan) -> int:
    """How many actions the orders hold; StrategyError where one waits for ever."""
    rows = action_rows(plan)
    stages = plan_stages(plan, model=problem.model)
    edges = [tuple((e.source, e.target) for e in stage_edges(lane, model=problem.model)) for lane in stages]
    for broken in action_violations(plan, rows, edges=edges):
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule, path=broken.path)
    return len(rows.kind)


def small_picture(simulation: Simulation) -> Picture | None:
    """The picture of a general plan that no grid says, if it has few devices and stages."""
    plan = simulation.plan
    if plan is None or simulation.grid is not None or plan.devices > SMALL or sum(len(lane.stages) for lane in plan.lanes) > SMALL:
        return None
    return picture_of(plan, model=load_model(simulation.request.model), name=simulation.name or "plan")


def draw(source: str, *, model: str = "", devices: int = 0, global_batch: int = 0) -> Picture:
    """The picture of a plan: `report.plan_text` and `report.plan_svg` give it a form.

    Args:
        source: path of a plan file or of a text in the general notation, or a grid's text.
        model, devices, global_batch: see `report.plan_source.read_plan`.

    Raises:
        DataError, StrategyError, ModelError, UsageError: by what is wrong with it; a plan that breaks a rule is not drawn.
    """
    found = read_plan(source, model=model, devices=devices, global_batch=global_batch)
    samples = sum(lane.samples for lane in found.plan.lanes if lane.role is Role.TRAIN)
    require_valid(found.plan, model=found.model, global_batch=samples)
    return picture_of(found.plan, model=found.model, name=found.name)


def check(request: Request, answer: Answer, *, seed: int = 0, progress: Progress | None = None) -> Recheck:
    """Enumerate, bound and simulate again what `answer` claims: a random 1 % and everything within the gap.

    Raises:
        DataError: the certificate does not hold.
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space = space_of(request, problem, facts)
    if answer.plan is not None and answer.plan != plan_of(answer.grid, model=problem.model, global_batch=problem.job.global_batch):
        raise DataError("the stored plan is not that of the stored strategy", hint="was the file edited? plan again")
    return recheck(
        problem, space, facts, answer, capacity=effective_memory(problem.cluster), generator=random.Random(seed), progress=progress
    )


def execution(stored: Saved) -> Proof:
    """Run a small model of the same structure under a stored plan on virtual devices, and compare it with the unsplit model.

    Raises:
        UsageError: PyTorch is not installed. StrategyError: the plan holds what is not executed.
        DataError: loss or a gradient differs.
    """
    try:
        from shardwright.execute.prove import prove  # PyTorch is an extra
    except ImportError as error:
        raise UsageError("--execute needs PyTorch", hint="pip install 'shardwright[run]'") from error
    request = stored.request if isinstance(stored, Simulation) else stored[0]
    problem = problem_of(request)
    plan, grid = (stored.plan, stored.grid) if isinstance(stored, Simulation) else (stored[1].plan, stored[1].grid)
    if plan is None:
        assert grid is not None
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    found = prove(problem.model, problem.job, plan)
    if not found.equal:
        name, difference = found.worst
        raise DataError(
            f"under the plan the loss differs by {found.loss_difference:.1e} and the gradient of {name} by {difference:.1e}",
            hint="this is an error of Shardwright: report it with the plan",
        )
    return found


__all__ = [
    "Answer",
    "Calibration",
    "DataError",
    "InfeasibleError",
    "JointAnswer",
    "Prediction",
    "Request",
    "Simulation",
    "Verified",
    "accelerator",
    "calibrate",
    "check",
    "check_calibration",
    "draw",
    "execution",
    "plan",
    "plan_joint",
    "simulate",
    "simulation",
    "verify",
]
