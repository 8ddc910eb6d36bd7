"""Data of the view of memory: items of each stage, the curve of the fullest stage, ways to save."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis, LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBytes:
    """An item of memory in words, with its bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemoryUse:
    """Memory of one device of a pipeline stage at its peak.

    Args:
        name: such as ``stage 3``.
        devices: number of devices with the same memory.
        layers: text such as ``embed + 7 layers``.
        kind: name of the devices' kind; empty if all kinds are the same.
        bytes_by_item: bytes of each of `MemoryByStage.items`; they add up to `reserved_bytes`.
        reserved_bytes: all bytes that the device holds for the program.
        share: `reserved_bytes` divided by `capacity_bytes`.
    """

    name: str
    devices: int
    layers: str
    kind: str
    bytes_by_item: tuple[int, ...]
    reserved_bytes: int
    capacity_bytes: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomChange:
    """A simulated or searched change that frees memory, with what it costs.

    Args:
        change: in the notation of strategies, such as ``recompute=full``; or in words.
        strategy: whole strategy after the change.
        step_s: seconds of its step.
        longer: fraction by which the step is longer; negative = it is shorter.
        reserved_bytes: memory of the fullest device.
        freed_bytes: bytes that the fullest device holds less.
        fits: True if every device and every node's host memory has room.
        searched: True = the best plan of the searched space under a limit of memory.
        command: command that repeats the simulation or search; empty where none can say it.
    """

    change: str
    strategy: str
    step_s: float
    longer: float
    reserved_bytes: int
    freed_bytes: int
    fits: bool
    searched: bool
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemoryUse:
    """Host memory of equal nodes for what their devices offload.

    Args:
        node: number of the first of the nodes.
        nodes: number of equal nodes.
        kind: name of the node's kind; empty if all nodes are the same.
        items: they add up to `needed_bytes`.
        capacity_bytes: bytes of a node's host memory; None = not stated.
    """

    node: int
    nodes: int
    kind: str
    items: tuple[NamedBytes, ...]
    needed_bytes: int
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByStage:
    """Memory of every stage against its capacity, over time for the fullest, and ways to save.

    Args:
        items: names of the items of memory, in the order of the bars from below.
        stages: in the order of the pipeline; of very many the fullest.
        stages_left_out: number of stages that are not in `stages`.
        fullest: number of the fullest stage in `stages`.
        largest: number of its largest item.
        axis: vertical axis of the bars.
        curve: memory of a device of the fullest stage over the step.
        fits: True if every device and every node's host memory has room.
        changes: changes that free memory, the shortest step first; those that fit come first.
        host: host memory of the nodes whose devices offload something.
    """

    items: tuple[str, ...]
    stages: tuple[StageMemoryUse, ...]
    stages_left_out: int
    fullest: int
    largest: int
    axis: ChartAxis
    curve: LineChart
    fits: bool
    changes: tuple[RoomChange, ...]
    host: tuple[HostMemoryUse, ...]
