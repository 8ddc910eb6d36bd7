"""Lower bounds of host memory: bytes that all devices offload, against the memory of all nodes."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.cluster import Cluster
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.member_price_tables import Prepared

Array = TypeVar("Array", bound=np.ndarray[Any, Any])
_ROUNDED = 8.0
"""Most bytes of a device that the exact sum loses by rounding down each item."""


def rule_out_over_hosts(problem: Problem, prepared: Prepared, seconds: FloatArray) -> None:
    """Set `seconds` to inf for members whose offloaded states exceed their nodes' host memory.

        devices a stage x sum of blocks x (elements / shard) x bytes an element
            >  nodes x host memory of a node

    Some node needs the mean over nodes or more. So a member whose total exceeds the memory of all
    nodes together has a node in which it does not fit. Offloaded activations and differences
    between stages are left out: both only add.
    """
    offloads = prepared.members.inner.choices.offload
    if not len(seconds) or not (offloads.any() or problem.runtime.parameters_on_host):
        return
    if np.isfinite(_host_memory(problem.cluster, prepared.members.meshes.devices)).any():
        excess, group_of_option = _offload_excess_by_outer(problem, prepared)
        # Most spaces have no member that is ruled out: the check of each member takes longer.
        if (excess > 0.0).any():
            seconds[_by_member(prepared, excess > 0.0, group_of_option)] = np.inf


def excess_over_hosts(problem: Problem, prepared: Prepared) -> FloatArray:
    """(members,) lower bound of offloaded bytes beyond all host memory; negative = fits."""
    result: FloatArray = _by_member(prepared, *_offload_excess_by_outer(problem, prepared))
    return result


def _offload_excess_by_outer(problem: Problem, prepared: Prepared) -> tuple[FloatArray, IntArray]:
    """Offloaded less host bytes by (ZeRO group, row of `outers`, offload); ZeRO options' groups."""
    room = _host_memory(problem.cluster, prepared.members.meshes.devices)[
        prepared.members.outers.columns["mesh"]
    ]
    least, group_of_option = _offloaded_bytes(problem, prepared)
    return least - room[:, None], group_of_option


def _host_memory(cluster: Cluster, devices: IntArray) -> FloatArray:
    """(n,) host memory bytes of the nodes of the first `devices` devices; inf if unknown."""
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
    total_bytes = np.cumsum([float(kind.host.memory_bytes) or np.inf for kind in kinds])
    result: FloatArray = total_bytes[np.searchsorted(ends, devices, side="left")]
    return result


def _offloaded_bytes(problem: Problem, prepared: Prepared) -> tuple[FloatArray, IntArray]:
    """Least offloaded bytes by (ZeRO group, row of `outers`, offload); ZeRO options' groups.

    A ZeRO group is a set of ZeRO options with the same offloaded bytes.
    """
    runtime, members, choices = problem.runtime, prepared.members, prepared.members.inner.choices
    mesh, sync, rows = members.outers.columns["mesh"], prepared.meshes.sync, prepared.mesh_row
    pp, devices = (
        members.meshes.columns["pp"][mesh],
        members.meshes.devices[mesh].astype(np.float64),
    )
    numbers: dict[tuple[bool, int, bool], int] = {}
    group_of_option = [
        numbers.setdefault(
            (stage > 0, shard if stage else 0, stage == 3 and runtime.parameters_on_host),
            len(numbers),
        )
        for stage, shard in zip(
            choices.zero_stage.tolist(), choices.zero_shard.tolist(), strict=True
        )
    ]
    trained, frozen = _state_elements(
        prepared, _block_counts(prepared, pp), frozen=runtime.parameters_on_host
    )
    share = choices.offload / 100.0 * (problem.optimizer.state_bytes + runtime.host_gradient_bytes)
    factor = devices / pp * (1.0 + runtime.host_buffer_percent / 100.0) * (1.0 - 1e-9)
    result = np.empty((len(numbers), len(mesh), len(share)))
    for (is_sharded, shard, on_host), number in numbers.items():
        cuts = (
            (sync.shard[rows + shard], sync.expert_shard[rows + shard])
            if is_sharded
            else (1.0, 1.0)
        )
        result[number] = ((trained[0] / cuts[0] + trained[1] / cuts[1]) * factor)[:, None] * share
        if on_host:
            all_elements = (trained[0] + frozen[0]) / cuts[0] + (trained[1] + frozen[1]) / cuts[1]
            result[number] += (all_elements * factor * (problem.job.parameter.bits // 8))[:, None]
    return result - _ROUNDED * devices[:, None], np.array(group_of_option, dtype=np.int64)


def _block_counts(prepared: Prepared, pp: IntArray) -> IntArray:
    """(outers, blocks) number of blocks of each kind in each outer's pipeline."""
    vpp = prepared.members.outers.columns["vpp"]
    width = int(vpp.max()) + 1
    pipelines, place = np.unique(pp * width + vpp, return_inverse=True)
    layouts = [prepared.layouts[divmod(code, width)] for code in pipelines.tolist()]
    of_pipeline = np.array([np.add.reduce(layout.by_rank) for layout in layouts], dtype=np.int64)
    result: IntArray = of_pipeline[place.reshape(-1)]
    return result


def _state_elements(
    prepared: Prepared, counts: IntArray, *, frozen: bool
) -> tuple[FloatArray, FloatArray]:
    """(2, outers) trained dense and expert elements, summed over stages; then frozen elements.

    Of each stage one device counts.
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


def _by_member(prepared: Prepared, values: Array, group_of_option: IntArray) -> Array:
    """(members,) expand values by (ZeRO group, outer, offload) to each member.

    Members of an outer are ordered by ZeRO, recompute and offload, from `members.start` on.
    """
    inner = prepared.members.inner
    zero_lists = inner.choices.zero_lists[inner.zero_key]
    outers, columns = np.nonzero(zero_lists >= 0)
    rows = values[group_of_option[zero_lists[outers, columns]], outers]
    result: Array = np.repeat(rows, inner.num_redos[inner.redo_key[outers]], axis=0).reshape(-1)  # type: ignore[assignment]
    return result
