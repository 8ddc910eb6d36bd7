"""Data of the view of communication: groups of each device, bytes that it sends, and all nodes."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePattern:
    """Device numbers as a strided pattern (`hardware.strided_device_list.DeviceList`).

    Args:
        first: the first device.
        levels: (count, step) of nested loops, outermost first; device numbers are the first one
            plus a multiple of each step.
        offsets: where there is no pattern, each device minus the first, with commas between.
    """

    first: int
    levels: tuple[tuple[int, int], ...]
    offsets: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """Bytes that one device sends to a group in a step, and the group.

    Args:
        device_class: place of the device's class in `CommunicationGroups.classes`.
        stage: pipeline stage of the device.
        device: first device of its class.
        kind: place of the kind of communication in `CommunicationGroups.kinds`.
        name: kind of communication in words.
        size: devices of the group.
        members: the group as text, such as ``0-7``.
        tier: outermost network tier that the bytes cross.
        level: number of that tier, innermost 0.
        sent_bytes: bytes over that tier in a step.
        inner_bytes: bytes over the innermost tier.
        exposed_s: seconds of the step in which the critical device waits for this kind of
            communication; None for other devices, and for all but the group with the most bytes.
        group: the group of this device.
    """

    device_class: int
    stage: str
    device: int
    kind: int
    name: str
    size: int
    members: str
    tier: str
    level: int
    sent_bytes: float
    inner_bytes: float
    exposed_s: float | None
    group: DevicePattern


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatingClass:
    """Devices with equal work, whose groups have one form.

    Args:
        shifts: True = a device's groups are those of the first device, shifted along their strides.
    """

    stage: str
    devices: DevicePattern
    shifts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualNodeRun:
    """Neighbouring nodes with equally many devices: their first device, devices each, and count."""

    first: int
    devices: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationGroups:
    """Communication groups of each device class, and their traffic in a step.

    Args:
        devices: devices of the cluster.
        kinds: kinds of communication, each of which has a colour.
        classes: device classes, in the order of their stages.
        groups: groups of the first device of each class.
        nodes: all nodes of the cluster.
        shown: place of the class whose first device the static picture shows: the critical one.
        slowest: group with the most bytes over the outermost tier that any group uses; None if no
            device sends anything.
        change: simulated change of the groups; None if none was simulated.
    """

    devices: int
    kinds: tuple[str, ...]
    classes: tuple[CommunicatingClass, ...]
    groups: tuple[GroupTraffic, ...]
    nodes: tuple[EqualNodeRun, ...]
    shown: int
    slowest: GroupTraffic | None
    change: SimulatedChange | None = None
