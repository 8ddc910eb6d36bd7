"""The trace of a stored plan: what its devices do in a step, as simulated; and beside what was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.api.stored import Stored
from shardwright.errors import DataError, UsageError
from shardwright.hardware.graph import groups_of
from shardwright.program.step_trace import StepTrace
from shardwright.program.trace_times import ComparedTraces, compared_traces
from shardwright.search.orders.resolve_plan import resolved
from shardwright.simulator.device_kind_times import kind_names
from shardwright.simulator.plan_simulation import simulate_plan
from shardwright.simulator.simulated_trace import simulated_trace


def trace(stored: Stored, *, devices: Sequence[int] = ()) -> StepTrace:
    """The simulated step of a stored plan; a grid is simulated as the general plan that it means.

    Args:
        devices: whose; none = the first of each class of devices that do the same. On a mixed
            cluster the kind stands behind their layers.

    Raises:
        UsageError: a device runs nothing. StrategyError: the plan breaks a rule.
    """
    cluster = stored.problem.cluster
    result = simulate_plan(stored.problem, resolved(stored.problem, stored.plan))
    found = simulated_trace(result, plan=stored.name, devices=devices)
    if cluster.is_uniform:
        return found
    names, groups = (
        kind_names(cluster),
        groups_of(
            cluster, np.array([one.device for one in found.devices], dtype=np.int64)
        ).tolist(),
    )
    traced = (
        replace(one, runs=f"{one.runs} on {names[group]}")
        for one, group in zip(found.devices, groups, strict=True)
    )
    return replace(found, devices=tuple(traced))


def compare_traces(stored: Stored, measured: StepTrace) -> ComparedTraces:
    """The simulated step of a stored plan beside a measured one, for the devices that were
    measured.

    Raises:
        DataError: the measured step is not of this plan. StrategyError: the plan breaks a rule.
    """
    try:
        simulated = trace(stored, devices=[d.device for d in measured.devices])
    except UsageError as error:
        raise DataError(
            f"the measured trace is not of this plan: {error.message}", hint=error.hint
        ) from error
    return compared_traces(simulated, measured)
