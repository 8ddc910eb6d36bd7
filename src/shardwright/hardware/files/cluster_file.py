"""Reader of cluster files in YAML: `load_cluster` reads an expression or a YAML file.

::

    name: two-kinds
    accelerators:
      h100-capped: {like: h100-sxm, memory_gib: 78, sustained: 1.4}
    nodes:
      - {accelerator: h100-capped, count: 16, nic: {bandwidth_gbps: 400, latency_us: 10}}
      - {instance: aws-p4d.24xlarge, count: 8}
    fabric:
      - {name: leaf, devices: 64, rails: true}
      - {name: spine, oversubscription: 2}

Nodes may be in zones and have prices (`hardware.network_zones`)::

    nodes:
      - {instance: aws-p4d.24xlarge, count: 8, zone: us-east-1, dollars_per_device_hour: 4.1}
      - {instance: aws-p5.48xlarge, count: 4, zone: us-west-2, dollars_per_device_hour: 12.3}
    links:
      - {between: [us-east-1, us-west-2], bandwidth_gbps: 25, latency_ms: 60,
        egress_dollars_per_gigabyte: 0.02}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import (
    Accelerator,
    AttentionRates,
    Evidence,
    GemmRates,
    Origin,
)
from shardwright.hardware.catalog.accelerator_from_data_sheet import accelerator_from_sheet
from shardwright.hardware.catalog.accelerators_by_name import (
    accelerator,
    accelerator_names,
    find_accelerator,
    name_key,
)
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster import (
    ONE_SWITCH,
    Cluster,
    FabricTier,
    Host,
    NodeGroup,
    NodeKind,
    NodeTier,
    Reliability,
    sorted_by_zone,
)
from shardwright.hardware.cluster_expression import MAX_DEVICES, parse_cluster
from shardwright.hardware.files.bounded_yaml import CLUSTER_FILE, read_text_file, read_yaml
from shardwright.hardware.files.cluster_schema import (
    AcceleratorRecord,
    AttentionRecord,
    ClusterRecord,
    DtypeName,
    GemmRecord,
    HostRecord,
    LinkRecord,
    NodesRecord,
    NodeTierRecord,
    OriginRecord,
    ReliabilityRecord,
    TierRecord,
    YamlRecord,
    ZoneLinkRecord,
)
from shardwright.hardware.files.schema_errors import Place, first_schema_error
from shardwright.hardware.link import Link
from shardwright.hardware.network_zones import ZoneLink, checked_links, checked_price
from shardwright.units import BITS_PER_BYTE, GIB, scale_decimal

_SUFFIXES = (".yaml", ".yml", ".json")
_YAML_START = re.compile(r"\{|(name|nodes|accelerators|fabric|links|reliability)\s*:")
_FILE = Origin(evidence=Evidence.ASSUMED, reference="given in the cluster file")
_UNITS: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "_gib": ("_bytes", lambda value: round(value * GIB)),
    "_us": ("_s", lambda value: scale_decimal(value, -6)),
    "_bandwidth_gigabytes_per_s": ("_bandwidth", lambda value: scale_decimal(value, 9)),
    "_gigabytes_per_s": ("_bandwidth", lambda value: scale_decimal(value, 9)),
}
"""Suffix of a key -> suffix of the field, and the conversion of its value to SI units."""


def load_cluster(text_or_path: str | Path) -> Cluster:
    """Load a cluster from an expression, from YAML text, or from a file.

    A Path, or a string that ends in ``.yaml``, ``.yml`` or ``.json``, is a file; a string of
    several lines, or one that starts with ``{`` or a key of the schema, is YAML; anything else is
    an expression (see `cluster_expression`).
    """
    if isinstance(text_or_path, Path):
        return cluster_from_yaml(read_text_file(text_or_path))
    text = text_or_path.strip()
    if "\n" in text or _YAML_START.match(text):
        return cluster_from_yaml(text_or_path)
    if text.lower().endswith(_SUFFIXES):
        return cluster_from_yaml(read_text_file(Path(text)))
    return parse_cluster(text)


def cluster_from_yaml(text: str) -> Cluster:
    """Build the cluster that YAML text describes; its `expression` is the file's name field."""
    value = read_yaml(text)
    if not isinstance(value, Mapping):
        raise ClusterError(
            "a cluster file is a mapping with the key 'nodes'",
            hint="nodes: [{accelerator: h100-sxm, count: 2}]",
        )
    try:
        record = ClusterRecord.model_validate(dict(value))
    except ValidationError as error:
        raise first_schema_error(
            error, what=CLUSTER_FILE, form=_FORM, keys_at=_legal_keys, hint_of=_value_hint
        ) from None
    own = {
        name_key(name): (_accelerator(name, r), r.like or "")
        for name, r in record.accelerators.items()
    }
    if len(own) < len(record.accelerators):
        raise ClusterError(
            "two accelerators of the cluster file have the same name",
            hint="case, hyphens, dots and underscores do not count",
        )
    groups = sorted_by_zone(_node_group(r, index=i, own=own) for i, r in enumerate(record.nodes))
    links = checked_links(
        (g.zone for g in groups),
        (link for i, r in enumerate(record.links) for link in _zone_links(r, index=i)),
    )
    fabric = _fabric(record.fabric, groups)
    origin = _origin(record.fabric_origin, otherwise=_FILE if fabric else ONE_SWITCH)
    reliability = _reliability(record.reliability)
    cluster = Cluster(
        expression=record.name,
        groups=groups,
        fabric=fabric,
        fabric_origin=origin,
        links=links,
        reliability=reliability,
    )
    if cluster.num_devices > MAX_DEVICES:
        raise ClusterError(
            f"{cluster.num_devices} devices in the cluster file", hint=f"at most {MAX_DEVICES}"
        )
    return cluster


_FORM = "docs/clusters.md has the form of a cluster file"
_NUMBER = "a bare number such as 10 or 1.0e-3"
_HINTS: Mapping[str, str] = {
    "float_type": _NUMBER,
    "int_type": _NUMBER,
    "finite_number": _NUMBER,
    "string_pattern_mismatch": "letters, digits, dots and hyphens: us-east-1",
    "string_type": "text; in quotes where it looks like a number",
}
_IN_WORDS: Mapping[str, str] = {
    "_gbps": "in 10^9 bits a second, one way",
    "_gigabytes_per_s": "in 10^9 bytes a second, one way",
    "_per_gigabyte": "in dollars of 10^9 bytes",
    "_gib": "in 2^30 bytes",
    "_us": "in microseconds",
    "_ms": "in milliseconds",
    "efficiency": "a share of the peak: more than 0, at most 1",
}


def _value_hint(kind: str, key: str) -> str:
    """Hint for a wrong value: an example for the kind of error, or the unit of the key."""
    return _HINTS.get(kind) or next(
        (words for ending, words in _IN_WORDS.items() if key.endswith(ending)), _FORM
    )


_PARTS: Mapping[str, type[YamlRecord]] = {
    "accelerators": AcceleratorRecord,
    "nodes": NodesRecord,
    "fabric": TierRecord,
    "scale_up": LinkRecord,
    "nic": LinkRecord,
    "pcie": LinkRecord,
    "host": HostRecord,
    "node_tiers": NodeTierRecord,
    "gemm": GemmRecord,
    "attention": AttentionRecord,
    "origin": OriginRecord,
    "failures_origin": OriginRecord,
    "fabric_origin": OriginRecord,
    "links": ZoneLinkRecord,
    "reliability": ReliabilityRecord,
}


def _legal_keys(place: Place) -> list[str]:
    """Keys that are legal at the place of an unknown key."""
    inner = next(
        (_PARTS[p] for p in reversed(place[:-1]) if isinstance(p, str) and p in _PARTS),
        ClusterRecord,
    )
    return list(inner.model_fields)


def _origin(record: OriginRecord | None, *, otherwise: Origin) -> Origin:
    """Origin that a record states, else `otherwise`."""
    return (
        Origin(evidence=Evidence(record.evidence), reference=record.reference)
        if record
        else otherwise
    )


def _bytes_per_s(gigabits: float | None, gigabytes: float | None, *, path: str) -> float | None:
    """Convert a bandwidth in 10^9 bits/s or 10^9 bytes/s to bytes/s; None where neither is set."""
    if gigabits is not None and gigabytes is not None:
        raise ClusterError(
            f"{path}: bandwidth is given twice", hint="either _gbps (bits) or _gigabytes_per_s"
        )
    if gigabits is not None:
        return scale_decimal(gigabits, 9) / BITS_PER_BYTE
    return None if gigabytes is None else scale_decimal(gigabytes, 9)


def _dataclass_fields(record: YamlRecord, kind: Any) -> dict[str, Any]:
    """Convert a record's values to fields of the dataclass `kind`, in SI units.

    The unit is the suffix of the key.
    """
    given: dict[str, Any] = {}
    for key, value in record:
        if isinstance(value, int | float | str):
            ending = next((e for e in _UNITS if key.endswith(e)), "")
            name, convert = _UNITS.get(ending, ("", lambda plain: plain))
            given[key.removesuffix(ending) + name] = convert(value)
    return {name: given[name] for name in kind.__dataclass_fields__ if name in given}


def _link(record: LinkRecord | None, base: Link, *, path: str) -> Link:
    """`base` with the values that a link's record sets."""
    if record is None:
        return base
    outward = _bytes_per_s(record.bandwidth_gbps, record.bandwidth_gigabytes_per_s, path=path)
    inward = _bytes_per_s(
        record.reverse_bandwidth_gbps, record.reverse_bandwidth_gigabytes_per_s, path=path
    )
    kept = base.reverse_bandwidth if outward is None else 0.0
    given = _dataclass_fields(record, Link) | {
        "reverse_bandwidth": kept if inward is None else inward
    }
    return replace(
        base,
        **given,
        bandwidth=base.bandwidth if outward is None else outward,
        origin=_origin(record.origin, otherwise=_FILE),
    )


def _host(record: HostRecord | None, base: Host, *, path: str) -> Host:
    """`base` with the values that a host's record sets."""
    if record is None:
        return base
    assumed = base.origin if record.memory_gib is None else None
    origin = _origin(record.origin, otherwise=_FILE) if record.origin else assumed
    return replace(
        base,
        **_dataclass_fields(record, Host),
        pcie=_link(record.pcie, base.pcie, path=f"{path}.pcie"),
        origin=origin,
    )


def _gemm(records: Mapping[DtypeName, GemmRecord]) -> tuple[GemmRates, ...]:
    """GEMM rates from the records of each dtype."""
    return tuple(
        GemmRates(
            dtype=Dtype(name),
            origin=_origin(r.origin, otherwise=_FILE),
            **_dataclass_fields(r, GemmRates),
        )
        for name, r in records.items()
    )


def _attention(records: Mapping[str, AttentionRecord]) -> tuple[AttentionRates, ...]:
    """Attention rates from the records of each kernel generation."""
    return tuple(
        AttentionRates(
            generation=name,
            forward=tuple(sorted(r.forward.items())),
            backward=tuple(
                (int(head), int(value), fraction) for head, value, fraction in r.backward
            ),
            origin=_origin(r.origin, otherwise=_FILE),
            **_dataclass_fields(r, AttentionRates),
        )
        for name, r in records.items()
    )


def _accelerator(name: str, record: AcceleratorRecord) -> Accelerator:
    """Accelerator of a record: a catalog accelerator with changes, or a new one."""
    base = accelerator(record.like) if record.like is not None else _new_accelerator(name, record)
    peaks = dict(base.peak_flops)
    peaks.update({Dtype(n): scale_decimal(v, 12) for n, v in (record.peak_tflops or {}).items()})
    gemm = {g.dtype: g for g in base.gemm} | {g.dtype: g for g in _gemm(record.gemm or {})}
    attention = {a.generation: a for a in base.attention} | {
        a.generation: a for a in _attention(record.attention or {})
    }
    where = f"given in the cluster file, like {base.name}" if record.like else _FILE.reference
    if record.failures_per_device_hour is not None:
        base = replace(
            base,
            failures_origin=(
                _origin(record.failures_origin, otherwise=_FILE) if record.failures_origin else None
            ),
        )
    changed = replace(
        base,
        **_dataclass_fields(record, Accelerator),
        name=name,
        peak_flops=tuple(peaks.items()),
        gemm=tuple(gemm.values()),
        attention=tuple(attention.values()),
        origin=_origin(record.origin, otherwise=Origin(evidence=Evidence.ASSUMED, reference=where)),
        aliases=tuple(record.aliases or ()),
        assumed=base.assumed if record.assumed is None else tuple(record.assumed),
    )
    if record.sustained is not None:
        factor = record.sustained
        changed = replace(
            changed, gemm=tuple(replace(g, sustained=factor, origin=_FILE) for g in changed.gemm)
        )
    return changed


def _new_accelerator(name: str, record: AcceleratorRecord) -> Accelerator:
    """Accelerator from a record without `like`; ClusterError if memory or peaks are missing."""
    if (
        record.memory_gib is None
        or record.memory_bandwidth_gigabytes_per_s is None
        or record.peak_tflops is None
    ):
        needed = "memory_gib, memory_bandwidth_gigabytes_per_s and peak_tflops"
        raise ClusterError(
            f"accelerators.{name[:60]}: needs {needed}", hint="or like: a catalog accelerator"
        )
    return accelerator_from_sheet(
        name,
        vendor=record.vendor or "unknown",
        memory_gib=record.memory_gib,
        memory_gb_per_s=record.memory_bandwidth_gigabytes_per_s,
        peaks=tuple((Dtype(n), scale_decimal(v, 12)) for n, v in record.peak_tflops.items()),
        reference=_FILE.reference,
        gemm=_gemm(record.gemm or {}),
        attention=_attention(record.attention or {}),
        evidence=Evidence.ASSUMED,
    )


def _base_kind(
    record: NodesRecord, *, path: str, own: Mapping[str, tuple[Accelerator, str]]
) -> NodeKind:
    """Node kind that a record starts from: a cloud instance, or an accelerator's default node."""
    if (record.accelerator is None) == (record.instance is None):
        raise ClusterError(
            f"{path}: give either accelerator or instance", hint="accelerator: h100-sxm"
        )
    if record.instance is not None:
        kind = find_instance(record.instance)
        if kind is None:
            raise ClusterError(
                f"{path}: unknown instance {record.instance[:60]!r}",
                hint=nearest(record.instance[:60], instance_names()),
            )
        return kind
    name = record.accelerator or ""
    mine = own.get(name_key(name))
    if mine is not None:
        device, like = mine
        kind = default_node(accelerator(like) if like else device)
        return replace(kind, accelerator=device, name=f"{device.name}-x{kind.num_devices}")
    known = find_accelerator(name)
    if known is None:
        names = (*accelerator_names(), *(device.name for device, _ in own.values()))
        raise ClusterError(
            f"{path}: unknown accelerator {name[:60]!r}", hint=nearest(name[:60], names)
        )
    return default_node(known)


def _node_group(
    record: NodesRecord, *, index: int, own: Mapping[str, tuple[Accelerator, str]]
) -> NodeGroup:
    """Node group of one entry of `nodes`, with the entry's changes."""
    path = f"nodes.{index}"
    base = _base_kind(record, path=path, own=own)
    devices = record.devices_per_node or base.num_devices
    whole = base.island == base.num_devices or base.island > devices > base.num_devices
    island = record.island_devices or (devices if whole else base.island)
    if island % devices and devices % island:
        raise ClusterError(
            f"{path}: islands of {island} devices do not fit nodes of {devices}",
            hint="one must divide the other",
        )
    nics = record.nics or max(1, -(-base.nics * devices // base.num_devices))
    reduces = record.in_network_reduction
    kind = NodeKind(
        name=record.name or base.name,
        accelerator=base.accelerator,
        num_devices=devices,
        island=island,
        scale_up=_link(record.scale_up, base.scale_up, path=f"{path}.scale_up"),
        nics=nics,
        nic=_link(record.nic, base.nic, path=f"{path}.nic"),
        host=_host(record.host, base.host, path=f"{path}.host"),
        in_network_reduction=base.in_network_reduction if reduces is None else reduces,
    )
    if record.node_tiers:
        kind = replace(
            kind, node_tiers=_node_tiers(record.node_tiers, kind, path=f"{path}.node_tiers")
        )
    dollars = record.dollars_per_device_hour
    price = (
        0.0 if dollars is None else checked_price(dollars, what=f"{path}.dollars_per_device_hour")
    )
    return NodeGroup(kind=kind, count=record.count, zone=record.zone or "", price=price)


def _node_tiers(
    records: list[NodeTierRecord], kind: NodeKind, *, path: str
) -> tuple[NodeTier, ...]:
    """Tiers between a node's islands; ClusterError if a tier has no whole units of the one below.

    The last tier joins all devices of the node.
    """
    found: list[NodeTier] = []
    below = kind.island
    base = replace(kind.scale_up, bandwidth=0.0, reverse_bandwidth=0.0, efficiency=1.0)
    for index, record in enumerate(records):
        if record.devices <= below or record.devices % below or kind.num_devices % record.devices:
            hint = f"whole units of {below} devices, more than one, that divide {kind.num_devices}"
            raise ClusterError(
                f"{path}.{index}: a tier of {record.devices} devices in nodes of"
                f" {kind.num_devices}",
                hint=hint,
            )
        link = _link(record, base, path=f"{path}.{index}")
        if not link.bandwidth:
            raise ClusterError(
                f"{path}.{index}: no bandwidth",
                hint="bandwidth_gigabytes_per_s of all devices of a unit below it together",
            )
        found.append(NodeTier(name=record.name, num_devices=record.devices, link=link))
        below = record.devices
    if below != kind.num_devices:
        raise ClusterError(
            f"{path}: the last tier joins {below} of {kind.num_devices} devices",
            hint=f"devices: {kind.num_devices}",
        )
    return tuple(found)


def _zone_links(record: ZoneLinkRecord, *, index: int) -> tuple[ZoneLink, ...]:
    """Links of one entry of `links`, one for each direction."""
    if (record.between is None) == (record.source is None) or (record.source is None) != (
        record.target is None
    ):
        raise ClusterError(
            f"links.{index}: give either between, or source and target",
            hint="between: [east, west]",
        )
    one, other = record.between or (record.source or "", record.target or "")
    link = Link(
        latency_s=scale_decimal(record.latency_ms, -3),
        bandwidth=scale_decimal(record.bandwidth_gbps, 9) / BITS_PER_BYTE,
        efficiency=record.efficiency,
        origin=_FILE,
    )
    ways = ((one, other), (other, one)) if record.between else ((one, other),)
    return tuple(
        ZoneLink(source=a, target=b, link=link, egress=record.egress_dollars_per_gigabyte)
        for a, b in ways
    )


def _reliability(record: ReliabilityRecord | None) -> Reliability:
    """Reliability that the file states, with defaults for missing values."""
    if record is None:
        return Reliability()
    return replace(
        Reliability(),
        **_dataclass_fields(record, Reliability),
        origin=_origin(record.origin, otherwise=_FILE),
    )


def _fabric(records: list[TierRecord], groups: tuple[NodeGroup, ...]) -> tuple[FabricTier, ...]:
    """Switch tiers of the file; ClusterError if they do not grow or split a node."""
    below = 0
    if records and records[0].oversubscription != 1.0:
        raise ClusterError(
            f"fabric.0: {records[0].name} joins nodes at the rate of their cards, and has no"
            " oversubscription",
            hint=(
                "what leaves a leaf has that of the tier above it: {name: leaf, devices: 64},"
                " {name: spine, oversubscription: 3}"
            ),
        )
    for index, record in enumerate(records):
        last = index == len(records) - 1
        if (record.devices == 0 and not last) or (record.devices and record.devices <= below):
            raise ClusterError(
                f"fabric.{index}: tiers go from the nodes upward, each larger",
                hint="only the last may leave out devices",
            )
        odd = next((g.kind for g in groups if record.devices % g.kind.num_devices), None)
        if odd is not None:
            raise ClusterError(
                f"fabric.{index}: {record.devices} devices of {record.name} are no whole nodes of"
                f" {odd.name}",
                hint=f"a multiple of {odd.num_devices}",
            )
        below = record.devices
    return tuple(
        FabricTier(num_devices=r.devices, **_dataclass_fields(r, FabricTier)) for r in records
    )
