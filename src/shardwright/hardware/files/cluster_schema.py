"""Schema of a cluster file: pydantic models whose keys carry their units."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(ge=1e-12, le=1e18)]
NotNegative = Annotated[float, Field(ge=0, le=1e18)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(ge=1, le=1e6)]
Count = Annotated[int, Field(ge=1, le=4_194_304)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=2000)]
DtypeName = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]


class YamlRecord(BaseModel):
    """Base of all mappings of a file: unknown keys, numbers as text and infinities are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class OriginRecord(YamlRecord):
    """Source of numbers: kind of evidence and reference."""

    evidence: Literal["measured", "fitted", "published", "assumed"] = "assumed"
    reference: Text = "given in the cluster file"


class LinkRecord(YamlRecord):
    """A link; missing values are those of the base node's link.

    Bandwidth is in 10^9 bits/s or 10^9 bytes/s; the reverse direction is set only where it differs.
    """

    latency_us: NotNegative | None = None
    bandwidth_gbps: Positive | None = None
    reverse_bandwidth_gbps: Positive | None = None
    bandwidth_gigabytes_per_s: Positive | None = None
    reverse_bandwidth_gigabytes_per_s: Positive | None = None
    efficiency: Fraction | None = None
    origin: OriginRecord | None = None


class NodeTierRecord(LinkRecord):
    """A tier that joins scale-up islands of a node.

    `devices` are those below one unit; the link is that of all devices of a unit of the level below
    together.
    """

    name: Word
    devices: Count


class HostRecord(YamlRecord):
    """A node's host: memory, PCIe link and NVMe."""

    memory_gib: Positive | None = None
    memory_gigabytes_per_s: Positive | None = None
    pcie: LinkRecord | None = None
    nvme_gib: NotNegative | None = None
    nvme_gigabytes_per_s: NotNegative | None = None
    origin: OriginRecord | None = None


class GemmRecord(YamlRecord):
    """GEMM rates of one dtype (see `GemmRates`)."""

    compute_efficiency: Fraction
    memory_efficiency: Fraction
    overhead_us: NotNegative
    exponent: Annotated[float, Field(ge=1, le=100)]
    sustained: Factor
    error: NotNegative
    origin: OriginRecord | None = None


class AttentionRecord(YamlRecord):
    """Attention rates of one kernel generation: context length -> fraction of peak."""

    forward: Annotated[
        dict[Annotated[int, Field(ge=1, le=2**40)], Fraction], Field(min_length=1, max_length=64)
    ]
    backward_ratio: Positive
    reach: Fraction = 1.0
    long_run: bool = False
    backward: Annotated[
        list[Annotated[list[Positive], Field(min_length=3, max_length=3)]], Field(max_length=64)
    ] = Field(default_factory=list)
    origin: OriginRecord | None = None


class AcceleratorRecord(YamlRecord):
    """An accelerator of the file: a catalog accelerator (`like`) with changes, or a new one.

    A new one needs memory, bandwidth and peaks.
    """

    like: Word | None = None
    vendor: Word | None = None
    memory_gib: Positive | None = None
    memory_bandwidth_gigabytes_per_s: Positive | None = None
    peak_tflops: Annotated[dict[DtypeName, Positive], Field(min_length=1)] | None = None
    sustained: Factor | None = None
    gemm: dict[DtypeName, GemmRecord] | None = None
    attention: Annotated[dict[Word, AttentionRecord], Field(min_length=1, max_length=16)] | None = (
        None
    )
    element_efficiency: Fraction | None = None
    launch_us: NotNegative | None = None
    overlap_slowdown: Factor | None = None
    failures_per_device_hour: NotNegative | None = None
    failures_origin: OriginRecord | None = None
    assumed: Annotated[list[Word], Field(max_length=32)] | None = None
    aliases: Annotated[list[Word], Field(max_length=32)] | None = None
    origin: OriginRecord | None = None


class NodesRecord(YamlRecord):
    """`count` nodes of one kind: an accelerator's default node or an instance, with changes."""

    accelerator: Word | None = None
    instance: Word | None = None
    name: Word | None = None
    count: Count
    devices_per_node: Count | None = None
    island_devices: Count | None = None
    scale_up: LinkRecord | None = None
    nics: Count | None = None
    nic: LinkRecord | None = None
    host: HostRecord | None = None
    in_network_reduction: bool | None = None
    node_tiers: Annotated[list[NodeTierRecord], Field(max_length=8)] = []
    zone: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")] | None = None
    dollars_per_device_hour: float | None = None


class ZoneLinkRecord(YamlRecord):
    """Link of one node of a zone to nodes of another zone.

    The link is in both directions (`between`), or in one (`source`, `target`).
    """

    between: Annotated[list[Word], Field(min_length=2, max_length=2)] | None = None
    source: Word | None = None
    target: Word | None = None
    latency_ms: NotNegative
    bandwidth_gbps: Positive
    efficiency: Fraction = 1.0
    egress_dollars_per_gigabyte: NotNegative = 0.0


class TierRecord(YamlRecord):
    """A switch tier: `devices` below one unit; left out for the whole cluster."""

    name: Word
    devices: Annotated[int, Field(ge=0, le=4_194_304)] = 0
    oversubscription: Factor = 1.0
    latency_us: NotNegative = 0.0
    rails: bool = False


class ReliabilityRecord(YamlRecord):
    """Failure rate, storage rate of the whole cluster, restart time; missing ones are assumed."""

    failures_per_device_hour: Annotated[float, Field(ge=0, le=1)] | None = None
    storage_gigabytes_per_s: Positive | None = None
    restart_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    origin: OriginRecord | None = None


class ClusterRecord(YamlRecord):
    """A whole cluster file."""

    name: Word = "cluster file"
    accelerators: Annotated[dict[Word, AcceleratorRecord], Field(max_length=64)] = {}
    nodes: Annotated[list[NodesRecord], Field(min_length=1, max_length=1024)]
    fabric: Annotated[list[TierRecord], Field(max_length=16)] = []
    fabric_origin: OriginRecord | None = None
    links: Annotated[list[ZoneLinkRecord], Field(max_length=4096)] = []
    reliability: ReliabilityRecord | None = None
