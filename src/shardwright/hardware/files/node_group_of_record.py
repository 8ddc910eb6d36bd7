"""Node group that an entry of a cluster file's nodes describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import (
    accelerator,
    accelerator_names,
    find_accelerator,
    name_key,
)
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster import Host, NodeGroup, NodeKind, NodeTier
from shardwright.hardware.files.cluster_schema import HostRecord, NodesRecord, NodeTierRecord
from shardwright.hardware.files.record_values import (
    FROM_FILE,
    dataclass_fields,
    link_of_record,
    origin_of_record,
)
from shardwright.hardware.zone_link_record_and_price_checks import checked_price


def _host(record: HostRecord | None, base: Host, *, path: str) -> Host:
    """`base` with the values that a host's record sets."""
    if record is None:
        return base
    assumed = base.origin if record.memory_gib is None else None
    origin = origin_of_record(record.origin, otherwise=FROM_FILE) if record.origin else assumed
    return replace(
        base,
        **dataclass_fields(record, Host),
        pcie=link_of_record(record.pcie, base.pcie, path=f"{path}.pcie"),
        origin=origin,
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


def node_group_of_record(
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
        scale_up=link_of_record(record.scale_up, base.scale_up, path=f"{path}.scale_up"),
        nics=nics,
        nic=link_of_record(record.nic, base.nic, path=f"{path}.nic"),
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
        link = link_of_record(record, base, path=f"{path}.{index}")
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
