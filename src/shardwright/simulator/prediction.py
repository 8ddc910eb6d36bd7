"""The prediction of one strategy as data: time, memory, parts, sources and interval."""

from __future__ import annotations

from shardwright.cost.step.dollars_and_joules import Spending
from shardwright.hardware.accelerator import Origin
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import format_bytes

OUTSIDE = ("communication", "context")
"""Items of a stage's memory outside the framework's caching allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory in bytes of one device of a pipeline rank, by item.

    Args:
        rank: pipeline rank.
        devices: number of devices with the same memory.
        layers: text such as ``embed + 7 layers``.
        kind: name of these devices' kind, as in `KindTimes`; empty if all kinds are the same.
        items: (name, bytes): parameters, gradients, optimizer, workspace, activations, logits and
            temporary, which are allocated at the peak; fragmentation, which the allocator holds
            beyond them; communication and context, outside the allocator.
        allocated: peak of the bytes that are allocated at once.
        reserved: all bytes that the device holds for the program, the sum of the items.
        capacity: memory bytes of these devices in a mixed cluster (0 = the prediction's capacity).
    """

    rank: int
    devices: int
    layers: str
    items: tuple[tuple[str, int], ...]
    allocated: int
    reserved: int
    capacity: int = 0
    kind: str = ""

    @property
    def allocator_bytes(self) -> int:
        """Bytes that PyTorch's caching allocator reserves: `reserved` less the items outside it."""
        return self.reserved - sum(size for name, size in self.items if name in OUTSIDE)

    def capacity_or(self, capacity: int) -> int:
        """Memory bytes of these devices: their own in a mixed cluster, else the given ones."""
        return self.capacity or capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory in bytes that a plan needs in one node, summed over the node's devices.

    Args:
        node: number of the first of the equal nodes, from 0.
        nodes: number of equal nodes.
        devices: number of the node's devices that offload something.
        kind: name of the node's kind; empty if all nodes are the same.
        items: (name, bytes): optimizer (states), gradients (the copy with which the host updates),
            parameters, buffers, which live through the step, and activations at their peak.
        need: the sum of the items.
        capacity: bytes of the node's host memory; 0 = not stated, and every need fits.
    """

    node: int
    nodes: int
    devices: int
    kind: str
    items: tuple[tuple[str, int], ...]
    need: int
    capacity: int

    @property
    def lacking(self) -> int:
        """Bytes by which the need exceeds the capacity; 0 if it fits or has no limit."""
        return max(self.need - self.capacity, 0) if self.capacity else 0


def host_lack(hosts: tuple[HostMemory, ...]) -> str:
    """Text of the node with most missing host memory: bytes, largest item; empty if all fit.

    Empty if all fit. For example ``the host memory of each of 4 nodes by 198.8 GiB (needs 262.8
    GiB, 197.1 GiB of it optimizer; has 64.00 GiB)``.
    """
    host = max(hosts, key=lambda memory: memory.lacking, default=None)
    if host is None or not host.lacking:
        return ""
    name, largest_bytes = max(host.items, key=lambda name_and_bytes: name_and_bytes[1])
    nodes = f"node {host.node}" if host.nodes == 1 else f"each of {host.nodes:,} nodes"
    kind = f" of {host.kind}" if host.kind else ""
    need, room = format_bytes(host.need), format_bytes(host.capacity)
    return (
        f"the host memory of {nodes}{kind} by {format_bytes(host.lacking)} (needs {need},"
        f" {format_bytes(largest_bytes)} of it {name}; has {room})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTimes:
    """Busy and waiting seconds of the mean device of a kind, on a cluster of several kinds.

    Args:
        name: name of the accelerator, and its zone if there are several.
        devices: number of devices of the kind that are in a stage.
        busy_s: seconds in which its compute stream runs something.
        waits_s: (cause, seconds) of the remaining seconds: a kind that computes meanwhile, or the
            links; jitter left out.
    """

    name: str
    devices: int
    busy_s: float
    waits_s: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason for a wider prediction interval, and its share (0 to 1) in this prediction."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A number that the prediction used, as text, with its origin."""

    quantity: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameter counts of the planned model, by which a reader can notice a wrong model.

    Args:
        name: the model's own name.
        parameters: all stored parameters.
        active: parameters with which one token is multiplied.
        trainable: parameters with a gradient.
        unread: fields of the model's configuration that nothing reads.
    """

    name: str
    parameters: int
    active: int
    trainable: int
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted time and memory of one training step.

    Args:
        model: parameter counts of the planned model.
        cluster: text of its devices, nodes and scale-up domains.
        step_time_s: seconds.
        interval_s: 80 % interval (low, high).
        devices: number of devices of the plan.
        idle_devices: number of devices of the cluster that the plan leaves idle.
        tokens_per_s, tokens_per_s_per_device: text tokens a second, of the plan and per device of
            it.
        mfu_causal, mfu_full: model FLOPs over peak, counting the scores under the mask, or the full
            square.
        allocated_bytes, reserved_bytes: memory of the fullest device.
        capacity_bytes: bytes that a device has for the program.
        fits: True if every device has room for all its bytes, and every node's host memory for the
            bytes that its devices offload.
        full_bytes: reserved bytes of the fullest device if all parameters were trained; 0 = they
            are.
        stages: memory of each pipeline rank.
        host_memory: host memory of nodes with offloading devices, the fullest first.
        breakdown_s: (name, seconds) of the parts of the critical device's step, which add up to it.
        sources: numbers that the prediction used.
        doubts: reasons that widen the interval.
        kinds: times of each kind of device, if the cluster has several.
        spending: dollars and joules of a step.
    """

    model: Counted
    cluster: str
    step_time_s: float
    interval_s: tuple[float, float]
    devices: int
    idle_devices: int
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu_causal: float
    mfu_full: float
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    full_bytes: int
    fits: bool
    stages: tuple[StageMemory, ...]
    breakdown_s: tuple[tuple[str, float], ...]
    sources: tuple[Source, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    kinds: tuple[KindTimes, ...] = ()
    spending: Spending | None = None
    host_memory: tuple[HostMemory, ...] = ()
