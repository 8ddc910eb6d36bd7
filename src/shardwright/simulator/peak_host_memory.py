"""Host memory that each node of a general plan needs, summed over the offloads of its devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.step.stage_action_seconds import StageCosts, kept_changes
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import group_ends
from shardwright.program.device_classes_with_equal_actions import DeviceClass
from shardwright.program.lowered_program import Program
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.simulator.prediction import HostMemory
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy

ACTIVATIONS = "activations"
"""Item of activations that stay in host memory from a microbatch's forward to its backward."""


def host_memory(problem: Problem, program: Program, costs: StageCosts) -> tuple[HostMemory, ...]:
    """Host memory of nodes with offloading devices, equal nodes merged, fullest first; () = none.

    A node needs the sum of its devices' own peaks, an upper bound as devices of one node may peak
    at different times. Left out: host memory of a process itself (its Python, its libraries, the
    driver's context), the data loader, and the page cache.
    """
    if not may_offload(problem.runtime, program.plan):
        return ()
    devices_and_items = [
        (device_class.devices, items)
        for device_class in program.classes
        if (items := _offloaded_bytes(program, costs, device_class))
    ]
    if not devices_and_items:
        return ()
    names = list(dict.fromkeys(name for _, items in devices_and_items for name in items))
    bytes_of_nodes, offloading_devices = _bytes_by_node(problem.cluster, devices_and_items, names)
    return _merge_equal_nodes(problem.cluster, names, bytes_of_nodes, offloading_devices)


def may_offload(runtime: Runtime, plan: Plan) -> bool:
    """True if a plan or the runtime may keep anything in host memory.

    Otherwise the plan's devices need not be examined.
    """
    if runtime.parameters_on_host or runtime.checkpoints_on_host or runtime.host_outputs:
        return True
    keeps = {keep.how for lane in plan.lanes for stage in lane.stages for keep in stage.keeps}
    return ActivationPolicy.HOST in keeps or bool(
        {share for rule in plan.shards for share in rule.host}
    )


def _offloaded_bytes(
    program: Program, costs: StageCosts, device_class: DeviceClass
) -> dict[str, int]:
    """Peak bytes in host memory of one device of a class by item, without empty items."""
    items: dict[str, int] = {}
    for place in device_class.families:
        for name, values in costs.families[place].slices[0].host_bytes:
            items[name] = items.get(name, 0) + int(values[0])
    if any(
        step.host_saved_bytes.any()
        for place in device_class.families
        for step in costs.families[place].slices
    ):
        changes = kept_changes(
            program, costs, device_class, kept_by="host_saved_bytes", again_by=""
        )
        items[ACTIVATIONS] = int(np.cumsum(changes).max(initial=0))
    return {name: size for name, size in items.items() if size}


def _bytes_by_node(
    cluster: Cluster,
    devices_and_items: Sequence[tuple[Sequence[int], dict[str, int]]],
    names: list[str],
) -> tuple[IntArray, IntArray]:
    """(nodes, items) offloaded bytes, items as `names`; (nodes,) number of devices that offload."""
    nodes = sum(group.count for group in cluster.groups)
    bytes_of_nodes, offloading_devices = (
        np.zeros((nodes, len(names)), dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
    )
    for devices, items in devices_and_items:
        count = np.bincount(nodes_of(cluster, np.array(devices, dtype=np.int64)), minlength=nodes)
        offloading_devices += count
        bytes_of_nodes += count[:, None] * np.array(
            [items.get(name, 0) for name in names], dtype=np.int64
        )
    return bytes_of_nodes, offloading_devices


def nodes_of(cluster: Cluster, devices: IntArray) -> IntArray:
    """(devices,) node number of each device; nodes are numbered group by group."""
    ends = np.array(group_ends(cluster), dtype=np.int64)
    group = np.searchsorted(ends, devices, side="right")
    sizes = np.array([node_group.kind.num_devices for node_group in cluster.groups], dtype=np.int64)
    counts = np.array([node_group.count for node_group in cluster.groups], dtype=np.int64)
    first_device, first_node = ends - sizes * counts, np.cumsum(counts) - counts
    nodes: IntArray = first_node[group] + (devices - first_device[group]) // sizes[group]
    return nodes


def _merge_equal_nodes(
    cluster: Cluster, names: list[str], bytes_of_nodes: IntArray, offloading_devices: IntArray
) -> tuple[HostMemory, ...]:
    """Merge nodes of one group with equal bytes, the fullest share of host memory first."""
    group = np.repeat(
        np.arange(len(cluster.groups)), [node_group.count for node_group in cluster.groups]
    )
    rows = np.concatenate([group[:, None], offloading_devices[:, None], bytes_of_nodes], axis=1)
    used = np.flatnonzero(offloading_devices)
    distinct, first_place, count = np.unique(
        rows[used], axis=0, return_index=True, return_counts=True
    )
    entries = []
    for row, place, number in zip(
        distinct.tolist(), used[first_place].tolist(), count.tolist(), strict=True
    ):
        kind = cluster.groups[row[0]].kind
        entries.append(
            HostMemory(
                node=place,
                nodes=number,
                devices=row[1],
                kind="" if cluster.is_uniform else kind.name,
                items=tuple(
                    (name, size) for name, size in zip(names, row[2:], strict=True) if size
                ),
                need=sum(row[2:]),
                capacity=kind.host.memory_bytes,
            )
        )
    return tuple(
        sorted(
            entries,
            key=lambda memory: (
                -(memory.need / memory.capacity if memory.capacity else 0.0),
                memory.node,
            ),
        )
    )
