"""The verbs of the command line as functions of the same names: plan, simulate, draw, check, calibrate (validate: `calibrate.accuracy`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path

from shardwright.calibrate.request import Calibration, calibrate, check_calibration
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, DataError, InfeasibleError, StrategyError, UsageError, nearest
from shardwright.hardware.catalog import accelerator
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.expression import parse_cluster
from shardwright.hardware.overrides import effective_memory, limit_devices, reserve_memory, scale_network
from shardwright.hardware.profile_apply import apply_profile, profiled_cluster
from shardwright.job.border import job_from_flags
from shardwright.model.catalog import load_model
from shardwright.program.problem import Problem
from shardwright.report.plan_picture import Picture, picture_of
from shardwright.report.plan_source import read_plan
from shardwright.report.profile_file import read_profile
from shardwright.runtime.registry import load_runtime
from shardwright.search.answer import Answer, Goodput, Sensitivity
from shardwright.search.find import find
from shardwright.search.joint.find import JointAnswer, find_joint
from shardwright.search.recheck import Recheck, recheck
from shardwright.search.request import Request
from shardwright.search.space import Space, exhaustive_space, restricted, standard_space
from shardwright.simulator.evaluate import predict, simulate_grid
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_facts import grid_facts
from shardwright.strategy.grid_notation import parse_grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.grid_rules import GridFacts, require_legal
from shardwright.strategy.lane import Role
from shardwright.strategy.verify import require_valid

Progress = Callable[[str, int, int], None]

SPACES = {"standard": standard_space, "exhaustive": exhaustive_space}
FAILURES_PER_DEVICE_HOUR = 419 / (16384 * 54 * 24)
"""Unexpected interruptions of the Llama 3 405B run: 419 in 54 days on 16,384 devices (Llama Team 2024, section 3.3.4)."""
CHECKPOINT_BYTES_PER_S = 1e9
RESTART_S = 600.0
NOTABLE_DEVICES = 512


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
    request: Request, *, tolerance: float = 0.01, time_limit_s: float = float("inf"), progress: Progress | None = None
) -> JointAnswer:
    """The best plan of the joint space over the grids that the request asks for: cut, splits, recompute, microbatches and order together.

    Args:
        tolerance: gap that is good enough.

    Raises:
        InfeasibleError: nothing fits.
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), effective_memory(problem.cluster)
    return find_joint(problem, space, facts, capacity=capacity, tolerance=tolerance, time_limit_s=time_limit_s, progress=progress)


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
    """Time and memory of one strategy.

    Raises:
        StrategyError: it cannot be read, or is not legal here.
    """
    problem = problem_of(request)
    grid = parse_grid(strategy)
    check_grid(problem, grid)
    return predict(problem, grid)


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, the runtime's own included."""
    require_legal(grid, facts=facts_of(problem))
    runtime = problem.runtime
    if grid.zero not in runtime.zero_stages or (grid.pp > 1 and grid.zero > runtime.zero_with_pipeline):
        raise StrategyError(
            f"{runtime.name} has no zero{grid.zero}{' with pp above 1' if grid.pp > 1 else ''}",
            hint=f"stages {', '.join(map(str, runtime.zero_stages))}, with a pipeline up to {runtime.zero_with_pipeline}",
            rule="runtime.zero",
        )


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
    return recheck(
        problem, space, facts, answer, capacity=effective_memory(problem.cluster), generator=random.Random(seed), progress=progress
    )


__all__ = [
    "Answer",
    "Calibration",
    "DataError",
    "InfeasibleError",
    "JointAnswer",
    "Prediction",
    "Request",
    "accelerator",
    "calibrate",
    "check",
    "check_calibration",
    "draw",
    "plan",
    "plan_joint",
    "simulate",
]
