"""Parser of cluster expressions, such as ``h100-sxm:16384`` or ``aws-p5.48xlarge:128``.

Grammar: term { "+" term } { "," link }, term = nodes [ "@" zone ] [ "/" dollars "usd" ], nodes =
name [ ":" count ] or [ count "x" ] count "x" name (``8xH100`` are 8 devices, ``3x8xA100`` 3 nodes
of 8), link = zone "~" zone "=" number "gbps" "/" number "ms" [ "/" dollars "usd" ]. The count is
devices for an accelerator and for a published cluster (which may leave it out: its full size),
**instances** for a cloud instance, as a cloud bill counts them, and slices for a TPU slice by
Google's own name (``v5p-256``; one where it is left out). Names ignore case, ``_`` and ``-``.

``h100-sxm:64@east/2.5usd+a100-sxm-80gb:64@west/1.2usd,east~west=25gbps/60ms/0.02usd``: dollars of a
device in an hour, and of a link for each gigabyte that leaves its zone. A link is the rate at which
one node sends to nodes of the other zone: in both directions, or from the first zone to the second
where the expression has the other direction too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.accelerators_by_name import (
    accelerator_names,
    driver_words,
    find_accelerator,
)
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.default_nodes import default_node, smaller_node
from shardwright.hardware.catalog.parse_tpu_slice_name import TpuSlice, find_tpu_slice
from shardwright.hardware.catalog.published_clusters import (
    find_published,
    published_cluster,
    published_names,
)
from shardwright.hardware.cluster import (
    ONE_SWITCH,
    Cluster,
    FabricTier,
    NodeGroup,
    NodeKind,
    sorted_by_zone,
)
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.zone_link_record_and_price_checks import (
    ZoneLink,
    checked_links,
    checked_price,
)
from shardwright.units import BITS_PER_BYTE

MAX_TEXT: Final = 4096
MAX_TERMS: Final = 64
MAX_DEVICES: Final = 4_194_304
_ZONE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_TIMES: Final = re.compile(
    r"([0-9_]{1,24}) *[xX*] *(?:([0-9_]{1,24}) *[xX*] *)?([^ :].*)", re.DOTALL
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def cluster_names() -> tuple[str, ...]:
    """Names of all accelerators, cloud instances and published clusters, sorted."""
    return tuple(sorted({*accelerator_names(), *instance_names(), *published_names()}))


def parse_cluster(text: str) -> Cluster:
    """Parse a cluster expression such as ``h100-sxm:64``; ClusterError if it is wrong or too large.

    Args:
        text: see the module. At most 64 terms and 4,194,304 devices.

    A count below one node is a smaller node (its cards shrink with it); any other must fill nodes.
    The network is one non-blocking switch unless the term is a published cluster, whose switch
    tiers it takes; those cannot be joined with other terms.
    """
    if len(text) > MAX_TEXT:
        raise ClusterError(
            f"cluster expression of {len(text)} characters",
            hint=f"at most {MAX_TEXT}; use a YAML file",
        )
    written = text.strip()
    nodes, *wide = written.split(",")
    terms = [term.strip() for term in nodes.split("+")]
    if not written or not all(terms):
        raise ClusterError(
            f"empty term in cluster expression {_quoted(written)}",
            hint="write NAME:COUNT, such as h100-sxm:64",
        )
    if len(terms) > MAX_TERMS:
        raise ClusterError(
            f"cluster expression with {len(terms)} terms", hint=f"at most {MAX_TERMS}"
        )
    groups: list[NodeGroup] = []
    fabric: tuple[FabricTier, ...] = ()
    origin, notes = ONE_SWITCH, list[str]()
    for term in terms:
        kind, zone, price = _split_zone_and_price(term)
        group, tiers, origin, note = _parse_term(kind)
        group = replace(group, zone=zone, price=price)
        notes += [note] if note else []
        if tiers and len(terms) > 1:
            raise ClusterError(
                f"{_quoted(term)} brings its own network and cannot be joined with other terms",
                hint="use a YAML file",
            )
        fabric = fabric or tiers
        _append_merged(groups, group)
    note = "; ".join(dict.fromkeys(notes))
    links = checked_links((group.zone for group in groups), parse_links(wide))
    cluster = Cluster(
        expression=written,
        groups=sorted_by_zone(groups),
        fabric=fabric,
        fabric_origin=origin,
        links=links,
        note=note,
    )
    if cluster.num_devices > MAX_DEVICES:
        raise ClusterError(
            f"{cluster.num_devices} devices in {_quoted(written)}", hint=f"at most {MAX_DEVICES}"
        )
    return cluster


def fill_nodes(kind: NodeKind, *, num_devices: int, name: str) -> NodeGroup:
    """Node group of whole nodes for `num_devices`, or of one smaller node; ClusterError otherwise.

    Any other count is a ClusterError. Nodes of an island of several nodes come in equal segments;
    see `with_segment_islands`.
    """
    if num_devices < kind.num_devices:
        return NodeGroup(kind=smaller_node(kind, num_devices=num_devices), count=1)
    if num_devices % kind.num_devices:
        below = num_devices // kind.num_devices * kind.num_devices
        raise ClusterError(
            f"{num_devices} x {name} do not fill nodes of {kind.num_devices}",
            hint=f"use {below} or {below + kind.num_devices}",
        )
    count = num_devices // kind.num_devices
    return NodeGroup(kind=with_segment_islands(kind, count=count), count=count)


def with_segment_islands(kind: NodeKind, *, count: int) -> NodeKind:
    """Shrink an island to the most nodes that divide a larger `count`, if at least half of it.

    Schedulers place the most nodes an island that divide the job: 256 GB200 are 64 nodes of 4, and
    an island has 18 nodes. 16 divides 64, so each of 4 islands gives 64 of its 72 devices. Where
    only less than half an island would divide the job, islands are filled one after the other.
    Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/utils/executors.py (Slurm's
    ``--segment`` for nodes of 4).
    """
    nodes = kind.island // kind.num_devices
    part = max((n for n in range(1, nodes + 1) if count % n == 0), default=1)
    return (
        replace(kind, island=part * kind.num_devices)
        if count > nodes > 1 and 2 * part >= nodes
        else kind
    )


def _append_merged(groups: list[NodeGroup], group: NodeGroup) -> None:
    """Append a node group, or add its count to the last group if both are equal otherwise."""
    if groups and replace(groups[-1], count=group.count) == group:
        groups[-1] = replace(group, count=groups[-1].count + group.count)
    else:
        groups.append(group)


def _quoted(text: str) -> str:
    """The text in quotes, cut to 60 characters."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _parse_count(text: str, *, term: str) -> int:
    """Parse a count from 1 to `MAX_DEVICES` (``_`` may group digits); ClusterError otherwise."""
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or int(digits[:18]) < 1:
        raise ClusterError(
            f"count {_quoted(text)} in {_quoted(term)} is not a positive whole number",
            hint="write NAME:COUNT, such as h100-sxm:64",
        )
    if len(digits) > 18 or int(digits) > MAX_DEVICES:
        raise ClusterError(
            f"count {_quoted(text)} in {_quoted(term)} is too large",
            hint=f"at most {MAX_DEVICES} devices",
        )
    return int(digits)


def _split_zone_and_price(term: str) -> tuple[str, str, float]:
    """Split ``NODES@ZONE/2usd`` into (nodes, zone, dollars per device-hour); empty, 0.0 if none."""
    rest, slash, price = term.partition("/")
    name, at, zone = rest.partition("@")
    if at and not _ZONE.fullmatch(zone.strip()):
        raise ClusterError(
            f"zone {_quoted(zone)} in {_quoted(term)} is no name",
            hint="letters, digits, dots and hyphens: h100-sxm:64@us-east-1",
        )
    dollars = _parse_number_with_unit(price, "usd", term=term) if slash else 0.0
    return name.strip(), zone.strip(), checked_price(dollars, what=_quoted(term)) if slash else 0.0


def _parse_number_with_unit(text: str, unit: str, *, term: str) -> float:
    """Parse ``2.5usd`` to 2.5, unconverted; ClusterError unless a number followed by `unit`."""
    found = _NUMBER.fullmatch(text.strip().lower().removesuffix(unit))
    if found is None or not text.strip().lower().endswith(unit):
        raise ClusterError(
            f"{_quoted(text)} in {_quoted(term)} is no number of {unit}", hint=f"such as 2.5{unit}"
        )
    return float(found.group())


def parse_links(texts: Iterable[str]) -> Iterator[ZoneLink]:
    """Yield the ZoneLinks of ``east~west=25gbps/60ms``; both directions unless both are written.

    A link counts for both directions, unless the texts have a link of the other direction too.
    """
    read = [_parse_link(text.strip()) for text in texts]
    written = {(one.source, one.target) for one in read}
    for one in read:
        yield one
        if (one.target, one.source) not in written:
            yield replace(one, source=one.target, target=one.source)


def _parse_link(text: str) -> ZoneLink:
    """Parse ``a~b=10gbps/30ms/0.02usd`` into the link from a to b only; ClusterError if wrong."""
    zones, equals, rest = text.partition("=")
    source, joined, target = (part.strip() for part in zones.partition("~"))
    if not (equals and joined and _ZONE.fullmatch(source) and _ZONE.fullmatch(target)):
        raise ClusterError(
            f"{_quoted(text)} is no link of two zones",
            hint="write ZONE~ZONE=10gbps/30ms/0.02usd behind the nodes",
        )
    rate, *more = rest.split("/")
    given = {
        unit: _parse_number_with_unit(part, unit, term=text)
        for part in more
        for unit in ("ms", "usd")
        if part.strip().lower().endswith(unit)
    }
    if len(given) < len(more):
        raise ClusterError(
            f"{_quoted(text)} says more than a link has", hint="10gbps, then /30ms and /0.02usd"
        )
    gigabits = _parse_number_with_unit(rate, "gbps", term=text)
    if not gigabits > 0.0:
        raise ClusterError(f"{_quoted(text)}: a link of {gigabits:g} Gbit/s", hint="10gbps")
    if "ms" not in given:
        raise ClusterError(
            f"{_quoted(text)} says no latency",
            hint=f"{source[:60]}~{target[:60]}={gigabits:g}gbps/30ms; 0ms where there is none",
        )
    link = Link(
        latency_s=given["ms"] / 1e3,
        bandwidth=gigabits * 1e9 / BITS_PER_BYTE,
        efficiency=1.0,
        origin=Origin(evidence=Evidence.ASSUMED, reference="given with the cluster"),
    )
    return ZoneLink(source=source, target=target, link=link, egress=given.get("usd", 0.0))


def _parse_term(term: str) -> tuple[NodeGroup, tuple[FabricTier, ...], Origin, str]:
    """(group, switch tiers, tiers' origin, note to user) of a term; () tiers unless published."""
    name, colon, rest = term.partition(":")
    name, nodes, count = name.strip(), None, _parse_count(rest, term=term) if colon else None
    times = _TIMES.fullmatch(name)
    if times is not None:
        if colon:
            raise ClusterError(
                f"{_quoted(term)} has its count twice", hint="write 8xh100-sxm, or h100-sxm:8"
            )
        name, inner = times[3], times[2] or times[1]
        count, nodes = (
            _parse_count(inner, term=term),
            _parse_count(times[1], term=term) if times[2] else None,
        )
    if nodes is not None and count is not None:
        return (
            _nodes_with_devices(name, nodes=nodes, devices=count, term=term),
            (),
            ONE_SWITCH,
            _ambiguity_note(name) if times else "",
        )
    published = find_published(name)
    if published is not None:
        origin = Origin(evidence=Evidence.PUBLISHED, reference=published.source)
        return *published_cluster(published, num_devices=count), origin, ""
    part = find_tpu_slice(name)
    if part is not None:
        return _tpu_slice_nodes(part, count=count or 1), (), ONE_SWITCH, part.note
    instance = find_instance(name)
    device = find_accelerator(name)
    if instance is None and device is None:
        raise _unknown_name_error(name)
    if count is None:
        raise ClusterError(f"{_quoted(name)} needs a count", hint=f"write {name[:60]}:8")
    if instance is not None:
        return NodeGroup(kind=instance, count=count), (), ONE_SWITCH, f"{name} counts instances"
    assert device is not None
    return (
        fill_nodes(default_node(device), num_devices=count, name=device.name),
        (),
        ONE_SWITCH,
        _ambiguity_note(name) if times else "",
    )


def _unknown_name_error(name: str) -> ClusterError:
    """Make the error for an unknown name, with the names that it may stand for as a hint."""
    begin = "-".join(driver_words(name))
    meant = [known for known in accelerator_names() if begin and known.startswith(f"{begin}-")]
    hint = f"say which: {' or '.join(meant)}" if meant else nearest(name[:60], cluster_names())
    return ClusterError(f"unknown accelerator, instance or cluster {_quoted(name)}", hint=hint)


def _ambiguity_note(name: str) -> str:
    """Note on the accelerator that a name like ``A100`` is read as; empty if unambiguous."""
    device = find_accelerator(name)
    begin = "-".join(driver_words(name))
    others = [
        known
        for known in accelerator_names()
        if known.startswith(f"{begin}-") and device is not None and known != device.name
    ]
    if device is None or not others or not device.name.startswith(f"{begin}-"):
        return ""
    return f"{name[:60]} is read as {device.name}; others: {', '.join(others)}"


def _nodes_with_devices(name: str, *, nodes: int, devices: int, term: str) -> NodeGroup:
    """`nodes` nodes of `devices` devices each; ClusterError over the default node or instance.

    An accelerator's node has at most as many devices as its default node.
    """
    instance, device = find_instance(name), find_accelerator(name)
    if instance is not None and instance.num_devices == devices:
        return NodeGroup(kind=instance, count=nodes)
    if (
        device is None
        and instance is None
        and find_published(name) is None
        and find_tpu_slice(name) is None
    ):
        raise _unknown_name_error(name)
    if device is None:
        raise ClusterError(
            f"{_quoted(term)}: nodes of {name[:60]!r} have their own number of devices",
            hint=f"write {name[:60]}:{nodes}",
        )
    kind = default_node(device)
    if devices > kind.num_devices:
        hint = (
            f"in a YAML file: nodes: [{{accelerator: {device.name}, count: {nodes},"
            f" devices_per_node: {devices}}}]"
        )
        raise ClusterError(
            f"{_quoted(term)}: the usual node of {device.name} has {kind.num_devices} devices",
            hint=hint,
        )
    kind = kind if devices == kind.num_devices else smaller_node(kind, num_devices=devices)
    return NodeGroup(kind=with_segment_islands(kind, count=nodes), count=nodes)


def _tpu_slice_nodes(part: TpuSlice, *, count: int) -> NodeGroup:
    """Node group of `count` equal TPU slices, each a scale-up domain of its own."""
    device = find_accelerator(part.accelerator)
    assert device is not None
    one = fill_nodes(default_node(device), num_devices=part.num_devices, name=device.name)
    return NodeGroup(kind=replace(one.kind, island=part.num_devices), count=one.count * count)
