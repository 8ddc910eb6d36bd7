"""Contents of the report's view of communication: groups and bytes of each device class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shardwright.api.report.bubble_causes import IdleCause, IdlePieces
from shardwright.api.report.changes.find_fastest_simulated_change import (
    best_grid_change,
    best_option_change,
)
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import network_levels, node_group_numbers
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.report.page.view_data_types.communication_groups import (
    CommunicatingClass,
    CommunicationGroups,
    DevicePattern,
    EqualNodeRun,
    GroupTraffic,
)
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.simulator.step_breakdown import critical_class
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.simulator.traffic.device_traffic_by_group_and_tier import Traffic
from shardwright.strategy.grid.parallelism_grid import AXES, Grid
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import PICOSECONDS_PER_SECOND

MOST_CLASSES: Final = 24
"""Most device classes with groups in the report."""
_KINDS: Final = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "pp": "pipeline messages",
    "sharding": "data parallelism",
}
_AXES_OF_GROUPS: Final = ("tp", "cp", "ep", "order")
"""Words of a grid that decide which devices send to each other."""
_OPTIONS_OF_GROUPS: Final = ("tp_overlap", "collectives", "dispatcher")
"""Runtime options that decide how groups send: overlap, algorithms and the experts' transport."""


def communication_groups(
    step: SimulatedStep, pieces: IdlePieces, *, change: SimulatedChange | None = None
) -> CommunicationGroups:
    """Communication groups of the first classes, or of the critical alone: bytes and tiers.

    Args:
        pieces: idle stretches of the step.
    """
    cluster, classes = step.problem.cluster, step.simulated.program.classes
    critical = critical_class(step.simulated)
    order = sorted(range(len(classes)), key=lambda number: (classes[number].row, number))
    order = order[:MOST_CLASSES] if critical in order[:MOST_CLASSES] else [critical]
    traffic = plan_traffic(step.problem, step.simulated)
    kinds = [kind for kind in _KINDS if any(one.part == kind for row in traffic for one in row)]
    exposed = {
        **dict(step.prediction.breakdown_s),
        "pp": _waits_for_messages(pieces, critical),
    }
    groups = [
        group
        for place, number in enumerate(order)
        for group in _groups_of_class(
            step,
            place,
            number,
            traffic[number],
            kinds,
            exposed=exposed if number == critical else {},
        )
    ]
    regular = _is_regular(step.plan)
    return CommunicationGroups(
        devices=cluster.num_devices,
        kinds=tuple(_KINDS[kind] for kind in kinds),
        classes=tuple(
            CommunicatingClass(
                stage=f"stage {classes[number].row}",
                devices=device_pattern(classes[number].devices),
                shifts=regular,
            )
            for number in order
        ),
        groups=tuple(groups),
        nodes=_node_runs(cluster),
        shown=order.index(critical),
        slowest=max(groups, key=lambda group: (group.level, group.sent_bytes), default=None),
        change=change,
    )


def _waits_for_messages(pieces: IdlePieces, number: int) -> float:
    """Seconds in which a device of a class computes nothing because of pipeline messages."""
    waits = (pieces.klass == number) & (pieces.cause == int(IdleCause.MESSAGE))
    return int(pieces.duration[waits].sum()) / PICOSECONDS_PER_SECOND


def _groups_of_class(
    step: SimulatedStep,
    place: int,
    number: int,
    traffic: Sequence[Traffic],
    kinds: Sequence[str],
    *,
    exposed: dict[str, float],
) -> Iterator[GroupTraffic]:
    """Yield the groups of the first device of a class, by kind, those with most bytes first."""
    device_class = step.simulated.program.classes[number]
    device = device_class.devices.first
    group_number = int(node_group_numbers(step.problem.cluster, DeviceList.of([device]).array)[0])
    tiers = network_levels(step.problem.cluster, group_number)
    named: set[str] = set()
    for one in sorted(traffic, key=lambda t: (kinds.index(t.part), -max(t.sent))):
        level = max(tier for tier, sent in enumerate(one.sent) if sent)
        yield GroupTraffic(
            device_class=place,
            stage=f"stage {device_class.row}",
            device=device,
            kind=kinds.index(one.part),
            name=_KINDS[one.part],
            size=len(one.group),
            members=device_text(one.group.array),
            tier=tiers[min(level, len(tiers) - 1)].name,
            level=level,
            sent_bytes=one.sent[level],
            inner_bytes=one.sent[0],
            exposed_s=None if one.part in named else exposed.get(one.part),
            group=device_pattern(one.group),
        )
        named.add(one.part)


def device_pattern(devices: DeviceList) -> DevicePattern:
    """Pattern of a device list for the JSON: first device, levels, and offsets as text."""
    offsets = (devices.array - devices.first).tolist() if devices.offsets else []
    return DevicePattern(
        first=devices.first, levels=devices.levels, offsets=",".join(map(str, offsets))
    )


def _is_regular(plan: Plan) -> bool:
    """True if all cuts of a plan have equal parts, so that groups are shifted copies."""
    return all(
        _has_equal_parts(placement.split)
        for lane in plan.lanes
        for stage in lane.stages
        for placement in stage.placements
    )


def _has_equal_parts(split: Split | None) -> bool:
    """True if a tree of cuts has one stride at each level."""
    while split is not None:
        if not isinstance(split.step, int):
            return False
        split = split.children[0]
    return True


def _node_runs(cluster: Cluster) -> tuple[EqualNodeRun, ...]:
    """Runs of equal neighbouring nodes that together are the cluster's nodes."""
    runs, first = [], 0
    for group in cluster.groups:
        devices = group.kind.num_devices
        runs.append(EqualNodeRun(first=first, devices=devices, count=group.count))
        first += devices * group.count
    return tuple(runs)


def groups_change(
    saved: StoredSimulation, step: SimulatedStep, path: Path
) -> SimulatedChange | None:
    """Fastest fitting change of TP, CP, EP or axis order of a stored grid; None if there is none.

    Members of the space that differ in these axes alone, and that a search has ranked next, are
    simulated too. Of a general plan, the algorithms and overlap of collectives are changed.
    """
    if saved.grid is None:
        return best_option_change(saved, step, path, _OPTIONS_OF_GROUPS)
    ranked = saved.alternatives if isinstance(saved, StoredPlan) else ()
    texts = [_changed_words(saved.grid, alternative.grid) for alternative in ranked]
    words = [
        " ".join(text)
        for text in texts
        if text and all(word.startswith(_AXES_OF_GROUPS) for word in text)
    ]
    return best_grid_change(saved, step, path, dict.fromkeys([*words, *group_words(saved.grid)]))


def _changed_words(grid: Grid, changed: Grid) -> list[str]:
    """Words of a changed grid's notation that the grid's own has not."""
    own = print_grid(grid).split()
    return [word for word in print_grid(changed).split() if word not in own]


def group_words(grid: Grid) -> Iterator[str]:
    """Yield grid words: TP, CP or EP halved, and the usual orders of the axes that differ."""
    for axis in ("tp", "cp", "ep"):
        degree = getattr(grid, axis)
        if degree > 1:
            yield f"{axis}{degree // 2}"
    for order in (AXES, ("tp", "cp", "ep", "pp", "dp")):
        if order != grid.order:
            yield f"order={'-'.join(order)}"
