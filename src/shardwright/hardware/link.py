"""Links: latency, and bandwidth each way."""

from __future__ import annotations

from shardwright.hardware.accelerator import Origin
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of one device or NIC.

    Args:
        latency_s: seconds for one message of no bytes (software included).
        bandwidth: peak bytes/s out of the device.
        reverse_bandwidth: into it; 0.0 = the same.
        efficiency: achieved share of the peak by large messages.
        origin: where the achieved numbers come from.
    """

    latency_s: float
    bandwidth: float
    efficiency: float
    origin: Origin
    reverse_bandwidth: float = 0.0

    @property
    def achieved(self) -> float:
        """Bytes/s that large messages reach in the slower direction."""
        slower = (
            min(self.bandwidth, self.reverse_bandwidth)
            if self.reverse_bandwidth
            else self.bandwidth
        )
        return slower * self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What a device sees of one level of the hierarchy: `num_devices` below a unit, its own share
    of the bandwidth, latency.
    """

    name: str
    num_devices: int
    bandwidth: float
    latency_s: float
