"""Picture of a plan, with its simulated step where model and cluster are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.api.problems import problem_of
from shardwright.api.rules import check_plan
from shardwright.errors import UsageError
from shardwright.files.plan_source import is_grid_text, read_plan
from shardwright.hardware.graph import groups_of, levels_of
from shardwright.program.problem import Problem
from shardwright.report.pictures.plan_picture import Picture, picture_of
from shardwright.report.pictures.step_picture import StepPicture, step_picture
from shardwright.search.orders.resolve_plan import resolved
from shardwright.search.request import Request
from shardwright.simulator.kinds import kind_names
from shardwright.simulator.predict import predict_plan
from shardwright.simulator.simulate import simulate_plan
from shardwright.simulator.trace import simulated_trace
from shardwright.simulator.traffic import plan_traffic
from shardwright.strategy.plan.lane import Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check import require_valid


def draw(
    source: str,
    *,
    model: str = "",
    devices: int = 0,
    global_batch: int = 0,
    cluster: str = "",
    seq_len: int = 0,
    runtime: str = "",
) -> Picture:
    """Picture of a plan; `report.plan_text` and `report.plan_svg` render it.

    Args:
        source: path of a plan file or of a text in the general notation, or a grid's text.
        model, devices, global_batch: see `files.plan_source.read_plan`.
        cluster, seq_len, runtime: simulate a grid or a notation on this cluster, with so many
            tokens a
            sequence; a plan file has its own.

    Raises:
        ShardwrightError: the source cannot be read, or the plan breaks a rule.
    """
    if bool(cluster) != bool(seq_len):
        raise UsageError(
            "--cluster and --seq-len go together",
            hint="both, to draw the simulated step; or neither",
        )
    given_request = (
        Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=1, runtime=runtime)
        if cluster
        else None
    )
    if given_request is not None and not devices and is_grid_text(source):
        devices = problem_of(given_request).cluster.num_devices
    plan_source = read_plan(source, model=model, devices=devices, global_batch=global_batch)
    samples = sum(lane.samples for lane in plan_source.plan.lanes if lane.role is Role.TRAIN)
    require_valid(plan_source.plan, model=plan_source.model, global_batch=samples)
    request = plan_source.request or (
        replace(given_request, global_batch=samples) if given_request is not None else None
    )
    if request is None:
        return picture_of(plan_source.plan, model=plan_source.model, name=plan_source.name)
    problem = problem_of(request)
    check_plan(problem, plan_source.plan)
    plan = resolved(problem, plan_source.plan)
    picture = with_kinds(picture_of(plan, model=plan_source.model, name=plan_source.name), problem)
    return replace(picture, step=_step(problem, plan, name=plan_source.name))


def with_kinds(picture: Picture, problem: Problem) -> Picture:
    """The picture with the kind of each row's devices, where the cluster has several kinds."""
    if problem.cluster.is_uniform:
        return picture
    names = kind_names(problem.cluster)
    kinds = (
        dict.fromkeys(names[g] for g in np.unique(groups_of(problem.cluster, row.members)).tolist())
        for row in picture.rows
    )
    return replace(
        picture,
        rows=tuple(
            replace(row, kind="+".join(row_kinds))
            for row, row_kinds in zip(picture.rows, kinds, strict=True)
        ),
    )


def _step(problem: Problem, plan: Plan, *, name: str) -> StepPicture:
    """Picture of the plan's simulated step."""
    result = simulate_plan(problem, plan)
    return step_picture(
        simulated_trace(result, plan=name),
        predict_plan(problem, plan, result, with_sources=False),
        plan_traffic(problem, result),
        classes=[device_class.devices for device_class in result.program.classes],
        cluster=problem.cluster.expression,
        tiers=levels_of(problem.cluster, 0),
        node_sizes=[
            group.kind.num_devices for group in problem.cluster.groups for _ in range(group.count)
        ],
    )
