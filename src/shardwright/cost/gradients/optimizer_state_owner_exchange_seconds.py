"""Seconds of exchanging gradients and new values with the owners of optimizer states.

Reduction groups sum gradients for themselves and exchange once a step.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import SumSizes
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, move_seconds
from shardwright.cost.network.networks_of_plan_devices import group_span, network_of_devices
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import Sharing


def owner_volumes(group: DeviceList, sharing: Sharing) -> dict[str, float]:
    """Share of a member's buffer sent: gradients `to_owners`, new parameter values `from_owners`.

    Gradients go to the owners over the group; new values come over the members that share them.

    A tied weight's gradient goes to the owners of each of its operators' states.
    """
    return {
        "to_owners": sharing.to_owners * len(group) / len(sharing.devices),
        "from_owners": sharing.from_owners,
    }


def owner_seconds(
    problem: Problem, group: DeviceList, sharing: Sharing, *, elements: float, sizes: SumSizes
) -> dict[str, FloatArray]:
    """Seconds of one layer's all-to-alls: gradients `to_owners` of states, values `from_owners`.

    Each is an all-to-all of unequal parts, as long as the busiest member's.

        t = V / max(V, bucket) x T(part x max(V, bucket))      V = bytes of the elements

    Leaves out which members a piece goes to: it is spread over all. A layer below the bucket size
    shares its bucket's latency.

    Args:
        group: devices that sum.
        elements: of one layer.
    """
    network = network_of_devices(problem, group)
    members = {"to_owners": group, "from_owners": sharing.devices}
    widths, seconds = {"to_owners": sizes.wire, "from_owners": sizes.stored}, {}
    for name, part in owner_volumes(group, sharing).items():
        span = group_span(members[name], network)
        seconds[name] = state_owner_exchange_seconds(
            elements, np.array([part]), span, network, sizes, element_bytes=widths[name]
        )
    return seconds


def state_owner_exchange_seconds(
    elements: float,
    busiest_share: FloatArray,
    span: Span,
    network: Network,
    sizes: SumSizes,
    *,
    element_bytes: int,
) -> FloatArray:
    """(n,) seconds of a layer's all-to-all with state owners; `busiest_share`: of one member.

    Groups of a span.

    Args:
        busiest_share: (n,) part of the elements in the busiest member's buffer.
        element_bytes: bytes of one element.
    """
    volume = elements * element_bytes
    bucket = max(volume, sizes.bucket * element_bytes / sizes.wire)
    return move_seconds(
        Collective.ALL_TO_ALL, volume=bucket * busiest_share, span=span, network=network
    ) * (volume / max(bucket, 1.0))
