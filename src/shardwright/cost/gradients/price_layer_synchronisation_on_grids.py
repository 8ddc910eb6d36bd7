"""Seconds and elements of synchronising one layer's gradients and parameters on grids.

For each block, mesh and sharding group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.gradients.block_parameter_elements_by_reduction_group import (
    ELEMENTS,
    gathered_matrices,
    parameter_elements,
    trained_matrices,
)
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import sum_sizes
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import (
    LayerElements,
    SumSpans,
    broadcast_seconds,
    fetch_seconds,
    layer_sync_seconds,
    sum_spans,
    wire_shares,
)
from shardwright.cost.gradients.layer_synchronisation_table_classes import (
    FETCHES,
    KINDS,
    OWNERS,
    PASSES,
    SYNCS,
    SyncTable,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Axes,
    Network,
    axes_of,
    tokens_copied,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.job.training_job import TrainingJob
from shardwright.program.block.block_program import BlockProgram
from shardwright.runtime.framework_description import Runtime


def sync_table(
    programs: tuple[BlockProgram, ...],
    *,
    unrouted: tuple[BlockProgram, ...],
    repeats: tuple[int, ...],
    rows: DegreeRows,
    shard: IntArray,
    network: Network,
    job: TrainingJob,
    runtime: Runtime,
    shared: frozenset[str] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
    timed: bool = True,
    lying: tuple[SumSpans, SumSpans] | None = None,
    parts: tuple[str, ...] = KINDS,
    copies: Axes | None = None,
) -> SyncTable:
    """Lower-bound seconds and elements of one layer's DP collectives, by block and row of degrees.

    Never more than the true groups of `sum_groups` take.

    Elements that more devices sum than those of dp x cp (or edp) are counted and not priced.

    Args:
        shared: parameters that the first and the last chunk use, as ``block.parameter``.
        elsewhere: those that other chunks may use, whose sums are left out where there are several.
        unrouted: the blocks where experts are cut like the MLP, for rows that copy tokens over tp;
            empty = no such rows, or no experts.
        repeats: how often the model has each block.
        timed: False = elements are counted, and nothing takes time.
        parts: of elements that are priced; all are counted.
        copies: along which the holders of an expert stand; None = as the rows say.
        shard: members of a sharding group, shape (n,), dividing dp x cp (the whole of it for plain
            ZeRO).
        lying: the groups that sum dense parameters and experts', where it is known how they lie;
            None = as strides say.

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours:
    T(bucket) x layer / bucket.
    """
    dense_axes, expert_axes = (
        _by_stride(axes_of("dp-cp", rows)),
        _by_stride(copies or axes_of("edp", rows)),
    )
    edp = expert_axes[0][0] * expert_axes[1][0]
    # A sharding group of some of the holders has that part of an expert's holders, at least one.
    holders = dense_axes[0][0] * dense_axes[1][0]
    expert_shard = np.gcd(np.maximum(shard * edp // holders, 1), edp)
    groups = _groups_along(dense_axes, shard)
    dense, experts = lying or (
        sum_spans(groups, shard, network),
        sum_spans(_groups_along(expert_axes, expert_shard), expert_shard, network),
    )
    groups_of = {"dense": dense, "experts": experts}
    sizes = sum_sizes(job, runtime)
    shape = (len(programs), len(rows))
    tied = {"all_reduce": np.zeros(len(rows)), "reduce": np.zeros(len(rows))}
    total = {name: np.zeros(shape) for name in SYNCS}
    ends = (np.full(len(rows), 2), (rows["pp"] - 1) * rows["s_pp"])
    counts = {name: np.zeros(shape, dtype=np.int64) for name in ELEMENTS}
    local = [
        parameter_elements(program, rows.degrees(), shared=shared, elsewhere=elsewhere)
        for program in programs
    ]
    if unrouted:
        unrouted_elements = (
            parameter_elements(program, rows.degrees(), shared=shared, elsewhere=elsewhere)
            for program in unrouted
        )
        copied = tokens_copied(rows)
        local = [
            {name: np.where(copied, b[name], a[name]) for name in a}
            for a, b in zip(local, unrouted_elements, strict=True)
        ]
    for index, elements in enumerate(local):
        for name in counts:
            counts[name][index] = elements[name]
        if not timed:
            continue
        program = programs[index]
        for part in parts:
            spans, part_elements, narrow_elements = (
                groups_of[part],
                elements[part],
                elements[f"narrow_{part}"],
            )
            matrices = trained_matrices(program.operators, experts=part == "experts")
            seconds_by_name = (
                layer_sync_seconds(
                    LayerElements(part_elements, matrices, narrow_elements), spans, network, sizes
                )
                if part_elements.any()
                else {}
            )
            matrices_of_passes = gathered_matrices(
                program.operators, program.constant, experts=part == "experts"
            )
            for name, columns_of, matrices in zip(PASSES, FETCHES, matrices_of_passes, strict=True):
                part_elements, narrow_elements = (
                    elements[f"{name}_{part}"],
                    elements[f"narrow_{name}_{part}"],
                )
                if part_elements.any():
                    fetched = fetch_seconds(
                        LayerElements(part_elements, matrices, narrow_elements),
                        spans,
                        network,
                        sizes,
                    )
                    seconds_by_name |= dict(zip(columns_of, fetched, strict=True))
            for name, seconds in seconds_by_name.items():
                total[name][index] += seconds
        used_elsewhere = elements["shared"] + elements["elsewhere"]
        if used_elsewhere.any() and "dense" in parts:
            # Where the first and the last chunk are two ranks' the owner's gradient waits for the
            # other's.
            summed_now = elements["dense"] - np.where(rows["pp"] > 1, used_elsewhere, 0)
            matrices = trained_matrices(program.operators, experts=False)
            seconds_by_name = layer_sync_seconds(
                LayerElements(summed_now, matrices), dense, network, sizes
            )
            for name in ("all_reduce", "reduce", "scatter", "apart"):
                # Of nothing left there is no collective, not even its latency.
                total[name][index] = np.where(summed_now > 0, seconds_by_name[name], 0.0)
        if elements["shared"].any() and "dense" in parts:
            tied_seconds = layer_sync_seconds(
                LayerElements(elements["shared"]),
                sum_spans((groups[0], (*groups[1], ends)), shard, network),
                network,
                sizes,
            )
            for name, seconds in tied.items():
                seconds += np.where(rows["pp"] > 1, tied_seconds[name], 0.0)
    if runtime.zero1_broadcasts and timed:
        # A rank has no more than the whole model, so that each layer's part of the latency is no
        # more than its true one.
        elements_of_rank = {
            part: np.tensordot(np.array(repeats), counts[part], axes=1).astype(np.float64)
            for part in KINDS
        }
        broadcasts = (
            _broadcasts(
                counts[part], elements_of_rank[part], groups_of[part], network, sizes.stored
            )
            for part in parts
        )
        total["gather"] = sum(broadcasts, np.zeros(shape))
    columns: dict[str, Any] = (
        total
        | {name: np.zeros(shape) for name in OWNERS}
        | {f"tied_{name}": spent for name, spent in tied.items()}
    )
    columns |= {
        name: counts[name]
        for name in (
            "dense",
            "experts",
            "spread",
            "frozen",
            "frozen_dense",
            "frozen_experts",
            "tied",
        )
    }
    columns["narrow"] = counts["narrow_dense"] + counts["narrow_experts"]
    columns["own_reduced"] = counts["dense"] / shard + counts["experts"] / expert_shard
    columns |= _gathered_elements(
        counts, shard, expert_shard, least=1 if runtime.parameters_on_host else 2
    )
    return SyncTable(**columns, shard=shard, expert_shard=expert_shard)


def _gathered_elements(
    counts: dict[str, IntArray], shard: IntArray, expert_shard: IntArray, *, least: int
) -> dict[str, IntArray | FloatArray]:
    """Elements a block gathers per ZeRO-3 pass (0 below degree `least`): all, quantised, own part.

    Args:
        least: members of the smallest sharding group whose parameters are gathered: 1 where shards
            wait in host memory, else 2.
    """
    elements: dict[str, IntArray | FloatArray] = {}
    for name, column in zip(PASSES, ("gathered", "regathered"), strict=True):
        elements_and_cut = [
            (np.where(cut >= least, counts[f"{name}_{kind}"], 0), cut)
            for kind, cut in zip(KINDS, (shard, expert_shard), strict=True)
        ]
        elements[column] = elements_and_cut[0][0] + elements_and_cut[1][0]
        narrow_elements = [
            np.where(cut >= least, counts[f"narrow_{name}_{kind}"], 0)
            for kind, cut in zip(KINDS, (shard, expert_shard), strict=True)
        ]
        elements[f"narrow_{column}"] = narrow_elements[0] + narrow_elements[1]
        elements[f"own_{column}"] = (
            elements_and_cut[0][0] / elements_and_cut[0][1]
            + elements_and_cut[1][0] / elements_and_cut[1][1]
        )
    return elements


def link_shares(rows: DegreeRows, shard: IntArray, *, network: Network, bucket: int) -> FloatArray:
    """(2, tiers, n) link share that dense gradient reductions fill: unsharded, then by `shard`."""
    axes = _by_stride(axes_of("dp-cp", rows))
    groups = (
        sum_spans(_groups_along(axes, members), members, network)
        for members in (np.ones_like(shard), shard)
    )
    return np.stack([wire_shares(spans, network=network, bucket=bucket) for spans in groups])


def _by_stride(axes: Axes) -> Axes:
    """The two axes of a group, row by row: first the axis with the smaller device stride."""
    (d0, s0), (d1, s1) = axes
    swap = s1 < s0
    return (np.where(swap, d1, d0), np.where(swap, s1, s0)), (
        np.where(swap, d0, d1),
        np.where(swap, s0, s1),
    )


def _groups_along(axes: Axes, shard: IntArray) -> tuple[Axes, Axes]:
    """Axes of the sharding groups (runs of consecutive members) and of the groups across them."""
    (d0, s0), (d1, s1) = axes
    in0 = np.gcd(shard, d0)
    in1 = np.gcd(shard // in0, d1)
    return ((in0, s0), (in1, s1)), ((d0 // in0, s0 * in0), (d1 // in1, s1 * in1))


def _broadcasts(
    elements: IntArray, held: FloatArray, groups: SumSpans, network: Network, stored: int
) -> FloatArray:
    """(blocks, n) a layer's part, by elements, of the seconds of ZeRO-1 parameter broadcasts.

    Args:
        elements: of one layer of each block, (blocks, n).
    """
    return (
        elements
        / np.maximum(held, 1.0)
        * broadcast_seconds(held, groups, network=network, stored=stored)
    )
