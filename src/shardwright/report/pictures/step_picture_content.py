"""The content of a simulated step's picture: timeline, memory and traffic by device class."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from shardwright.hardware.link_and_network_tier import Tier
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.step_trace import Span, StepTrace, Track
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.simulator.prediction import Prediction, StageMemory
from shardwright.simulator.traffic.device_traffic_by_group_and_tier import Traffic

COLOURS: Final = {
    "F": "#7fb2e5",
    "B": "#7cc47f",
    "I": "#f2c14e",
    "W": "#e58a6f",
    "R": "#b79ad9",
    "STEP": "#9aa5b1",
    "SEND_F": "#4a7fb5",
    "SEND_B": "#4c8f50",
    "GATHER": "#b0895a",
    "REDUCE": "#8c5a8c",
    "REDUCE_TIED": "#8c5a8c",
}
"""By kind of span."""
BUBBLE: Final = "#dddddd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """The simulated step of one device, which stands for `alike` equal devices.

    Args:
        runs: its layers, in words.
        compute: its actions and update in order.
        beside: messages, gathers and sums beside them.
        memory: as predicted, with the capacity of its devices.
        traffic: what it sends.
    """

    device: int
    alike: int
    runs: str
    compute: tuple[Span, ...]
    beside: tuple[Span, ...]
    memory: StageMemory
    traffic: tuple[Traffic, ...]

    @property
    def idle_s(self) -> float:
        """Seconds up to the device's last action in which the device computes nothing."""
        return max((s.end_s for s in self.compute), default=0.0) - sum(
            s.end_s - s.start_s for s in self.compute
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualNodes:
    """Neighbouring nodes with equal devices, and the timeline row of each device of a node.

    A row of -1 means that the device runs nothing.
    """

    first: int
    count: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """Everything that is drawn of a simulated step: rows, capacity, tiers and nodes.

    Args:
        cluster: as asked.
        end_s: end of the last span.
        step_s: the step, with jitter.
        rows: by device.
        capacity: bytes of a device.
        tiers: names of the network's tiers, innermost first.
        nodes: all of them, equal neighbours once.
    """

    cluster: str
    end_s: float
    step_s: float
    rows: tuple[TimelineRow, ...]
    capacity: int
    tiers: tuple[str, ...]
    nodes: tuple[EqualNodes, ...]


def step_picture(
    trace: StepTrace,
    prediction: Prediction,
    traffic: Sequence[tuple[Traffic, ...]],
    *,
    classes: Sequence[Sequence[int]],
    cluster: str,
    tiers: Sequence[Tier],
    node_sizes: Sequence[int],
) -> StepPicture:
    """Picture of a simulated step, a row a device class; `classes`: devices of each class.

    Args:
        trace: of the first device of each class.
        prediction, traffic, classes: of and by class; a class is its devices.
        node_sizes: devices of each node.
    """
    order = sorted(range(len(classes)), key=lambda k: classes[k][0])
    spans: dict[int, list[Span]] = {}
    for span in trace.spans:
        spans.setdefault(span.device, []).append(span)
    rows = []
    for k in order:
        device, memory = classes[k][0], prediction.stages[k]
        device_spans = spans.get(device, [])
        rows.append(
            TimelineRow(
                device=device,
                alike=len(classes[k]),
                runs=memory.layers,
                compute=tuple(s for s in device_spans if s.track is Track.COMPUTE),
                beside=tuple(s for s in device_spans if s.track is not Track.COMPUTE),
                memory=memory,
                traffic=traffic[k],
            )
        )
    return StepPicture(
        cluster=cluster,
        end_s=trace.end_s,
        step_s=trace.step_s,
        rows=tuple(rows),
        capacity=prediction.capacity_bytes,
        tiers=tuple(tier.name for tier in tiers),
        nodes=_nodes([classes[k] for k in order], node_sizes),
    )


def _nodes(classes: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[EqualNodes, ...]:
    """Runs of neighbouring nodes whose devices are in the same rows (`classes`: devices by row)."""
    row_of = {device: row for row, devices in enumerate(classes) for device in devices}
    first, rows_by_node = 0, []
    for size in sizes:
        rows_by_node.append(tuple(row_of.get(device, -1) for device in range(first, first + size)))
        first += size
    merged, at = [], 0
    for rows, several in groupby(rows_by_node):
        count = len(list(several))
        merged.append(EqualNodes(first=at, count=count, rows=rows))
        at += count
    return tuple(merged)


def capacity_bytes(step: StepPicture, row: TimelineRow) -> int:
    """Memory capacity in bytes of a row's devices: their own, else that of the whole step."""
    return row.memory.capacity_or(step.capacity)


def row_label(row: TimelineRow) -> str:
    """Label of a row: its device, the number of equal devices, and their kind if known."""
    count = f" (x{row.alike:,})" if row.alike > 1 else ""
    return f"{row.device}{count}{f' {row.memory.kind}' if row.memory.kind else ''}"


def nodes_label(nodes: EqualNodes) -> str:
    """Label of equal neighbouring nodes: ``node 3`` or ``nodes 0-7``."""
    return (
        f"node {nodes.first}"
        if nodes.count == 1
        else f"nodes {nodes.first}-{nodes.first + nodes.count - 1}"
    )


def group_text(group: DeviceList) -> str:
    """Text of a communication group: its device numbers and, in brackets, its size."""
    return f"{device_text(group.array)} ({len(group):,})"
