"""A plan's picture, with its simulated step where it is known what it trains and on what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.api.check_legality import check_plan
from shardwright.api.request_to_problem import problem_of
from shardwright.errors import UsageError
from shardwright.files.plan_source import is_grid_text, read_plan
from shardwright.hardware.device_topology import groups_of, levels_of
from shardwright.program.problem import Problem
from shardwright.report.pictures.plan_picture import Picture, picture_of
from shardwright.report.pictures.step_picture import StepPicture, step_picture
from shardwright.search.orders.fill_in_plan_orders import with_searched_orders
from shardwright.search.search_request import Request
from shardwright.simulator.device_kind_times import kind_names
from shardwright.simulator.network_traffic import plan_traffic
from shardwright.simulator.plan_simulation import simulate_plan
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.strategy.plan.lane import Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_plan import require_valid


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
    """The picture of a plan: `report.plan_text` and `report.plan_svg` give it a form.

    Args:
        source: path of a plan file or of a text in the general notation, or a grid's text.
        model, devices, global_batch: see `files.plan_source.read_plan`.
        cluster, seq_len, runtime: that a grid or a notation is simulated on, with so many tokens a
            sequence; a plan file says its own.

    Raises:
        ShardwrightError: by what is wrong with it; a plan that breaks a rule is not drawn.
    """
    if bool(cluster) != bool(seq_len):
        raise UsageError(
            "--cluster and --seq-len go together",
            hint="both, to draw the simulated step; or neither",
        )
    asked = (
        Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=1, runtime=runtime)
        if cluster
        else None
    )
    if asked is not None and not devices and is_grid_text(source):
        devices = problem_of(asked).cluster.num_devices
    found = read_plan(source, model=model, devices=devices, global_batch=global_batch)
    samples = sum(lane.samples for lane in found.plan.lanes if lane.role is Role.TRAIN)
    require_valid(found.plan, model=found.model, global_batch=samples)
    request = found.request or (replace(asked, global_batch=samples) if asked is not None else None)
    if request is None:
        return picture_of(found.plan, model=found.model, name=found.name)
    problem = problem_of(request)
    check_plan(problem, found.plan)
    plan = with_searched_orders(problem, found.plan)
    picture = with_kinds(picture_of(plan, model=found.model, name=found.name), problem)
    return replace(picture, step=_step(problem, plan, name=found.name))


def with_kinds(picture: Picture, problem: Problem) -> Picture:
    """The picture with the kind of each row's devices, where the cluster has several."""
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
            replace(row, kind="+".join(some)) for row, some in zip(picture.rows, kinds, strict=True)
        ),
    )


def _step(problem: Problem, plan: Plan, *, name: str) -> StepPicture:
    result = simulate_plan(problem, plan)
    return step_picture(
        simulated_trace(result, plan=name),
        predict_plan(problem, plan, result, with_sources=False),
        plan_traffic(problem, result),
        classes=[one.devices for one in result.program.classes],
        cluster=problem.cluster.expression,
        tiers=levels_of(problem.cluster, 0),
        node_sizes=[
            group.kind.num_devices for group in problem.cluster.groups for _ in range(group.count)
        ],
    )
