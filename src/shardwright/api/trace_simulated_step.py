"""Trace a stored plan's simulated step, and compare the trace with a measured step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.errors import DataError, UsageError
from shardwright.hardware.cluster_network_levels import node_group_numbers
from shardwright.program.step_trace import StepTrace
from shardwright.program.traced_device_seconds_by_activity import ComparedTraces, compared_traces
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.simulator.busy_and_waiting_by_device_kind import kind_names
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace


def trace(stored: PlanOfProblem, *, devices: Sequence[int] = ()) -> StepTrace:
    """Simulate a step of a stored plan task by task, on one device of each class or on `devices`.

    A grid is simulated as its general plan.

    Args:
        devices: devices to trace; none = the first of each class of devices. On a mixed
            cluster the device kind follows their layers.

    Raises:
        UsageError: a device runs nothing.
        StrategyError: the plan breaks a rule.
    """
    cluster = stored.problem.cluster
    result = simulate_plan(stored.problem, with_searched_orders(stored.problem, stored.plan))
    step = simulated_trace(result, plan=stored.name, devices=devices)
    if cluster.is_uniform:
        return step
    names, groups = (
        kind_names(cluster),
        node_group_numbers(
            cluster,
            np.array([device_trace.device for device_trace in step.devices], dtype=np.int64),
        ).tolist(),
    )
    traced = (
        replace(device_trace, runs=f"{device_trace.runs} on {names[group]}")
        for device_trace, group in zip(step.devices, groups, strict=True)
    )
    return replace(step, devices=tuple(traced))


def compare_traces(stored: PlanOfProblem, measured: StepTrace) -> ComparedTraces:
    """Compare the simulated step of a stored plan with a measured step, on the measured devices.

    Raises:
        DataError: the measured step is not of this plan.
        StrategyError: the plan breaks a rule.
    """
    try:
        simulated = trace(stored, devices=[d.device for d in measured.devices])
    except UsageError as error:
        raise DataError(
            f"the measured trace is not of this plan: {error.message}", hint=error.hint
        ) from error
    return compared_traces(simulated, measured)
