"""Lower bounds of the host memory of grids: the bytes that all devices offload, against the
memory of all nodes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.cluster import Cluster
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import Prepared

Array = TypeVar("Array", bound=np.ndarray[Any, Any])
_ROUNDED = 8.0
"""Bytes of a device that the exact sum loses at most where it rounds down, item by item."""


def drop_over_hosts(problem: Problem, prepared: Prepared, seconds: FloatArray) -> None:
    """Set to inf the `seconds` of members whose offloaded model states alone exceed the host memory
    of the nodes that they use.

        devices a stage x sum of blocks x (elements / shard) x bytes an element
            >  nodes x host memory of a node

    Some node needs the mean of all or more, so a member whose sum is larger than all nodes together
    has a node that it does not fit in. Leaves out offloaded activations and what stages hold unlike
    each other: both only add.
    """
    offloads = prepared.members.inner.choices.offload
    if not len(seconds) or not (offloads.any() or problem.runtime.parameters_on_host):
        return
    room = _room(problem.cluster, prepared.members.meshes.devices)[
        prepared.members.outers.columns["mesh"]
    ]
    if np.isinf(room).all():
        return
    least, of_option = _least_bytes(problem, prepared)
    seconds[_by_member(prepared, least > room[:, None], of_option)] = np.inf


def excess_over_hosts(problem: Problem, prepared: Prepared) -> FloatArray:
    """(members,) lower bound of the bytes by which the offloaded data of all devices exceeds the
    host memory of all nodes; negative = it fits.
    """
    room = _room(problem.cluster, prepared.members.meshes.devices)[
        prepared.members.outers.columns["mesh"]
    ]
    least, of_option = _least_bytes(problem, prepared)
    result: FloatArray = _by_member(prepared, least - room[:, None], of_option)
    return result


def _room(cluster: Cluster, devices: IntArray) -> FloatArray:
    """(n,) bytes of host memory of the nodes that hold the first `devices` devices; inf where
    the memory of some node is unknown.
    """
    kinds = (
        [group.kind for group in cluster.groups for _ in range(group.count)]
        if len(cluster.groups) > 1
        else []
    )
    if not kinds:
        node = cluster.node
        nodes = -(-devices // node.num_devices)
        return np.where(node.host.memory_bytes > 0, nodes * float(node.host.memory_bytes), np.inf)
    ends = np.cumsum([kind.num_devices for kind in kinds])
    held = np.cumsum([float(kind.host.memory_bytes) or np.inf for kind in kinds])
    result: FloatArray = held[np.searchsorted(ends, devices, side="left")]
    return result


def _least_bytes(problem: Problem, prepared: Prepared) -> tuple[FloatArray, IntArray]:
    """(g, outers, offloads) lower bound of the bytes that all devices offload, under each of g
    groups of ZeRO options that offload alike; and (options,) the group of each.
    """
    runtime, members, choices = problem.runtime, prepared.members, prepared.members.inner.choices
    mesh, sync, rows = members.outers.columns["mesh"], prepared.meshes.sync, prepared.mesh_row
    pp, devices = (
        members.meshes.columns["pp"][mesh],
        members.meshes.devices[mesh].astype(np.float64),
    )
    numbers: dict[tuple[bool, int, bool], int] = {}
    of_option = [
        numbers.setdefault(
            (stage > 0, shard if stage else 0, stage == 3 and runtime.parameters_on_host),
            len(numbers),
        )
        for stage, shard in zip(
            choices.zero_stage.tolist(), choices.zero_shard.tolist(), strict=True
        )
    ]
    trained, frozen = _elements(prepared, _counts(prepared, pp), frozen=runtime.parameters_on_host)
    share = choices.offload / 100.0 * (problem.optimizer.state_bytes + runtime.host_gradient_bytes)
    factor = devices / pp * (1.0 + runtime.host_buffer_percent / 100.0) * (1.0 - 1e-9)
    result = np.empty((len(numbers), len(mesh), len(share)))
    for (is_cut, shard, on_host), number in numbers.items():
        cuts = (sync.shard[rows + shard], sync.expert_shard[rows + shard]) if is_cut else (1.0, 1.0)
        result[number] = ((trained[0] / cuts[0] + trained[1] / cuts[1]) * factor)[:, None] * share
        if on_host:
            every = (trained[0] + frozen[0]) / cuts[0] + (trained[1] + frozen[1]) / cuts[1]
            result[number] += (every * factor * (problem.job.parameter.bits // 8))[:, None]
    return result - _ROUNDED * devices[:, None], np.array(of_option, dtype=np.int64)


def _counts(prepared: Prepared, pp: IntArray) -> IntArray:
    """(outers, blocks) number of each block in the pipeline of each outer."""
    vpp = prepared.members.outers.columns["vpp"]
    width = int(vpp.max()) + 1
    known, place = np.unique(pp * width + vpp, return_inverse=True)
    layouts = [prepared.layouts[divmod(code, width)] for code in known.tolist()]
    of_pipeline = np.array([np.add.reduce(layout.by_rank) for layout in layouts], dtype=np.int64)
    result: IntArray = of_pipeline[place.reshape(-1)]
    return result


def _elements(
    prepared: Prepared, counts: IntArray, *, frozen: bool
) -> tuple[FloatArray, FloatArray]:
    """(2, outers) trained elements, dense and of experts, of one device of each stage, summed over
    the stages; and frozen ones.
    """
    sync, rows = prepared.meshes.sync, prepared.mesh_row
    columns = [
        sync.dense,
        sync.experts,
        *((sync.frozen_dense, sync.frozen_experts) if frozen else ()),
    ]
    sums = np.array(
        [(counts.T * column[:, rows]).sum(axis=0) for column in columns], dtype=np.float64
    )
    return sums[:2], sums[2:] if frozen else np.zeros((2, 1))


def _by_member(prepared: Prepared, values: Array, of_option: IntArray) -> Array:
    """(members,) the (g, outers, offloads) values of each member's outer, ZeRO option's group and
    offload option.

    An outer's members lie by ZeRO, recompute and offload, from `members.start` on.
    """
    inner = prepared.members.inner
    listed = inner.choices.zero_lists[inner.zero_key]
    outers, turns = np.nonzero(listed >= 0)
    rows = values[of_option[listed[outers, turns]], outers]
    result: Array = np.repeat(rows, inner.num_redos[inner.redo_key[outers]], axis=0).reshape(-1)  # type: ignore[assignment]
    return result
