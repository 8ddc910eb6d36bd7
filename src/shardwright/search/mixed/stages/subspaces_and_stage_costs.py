"""Least seconds of pipeline stages in a subspace of plans, and the subspaces of a mixed space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.straggler_jitter import jitter_factor_of_nodes
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import gradient_pass_bytes
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import (
    Recompute,
    StateSharers,
    least_recompute,
)
from shardwright.search.mixed.stages.cross_pool_reduction_bound import SharedLayers, sole_choices
from shardwright.search.mixed.stages.device_pools import merge_zones
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    AFTER,
    BEFORE,
    block_counts_of_parts,
)
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.reductions_of_unsharded_lanes_beside_sharded import (
    UnshardedReductions,
)
from shardwright.search.mixed.stages.stage_cost_table import StageTable, stage_table
from shardwright.search.mixed.stages.stage_gradient_reductions import StageReductions
from shardwright.search.mixed.stages.stage_transfers import send_table
from shardwright.search.mixed.stages.zero_sharded_lane_costs import PLAIN
from shardwright.search.mixed_cluster_certificate import Subspace


class Terms(NamedTuple):
    """Least seconds that a stage takes in the plans of a subspace.

    r = table row, p = part, f = microbatches in flight less one, n = layers; s = row of several
    stages.

    seconds: (r, p, 2) forward and backward of one of each part.
    extra: (s, roles, f, n) seconds that recomputation adds to a backward so that the stage fits;
        inf = the stage does not fit.
    fits: (s, roles, f) most layers with which the stage fits (`layers_that_fit`).
    whole: (r less s,) seconds that recomputation adds in the only stage of a pipeline.
    send: (s, s, 2) seconds of a send of activations and of gradients.
    gather, reduce, update: (r, p) seconds of one of each part.
    layers: units of layers in the model.
    blocks: (p,) blocks of one of each part.
    blocking: sends block their sender.
    gathers_first: parameters are gathered at the step's start.
    reduces_last: gradients are reduced after the last backward.
    """

    seconds: FloatArray
    extra: FloatArray
    fits: IntArray
    whole: FloatArray
    send: FloatArray
    gather: FloatArray
    reduce: FloatArray
    update: FloatArray
    layers: int
    blocks: IntArray
    blocking: bool
    gathers_first: bool
    reduces_last: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedStageCosts:
    """Costs of a problem's pipeline stages, from which the terms of subspaces are priced.

    Args:
        table: stages that plans can have.
        send: (rows, rows, 2) seconds of sends between stages.
        sums: seconds of gradient reductions and parameter all-gathers.
        kept: cache of recomputation choices by sharers of optimizer states.
    """

    problem: Problem
    table: StageTable
    send: FloatArray
    sums: StageReductions
    kept: dict[StateSharers, Recompute] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, choices: PinnedValues | None = None) -> MixedStageCosts:
        """Price the stages that the pinned values allow, without the terms of any subspace."""
        table = stage_table(problem, choices)
        # The zones of replicas are not known: their reductions are priced as if in one zone.
        near = replace(problem, cluster=merge_zones(problem.cluster))
        sums = StageReductions.of(near, table, replicas=_most_replicas(problem, table))
        send = send_table(problem, table)[: table.several, : table.several]
        return MixedStageCosts(
            problem=problem, table=table, send=np.where(np.isfinite(send), send, 0.0), sums=sums
        )

    @cached_property
    def unsharded(self) -> UnshardedReductions:
        """Seconds of gradient reductions of lanes that do not shard beside a lane that does."""
        return UnshardedReductions.of(self.problem, self.sums)

    @cached_property
    def shared(self) -> SharedLayers:
        """Lower bound on the gradient reductions of layers that several classes of pools hold."""
        return SharedLayers.of(self.problem, self.table)

    @cached_property
    def most_replicas(self) -> int:
        """Largest number of pipeline replicas of a plan."""
        return _most_replicas(self.problem, self.table)

    @cached_property
    def nodes(self) -> float:
        """Number of nodes of the cluster."""
        return float(sum(pool.nodes for pool in self.table.pools))

    @cached_property
    def least_tp(self) -> int:
        """Smallest tensor parallel degree under which a stage of one layer fits on some pool."""
        return int(self.table.tp[self.alive].min(initial=self.table.tp.max()))

    @cached_property
    def alive(self) -> BoolArray:
        """(rows,) True for table rows under which a stage of one layer fits in some plan."""
        all_rows = np.ones(len(self.table), dtype=np.bool_)
        subspaces = (
            Subspace(replicas=(replicas, replicas), tp=1, nodes=(0.0, self.nodes))
            for replicas in (1, self.most_replicas)
        )
        recomputes = [self.recompute(self._sharers(subspace, all_rows)) for subspace in subspaces]
        several = np.isfinite([recompute.seconds[:, :, 0, 1] for recompute in recomputes]).any(
            axis=(0, 2)
        )
        return np.concatenate(
            [several, np.isfinite([recompute.whole for recompute in recomputes]).any(axis=0)]
        )

    def recompute(self, sharers: StateSharers) -> Recompute:
        """Cheapest recomputation under which stages fit, for given sharers of states; cached."""
        if sharers not in self.kept:
            self.kept[sharers] = least_recompute(self.problem, self.table, sharers)
        return self.kept[sharers]

    def _sharers(self, subspace: Subspace, rows: BoolArray) -> StateSharers:
        """Most replicas and members that share optimizer states in plans of a subspace.

        Args:
            rows: (rows,) True for the table rows that stages of the plans may have.
        """
        most = self.sums.members(subspace, rows)[1]
        return StateSharers(
            members=tuple(most.tolist()),
            replicas=subspace.replicas[1],
            several=subspace.replicas[0] > 1,
        )

    def jitter(self, subspace: Subspace) -> float:
        """Least factor by which jitter lengthens a step of the subspace's plans, rounded down."""
        return jitter_factor_of_nodes(self.problem, subspace.nodes[0]) * (1 - 1e-6)

    def rows(self, subspace: Subspace) -> BoolArray:
        """(rows,) True for table rows that stages of the subspace's plans may have.

        Rows of lanes that shard belong to subspaces with such lanes and enough replicas. A subspace
        of plans with one lane has these rows alone.
        """
        table, (low, high) = self.table, subspace.replicas
        shards = table.sharded & subspace.sharded & (table.least <= high)
        return np.asarray(
            (table.tp >= subspace.tp)
            & (shards & (table.most >= low) if subspace.alone else shards | (table.zero == PLAIN))
        )

    def terms(self, subspace: Subspace) -> Terms:
        """Least seconds that stages take in the plans of a subspace."""
        runtime, table = self.problem.runtime, self.table
        rows = self.rows(subspace) & self.alive
        if subspace.alone:
            gather, reduce = table.own_sums
        elif subspace.sharded:
            own_seconds = table.own_sums + self.unsharded.exchange_seconds_of_sharding_lanes(
                subspace, rows
            )
            gather, reduce = np.where(
                table.sharded[:, None],
                own_seconds,
                self.unsharded.least(subspace, rows)[:, table.pairs],
            )
        else:
            least = self.sums.least(subspace, rows)
            if subspace.sole is not None:
                least = np.maximum(
                    least,
                    self.shared.least(rows, self.sums.members(subspace, rows)[0], subspace.sole),
                )
            gather, reduce = least[:, table.pairs]
        sharers = self._sharers(subspace, rows)
        recompute = self.recompute(sharers)
        update = _updates(self.problem, table, sharers)
        extra = np.maximum.accumulate(recompute.seconds, axis=3)
        # Contiguous arrays: kernels are compiled for one array layout.
        return Terms(
            seconds=np.ascontiguousarray(table.seconds),
            extra=extra,
            fits=layers_that_fit(extra),
            whole=recompute.whole,
            send=self.send,
            gather=np.ascontiguousarray(gather if runtime.overlap_param_gather else 0.0 * gather),
            reduce=np.ascontiguousarray(reduce),
            update=update if runtime.overlap_param_gather else update + gather,
            layers=table.layers,
            blocks=block_counts_of_parts(self.problem.model).sum(axis=1),
            blocking=runtime.blocks_sends(1),
            gathers_first=runtime.overlap_param_gather,
            reduces_last=not runtime.overlap_grad_reduce,
        )


def layers_that_fit(extra: FloatArray) -> IntArray:
    """(rows, roles, in flight) most layers of a stage that fit in memory, from `Terms.extra`."""
    return np.asarray(np.isfinite(extra[..., 1:]).sum(axis=-1))


def _most_replicas(problem: Problem, table: StageTable) -> int:
    """Most replicas of a plan: devices over the smallest stage's devices, at most the batch."""
    return int(min(problem.cluster.num_devices // int(table.size.min()), problem.job.global_batch))


def _updates(problem: Problem, table: StageTable, sharers: StateSharers) -> FloatArray:
    """(rows, parts) seconds of the optimizer update of one of each part."""
    update = np.zeros_like(table.elements)
    for pair, (pool, mesh) in enumerate(table.meshes):
        facts = table.facts[pool]
        passes = float(
            gradient_pass_bytes(problem, np.array([1 + (sharers.several or mesh.dp > 1)]))[0]
        )
        dense = table.elements[pair] * (
            (facts.update_bytes / sharers.members[pair] + passes) / facts.bandwidth
        )
        update[pair] = dense + table.experts[pair] * (
            (facts.update_bytes / sharers.replicas + passes) / facts.bandwidth
        )
    if table.tied:
        update[:, [BEFORE, AFTER]] = 0.0
    result: FloatArray = update[table.pairs]
    return result


def full_subspace(
    stage_costs: MixedStageCosts, *, sharded: bool = False, alone: bool = False
) -> Subspace:
    """Subspace of all replica counts, node counts and tensor parallel degrees."""
    return Subspace(
        replicas=(1, stage_costs.most_replicas),
        tp=stage_costs.least_tp,
        nodes=(0.0, stage_costs.nodes),
        sharded=sharded,
        alone=alone,
    )


def root_subspaces(stage_costs: MixedStageCosts) -> tuple[Subspace, ...]:
    """Subspaces that together cover the space, before any split.

    Plans in which no lane shards; the other plans with several lanes; the other plans with one
    lane. Subspaces without table rows are left out.
    """
    whole = Subspace(
        replicas=(1, stage_costs.most_replicas),
        tp=stage_costs.least_tp,
        nodes=(0.0, stage_costs.nodes),
    )
    shards = stage_costs.table.sharded
    others = (replace(whole, sharded=True), replace(whole, sharded=True, alone=True))
    return (*((whole,) if not shards.all() else ()), *(others if shards.any() else ()))


def split_subspace(stage_costs: MixedStageCosts, subspace: Subspace) -> tuple[Subspace, ...]:
    """Split a subspace in two by nodes, then by replicas, then by pool classes; () = a leaf.

    The edges are the same in every cluster. So a plan lies in the same smallest subspace with any
    other nodes in the cluster, and no bound rises where nodes are added. A subspace between two
    edges is split by the classes of pools that alone hold some layer.
    """
    low, high = subspace.nodes
    inside = [edge for edge in _node_edges(high) if low < edge < high]
    if inside:
        middle = inside[len(inside) // 2]
        return replace(subspace, nodes=(middle, high)), replace(subspace, nodes=(low, middle))
    least, most = subspace.replicas
    replica_edges_inside = [edge for edge in replica_edges(most) if least < edge <= most]
    if replica_edges_inside:
        edge = replica_edges_inside[len(replica_edges_inside) // 2]
        return replace(subspace, replicas=(edge, most)), replace(
            subspace, replicas=(least, edge - 1)
        )
    if subspace.sole is not None or subspace.sharded:
        return ()
    return tuple(replace(subspace, sole=sole) for sole in sole_choices(stage_costs.shared.classes))


def _node_edges(max_nodes: float) -> list[float]:
    """Node counts where subspaces are split: powers of 2 ** 0.25 up to `max_nodes`, in 5 digits."""
    return [
        float(f"{2 ** (quarter / 4):.5g}")
        for quarter in range(1 + int(4 * log2(max(max_nodes, 1.0))))
    ]


def replica_edges(max_replicas: int) -> list[int]:
    """Numbers of replicas with which subspaces begin: powers of the square root of two, rounded."""
    return sorted({round(2 ** (half / 2)) for half in range(2 * max_replicas.bit_length())} - {0})
