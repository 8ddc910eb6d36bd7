"""Dollars a step for bytes that leave their zone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import distinct
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.graph import groups_of
from shardwright.program.problem import Problem
from shardwright.simulator.simulate import SimulatedPlan
from shardwright.simulator.traffic import plan_traffic
from shardwright.units import GIGA


def egress_usd(problem: Problem, result: SimulatedPlan) -> float:
    """Dollars that a step pays for bytes between zones: what each class's first device sends over
    the zones' links, for all its devices.

    A message is paid at the price of its two zones' link; what a group over several zones sends, at
    the dearest link that leaves the sender's zone for one of the group's. 0 where no link has a
    price. What traffic leaves out is left out (`traffic.plan_traffic`).
    """
    cluster = problem.cluster
    asked = {(one.source, one.target): one.egress / GIGA for one in cluster.links if one.egress}
    if not asked:
        return 0.0
    total = 0.0
    for one, sent in zip(result.program.classes, plan_traffic(problem, result), strict=True):
        own = next(iter(_zones(cluster, one.devices[:1])))
        for traffic in sent:
            each = max(
                (asked.get((own, zone), 0.0) for zone in _zones(cluster, traffic.group)),
                default=0.0,
            )
            total += traffic.sent[-1] * each * len(one.devices)
    return total


def _zones(cluster: Cluster, devices: Iterable[int]) -> dict[str, None]:
    """Zones of some devices."""
    numbers = groups_of(cluster, np.array(list(devices), dtype=np.int64))
    return dict.fromkeys(cluster.groups[number].zone for number in distinct(numbers).tolist())
