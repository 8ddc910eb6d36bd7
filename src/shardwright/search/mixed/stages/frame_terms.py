"""Least seconds that stages of a frame take; and the frames that make up a mixed space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.longest_path import jitter_factor_of_nodes
from shardwright.cost.tables.bytes_per_parameter import gradient_pass_bytes
from shardwright.program.problem import Problem
from shardwright.search.mixed.stages.device_pools import in_one_zone
from shardwright.search.mixed.stages.layer_cuts import AFTER, BEFORE, parts_of
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.recompute_choices import Recompute, Sharers, least_recompute
from shardwright.search.mixed.stages.sharded_lanes import PLAIN
from shardwright.search.mixed.stages.shared_layer_synchronisation import SharedLayers, sole_choices
from shardwright.search.mixed.stages.stage_reductions import StageReductions
from shardwright.search.mixed.stages.stage_tables import StageTable, stage_table
from shardwright.search.mixed.stages.stage_transfers import send_table
from shardwright.search.mixed.stages.unsharded_reductions import UnshardedReductions
from shardwright.search.mixed_certificate import Frame


class Terms(NamedTuple):
    """Least seconds that a stage of a frame takes. r = row, p = part, f = microbatches in flight
    less one, n = layers; s = row of several stages.

    seconds: (r, p, 2).
    extra: (s, roles, f, n) seconds that recompute adds to a backward so that the stage fits; inf =
        it does not.
    fits: (s, roles, f) layers with which it does, at most (`layers_that_fit`).
    whole: (r less s,) the same of the only stage of a pipeline.
    send: (s, s, 2).
    gather, reduce, update: (r, p) seconds of one of each part.
    layers: units of them in the model.
    blocks: (p,) of one of each part.
    blocking: sends hold up their sender.
    gathers_first: parameters are gathered at the step's start.
    reduces_last: gradients wait for the last backward.
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
class StageCosts:
    """Costs of the stages of a problem, from which frames are priced.

    Args:
        sums: of gradients, and gathers.
        kept: recompute by who shares states, as it was asked for.
    """

    problem: Problem
    table: StageTable
    send: FloatArray
    sums: StageReductions
    kept: dict[Sharers, Recompute] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, choices: Choices | None = None) -> StageCosts:
        """Price what all frames share, of stages that have what is chosen."""
        table = stage_table(problem, choices)
        # Which replicas lie in which zone is not known: their sums cross none.
        near = replace(problem, cluster=in_one_zone(problem.cluster))
        sums = StageReductions.of(near, table, replicas=_most_replicas(problem, table))
        send = send_table(problem, table)[: table.several, : table.several]
        return StageCosts(
            problem=problem, table=table, send=np.where(np.isfinite(send), send, 0.0), sums=sums
        )

    @cached_property
    def unsharded(self) -> UnshardedReductions:
        """Sums of lanes that do not shard beside one that does."""
        return UnshardedReductions.of(self.problem, self.sums)

    @cached_property
    def shared(self) -> SharedLayers:
        """Sums of layers that several classes of pools hold."""
        return SharedLayers.of(self.problem, self.table)

    @cached_property
    def most_replicas(self) -> int:
        """Replicas of a plan at most."""
        return _most_replicas(self.problem, self.table)

    @cached_property
    def nodes(self) -> float:
        """Nodes of the cluster."""
        return float(sum(pool.nodes for pool in self.table.pools))

    @cached_property
    def least_tp(self) -> int:
        """The smallest tensor parallel degree under which a stage of one layer fits anywhere."""
        return int(self.table.tp[self.alive].min(initial=self.table.tp.max()))

    @cached_property
    def alive(self) -> BoolArray:
        """(rows,) those under which a stage of one layer fits in some plan."""
        all_rows = np.ones(len(self.table), dtype=np.bool_)
        frames = (
            Frame(replicas=(many, many), tp=1, nodes=(0.0, self.nodes))
            for many in (1, self.most_replicas)
        )
        found = [self.recompute(self._sharers(frame, all_rows)) for frame in frames]
        several = np.isfinite([one.seconds[:, :, 0, 1] for one in found]).any(axis=(0, 2))
        return np.concatenate([several, np.isfinite([one.whole for one in found]).any(axis=0)])

    def recompute(self, sharers: Sharers) -> Recompute:
        """The cheapest recompute under which stages fit, by who shares states."""
        if sharers not in self.kept:
            self.kept[sharers] = least_recompute(self.problem, self.table, sharers)
        return self.kept[sharers]

    def _sharers(self, frame: Frame, rows: BoolArray) -> Sharers:
        """Most replicas that share optimizer states in plans of a frame whose stages are of some
        rows.
        """
        most = self.sums.members(frame, rows)[1]
        return Sharers(
            members=tuple(most.tolist()), replicas=frame.replicas[1], several=frame.replicas[0] > 1
        )

    def jitter(self, frame: Frame) -> float:
        """Factor on the step of a plan of the frame at least, less what clocks round."""
        return jitter_factor_of_nodes(self.problem, frame.nodes[0]) * (1 - 1e-6)

    def rows(self, frame: Frame) -> BoolArray:
        """(rows,) those that stages of the frame may have: of lanes that shard, where the frame has
        any and enough replicas; all of them, where there is one lane.
        """
        table, (low, high) = self.table, frame.replicas
        shards = table.sharded & frame.sharded & (table.least <= high)
        return np.asarray(
            (table.tp >= frame.tp)
            & (shards & (table.most >= low) if frame.alone else shards | (table.zero == PLAIN))
        )

    def terms(self, frame: Frame) -> Terms:
        """Least seconds of stages of the frame."""
        runtime, table = self.problem.runtime, self.table
        rows = self.rows(frame) & self.alive
        if frame.alone:
            gather, reduce = table.own_sums
        elif frame.sharded:
            own = table.own_sums + self.unsharded.beside(frame, rows)
            gather, reduce = np.where(
                table.sharded[:, None], own, self.unsharded.least(frame, rows)[:, table.pairs]
            )
        else:
            least = self.sums.least(frame, rows)
            if frame.sole is not None:
                least = np.maximum(
                    least, self.shared.least(rows, self.sums.members(frame, rows)[0], frame.sole)
                )
            gather, reduce = least[:, table.pairs]
        sharers = self._sharers(frame, rows)
        recompute = self.recompute(sharers)
        update = _updates(self.problem, table, sharers)
        extra = np.maximum.accumulate(recompute.seconds, axis=3)
        # Kernels are compiled for each layout of arrays that they are called with: one.
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
            blocks=parts_of(self.problem.model).sum(axis=1),
            blocking=runtime.blocks_sends(1),
            gathers_first=runtime.overlap_param_gather,
            reduces_last=not runtime.overlap_grad_reduce,
        )


def layers_that_fit(extra: FloatArray) -> IntArray:
    """(s, roles, f) layers of a stage at most, from what recompute adds to its backward:
    `Terms.extra`.
    """
    return np.asarray(np.isfinite(extra[..., 1:]).sum(axis=-1))


def _most_replicas(problem: Problem, table: StageTable) -> int:
    return int(min(problem.cluster.num_devices // int(table.size.min()), problem.job.global_batch))


def _updates(problem: Problem, table: StageTable, sharers: Sharers) -> FloatArray:
    """(rows, parts) seconds of the update of one of each part, states shared as said."""
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


def first_frames(stage_costs: StageCosts) -> tuple[Frame, ...]:
    """The frames of all plans in which no lane shards, of others with several lanes, and with one;
    what has no rows is left out.
    """
    whole = Frame(
        replicas=(1, stage_costs.most_replicas),
        tp=stage_costs.least_tp,
        nodes=(0.0, stage_costs.nodes),
    )
    shards = stage_costs.table.sharded
    others = (replace(whole, sharded=True), replace(whole, sharded=True, alone=True))
    return (*((whole,) if not shards.all() else ()), *(others if shards.any() else ()))


def split(stage_costs: StageCosts, frame: Frame) -> tuple[Frame, ...]:
    """The frame in two, by filled nodes and then by replicas, at edges that are the same in every
    cluster; where it lies between two, by the classes of pools that alone hold some layer; () where
    these are known, too.

    So a plan lies in the same smallest frame whatever other nodes there are, and no bound rises
    where some are added.
    """
    low, high = frame.nodes
    inside = [edge for edge in _node_edges(high) if low < edge < high]
    if inside:
        middle = inside[len(inside) // 2]
        return replace(frame, nodes=(middle, high)), replace(frame, nodes=(low, middle))
    least, most = frame.replicas
    some = [edge for edge in replica_edges(most) if least < edge <= most]
    if some:
        edge = some[len(some) // 2]
        return replace(frame, replicas=(edge, most)), replace(frame, replicas=(least, edge - 1))
    if frame.sole is not None or frame.sharded:
        return ()
    return tuple(replace(frame, sole=sole) for sole in sole_choices(stage_costs.shared.classes))


def _node_edges(most: float) -> list[float]:
    """To as many digits as plan files keep."""
    return [
        float(f"{2 ** (quarter / 4):.5g}") for quarter in range(1 + int(4 * log2(max(most, 1.0))))
    ]


def replica_edges(most: int) -> list[int]:
    """Replicas that frames begin with: powers of two, and of its root between them."""
    return sorted({round(2 ** (half / 2)) for half in range(2 * most.bit_length())} - {0})
