"""Published training clusters with their switch tiers, such as ``meta-24k-roce:16384``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.accelerators_by_name import accelerator, name_key
from shardwright.hardware.catalog.default_nodes import default_node, network_card, smaller_node
from shardwright.hardware.cluster import FabricTier, NodeGroup, NodeKind
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCluster:
    """A cluster that a paper or a reference architecture describes.

    Args:
        num_devices: its full size.
        network_gbit_per_s: of one device; 0.0 = as the accelerator's default node.
        fabric: its switch tiers, from the nodes upward.
        source: paper or page that describes it.
    """

    name: str
    accelerator: str
    num_devices: int
    fabric: tuple[FabricTier, ...]
    source: str
    network_gbit_per_s: float = 0.0
    nics: int = 0
    island: int = 0


ALL: Final = 0
"""Number of devices of a tier that joins the whole cluster."""


def _tier(
    name: str, *, devices: int, oversubscription: float = 1.0, rails: bool = False
) -> FabricTier:
    """Switch tier over `devices` devices, without added latency."""
    return FabricTier(
        name=name,
        num_devices=devices,
        oversubscription=oversubscription,
        latency_s=0.0,
        rails=rails,
    )


PUBLISHED: Final = (
    PublishedCluster(
        name="meta-24k-roce",
        accelerator="h100-sxm",
        num_devices=24576,
        network_gbit_per_s=400,
        fabric=(
            _tier("rack", devices=16),
            _tier("pod", devices=3072),
            _tier("aggregation", devices=ALL, oversubscription=7.0),
        ),
        source=(
            "Llama 3 paper (arXiv 2407.21783): racks of 16, 8 pods of 3,072 with full bisection,"
            " 1:7 between pods"
        ),
    ),
    PublishedCluster(
        name="dgx-superpod-h100",
        accelerator="h100-sxm",
        num_devices=1016,
        network_gbit_per_s=400,
        fabric=(_tier("leaf", devices=256, rails=True), _tier("spine", devices=ALL)),
        source=(
            "NVIDIA DGX SuperPOD H100 reference architecture RA-11333-001 (4 units, 127 nodes); 1:1"
            " from memory"
        ),
    ),
    PublishedCluster(
        name="dgx-superpod-b200",
        accelerator="b200-sxm",
        num_devices=1024,
        network_gbit_per_s=400,
        fabric=(
            _tier("leaf", devices=256, rails=True),
            _tier("spine", devices=1024),
            _tier("core", devices=ALL),
        ),
        source="NVIDIA DGX SuperPOD B200 reference architecture",
    ),
    PublishedCluster(
        name="dgx-superpod-b300",
        accelerator="b300-sxm",
        num_devices=4096,
        network_gbit_per_s=800,
        fabric=(_tier("leaf", devices=512, rails=True), _tier("spine", devices=ALL)),
        source="NVIDIA DGX SuperPOD B300 reference architecture; card rate from memory",
    ),
    PublishedCluster(
        name="alibaba-hpn7",
        accelerator="h800-sxm",
        num_devices=15360,
        network_gbit_per_s=400,
        fabric=(
            _tier("segment", devices=1024, rails=True),
            _tier("pod", devices=15360),
            _tier("core", devices=ALL, oversubscription=15.0),
        ),
        source=(
            "Alibaba HPN (SIGCOMM 2024), as quoted on the web; accelerator assumed H800-class, 15:1"
            " core from memory"
        ),
    ),
    PublishedCluster(
        name="fire-flyer-2",
        accelerator="a100-pcie-40gb",
        num_devices=10000,
        network_gbit_per_s=25,
        nics=1,
        fabric=(
            _tier("zone", devices=6400),
            _tier("inter-zone", devices=ALL, oversubscription=4.0),
        ),
        source=(
            "Fire-Flyer AI-HPC (arXiv 2408.14158): two zones of 800 nodes, one 200 Gb/s card a"
            " node; the limit between zones is assumed"
        ),
    ),
    PublishedCluster(
        name="deepseek-v3-h800",
        accelerator="h800-sxm",
        num_devices=2048,
        network_gbit_per_s=400,
        fabric=(_tier("leaf", devices=256, rails=True), _tier("spine", devices=ALL)),
        source=(
            "DeepSeek-V3 papers: 2,048 H800, 8 planes of a two-layer fat tree; leaf size assumed"
        ),
    ),
    PublishedCluster(
        name="azure-gb200-rack",
        accelerator="gb200-nvl72",
        num_devices=72,
        network_gbit_per_s=400,
        fabric=(_tier("leaf", devices=ALL),),
        source="Azure ND-GB200-v6 page: 18 machines of 4 devices",
    ),
    PublishedCluster(
        name="aws-trn2-ultraserver",
        accelerator="trainium-2",
        num_devices=64,
        island=64,
        fabric=(_tier("network", devices=ALL),),
        source="AWS Neuron documentation, trn2 architecture: 4 instances of 16 joined by rings",
    ),
    PublishedCluster(
        name="tpu-v4-pod",
        accelerator="tpu-v4",
        num_devices=4096,
        fabric=(_tier("network", devices=ALL),),
        source="Google TPU v4 pod: 64 cubes of 4 x 4 x 4 joined by optical switches",
    ),
    PublishedCluster(
        name="megascale",
        accelerator="a100-sxm-80gb",
        num_devices=12288,
        network_gbit_per_s=200,
        fabric=(
            _tier("leaf", devices=512, rails=True),
            _tier("pod", devices=2048),
            _tier("core", devices=ALL),
        ),
        source="MegaScale (NSDI 2024); unit sizes assumed, ratios from memory",
    ),
)

_BY_KEY: Final[Mapping[str, PublishedCluster]] = MappingProxyType(
    {name_key(c.name): c for c in PUBLISHED}
)


def published_names() -> tuple[str, ...]:
    """Names of the published clusters, sorted."""
    return tuple(sorted(c.name for c in PUBLISHED))


def find_published(name: str) -> PublishedCluster | None:
    """Find a published cluster by name; None if there is none."""
    return _BY_KEY.get(name_key(name))


def _node_of_cluster(cluster: PublishedCluster) -> NodeKind:
    """Node kind of a published cluster: the default node with the cluster's network and island."""
    kind = default_node(accelerator(cluster.accelerator))
    nics = cluster.nics or kind.nics
    nic = kind.nic
    if cluster.network_gbit_per_s:
        nic = network_card(gbit_per_s=cluster.network_gbit_per_s * kind.num_devices / nics)
    return replace(kind, nics=nics, nic=nic, island=cluster.island or kind.island)


def published_cluster(
    cluster: PublishedCluster, *, num_devices: int | None
) -> tuple[NodeGroup, tuple[FabricTier, ...]]:
    """(node group, switch tiers) of `num_devices` devices (None = all), if few of a smaller node.

    Raises:
        ClusterError: the cluster has fewer devices, or they do not fill nodes.
    """
    kind = _node_of_cluster(cluster)
    count = cluster.num_devices if num_devices is None else num_devices
    if count > cluster.num_devices:
        raise ClusterError(
            f"{cluster.name} has {cluster.num_devices} devices, not {count}",
            hint=f"write {cluster.name}:{cluster.num_devices}",
        )
    if count < kind.num_devices:
        return NodeGroup(kind=smaller_node(kind, num_devices=count), count=1), cluster.fabric
    if count % kind.num_devices:
        below = count // kind.num_devices * kind.num_devices
        raise ClusterError(
            f"{count} devices of {cluster.name} do not fill nodes of {kind.num_devices}",
            hint=f"use {below} or {min(below + kind.num_devices, cluster.num_devices)}",
        )
    return NodeGroup(kind=kind, count=count // kind.num_devices), cluster.fabric
