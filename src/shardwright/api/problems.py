"""From what a request says to the problem, its counts and its space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, UsageError, nearest
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.expression import parse_cluster
from shardwright.hardware.overrides import effective_memory, limit_devices, reserve_memory
from shardwright.hardware.profile.apply import apply_profile, profiled_cluster
from shardwright.job.border import job_from_flags
from shardwright.model.catalog.catalog import load_model
from shardwright.program.problem import Problem
from shardwright.runtime.registry import load_runtime
from shardwright.search.grid.space import Space, exhaustive_space, restricted, standard_space
from shardwright.search.request import Request
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.grid.rules import GridFacts

Progress = Callable[[str, int, int], None]


SPACES = {"standard": standard_space, "exhaustive": exhaustive_space}


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
    from shardwright.files.profile_file import read_profile  # pydantic only where a file is read

    profile = read_profile(path)
    return apply_profile(_load_cluster(text), profile) if _is_file(text) else profiled_cluster(text, profile)


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "\n" in text


def _load_cluster(text: str) -> Cluster:
    if _is_file(text):
        from shardwright.hardware.files.yaml_cluster import load_cluster  # pydantic and yaml only where a file is read

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
