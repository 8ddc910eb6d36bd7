"""Counter of the bytes that one device sends in a step, by part, group and network tier."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.network.expert_dispatch_seconds import dispatch_bytes, volume_with_rows
from shardwright.cost.network.grid_groups_and_collective_seconds import wire_bytes
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    kind_problem,
    network_of_devices,
    plan_units,
)
from shardwright.cost.part_phase_recompute_keys import PART_OF_AXIS, PARTS
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.block.block_program import Move
from shardwright.program.training_problem import Problem

PIPELINE: Final = "pp"


SHARDING: Final = "sharding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one device sends to a group in a step.

    Args:
        part: tp, cp, ep, pp, or sharding (parameter gathers and gradient reductions), as in the
            breakdown.
        group: devices of the group, the sender included.
        sent: bytes over the links of each tier, innermost first. Bytes that cross a tier of the
            network also cross the tiers below it, except the island's.
    """

    part: str
    group: DeviceList
    sent: tuple[float, ...]


class TrafficCounter:
    """Counter of the bytes that one device sends, by part and group."""

    def __init__(self, problem: Problem, device: int) -> None:
        """Start a counter of device `device` at zero bytes."""
        self.problem, self.own, self.device = problem, kind_problem(problem, device), device
        self.units = plan_units(problem)
        self._sent: dict[tuple[str, DeviceList], FloatArray] = {}
        self._sent_once: dict[tuple[Collective, DeviceList, float], FloatArray] = {}

    def add(self, part: str, group: DeviceList, sent: FloatArray) -> None:
        """Add `sent` bytes over each tier to the traffic of a part and group."""
        key = part, group
        self._sent[key] = self._sent.get(key, np.zeros(len(self.units))) + sent

    def collective(
        self, part: str, kind: Collective, group: DeviceList, *, volume: float, times: float = 1.0
    ) -> None:
        """Add bytes sent in `times` runs of a collective of `volume` bytes; none for one device."""
        if len(group) > 1 and volume > 0.0 and times > 0.0:
            self.add(part, group, self._bytes_of_collective(kind, group, volume) * times)

    def _bytes_of_collective(
        self, kind: Collective, group: DeviceList, volume: float
    ) -> FloatArray:
        """Bytes over each tier of one collective; equal chunks of a device run equal ones."""
        key = kind, group, volume
        if key not in self._sent_once:
            network = network_of_devices(self.problem, group)
            sent = wire_bytes(
                kind, volume=np.array([volume]), span=group_span(group, network), network=network
            )
            self._sent_once[key] = self._padded(sent)
        return self._sent_once[key]

    def move(self, move: Move, group: DeviceList, *, volume: float, times: float) -> None:
        """Add the bytes sent in `times` runs of a block's collective, ring or expert dispatch."""
        part = PARTS[PART_OF_AXIS[move.axes[0]]]
        if not move.copies:
            self.collective(
                part,
                move.kind,
                group,
                volume=volume,
                times=times * (len(group) - 1 if move.hops else 1),
            )
        elif len(group) > 1:
            span = group_span(group, network_of_devices(self.problem, group))
            routed_volume = volume_with_rows(np.array([volume]), rows=move.rows, span=span)
            sent = dispatch_bytes(
                volume=routed_volume, copies=move.copies, span=span, groups=move.groups
            )
            self.add(part, group, self._padded(sent) * times)

    def _padded(self, sent: tuple[FloatArray, ...]) -> FloatArray:
        """Bytes by tier as an array, with zeros for the tiers above."""
        values = [float(tier_bytes[0]) for tier_bytes in sent]
        return np.array(values + [0.0] * (len(self.units) - len(values)))

    def traffic(self) -> tuple[Traffic, ...]:
        """All nonzero traffic counted, sorted by part and group."""
        traffic = (
            Traffic(part=part, group=group, sent=tuple(sent.tolist()))
            for (part, group), sent in sorted(self._sent.items())
        )
        return tuple(group_traffic for group_traffic in traffic if any(group_traffic.sent))
