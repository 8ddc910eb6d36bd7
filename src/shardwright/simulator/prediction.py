"""The prediction of one strategy: its time, memory, parts, sources and interval as data."""

from __future__ import annotations

from shardwright.cost.step.dollars_and_joules import Spending
from shardwright.hardware.accelerator import Origin
from shardwright.lazy_dataclass import dataclass
from shardwright.units import format_bytes

OUTSIDE = ("communication", "context")
"""Items of a stage's memory that its framework's allocator does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one device of a pipeline rank, in bytes.

    Args:
        rank: pipeline rank.
        devices: number of devices that look the same.
        layers: text such as ``embed + 7 layers``.
        kind: name of these devices' kind where kinds differ, as in `KindTimes`; empty = they do
            not.
        items: (name, bytes): parameters, gradients, optimizer, workspace, activations, logits and
            temporary, which are allocated at the peak; fragmentation, which the allocator holds
            beyond them; communication and context, outside of it.
        allocated: peak of the bytes that are allocated at once.
        reserved: all bytes that the device holds for the program, the sum of the items.
        capacity: bytes that these devices have, where devices differ (0 = the prediction's).
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
        """Bytes that the caching allocator holds (torch's reserved): all but the items outside of
        it.
        """
        return self.reserved - sum(size for name, size in self.items if name in OUTSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory that a plan needs in one node, in bytes: the sum over the node's devices of the
    bytes that each offloads.

    Args:
        node: the first of the nodes that look the same, counted from 0.
        nodes: number of nodes that look the same.
        devices: devices of the node that offload something.
        kind: name of the node's kind where nodes differ; empty = they do not.
        items: (name, bytes): optimizer (states), gradients (the copy that the host updates with),
            parameters, buffers, which live through the step, and activations at their peak.
        need: the sum of the items.
        capacity: bytes of the node's host memory; 0 = not stated, and no need is too much.
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
        """Bytes by which the need exceeds the capacity; 0 = it fits."""
        return max(self.need - self.capacity, 0) if self.capacity else 0


def host_lack(hosts: tuple[HostMemory, ...]) -> str:
    """Text of the nodes whose host memory does not fit, by how much and for which item; empty = all
    fit.

    ``the host memory of each of 4 nodes by 198.8 GiB (needs 262.8 GiB, 197.1 GiB of it optimizer;
    has 64.00 GiB)``
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
        name: name of the accelerator, and its zone where there are several.
        devices: devices of the kind that are in a stage.
        busy_s: seconds in which its compute stream runs something.
        waits_s: (cause, seconds) of the rest: a kind that computes meanwhile, or the links; jitter
            left out.
    """

    name: str
    devices: int
    busy_s: float
    waits_s: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One reason for a wider interval, and how much of it (0 to 1) a prediction has."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Origin of a number that went into the prediction."""

    quantity: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameter counts of the model that was planned, so that a wrong model is noticed.

    Args:
        name: the model's own name, whatever it was called by.
        parameters: all that are stored.
        active: those that one token multiplies with.
        trainable: those with a gradient.
        unread: fields of its configuration that nothing reads.
    """

    name: str
    parameters: int
    active: int
    trainable: int
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time and memory of one step.

    Args:
        model: the model that was planned.
        cluster: its devices, nodes and scale-up domains in words.
        step_time_s: seconds.
        interval_s: 80 % interval (low, high).
        devices: devices of the plan.
        idle_devices: devices of the cluster that the plan leaves idle.
        tokens_per_s, tokens_per_s_per_device: of text tokens, a device of the plan.
        mfu_causal, mfu_full: model FLOPs over peak, counting the scores under the mask, or the full
            square.
        allocated_bytes, reserved_bytes: worst device.
        capacity_bytes: bytes that a device has for the program.
        fits: every device has room for all its bytes, and every node's host memory for the bytes
            that its devices offload.
        full_bytes: reserved by the fullest device where all parameters are trained; 0 = they are.
        stages: one a pipeline rank.
        host_memory: of nodes whose devices offload something, the fullest first.
        breakdown_s: (name, seconds) of the critical device, tiling the step.
        sources: numbers behind it.
        doubts: reasons that widen its interval.
        kinds: of the devices in a stage, where the cluster has several.
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
