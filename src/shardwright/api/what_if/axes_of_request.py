"""Axes along which a request is changed: batch, length, devices, bandwidth, memory and price.

The value of an axis is a whole number (sequences, tokens, devices), or the factor by which a
quantity of the cluster is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardwright.api.request_to_problem import has_cost_goal, load_cluster, problem_of
from shardwright.errors import ClusterError, ShardwrightError, UsageError, nearest
from shardwright.hardware.catalog.list_prices import cluster_prices
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.multiply_expression_counts_by_factor import multiply_counts
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    MEMORY,
    NETWORK,
    PRICE,
    factors_text,
    is_cluster_file,
    multiply_factor,
    split_scale_factors,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.search_request import Request

Prices = dict[str, float]
"""Dollars a device-hour by name, as ``--price`` gives them."""
POSITIONS: Final = 9
_MAX_EXPONENT: Final = 12
"""Powers of two up to this exponent are tried for values of whole numbers."""
_WIDE: Final = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_NARROW: Final = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a request.

    Args:
        name: as in JSON.
        change: the request with the axis at a value.
        amount: quantity of a uniform cluster on this axis, in SI units or dollars; None for axes of
            whole numbers, whose value is the quantity.
        factors: usual values, for axes of factors; () for axes of whole numbers.
    """

    name: str
    change: Callable[[Request, float], Request]
    amount: Callable[[Cluster, Prices], float] | None = None
    factors: tuple[float, ...] = ()

    @property
    def is_continuous(self) -> bool:
        """True if the axis has a value between any two values."""
        return bool(self.factors)


def axis_of(name: str) -> Axis:
    """The axis of a name; UsageError if there is none.

    Raises:
        UsageError: there is none.
    """
    if name not in AXES:
        raise UsageError(f"there is no axis {name[:40]!r}", hint=nearest(name[:40], AXES))
    return AXES[name]


def whole_value(request: Request, axis: Axis) -> int:
    """The request's own value on an axis of whole numbers."""
    if axis.name == DEVICES:
        return problem_of(request).cluster.num_devices
    value: int = getattr(request, axis.name)
    return value


def own_value(request: Request, axis: Axis) -> float:
    """The request's own value on an axis: a whole number, or the factor 1."""
    return 1.0 if axis.is_continuous else whole_value(request, axis)


def request_at(request: Request, axis: Axis, value: float, prices: Prices) -> Request:
    """The request with an axis at `value`: a whole number, or a factor of its present quantity.

    Prices that are given for all devices are not part of the request: `prices_at` changes them.

    Raises:
        ShardwrightError: no command can say it, or it is no valid request.
    """
    if value == own_value(request, axis) or (axis.name == PRICE and _are_given(request, prices)):
        return request
    changed = axis.change(request, value)
    cluster = problem_of(changed).cluster
    if axis.name == DEVICES and cluster.num_devices != value:
        raise ClusterError(
            f"{value:g} devices are no whole nodes of the cluster",
            hint=f"{cluster.num_devices:,} devices are",
        )
    return changed


def prices_at(axis: Axis, value: float, prices: Prices) -> Prices:
    """Given prices at a value of an axis: times the value on the axis of prices, else the same."""
    if axis.name != PRICE:
        return prices
    return {name: price * value for name, price in prices.items()}


def _are_given(request: Request, prices: Prices) -> bool:
    """True if `prices` covers every device kind and the request has no cost goal."""
    groups = problem_of(request).cluster.groups
    return not has_cost_goal(request) and all(
        prices.keys() & {group.kind.name, group.kind.accelerator.name, ""} for group in groups
    )


def usual_values(request: Request, axis: Axis, prices: Prices) -> tuple[float, ...]:
    """Up to nine valid values around the own one, ascending; a continuous axis has its factors.

    Whole numbers are multiplied by powers of two, the nearest first.
    """
    if axis.is_continuous:
        return tuple(v for v in axis.factors if _is_valid(request, axis, v, prices))
    own = whole_value(request, axis)
    found = [float(own)]
    for value in _powers_around(own):
        if len(found) == POSITIONS:
            break
        if _is_valid(request, axis, value, prices):
            found.append(value)
    return tuple(sorted(found))


def why_without(request: Request, axis: Axis, prices: Prices) -> str:
    """Reason why an axis says nothing about a request; empty if it does."""
    cluster = problem_of(request).cluster
    if axis.name == NETWORK and cluster.num_devices <= cluster.node.island:
        return "all devices are in one scale-up island, so the network carries nothing"
    if axis.name == PRICE and not cluster_prices(cluster, prices):
        return "no price of a device-hour is known; --price gives one"
    return ""


def effect_of_price(request: Request, axis: Axis) -> str:
    """Words about the plans along the axis of prices; empty for the other axes."""
    if axis.name != PRICE:
        return ""
    if request.budget > 0:
        return "the plans that the budget allows change with the price"
    return "one factor multiplies all prices, so the best plan is the same at every position"


def _is_valid(request: Request, axis: Axis, value: float, prices: Prices) -> bool:
    """True if the request with the axis at a value can be made and read."""
    try:
        request_at(request, axis, value, prices)
    except ShardwrightError:
        return False
    return True


def _powers_around(own: int) -> Iterator[float]:
    """Yield `own` divided and multiplied by powers of two, the nearest first."""
    for exponent in range(1, _MAX_EXPONENT + 1):
        below, rest = divmod(own, 1 << exponent)
        if not rest:
            yield float(below)
        yield float(own << exponent)


def _with_devices(request: Request, value: float) -> Request:
    """The request on another number of devices: other counts in its expression, or a limit."""
    base, factors = split_scale_factors(request.cluster)
    if not (is_cluster_file(base) or request.max_devices):
        own = load_cluster(base).num_devices
        counts = multiply_counts(base, factor=Fraction(int(value), own))
        return replace(request, cluster=counts + factors_text(factors))
    most = load_cluster(base).num_devices
    if value > most:
        raise ClusterError(
            f"{value:,.0f} devices of a cluster of {most:,}", hint="name a larger cluster"
        )
    return replace(request, max_devices=int(value))


def _with_factor(name: str) -> Callable[[Request, float], Request]:
    """Function that multiplies the factor of a quantity of the request's cluster."""

    def change(request: Request, value: float) -> Request:
        """The request with the quantity of its cluster times `value`."""
        return replace(request, cluster=multiply_factor(request.cluster, name=name, factor=value))

    return change


def _device_price(cluster: Cluster, prices: Prices) -> float:
    """Dollars of a device-hour of a uniform cluster."""
    return cluster_prices(cluster, prices)[0].usd_per_hour


DEVICES: Final = "devices"
AXES: Final = {
    axis.name: axis
    for axis in (
        Axis(
            name="global_batch",
            change=lambda request, value: replace(request, global_batch=int(value)),
        ),
        Axis(name="seq_len", change=lambda request, value: replace(request, seq_len=int(value))),
        Axis(name=DEVICES, change=_with_devices),
        Axis(
            name=NETWORK,
            change=_with_factor(NETWORK),
            amount=lambda cluster, _: cluster.node.network_per_device.bandwidth,
            factors=_WIDE,
        ),
        Axis(
            name=MEMORY,
            change=_with_factor(MEMORY),
            amount=lambda cluster, _: float(cluster.node.accelerator.memory_bytes),
            factors=_NARROW,
        ),
        Axis(name=PRICE, change=_with_factor(PRICE), amount=_device_price, factors=_WIDE),
    )
}
"""Axes of what-if questions by name, in the order of the report."""
