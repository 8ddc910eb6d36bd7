"""Dollars a step for network egress: bytes that leave their zone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import distinct
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import node_group_numbers
from shardwright.program.training_problem import Problem
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.units import GIGA


def egress_usd(problem: Problem, simulated: SimulatedPlan) -> float:
    """Dollars that a step costs for bytes between zones; 0 if no link has a price.

    The bytes that each class's first device sends over zone links count for all its devices. A
    message has the price of the link between its two zones. Group traffic over several zones has
    the price of the most expensive link from the sender's zone to a zone of the group. Traffic that
    `bytes_sent_per_device_by_class.plan_traffic` leaves out is left out.
    """
    cluster = problem.cluster
    price_of_link = {
        (link.source, link.target): link.egress / GIGA for link in cluster.links if link.egress
    }
    if not price_of_link:
        return 0.0
    total = 0.0
    for device_class, sent in zip(
        simulated.program.classes, plan_traffic(problem, simulated), strict=True
    ):
        sender_zone = next(iter(_zones(cluster, device_class.devices[:1])))
        for traffic in sent:
            price = max(
                (
                    price_of_link.get((sender_zone, zone), 0.0)
                    for zone in _zones(cluster, traffic.group)
                ),
                default=0.0,
            )
            total += traffic.sent[-1] * price * len(device_class.devices)
    return total


def _zones(cluster: Cluster, devices: Iterable[int]) -> dict[str, None]:
    """Zones of these devices, in order of first appearance."""
    numbers = node_group_numbers(cluster, np.array(list(devices), dtype=np.int64))
    return dict.fromkeys(cluster.groups[number].zone for number in distinct(numbers).tolist())
