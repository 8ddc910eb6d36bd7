"""Convert a request to its problem, its search space and its kind of search."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from shardwright.cost.step.model_flops import LONGEST_STEP_S, seconds_at_peak
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, RuntimeModelError, UsageError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.list_prices import with_prices
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.profile.apply_profile import apply_profile, profiled_cluster
from shardwright.hardware.scale_network_limit_devices_reserve_memory import (
    limit_devices,
    reserve_memory,
    smallest_memory_bytes,
)
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    is_cluster_file,
    scale_cluster,
    split_scale_factors,
)
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.requested_model_with_teacher import requested_model
from shardwright.program.identity_cache_keys import one_of_equals
from shardwright.program.strategy_rule_violations import facts_of as facts_of
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.restrict_runtime_options_to_devices import restrict_to_devices
from shardwright.runtime.runtime_registry import (
    VENDORS,
    default_runtime,
    load_runtime,
    options_in_text,
)
from shardwright.search.grid.members.grid_search_space import Space, on_all_devices
from shardwright.search.grid.members.pinned_and_excluded_values import requested
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.search.search_request import OBJECTIVES, TOP, Request
from shardwright.strategy.grid.grid_rules import GridFacts

SPACES = {"standard": standard_space, "exhaustive": exhaustive_space}
JOINT = ("joint", "joint-named")
"""Joint spaces: with any pipeline schedule, and with named schedules only."""
EXACT = "exact"


class SearchMethod(StrEnum):
    """Kinds of search."""

    GRID = "grid"
    JOINT = "joint"
    EXACT = "exact"
    MIXED = "mixed"
    ROBUST = "robust"


def with_defaults(request: Request) -> Request:
    """The request with the usual runtime and 16-bit precision of its devices, if it names none.

    Raises:
        ClusterError: the cluster cannot be read, or its devices have no 16-bit units.
    """
    if request.runtime and request.precision:
        return request
    devices = [group.kind.accelerator for group in _cluster(request).groups]
    device = devices[0]
    halves = [
        dtype.value for dtype in (Dtype.BF16, Dtype.FP16) if all(one.peak(dtype) for one in devices)
    ]
    if not (request.precision or halves):
        raise ClusterError(
            f"{device.name} has no units for a 16-bit dtype that all devices have",
            hint=f"--precision {_device_formats(device)}",
        )
    return replace(
        request,
        runtime=request.runtime or default_runtime(device.vendor),
        precision=request.precision or halves[0],
    )


def _device_formats(device: Accelerator) -> str:
    """Names of the number formats that a device has units for."""
    return ", ".join(dtype.value for dtype, _ in device.peak_flops)


def problem_of(request: Request) -> Problem:
    """The problem of a request: model, cluster, job and runtime, read and checked.

    Raises:
        ModelError, ClusterError, RuntimeModelError, UsageError: that part of the request is
        not valid.
    """
    request = with_defaults(request)
    model = one_of_equals(
        requested_model(request.model, train=request.train, teacher=request.teacher)
    )
    needed = {b.sequence for b in model.blocks} | {b.memory for b in model.blocks if b.memory}
    job = job_from_flags(
        seq_len=request.seq_len,
        global_batch=request.global_batch,
        precision=request.precision,
        encoder_len=request.encoder_len,
        image_tokens=request.image_tokens,
        expert_imbalance=request.expert_imbalance,
        dropout=request.dropout,
        gradient_wire=request.gradient_wire,
        needed=needed | {"text"},
    )
    if job.expert_imbalance > 1.0 and not any(o.experts for b in model.blocks for o in b.operators):
        raise UsageError(
            f"--expert-imbalance {job.expert_imbalance:g} for a model without experts",
            hint="drop the flag",
        )
    cluster = _cluster(request)
    problem = Problem(
        model=model, cluster=cluster, job=job, runtime=_runtime_on(cluster, request.runtime)
    )
    for group in problem.cluster.groups:
        _require_units(group.kind.accelerator, problem)
    _require_countable(problem)
    return one_of_equals(problem)


def _runtime_on(cluster: Cluster, text: str) -> Runtime:
    """Load a runtime without the options that some device of the cluster does not support."""
    devices = [group.kind.accelerator for group in cluster.groups]
    generations = [frozenset(rates.generation for rates in device.attention) for device in devices]
    fewest = min(zip(generations, devices, strict=True), key=lambda pair: len(pair[0]))[1]
    vendors = {device.vendor: device.name for device in devices if device.vendor in VENDORS}
    return restrict_to_devices(
        load_runtime(text),
        kernels=frozenset.intersection(*generations),
        called=fewest.name,
        vendors=vendors,
        written=options_in_text(text),
    )


def _require_units(device: Accelerator, problem: Problem) -> None:
    """Raise if the device lacks the job's number format or the runtime does not run on it."""
    job, runtime = problem.job, problem.runtime
    if not device.peak(job.compute):
        raise ClusterError(
            f"{device.name} has no units for {job.compute.value}",
            hint=f"--precision {_device_formats(device)}",
        )
    if device.vendor not in runtime.vendors and device.vendor in VENDORS:
        raise RuntimeModelError(
            f"{runtime.name} does not run on {device.name}, but on accelerators of"
            f" {', '.join(runtime.vendors)}",
            hint=f"--runtime {default_runtime(device.vendor)}",
        )


def _require_countable(problem: Problem) -> None:
    """Raise UsageError if a step takes too long for the simulator's clock even at peak rates."""
    job, least = problem.job, seconds_at_peak(problem)
    if least > LONGEST_STEP_S:
        raise UsageError(
            f"a step of {job.global_batch:,} sequences of {job.sequence_length:,} tokens takes at"
            f" least {least / 3600:,.0f} hours at peak",
            hint=(
                f"--global-batch counts sequences: were {job.global_batch:,} tokens meant?"
                if job.global_batch >= job.sequence_length
                else "a smaller batch, shorter sequences or more devices"
            ),
        )


def _cluster(request: Request) -> Cluster:
    """The cluster of a request, with its profile, prices, device limit and reserved memory."""
    cluster = (
        _cluster_with_profile(request.cluster, Path(request.profile))
        if request.profile
        else load_cluster(request.cluster)
    )
    if has_cost_goal(request):
        cluster = with_prices(cluster)
    if request.max_devices:
        cluster = limit_devices(cluster, num_devices=request.max_devices)
    reserve = request.reserve_bytes + int(request.reserve_fraction * smallest_memory_bytes(cluster))
    return reserve_memory(cluster, reserve_bytes=reserve) if reserve else cluster


def _cluster_with_profile(text: str, path: Path) -> Cluster:
    """Load a cluster, with kernel and network rates from the profile file `path`."""
    from shardwright.files.profile_file import read_profile  # pydantic only where a file is read

    profile = read_profile(path)
    base, factors = split_scale_factors(text)
    measured = (
        apply_profile(load_cluster(base), profile)
        if is_cluster_file(base)
        else profiled_cluster(base, profile)
    )
    return scale_cluster(measured, factors)


def load_cluster(text: str) -> Cluster:
    """Load a cluster: expression, path of a file, or YAML text, with scale factors behind it."""
    base, factors = split_scale_factors(text)
    if not is_cluster_file(base):
        return scale_cluster(parse_cluster(base), factors)
    from shardwright.hardware.files.read_cluster_file import (
        load_cluster as from_file,
    )  # pydantic and yaml only where a file is read

    return scale_cluster(from_file(base), factors)


def has_cost_goal(request: Request) -> bool:
    """True if a request has an objective other than time, or a budget."""
    return request.objective != OBJECTIVES[0] or request.budget > 0


def require_unranked(request: Request, search: str) -> None:
    """Raise UsageError for a `top` other than 0 or the default: the named search ranks no plans.

    Raises:
        UsageError: the request's `top` is neither 0 nor the default.
    """
    if request.top not in (0, TOP):
        raise UsageError(
            f"{search} ranks no next best plans, so --top {request.top} says nothing",
            hint="drop it, or search the standard space for time",
        )


def require_unequal_stages(problem: Problem, search: str) -> None:
    """Raise RuntimeModelError if the runtime needs pipeline stages with equal numbers of layers.

    Raises:
        RuntimeModelError: the runtime has no argument for the layers of a stage.
    """
    runtime = problem.runtime
    if runtime.equal_stages or runtime.equal_between:
        raise RuntimeModelError(
            f"{search} chooses the layers of each stage, which {runtime.name} has no argument for",
            hint="--runtime megatron-core-0.12, or --space standard on a uniform cluster",
        )


def _require_scenario_settings(request: Request) -> None:
    """Raise UsageError for objectives, budgets and spaces that a scenario search lacks."""
    if has_cost_goal(request):
        raise UsageError(
            "plans for several scenarios are searched for time alone",
            hint="drop --objective and --budget",
        )
    uniform = _cluster(request).is_uniform
    if request.space not in (SPACES if uniform else ("standard",)):
        raise UsageError(
            f"the {request.space} space is searched for one state of the cluster",
            hint="drop --space, or --scenarios",
        )
    if request.use_all and not uniform:
        raise UsageError("--use-all is of uniform clusters", hint="drop it")


def method_of(request: Request) -> SearchMethod:
    """Search method, decided in turn by scenarios (robust), cost goal (mixed), space and cluster.

    Raises:
        UsageError: the space is unknown, or is for uniform clusters and the cluster is mixed.
        ClusterError: the cluster cannot be read.
    """
    space = request.space
    if space not in (*SPACES, *JOINT, EXACT):
        raise UsageError(
            f"unknown space {space[:40]!r}", hint=nearest(space[:40], (*SPACES, *JOINT, EXACT))
        )
    if request.scenarios:
        _require_scenario_settings(request)
        return SearchMethod.ROBUST
    if request.tail:
        raise UsageError(
            f"--tail {request.tail:g} without scenarios",
            hint="--scenarios FILE says in which states the cluster is met",
        )
    if space == EXACT and not has_cost_goal(request):
        return SearchMethod.EXACT
    if request.objective not in OBJECTIVES:
        raise UsageError(
            f"unknown objective {request.objective[:40]!r}",
            hint=nearest(request.objective[:40], OBJECTIVES),
        )
    if has_cost_goal(request):
        if space != "standard":
            raise UsageError(
                f"the {space} space is searched for time alone",
                hint="drop --space, or --objective and --budget",
            )
        return SearchMethod.MIXED
    if _cluster(request).is_uniform:
        return SearchMethod.JOINT if space in JOINT else SearchMethod.GRID
    if space != "standard":
        raise UsageError(
            f"the {space} space is of uniform clusters",
            hint="drop --space on a mixed cluster; --space exact has plans of a few devices",
        )
    return SearchMethod.MIXED


def require_headroom(request: Request) -> None:
    """Raise UsageError if the headroom is not a share of a device's memory below 1."""
    if not 0 <= request.headroom < 1:
        raise UsageError(
            f"a headroom of {request.headroom:g} of a device's memory",
            hint="0 or more, and less than all of it: 5%",
        )


def capacity_of(request: Request, problem: Problem) -> int:
    """Bytes of the smallest device that plans may use: usable memory less the headroom.

    Raises:
        UsageError: no share of the memory is left.
    """
    require_headroom(request)
    return int(smallest_memory_bytes(problem.cluster) * (1 - request.headroom))


def space_of(request: Request, problem: Problem, facts: GridFacts) -> Space:
    """The space of grids named by a request, restricted by its pins, exclusions and options."""
    if request.space not in SPACES:
        raise UsageError(f"unknown space {request.space!r}", hint=nearest(request.space, SPACES))
    if not problem.cluster.is_uniform:
        raise UsageError(
            "spaces of grids are of uniform clusters",
            hint="`plan` without --space searches a mixed one, `plan_mixed` in Python",
        )
    space = SPACES[request.space](problem, facts)
    return requested(
        on_all_devices(space) if request.use_all else space,
        problem,
        said=options_in_text(request.runtime),
        pins=dict(request.pins),
        excludes=dict(request.excludes),
    )
