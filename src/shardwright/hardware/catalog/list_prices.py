"""Public on-demand list prices of a device-hour, before any discount.

Facts of their day: AWS's are those after its cut of June 2025. An accelerator named without an
instance has the price of the cheapest entry that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.accelerators_by_name import accelerator_names, find_accelerator
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind
from shardwright.lazily_compiled_dataclass import dataclass

_CATALOG: Final = "skypilot-org/skypilot-catalog, catalogs/v8"
_AWS: Final = (
    f"AWS us-east-1 on demand, Linux: {_CATALOG}/aws/vms.csv, commit 00148f2, after June 2025"
)
_GCP: Final = f"Google Cloud on demand: {_CATALOG}/gcp/vms.csv, commit 006059e"
_LAMBDA: Final = f"Lambda on demand, 8 devices: {_CATALOG}/lambda/vms.csv, commit 0f40703"
_NEBIUS: Final = f"Nebius on demand, 8 devices: {_CATALOG}/nebius/vms.csv, commit 0082b04"
_NEBIUS_4: Final = (
    f"Nebius on demand, 4 devices: {_CATALOG}/nebius/vms.csv, commit 0082b04, eu-north1"
)
_OCI: Final = f"Oracle Cloud on demand, bare metal: {_CATALOG}/oci/vms.csv, commit 0588751, 2026"
_HYPERSTACK: Final = (
    f"Hyperstack on demand, 8 devices: {_CATALOG}/hyperstack/vms.csv, commit fdc9d90"
)
_VERDA: Final = f"Verda on demand: {_CATALOG}/verda/vms.csv, commit 000c1d0, 2026"
_RUNPOD: Final = "RunPod, secure cloud, on demand"
_AWS_MEMORY: Final = "AWS us-east-1 on demand, Linux, 2025, from memory"
_AZURE_MEMORY: Final = "Azure on demand, Linux, East US, 2025, from memory"
_GCP_MEMORY: Final = "Google Cloud on demand, us-central1, 2025, from memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """List price of one device-hour, with its source.

    Args:
        of: instance or machine that the price is of.
        usd_per_hour: of a device, in US dollars.
        source: seller, page and date.
    """

    of: str
    usd_per_hour: float
    source: str


def _device_price(name: str, *, usd_per_hour: float, devices: int, source: str) -> ListPrice:
    """Price in USD of a device-hour of a machine that costs `usd_per_hour` with all its devices."""
    return ListPrice(of=name, usd_per_hour=usd_per_hour / devices, source=source)


INSTANCE_PRICES: Final[Mapping[str, ListPrice]] = MappingProxyType(
    {
        price.of: price
        for price in (
            _device_price("aws-g4dn.12xlarge", usd_per_hour=3.912, devices=4, source=_AWS),
            _device_price("aws-p4d.24xlarge", usd_per_hour=21.957642, devices=8, source=_AWS),
            _device_price("aws-p4de.24xlarge", usd_per_hour=27.44705, devices=8, source=_AWS),
            _device_price("aws-p5.48xlarge", usd_per_hour=55.04, devices=8, source=_AWS),
            _device_price("aws-p5en.48xlarge", usd_per_hour=63.296, devices=8, source=_AWS),
            _device_price("aws-p6-b200.48xlarge", usd_per_hour=113.9328, devices=8, source=_AWS),
            _device_price("aws-p3.8xlarge", usd_per_hour=12.24, devices=4, source=_AWS_MEMORY),
            _device_price("aws-p3.16xlarge", usd_per_hour=24.48, devices=8, source=_AWS_MEMORY),
            _device_price("aws-p3dn.24xlarge", usd_per_hour=31.212, devices=8, source=_AWS_MEMORY),
            _device_price("aws-g5.48xlarge", usd_per_hour=16.288, devices=8, source=_AWS_MEMORY),
            _device_price("aws-g6.48xlarge", usd_per_hour=13.3504, devices=8, source=_AWS_MEMORY),
            _device_price("aws-g6e.48xlarge", usd_per_hour=30.13118, devices=8, source=_AWS_MEMORY),
            _device_price("aws-trn1.32xlarge", usd_per_hour=21.5, devices=16, source=_AWS_MEMORY),
            _device_price("aws-trn1n.32xlarge", usd_per_hour=24.78, devices=16, source=_AWS_MEMORY),
            _device_price(
                "aws-trn2.48xlarge",
                usd_per_hour=35.7608,
                devices=16,
                source="AWS capacity blocks, us-east-2, 2025, from memory",
            ),
            _device_price("azure-nd40rs-v2", usd_per_hour=22.032, devices=8, source=_AZURE_MEMORY),
            _device_price(
                "azure-nc96ads-a100-v4", usd_per_hour=14.692, devices=4, source=_AZURE_MEMORY
            ),
            _device_price(
                "azure-nc80adis-h100-v5", usd_per_hour=13.962, devices=2, source=_AZURE_MEMORY
            ),
            _device_price("azure-nd96asr-v4", usd_per_hour=27.197, devices=8, source=_AZURE_MEMORY),
            _device_price(
                "azure-nd96amsr-a100-v4", usd_per_hour=32.77, devices=8, source=_AZURE_MEMORY
            ),
            _device_price(
                "azure-nd96isr-h100-v5", usd_per_hour=98.32, devices=8, source=_AZURE_MEMORY
            ),
            _device_price(
                "azure-nd96isr-mi300x-v5", usd_per_hour=48.0, devices=8, source=_AZURE_MEMORY
            ),
        )
    }
)
"""Prices by instance of the catalog."""

DEVICE_PRICES: Final[tuple[tuple[str, ListPrice], ...]] = (
    (
        "v100-sxm-16gb",
        _device_price("lambda gpu_8x_v100", usd_per_hour=6.32, devices=8, source=_LAMBDA),
    ),
    (
        "h100-sxm",
        _device_price(
            "nebius gpu-h100-sxm", usd_per_hour=23.6, devices=8, source=f"{_NEBIUS}, eu-north1"
        ),
    ),
    (
        "h100-sxm",
        _device_price("lambda gpu_8x_h100_sxm5", usd_per_hour=31.92, devices=8, source=_LAMBDA),
    ),
    (
        "h200-sxm",
        _device_price(
            "nebius gpu-h200-sxm", usd_per_hour=28.0, devices=8, source=f"{_NEBIUS}, us-central1"
        ),
    ),
    (
        "b200-sxm",
        _device_price(
            "nebius gpu-b200-sxm", usd_per_hour=44.0, devices=8, source=f"{_NEBIUS}, us-central1"
        ),
    ),
    (
        "b200-sxm",
        _device_price("lambda gpu_8x_b200_sxm6", usd_per_hour=53.52, devices=8, source=_LAMBDA),
    ),
    (
        "a100-pcie-80gb",
        _device_price("hyperstack n3-A100x8", usd_per_hour=10.8, devices=8, source=_HYPERSTACK),
    ),
    (
        "a100-pcie-40gb",
        _device_price(
            "lambda gpu_1x_a100",
            usd_per_hour=1.29,
            devices=1,
            source="Lambda on demand, 2025, from memory",
        ),
    ),
    (
        "h100-pcie",
        _device_price("hyperstack n3-H100x8", usd_per_hour=15.2, devices=8, source=_HYPERSTACK),
    ),
    (
        "gh200-96gb",
        _device_price(
            "lambda gpu_1x_gh200",
            usd_per_hour=2.29,
            devices=1,
            source=f"Lambda on demand: {_CATALOG}/lambda/vms.csv, commit 0f40703",
        ),
    ),
    ("b300-sxm", _device_price("oracle BM.GPU.B300.8", usd_per_hour=120.0, devices=8, source=_OCI)),
    ("b300-sxm", _device_price("verda 4B300.120V", usd_per_hour=27.96, devices=4, source=_VERDA)),
    (
        "gb200-nvl72",
        _device_price("oracle BM.GPU.GB200.4", usd_per_hour=64.0, devices=4, source=_OCI),
    ),
    (
        "gb300-nvl72",
        _device_price("oracle BM.GPU.GB300.4", usd_per_hour=72.0, devices=4, source=_OCI),
    ),
    ("l40s", _device_price("oracle BM.GPU.L40S.4", usd_per_hour=14.0, devices=4, source=_OCI)),
    (
        "l40s",
        _device_price("nebius gpu-l40s-d_4gpu", usd_per_hour=9.1376, devices=4, source=_NEBIUS_4),
    ),
    (
        "l4",
        _device_price(
            "runpod L4",
            usd_per_hour=0.44,
            devices=1,
            source=f"{_RUNPOD}, as SkyPilot listed it in 2025",
        ),
    ),
    ("a10", _device_price("oracle BM.GPU.A10.4", usd_per_hour=8.0, devices=4, source=_OCI)),
    (
        "rtx-3090",
        _device_price(
            "runpod RTX 3090", usd_per_hour=0.46, devices=1, source=f"{_RUNPOD}, 2025, from memory"
        ),
    ),
    (
        "rtx-4090",
        _device_price(
            "runpod RTX 4090",
            usd_per_hour=0.69,
            devices=1,
            source=f"{_RUNPOD}, as SkyPilot listed it in June 2026",
        ),
    ),
    (
        "rtx-5090",
        _device_price(
            "runpod RTX 5090", usd_per_hour=0.94, devices=1, source=f"{_RUNPOD}, 2025, from memory"
        ),
    ),
    (
        "rtx-pro-6000",
        _device_price("oracle BM.GPU.RTXPRO.8", usd_per_hour=36.0, devices=8, source=_OCI),
    ),
    (
        "rtx-pro-6000",
        _device_price("verda 4RTXPRO6000.120V", usd_per_hour=6.76, devices=4, source=_VERDA),
    ),
    ("mi300x", _device_price("oracle BM.GPU.MI300X.8", usd_per_hour=48.0, devices=8, source=_OCI)),
    (
        "mi300x",
        _device_price(
            "vultr MI300X",
            usd_per_hour=1.85,
            devices=1,
            source="Vultr on demand, as comparisons of prices listed it in May 2026",
        ),
    ),
    (
        "mi325x",
        _device_price(
            "tensorwave MI325X",
            usd_per_hour=1.95,
            devices=1,
            source="TensorWave on demand, as comparisons of prices listed it in May 2026",
        ),
    ),
    ("mi355x", _device_price("oracle BM.GPU.MI355X.8", usd_per_hour=68.8, devices=8, source=_OCI)),
    (
        "gaudi-2",
        _device_price(
            "intel developer cloud Gaudi 2",
            usd_per_hour=10.42,
            devices=8,
            source="Intel Developer Cloud on demand, January 2024, from memory",
        ),
    ),
    (
        "gaudi-3",
        _device_price(
            "ibm gx3d-160x1792x8gaudi3",
            usd_per_hour=60.0,
            devices=8,
            source="IBM Cloud on demand, 2025, from memory",
        ),
    ),
    ("tpu-v3", _device_price("tpu-v3", usd_per_hour=2.2, devices=1, source=_GCP_MEMORY)),
    ("tpu-v4", _device_price("tpu-v4", usd_per_hour=3.22, devices=1, source=_GCP_MEMORY)),
    ("tpu-v5e", _device_price("tpu-v5e", usd_per_hour=1.2, devices=1, source=_GCP_MEMORY)),
    ("tpu-7x", _device_price("tpu-7x", usd_per_hour=12.0, devices=1, source=_GCP_MEMORY)),
    (
        "tpu-v5p",
        _device_price(
            "tpu-v5p-12288", usd_per_hour=25804.8, devices=6144, source=f"{_GCP}, us-east5"
        ),
    ),
    (
        "tpu-v6e",
        _device_price("tpu-v6e-8", usd_per_hour=21.6, devices=8, source=f"{_GCP}, us-central1"),
    ),
)
"""(accelerator, price) of machines that are no instances of the catalog."""


def list_price(kind: NodeKind) -> ListPrice | None:
    """List price of a device-hour: an instance's own (or None), else the device's lowest or None.

    None where no price is known.
    """
    if find_instance(kind.name) is not None:
        return INSTANCE_PRICES.get(kind.name)
    device = kind.accelerator.name
    known = [price for name, price in DEVICE_PRICES if name == device]
    for name, price in INSTANCE_PRICES.items():
        instance = find_instance(name)
        assert instance is not None
        known += [price] if instance.accelerator.name == device else []
    return min(known, key=lambda price: price.usd_per_hour, default=None)


NOT_RENTED: Final = frozenset(
    [
        "a30",
        "a800-sxm-80gb",
        "h800-sxm",
        "h20",
        "h100-sxm-96gb-500w",
        "mi250x",
        "ascend-910b",
        "ascend-910c",
        "trainium-3",
    ]
)
"""Accelerators without a public price an hour in dollars: used in one laboratory or one country,
sold by reservation alone, or without a seller whose price is known here.
"""
GIVE_A_PRICE: Final = "dollars_per_device_hour: 2.5 in a cluster file"
"""Hint of an error where no public price is known: the form of a price."""


def with_prices(cluster: Cluster) -> Cluster:
    """Set a list price, where one is known, on each node group without a price of its own.

    A group without a known price stays without.
    """
    groups = tuple(_with_list_price(group) for group in cluster.groups)
    return cluster if groups == cluster.groups else replace(cluster, groups=groups)


def _with_list_price(group: NodeGroup) -> NodeGroup:
    """The group with its list price, where it has no price and one is known."""
    found = None if group.price else list_price(group.kind)
    if found is None:
        return group
    origin = Origin(
        evidence=Evidence.ASSUMED, reference=f"list price of {found.of}: {found.source}"
    )
    return replace(group, price=found.usd_per_hour, price_origin=origin)


def catalog_price_name(name: str) -> str:
    """Catalog name of the accelerator or instance that ``--price`` names; UsageError if unknown.

    Raises:
        UsageError: there is none.
    """
    instance, device = find_instance(name), find_accelerator(name)
    if instance is None and device is None:
        raise UsageError(
            f"--price: unknown accelerator or instance {name[:60]!r}",
            hint=nearest(name[:60], (*accelerator_names(), *instance_names())),
        )
    return instance.name if instance is not None else device.name if device is not None else name


def cluster_prices(cluster: Cluster, given: Mapping[str, float]) -> tuple[ListPrice, ...]:
    """Price of each node group: given by node, device or "", its own, or list; () if any lacks it.

    Args:
        given: dollars a device-hour by `catalog_price_name`, or under the empty name for all nodes.
            They win over the cluster's own prices, and those over list prices.
    """
    found: list[ListPrice] = []
    for group in cluster.groups:
        names = (group.kind.name, group.kind.accelerator.name, "")
        own, source = next((given[name] for name in names if name in given), None), "as given"
        if own is None and group.price:
            own, source = (
                group.price,
                f"as the cluster says{f', in {group.zone}' if group.zone else ''}",
            )
        price = (
            ListPrice(of=group.kind.name, usd_per_hour=own, source=source)
            if own is not None
            else list_price(group.kind)
        )
        if price is None:
            return ()
        found.append(price)
    return tuple(found)
