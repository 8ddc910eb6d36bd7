"""Effects of a plan's keep lines on a block: recomputed operators, offloaded activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from shardwright.cost.kernels.kernel_seconds_and_gemm_pieces_for_overlap import work_seconds
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.part_phase_recompute_keys import ELEMENT
from shardwright.cost.tables.block_layer_mesh_table_classes import BlockTable
from shardwright.model.ir.operator import Operator
from shardwright.program.block.block_program import BlockProgram, Phase, Recomputable
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.program.training_problem import Problem
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep


def kept_variant(
    table: BlockTable,
    program: BlockProgram,
    keeps: tuple[Keep, ...],
    *,
    degrees: Degrees,
    problem: Problem,
) -> BlockTable:
    """Block table with the seconds and bytes of selective recompute and offload by `keeps`.

    Whole blocks and cores alone are modes of the table and left as they are.

    Recomputed operators run their forward again before the input gradient, and their outputs are
    not saved. Tensors that are moved to the host (or NVMe) cross the device's PCIe link once each
    way; seconds that a pass of the block's own kernels does not hide are exposed.

    Leaves out: that copies of several blocks share the link with each other, and NVMe bandwidth
    beyond the device's share.
    """
    seconds, saved, host = table.seconds, table.saved_bytes, table.host_bytes
    for keep in keeps:
        if keep.how is ActivationPolicy.RECOMPUTE and (
            set(keep.operators) == {"core"} or "full" in keep.operators
        ):
            continue
        if is_on_host(keep):
            continue
        names = named_operators(program.operators, keep.operators) - program.constant
        moved = sum(
            int(evaluate(s.volume, degrees)[0])
            for s in program.saved
            if (s.tensor.split(".")[0] in names or s.tensor in names)
            and s.dropped is not Recomputable.NEVER
        )
        moved = moved * keep.percent // 100
        saved = np.maximum(saved - moved, 0)
        host = host + moved if keep.how is ActivationPolicy.HOST else host
        seconds = seconds.copy()
        if keep.how is ActivationPolicy.RECOMPUTE:
            machine = problem_machine(problem)
            recompute_s = sum(
                float(work_seconds(w, degrees, machine)[0][0])
                for w in program.works
                if w.phase is Phase.F and w.operator in names
            )
            seconds[1, ELEMENT] += recompute_s
        else:
            transfer = moved / transfer_bandwidth(problem, keep.how)
            for phase, passes in ((0, (0,)), (1, (1, 2))):
                beside = float(sum(seconds[p].sum() for p in passes))
                seconds[phase, ELEMENT] += max(transfer - beside, 0.0)
    return replace(table, seconds=seconds, saved_bytes=saved, host_bytes=host) if keeps else table


def is_on_host(keep: Keep) -> bool:
    """True if a keep line offloads all tensors of its blocks to host memory: a table mode."""
    return keep.how is ActivationPolicy.HOST and "full" in keep.operators and keep.percent == 100


def transfer_bandwidth(problem: Problem, how: ActivationPolicy) -> float:
    """Bytes/s of a device's offload: PCIe; for NVMe its share of the node's NVMe if slower."""
    node = problem.cluster.node
    if how is ActivationPolicy.NVME and node.host.nvme_bandwidth:
        return min(node.host.pcie.achieved, node.host.nvme_bandwidth / node.num_devices)
    return node.host.pcie.achieved


def named_operators(operators: Iterable[Operator], names: tuple[str, ...]) -> set[str]:
    """Names of operators that a keep line selects: by name, class, ``class.name`` or ``full``."""
    return {
        o.name
        for o in operators
        for name in names
        if name in (o.name, o.klass.value, f"{o.klass.value}.{o.name}", "full")
    }
