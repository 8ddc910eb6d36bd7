"""Overhead of sharded data parallelism on the compute stream: copies and slower kernels.

Copies in and out of the buffers of collectives; kernels run slower beside collectives.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.span_cost_quantities import span_quantities
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import gathered_bytes
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import (
    LISTED_GATHER_OPERATORS,
)
from shardwright.cost.gradients.layer_synchronisation_table_classes import SyncTable
from shardwright.cost.kernels.accelerator_rates import OPERATOR_S
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.kernels.quantization_passes import weight_bytes
from shardwright.cost.network.grid_groups_and_collective_seconds import Network
from shardwright.hardware.catalog.fitted_training_constants import slowdown_beside
from shardwright.program.training_problem import Problem


def overlap_slowdown(problem: Problem, span: Span, network: Network) -> FloatArray:
    """(n,) factor >= 1 on kernels beside collectives, by the dp x cp group's ring bandwidth.

        1 + (slowdown - 1) x min(1, B / B_0)

    slowdown is the accelerator's for a ring at the island's full rate B_0; B is the bandwidth of
    the flat ring over the group. A library starts as many channels (each holds a multiprocessor) as
    that ring can feed: a group with one member a node runs on the few that a card needs. Leaves
    out: that smaller groups inside the group, hybrid sharding's, may run faster.

    Source: NCCL's graph search sets channels by the bandwidth of the slowest link of a ring
    (src/graph/search.cc, from memory).
    """
    factor = slowdown_beside(
        problem.constants, factor=problem.cluster.node.accelerator.overlap_slowdown
    )
    quantities = span_quantities(span)
    ring = quantities.ring_seconds_per_byte * network.tiers[0].bandwidth
    share = np.where(ring > 0.0, 1.0 / np.maximum(ring, 1.0), 0.0)
    return np.asarray(
        1.0 + (factor - 1.0) * (share if quantities.rows is None else share[quantities.rows]),
        dtype=np.float64,
    )


def host_gradient_seconds(problem: Problem, sync: SyncTable) -> FloatArray:
    """(blocks, n) seconds a microbatch to copy a layer's gradients to the host and back; else 0.

    Of one microbatch, all of the layer's optimizer states offloaded.

        t = 2 x shard x bytes of a gradient / rate of PCIe

    and 0 where gradients stay on the device (`Runtime.gradients_on_host`).

    A shard comes back, is added to and leaves again; of m microbatches the first has nothing to
    bring back, and the last leaves in the format that the host updates with, which is twice as wide
    as 16 bits. Copies follow the reduction on its stream: where it waits for the step's end, a
    step's composition puts none beside a microbatch. Leaves out host memory that is not pinned, and
    devices that share a link of the host.

    Source: DeepSpeed, runtime/zero/stage3.py at 007cca6a2ffe (`partition_grads`, on
    `reduce_and_partition_stream`), and stage_1_and_2.py at 02aa38c3a551
    (`async_accumulate_grad_in_cpu_via_gpu`, `async_inplace_copy_grad_to_fp32_buffer_from_gpu`).
    """
    runtime = problem.runtime
    seconds_per_element = (
        2.0 * (runtime.gradient_dtype.bits / 8) / problem.cluster.node.host.pcie.achieved
        if runtime.gradients_on_host
        else 0.0
    )
    return np.asarray(sync.own_reduced * seconds_per_element, dtype=np.float64)


def copy_seconds(problem: Problem, sync: SyncTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(blocks, n) seconds of copies around a layer's forward gather, backward gather, reduction.

        t = local elements x bytes an element / (0.8 BW)
            where the element's states are sharded over more than one device

    Bytes are the runtime's (`gather_copy_bytes`, `reduce_copy_bytes`). Where collectives take lists
    (`listed_collectives`) the compute stream also waits for the host, which calls operators for
    each tensor of a gather's list: it has waited for the device before, and launches the kernels
    beside the gather behind it. A shard that waits in host memory (`parameters_on_host`) is copied
    up before the gather. Matrices of GEMMs in 8 or 4 bits are then quantised
    (`quantization_passes.weight_bytes`). Leaves out launches and the copies of a shard on the
    device (1/n of it). Parameters that one device holds alone are copied up and not joined.

    Source: DeepSpeed 0.3.13, runtime/zero/partition_parameters.py: `_allgather_param` begins with
    ``torch.cuda.synchronize()``.
    """
    device, runtime = problem.cluster.node.accelerator, problem.runtime
    bandwidth = device.memory_bandwidth * device.element_efficiency
    reduced = np.where(sync.shard > 1, sync.dense, 0) + np.where(
        sync.expert_shard > 1, sync.experts, 0
    )
    cast = weight_bytes(problem_machine(problem), gathered=gathered_bytes(problem.job, runtime))

    def gathers(
        elements: IntArray, narrow: IntArray, own_elements: FloatArray, parts: FloatArray
    ) -> FloatArray:
        """(blocks, n) s of copies, casts, launches around a layer's all-gather in `parts`."""
        host_copy_s = (
            own_elements
            * (problem.job.parameter.bits / 8 / problem.cluster.node.host.pcie.achieved)
            if runtime.parameters_on_host
            else 0.0
        )
        joined = np.where(
            (sync.shard > 1) | ((sync.expert_shard > 1) & (sync.experts + sync.frozen_experts > 0)),
            elements,
            0,
        )
        copy_s = joined.astype(np.float64) * (
            runtime.gather_copy_bytes / bandwidth
        ) + narrow.astype(np.float64) * (cast / bandwidth)
        return np.asarray(
            copy_s + parts * (LISTED_GATHER_OPERATORS * OPERATOR_S) + host_copy_s, dtype=np.float64
        )

    return (
        gathers(sync.gathered, sync.narrow_gathered, sync.own_gathered, sync.parts),
        gathers(sync.regathered, sync.narrow_regathered, sync.own_regathered, sync.reparts),
        reduced.astype(np.float64) * (runtime.reduce_copy_bytes / bandwidth),
    )
