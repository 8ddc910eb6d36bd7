"""Links: latency, and bandwidth each way."""

from __future__ import annotations

from shardwright.hardware.accelerator import Origin
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link of one device or network card: latency, peak bytes/s each way, achieved share.

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
        """Bytes/s that large messages reach: bandwidth of the slower direction x efficiency."""
        slower = (
            min(self.bandwidth, self.reverse_bandwidth)
            if self.reverse_bandwidth
            else self.bandwidth
        )
        return slower * self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One network level as a device sees it: devices of a unit, its own bytes/s, and latency."""

    name: str
    num_devices: int
    bandwidth: float
    latency_s: float
