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

Nodes may be in zones and have prices (`hardware.zone_link_record_and_price_checks`)::

    nodes:
      - {instance: aws-p4d.24xlarge, count: 8, zone: us-east-1, dollars_per_device_hour: 4.1}
      - {instance: aws-p5.48xlarge, count: 4, zone: us-west-2, dollars_per_device_hour: 12.3}
    links:
      - {between: [us-east-1, us-west-2], bandwidth_gbps: 25, latency_ms: 60,
        egress_dollars_per_gigabyte: 0.02}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.accelerators_by_name import name_key
from shardwright.hardware.cluster import (
    ONE_SWITCH,
    Cluster,
    FabricTier,
    NodeGroup,
    Reliability,
    sorted_by_zone,
)
from shardwright.hardware.cluster_expression import MAX_DEVICES, parse_cluster
from shardwright.hardware.files.accelerator_of_record import accelerator_of_record
from shardwright.hardware.files.bounded_yaml import CLUSTER_FILE, read_text_file, read_yaml
from shardwright.hardware.files.cluster_schema import (
    AcceleratorRecord,
    AttentionRecord,
    ClusterRecord,
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
from shardwright.hardware.files.node_group_of_record import node_group_of_record
from shardwright.hardware.files.record_values import FROM_FILE, dataclass_fields, origin_of_record
from shardwright.hardware.files.schema_errors import Place, first_schema_error
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    is_cluster_file,
    is_cluster_yaml,
)
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink, checked_links
from shardwright.units import BITS_PER_BYTE, scale_decimal


def load_cluster(text_or_path: str | Path) -> Cluster:
    """Load a cluster from an expression, from YAML text, or from a file.

    A Path, or a string that ends in ``.yaml``, ``.yml`` or ``.json``, is a file; a string of
    several lines, or one that starts with ``{`` or a key of the schema, is YAML; anything else is
    an expression (see `cluster_expression`).
    """
    if isinstance(text_or_path, Path):
        return cluster_from_yaml(read_text_file(text_or_path))
    text = text_or_path.strip()
    if is_cluster_yaml(text_or_path):
        return cluster_from_yaml(text_or_path)
    if is_cluster_file(text):
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
        name_key(name): (accelerator_of_record(name, r), r.like or "")
        for name, r in record.accelerators.items()
    }
    if len(own) < len(record.accelerators):
        raise ClusterError(
            "two accelerators of the cluster file have the same name",
            hint="case, hyphens, dots and underscores do not count",
        )
    groups = sorted_by_zone(
        node_group_of_record(r, index=i, own=own) for i, r in enumerate(record.nodes)
    )
    links = checked_links(
        (g.zone for g in groups),
        (link for i, r in enumerate(record.links) for link in _zone_links(r, index=i)),
    )
    fabric = _fabric(record.fabric, groups)
    origin = origin_of_record(record.fabric_origin, otherwise=FROM_FILE if fabric else ONE_SWITCH)
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
    """Hint for a wrong value: an example for pydantic's error type `kind`, or the key's unit."""
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
    """Legal keys of the object that holds the unknown key at path `place`."""
    inner = next(
        (_PARTS[p] for p in reversed(place[:-1]) if isinstance(p, str) and p in _PARTS),
        ClusterRecord,
    )
    return list(inner.model_fields)


def _zone_links(record: ZoneLinkRecord, *, index: int) -> tuple[ZoneLink, ...]:
    """Links of one entry of `links`: both ways for `between`, one from `source` to `target`."""
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
        origin=FROM_FILE,
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
        **dataclass_fields(record, Reliability),
        origin=origin_of_record(record.origin, otherwise=FROM_FILE),
    )


def _fabric(records: list[TierRecord], groups: tuple[NodeGroup, ...]) -> tuple[FabricTier, ...]:
    """Switch tiers of a file; ClusterError unless growing, of whole nodes, first at full rate."""
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
        FabricTier(num_devices=r.devices, **dataclass_fields(r, FabricTier)) for r in records
    )
