"""Public list prices, on demand: what a device costs an hour, as clouds ask it in public, before any discount.

Facts of their day: AWS's are those after its cut of June 2025. A device by itself has the price of the cheapest entry that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.hardware.catalog.catalog import accelerator_names, find_accelerator
from shardwright.hardware.catalog.instances import find_instance, instance_names
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.lazy_dataclass import dataclass

_CATALOG: Final = "skypilot-org/skypilot-catalog, catalogs/v8"
_AWS: Final = f"AWS us-east-1 on demand, Linux: {_CATALOG}/aws/vms.csv, commit 00148f2, after June 2025"
_GCP: Final = f"Google Cloud on demand: {_CATALOG}/gcp/vms.csv, commit 006059e"
_LAMBDA: Final = f"Lambda on demand, 8 devices: {_CATALOG}/lambda/vms.csv, commit 0f40703"
_NEBIUS: Final = f"Nebius on demand, 8 devices: {_CATALOG}/nebius/vms.csv, commit 0082b04"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """What one device costs an hour.

    Args:
        of: whose price it is. usd_per_hour: of a device, in US dollars. source: who asks it, where that stands, and as of when.
    """

    of: str
    usd_per_hour: float
    source: str


def _instance(name: str, usd_per_hour: float, devices: int, source: str) -> ListPrice:
    return ListPrice(of=name, usd_per_hour=usd_per_hour / devices, source=source)


INSTANCE_PRICES: Final[Mapping[str, ListPrice]] = MappingProxyType(
    {
        price.of: price
        for price in (
            _instance("aws-g4dn.12xlarge", 3.912, 4, _AWS),
            _instance("aws-p4d.24xlarge", 21.957642, 8, _AWS),
            _instance("aws-p4de.24xlarge", 27.44705, 8, _AWS),
            _instance("aws-p5.48xlarge", 55.04, 8, _AWS),
            _instance("aws-p5en.48xlarge", 63.296, 8, _AWS),
            _instance("aws-p6-b200.48xlarge", 113.9328, 8, _AWS),
        )
    }
)
"""By instance of the catalog."""

DEVICE_PRICES: Final[tuple[tuple[str, ListPrice], ...]] = (
    ("v100-sxm-16gb", _instance("lambda gpu_8x_v100", 6.32, 8, _LAMBDA)),
    ("h100-sxm", _instance("nebius gpu-h100-sxm", 23.6, 8, f"{_NEBIUS}, eu-north1")),
    ("h100-sxm", _instance("lambda gpu_8x_h100_sxm5", 31.92, 8, _LAMBDA)),
    ("h200-sxm", _instance("nebius gpu-h200-sxm", 28.0, 8, f"{_NEBIUS}, us-central1")),
    ("b200-sxm", _instance("nebius gpu-b200-sxm", 44.0, 8, f"{_NEBIUS}, us-central1")),
    ("b200-sxm", _instance("lambda gpu_8x_b200_sxm6", 53.52, 8, _LAMBDA)),
    ("tpu-v5p", _instance("tpu-v5p-12288", 25804.8, 6144, f"{_GCP}, us-east5")),
    ("tpu-v6e", _instance("tpu-v6e-8", 21.6, 8, f"{_GCP}, us-central1")),
)
"""Of machines that are no instances of the catalog, by their accelerator."""


def list_price(kind: NodeKind) -> ListPrice | None:
    """The list price of a device of a node: an instance's own, else the lowest that is known of the accelerator; None if none is."""
    if find_instance(kind.name) is not None:
        return INSTANCE_PRICES.get(kind.name)
    device = kind.accelerator.name
    known = [price for name, price in DEVICE_PRICES if name == device]
    for name, price in INSTANCE_PRICES.items():
        instance = find_instance(name)
        assert instance is not None
        known += [price] if instance.accelerator.name == device else []
    return min(known, key=lambda price: price.usd_per_hour, default=None)


def price_name(name: str) -> str:
    """The catalog's name of the accelerator or instance that a price is given for.

    Raises:
        UsageError: there is none.
    """
    instance, device = find_instance(name), find_accelerator(name)
    if instance is None and device is None:
        raise UsageError(
            f"--price: unknown accelerator or instance {name[:60]!r}", hint=nearest(name[:60], (*accelerator_names(), *instance_names()))
        )
    return instance.name if instance is not None else device.name if device is not None else name


def cluster_prices(cluster: Cluster, given: Mapping[str, float]) -> tuple[ListPrice, ...]:
    """A price for every kind of node of a cluster; () where one has none.

    Args:
        given: dollars a device-hour by `price_name`, or under the empty name of all: they stand before what the cluster itself says, and
            that before list prices.
    """
    found: list[ListPrice] = []
    for group in cluster.groups:
        names = (group.kind.name, group.kind.accelerator.name, "")
        own, source = next((given[name] for name in names if name in given), None), "as given"
        if own is None and group.price:
            own, source = group.price, f"as the cluster says{f', in {group.zone}' if group.zone else ''}"
        price = ListPrice(of=group.kind.name, usd_per_hour=own, source=source) if own is not None else list_price(group.kind)
        if price is None:
            return ()
        found.append(price)
    return tuple(found)
