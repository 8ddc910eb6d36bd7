"""Compute a plan's picture, with its simulated step if model and cluster are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.api.raise_first_broken_strategy_rule import check_plan
from shardwright.api.request_to_problem import problem_of
from shardwright.errors import UsageError
from shardwright.files.plan_argument import is_grid_text, read_plan
from shardwright.hardware.cluster_network_levels import network_levels, node_group_numbers
from shardwright.program.training_problem import Problem
from shardwright.report.pictures.plan_picture_content import PlanPicture, plan_picture
from shardwright.report.pictures.step_picture_content import StepPicture, step_picture
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.search.search_request import Request
from shardwright.simulator.busy_and_waiting_by_device_kind import kind_names
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Role
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid


def draw(
    source: str,
    *,
    model: str = "",
    devices: int = 0,
    global_batch: int = 0,
    cluster: str = "",
    seq_len: int = 0,
    runtime: str = "",
) -> PlanPicture:
    """Picture of a plan from grid words or a file; with a cluster, also of its simulated step.

    Args:
        source: path of a plan file or of a text in the general notation, or a grid's text.
        model, devices, global_batch: see `files.plan_argument.read_plan`.
        cluster, seq_len, runtime: cluster, tokens a sequence and runtime to simulate a grid or a
            notation on; a plan file has its own.

    Raises:
        ShardwrightError: the source is not valid; a plan that breaks a rule is not drawn.
    """
    if bool(cluster) != bool(seq_len):
        raise UsageError(
            "--cluster and --seq-len go together",
            hint="both, to draw the simulated step; or neither",
        )
    simulated_request = (
        Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=1, runtime=runtime)
        if cluster
        else None
    )
    if simulated_request is not None and not devices and is_grid_text(source):
        devices = problem_of(simulated_request).cluster.num_devices
    source_plan = read_plan(source, model=model, devices=devices, global_batch=global_batch)
    samples = sum(lane.samples for lane in source_plan.plan.lanes if lane.role is Role.TRAIN)
    require_valid(source_plan.plan, model=source_plan.model, global_batch=samples)
    request = source_plan.request or (
        replace(simulated_request, global_batch=samples) if simulated_request is not None else None
    )
    if request is None:
        return plan_picture(source_plan.plan, model=source_plan.model, name=source_plan.name)
    problem = problem_of(request)
    check_plan(problem, source_plan.plan)
    plan = with_searched_orders(problem, source_plan.plan)
    picture = with_device_kinds(
        plan_picture(plan, model=source_plan.model, name=source_plan.name), problem
    )
    return replace(picture, step=_step_picture(problem, plan, name=source_plan.name))


def with_device_kinds(picture: PlanPicture, problem: Problem) -> PlanPicture:
    """The picture with each row's device kinds, joined by +; unchanged on a uniform cluster."""
    if problem.cluster.is_uniform:
        return picture
    names = kind_names(problem.cluster)
    kinds = (
        dict.fromkeys(
            names[g] for g in np.unique(node_group_numbers(problem.cluster, row.members)).tolist()
        )
        for row in picture.rows
    )
    return replace(
        picture,
        rows=tuple(
            replace(row, kind="+".join(names_))
            for row, names_ in zip(picture.rows, kinds, strict=True)
        ),
    )


def _step_picture(problem: Problem, plan: Plan, *, name: str) -> StepPicture:
    """Simulate a plan's step: picture of timeline, memory and traffic by device class."""
    result = simulate_plan(problem, plan)
    return step_picture(
        simulated_trace(result, plan=name),
        predict_plan(problem, plan, result, with_sources=False),
        plan_traffic(problem, result),
        classes=[klass.devices for klass in result.program.classes],
        cluster=problem.cluster.expression,
        tiers=network_levels(problem.cluster, 0),
        node_sizes=[
            group.kind.num_devices for group in problem.cluster.groups for _ in range(group.count)
        ],
    )
