"""Host memory that each node of a general plan needs: what its devices offload, added up over the
devices of the node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.step.stage_costs import StageCosts
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.graph import group_ends
from shardwright.program.problem import Problem
from shardwright.program.program import DeviceClass, Program
from shardwright.runtime.runtime import Runtime
from shardwright.simulator.device_memory import kept_changes
from shardwright.simulator.prediction import HostMemory
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stages import ActivationPolicy

ACTIVATIONS = "activations"
"""The item of activations that wait in host memory from a microbatch's forward to its backward."""


def host_memory(problem: Problem, program: Program, costs: StageCosts) -> tuple[HostMemory, ...]:
    """Host memory of the nodes whose devices offload something, nodes that look the same together,
    the fullest first.

    A node needs the sum over its devices of each device's own peak: devices of one node do not peak
    later than the sum says. Left out: what a process takes in host memory by itself (its Python,
    its libraries, the driver's context), the data loader, and the page cache.
    """
    if not may_offload(problem.runtime, program.plan):
        return ()
    found = [
        (one.devices, items)
        for one in program.classes
        if (items := _class_bytes(program, costs, one))
    ]
    if not found:
        return ()
    names = list(dict.fromkeys(name for _, items in found for name in items))
    held, working = _by_node(problem.cluster, found, names)
    return _alike(problem.cluster, names, held, working)


def may_offload(runtime: Runtime, plan: Plan) -> bool:
    """Whether a plan, or what the runtime does by itself, keeps anything in host memory: most do
    not, and need no look at their devices.
    """
    if runtime.parameters_on_host or runtime.checkpoints_on_host or runtime.host_outputs:
        return True
    keeps = {keep.how for lane in plan.lanes for stage in lane.stages for keep in stage.keeps}
    return ActivationPolicy.HOST in keeps or bool(
        {share for rule in plan.shards for share in rule.host}
    )


def _class_bytes(program: Program, costs: StageCosts, device_class: DeviceClass) -> dict[str, int]:
    """Bytes in host memory of one device of a class, by item; items of zero bytes are left out."""
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


def _by_node(
    cluster: Cluster, found: Sequence[tuple[Sequence[int], dict[str, int]]], names: list[str]
) -> tuple[IntArray, IntArray]:
    """(nodes, items) bytes, and (nodes,) devices that offload something."""
    nodes = sum(group.count for group in cluster.groups)
    held, working = np.zeros((nodes, len(names)), dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    for devices, items in found:
        count = np.bincount(nodes_of(cluster, np.array(devices, dtype=np.int64)), minlength=nodes)
        working += count
        held += count[:, None] * np.array([items.get(name, 0) for name in names], dtype=np.int64)
    return held, working


def nodes_of(cluster: Cluster, devices: IntArray) -> IntArray:
    """The number of the node that each device is in; nodes are numbered as devices are, group by
    group.
    """
    ends = np.array(group_ends(cluster), dtype=np.int64)
    group = np.searchsorted(ends, devices, side="right")
    sizes = np.array([one.kind.num_devices for one in cluster.groups], dtype=np.int64)
    counts = np.array([one.count for one in cluster.groups], dtype=np.int64)
    first_device, first_node = ends - sizes * counts, np.cumsum(counts) - counts
    result: IntArray = first_node[group] + (devices - first_device[group]) // sizes[group]
    return result


def _alike(
    cluster: Cluster, names: list[str], held: IntArray, working: IntArray
) -> tuple[HostMemory, ...]:
    """One entry for nodes of one group with equal bytes, those that fill the largest share of their
    host memory first.
    """
    group = np.repeat(np.arange(len(cluster.groups)), [one.count for one in cluster.groups])
    rows = np.concatenate([group[:, None], working[:, None], held], axis=1)
    used = np.flatnonzero(working)
    distinct, first, count = np.unique(rows[used], axis=0, return_index=True, return_counts=True)
    found = []
    for row, place, number in zip(
        distinct.tolist(), used[first].tolist(), count.tolist(), strict=True
    ):
        kind = cluster.groups[row[0]].kind
        found.append(
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
            found, key=lambda one: (-(one.need / one.capacity if one.capacity else 0.0), one.node)
        )
    )
