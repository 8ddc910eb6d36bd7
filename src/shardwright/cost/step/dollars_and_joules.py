"""Dollars and joules of a step, with the formula of every answer and every search.

    dollars = seconds
        x (sum over nodes with some device in use: devices x dollars of a device and hour)
        / 3600 + egress
    joules  = seconds x (sum over devices in use: power limit)

Clouds rent nodes, so a node with any device in use is paid whole, and one with none is not paid.
Left out: storage, hosts by themselves, the energy of links, hosts and idle devices, and that a
device that waits draws less than its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.arrays import IntArray, membership_mask
from shardwright.hardware.catalog.power_limits import power_limit
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIGA

SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Dollars and joules of a step of a plan, and the devices that are paid and that work.

    Args:
        paid_devices: of each node group, in nodes with some device in use.
        working_devices: of each node group.
        egress_usd: dollars a step for bytes that leave their zone.
        usd_per_hour: dollars of the paid nodes in an hour.
        usd: of a step, egress included.
        usd_per_billion_tokens: likewise. All three are None where some node group that is used has
            no price.
        joules: of a step, at the power limits of the devices in use; None where one is not known.
    """

    paid_devices: tuple[int, ...]
    working_devices: tuple[int, ...]
    egress_usd: float
    usd_per_hour: float | None
    usd: float | None
    usd_per_billion_tokens: float | None
    joules: float | None


def paid_devices(
    cluster: Cluster, working: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By node group: number of devices on nodes in use (paid for), then number of devices in use.

    The paid devices first.
    """
    first, devices = 0, DeviceList.of(working)
    paid, used = [], []
    for group in cluster.groups:
        size, end = group.kind.num_devices, first + group.count * group.kind.num_devices
        used.append(devices.within(first, end))
        paid.append(
            used[-1]
            if used[-1] == end - first
            else int(
                membership_mask(_node_of_devices(devices, first, end, size), group.count).sum()
            )
            * size
        )
        first = end
    return tuple(paid), tuple(used)


def _node_of_devices(working: DeviceList, first: int, end: int, size: int) -> IntArray:
    """Node number, within its group, of each working device from `first` to before `end`.

    The group has devices `first` to before `end`.
    """
    devices = working.array
    return (devices[(devices >= first) & (devices < end)] - first) // size


def usd_per_hour(paid: Sequence[int], prices: Sequence[float | None]) -> float | None:
    """Dollars an hour of the paid devices of all groups; None where a paid group has no price.

    None where a paid group has no price.
    """
    total = 0.0
    for count, price in zip(paid, prices, strict=True):
        if count and price is None:
            return None
        total += count * (price or 0.0)
    return total


def usd_of_step(seconds: float, *, usd_per_hour: float, egress_usd: float) -> float:
    """Dollars of a step: its seconds at the hourly price, and egress."""
    return seconds * usd_per_hour / SECONDS_PER_HOUR + egress_usd


def watts_of(cluster: Cluster) -> tuple[float, ...]:
    """Power limit of a device of each node group, in watts; 0 where the limit is not known."""
    powers = [power_limit(group.kind.accelerator) for group in cluster.groups]
    return tuple(0.0 if power is None else power.watts for power in powers)


def spending_of(
    cluster: Cluster,
    working: Sequence[int],
    *,
    seconds: float,
    tokens: float,
    egress_usd: float = 0.0,
) -> Spending:
    """Dollars and joules of a step at the prices that the cluster states.

    Args:
        working: devices that are in some stage.
        seconds, tokens: of a step.
        egress_usd: of a step, see `egress`.
    """
    paid, used = paid_devices(cluster, working)
    return spending_at_prices(
        Spending(
            paid_devices=paid,
            working_devices=used,
            egress_usd=egress_usd,
            usd_per_hour=None,
            usd=None,
            usd_per_billion_tokens=None,
            joules=_joules(cluster, used, seconds),
        ),
        [group.price or None for group in cluster.groups],
        seconds=seconds,
        tokens=tokens,
    )


def spending_at_prices(
    spending: Spending, prices: Sequence[float | None], *, seconds: float, tokens: float
) -> Spending:
    """`spending` recomputed at other hourly device prices of each node group; None = not known."""
    hourly = usd_per_hour(spending.paid_devices, prices)
    usd = (
        None
        if hourly is None
        else usd_of_step(seconds, usd_per_hour=hourly, egress_usd=spending.egress_usd)
    )
    return Spending(
        paid_devices=spending.paid_devices,
        working_devices=spending.working_devices,
        egress_usd=spending.egress_usd,
        usd_per_hour=hourly,
        usd=usd,
        usd_per_billion_tokens=None if usd is None else usd / tokens * GIGA,
        joules=spending.joules,
    )


def _joules(cluster: Cluster, used: Sequence[int], seconds: float) -> float | None:
    """Joules of a step at the used devices' power limits; None where such a limit is not known.

    None where a limit is not known.
    """
    watts = watts_of(cluster)
    if any(count and not limit for count, limit in zip(used, watts, strict=True)):
        return None
    return seconds * sum(count * limit for count, limit in zip(used, watts, strict=True))
