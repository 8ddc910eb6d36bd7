"""Lower bounds of the host memory that members of a set need: what all devices offload, against what all nodes have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.cluster import Cluster
from shardwright.program.problem import Problem
from shardwright.search.grid.prepare import Prepared

_ROUNDED = 8.0
"""Bytes of a device that the exact sum loses at most where it rounds down, item by item."""


def drop_over_hosts(problem: Problem, prepared: Prepared, seconds: FloatArray) -> None:
    """Set to inf the `seconds` of members whose offloaded model states alone exceed the host memory of the nodes that they use.

        devices a stage x sum of blocks x (elements / shard) x bytes an element  >  nodes x host memory of a node

    Some node needs the mean of all or more, so a member whose sum is larger than all nodes together has a node that it does not fit in.
    Leaves out offloaded activations and what stages hold unlike each other: both only add.
    """
    choices, runtime = prepared.members.inner.choices, problem.runtime
    if not len(seconds) or not (choices.offload.any() or runtime.parameters_on_host):
        return
    room = _room(problem.cluster, prepared.members.meshes.devices)[prepared.members.outers.columns["mesh"]]
    if np.isinf(room).all():
        return
    for option in range(len(choices.zero_stage)):
        over = _least_bytes(problem, prepared, option) > room[:, None]
        for outers, offload, places in _members_of(prepared, option):
            seconds[places[over[outers, offload]]] = np.inf


def excess_over_hosts(problem: Problem, prepared: Prepared) -> FloatArray:
    """(members,) bytes by which what all devices offload exceeds the host memory of all nodes at least; negative = it does not."""
    room = _room(problem.cluster, prepared.members.meshes.devices)[prepared.members.outers.columns["mesh"]]
    result = np.zeros(int(prepared.members.start[-1]))
    for option in range(len(prepared.members.inner.choices.zero_stage)):
        least = _least_bytes(problem, prepared, option) - room[:, None]
        for outers, offload, places in _members_of(prepared, option):
            result[places] = least[outers, offload]
    return result


def _room(cluster: Cluster, devices: IntArray) -> FloatArray:
    """(n,) bytes of host memory of the nodes that the first so many devices lie in; inf where nobody says how much some node has."""
    kinds = [group.kind for group in cluster.groups for _ in range(group.count)] if len(cluster.groups) > 1 else []
    if not kinds:
        node = cluster.node
        nodes = -(-devices // node.num_devices)
        return np.where(node.host.memory_bytes > 0, nodes * float(node.host.memory_bytes), np.inf)
    ends = np.cumsum([kind.num_devices for kind in kinds])
    held = np.cumsum([float(kind.host.memory_bytes) or np.inf for kind in kinds])
    result: FloatArray = held[np.searchsorted(ends, devices, side="left")]
    return result


def _least_bytes(problem: Problem, prepared: Prepared, option: int) -> FloatArray:
    """(outers, offloads) bytes that all devices together offload at least under one ZeRO option."""
    runtime, sync = problem.runtime, prepared.meshes.sync
    members, choices = prepared.members, prepared.members.inner.choices
    zero, shard = int(choices.zero_stage[option]), int(choices.zero_shard[option])
    columns, meshes = members.outers.columns, members.meshes
    pp = meshes.columns["pp"][columns["mesh"]]
    trained, frozen = np.zeros((2, len(pp)))
    for (ranks, chunks), layout in prepared.layouts.items():
        here = np.flatnonzero((pp == ranks) & (columns["vpp"] == chunks))
        rows, counts = prepared.mesh_row[here] + shard, layout.by_rank.sum(axis=0)
        cut, of_experts = (sync.shard[rows], sync.expert_shard[rows]) if zero else (np.ones(len(rows)), np.ones(len(rows)))
        trained[here] = counts @ sync.dense[:, rows] / cut + counts @ sync.experts[:, rows] / of_experts
        frozen[here] = counts @ sync.frozen_dense[:, rows] / cut + counts @ sync.frozen_experts[:, rows] / of_experts
    share = choices.offload / 100.0
    each = trained[:, None] * share[None, :] * (problem.optimizer.state_bytes + runtime.host_gradient_bytes)
    if runtime.parameters_on_host and zero == 3:
        each += ((trained + frozen) * (problem.job.parameter.bits // 8))[:, None]
    each *= 1.0 + runtime.host_buffer_percent / 100.0
    devices = meshes.devices[columns["mesh"]]
    result: FloatArray = each * (devices / pp)[:, None] * (1.0 - 1e-9) - _ROUNDED * devices[:, None]
    return result


def _members_of(prepared: Prepared, option: int) -> Iterator[tuple[IntArray, int, IntArray]]:
    """(outers, offload option, places of their members) of a ZeRO option; an outer's members lie by ZeRO, recompute and offload."""
    members, inner = prepared.members, prepared.members.inner
    redos, offloads = inner.num_redos[inner.redo_key], len(inner.choices.offload)
    for key, listed in enumerate(inner.choices.zero_lists.tolist()):
        if option not in listed:
            continue
        outers = np.flatnonzero(inner.zero_key == key)
        for redo in range(int(redos[outers].max(initial=0))):
            some = outers[redos[outers] > redo]
            first = members.start[some] + (listed.index(option) * redos[some] + redo) * offloads
            for offload in range(offloads):
                yield some, offload, first + offload
