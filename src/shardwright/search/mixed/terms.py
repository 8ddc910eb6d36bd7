"""What stages take inside a frame at least; and the frames that make up a mixed space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bytes_per_parameter import gradient_pass_bytes
from shardwright.cost.critical_path import jitter_of_nodes
from shardwright.cost.device_network import group_problem
from shardwright.program.problem import Problem
from shardwright.search.frames import Frame
from shardwright.search.joint.chain import chain_of
from shardwright.search.mixed.choices import Choices
from shardwright.search.mixed.pools import in_one_zone
from shardwright.search.mixed.recompute import Redone, least_recompute
from shardwright.search.mixed.sends import send_table
from shardwright.search.mixed.tables import AFTER, BEFORE, StageTable, parts_of, stage_rows, stage_table, sums_table


class Terms(NamedTuple):
    """What a stage takes inside a frame at least. r = row, p = part, f = microbatches in flight less one, n = layers.

    seconds: (r, p, 2). extra: (r, roles, f, n) seconds that recompute adds to a backward so that the stage fits; inf = it does not.
    send: (r, r, 2). gather, reduce, update: (r, p) seconds of one of each part. layers: of the model. blocking: sends hold up their
    sender. gathers_first: parameters are gathered at the step's start. reduces_last: gradients wait for the last backward.
    """

    seconds: FloatArray
    extra: FloatArray
    send: FloatArray
    gather: FloatArray
    reduce: FloatArray
    update: FloatArray
    layers: int
    blocking: bool
    gathers_first: bool
    reduces_last: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """All that frames are priced from.

    Args:
        gather, reduce: (pairs, degrees, replicas, parts) seconds, of at least so many replicas whose node-mates stand `degrees` apart.
        kept: recompute by the replicas that share states, as it was asked for.
    """

    problem: Problem
    table: StageTable
    send: FloatArray
    degrees: tuple[int, ...]
    gather: FloatArray
    reduce: FloatArray
    kept: dict[tuple[int, bool], Redone] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, choices: Choices | None = None) -> Ground:
        """Price what all frames share, of stages that have what is chosen."""
        table = stage_table(problem, choices)
        degrees = tuple(sorted({tp for _, tp in table.tps}))
        most = min(problem.cluster.num_devices // min(degrees), problem.job.global_batch)
        # Which replicas lie in which zone is not known: their sums cross none.
        near = replace(problem, cluster=in_one_zone(problem.cluster))
        sums = [_sums(near, table, pair, degrees, most) for pair in range(len(table.tps))]
        gather, reduce = (np.stack([one[which] for one in sums]) for which in (0, 1))
        return Ground(problem=problem, table=table, send=send_table(problem, table), degrees=degrees, gather=gather, reduce=reduce)

    @property
    def most_replicas(self) -> int:
        """Replicas of a plan at most."""
        return int(self.gather.shape[2])

    @cached_property
    def nodes(self) -> float:
        """Nodes of the cluster."""
        return float(sum(pool.nodes for pool in self.table.pools))

    @cached_property
    def least_tp(self) -> int:
        """The smallest tensor parallel degree under which a stage of one layer fits anywhere."""
        fits = [self.redone(shard, several=shard > 1).seconds[:, :, 0, 1] for shard in (1, self.most_replicas)]
        alive = np.isfinite(fits).any(axis=(0, 2))
        return int(self.table.tp[alive].min(initial=max(self.degrees)))

    def redone(self, shard: int, *, several: bool) -> Redone:
        """The cheapest recompute under which stages fit, where so many replicas share states; `several`: there are two or more."""
        key = shard, several
        if key not in self.kept:
            self.kept[key] = least_recompute(self.problem, self.table, shard=shard, several=several)
        return self.kept[key]

    def jitter(self, frame: Frame) -> float:
        """Factor on the step of a plan of the frame at least, less what clocks round."""
        return jitter_of_nodes(self.problem, frame.nodes[0]) * (1 - 1e-6)

    def rows(self, frame: Frame) -> BoolArray:
        """(rows,) those that stages of the frame may have."""
        return np.asarray(self.table.tp >= frame.tp)

    def terms(self, frame: Frame) -> Terms:
        """What stages of the frame take at least."""
        runtime, table = self.problem.runtime, self.table
        low, high = frame.replicas
        at = self.degrees.index(min(d for d in self.degrees if d >= frame.tp))
        gather, reduce = (some[:, at, low - 1 : high].min(axis=1)[table.pairs] for some in (self.gather, self.reduce))
        update = _updates(self.problem, table, shard=high, several=low > 1)
        return Terms(
            seconds=table.seconds,
            extra=np.maximum.accumulate(self.redone(high, several=low > 1).seconds, axis=3),
            send=np.where(np.isfinite(self.send), self.send, 0.0),
            gather=gather if runtime.overlap_param_gather else 0.0 * gather,
            reduce=reduce,
            update=update if runtime.overlap_param_gather else update + gather,
            layers=table.layers,
            blocking=runtime.blocks_sends(1),
            gathers_first=runtime.overlap_param_gather,
            reduces_last=not runtime.overlap_grad_reduce,
        )


def _sums(problem: Problem, table: StageTable, pair: int, degrees: tuple[int, ...], most: int) -> tuple[FloatArray, FloatArray]:
    """(degrees, replicas, parts) seconds of a gather and of a gradient sum of one pair."""
    pool, tp = table.tps[pair]
    own = group_problem(problem, table.pools[pool].group)
    replicas = np.arange(1, most + 1, dtype=np.int64)
    counts = _part_counts(problem)
    found = []
    for degree in degrees:
        rows = stage_rows(np.full(most, tp), np.ones(most, dtype=np.int64), sp=True, replicas=replicas, stride=degree)
        table_of = sums_table(own, rows, replicas)
        found.append((np.einsum("pb,bn->np", counts, table_of.gather), np.einsum("pb,bn->np", counts, table_of.reduce)))
    return np.stack([one[0] for one in found]), np.stack([one[1] for one in found])


def _part_counts(problem: Problem) -> IntArray:
    return parts_of(chain_of(problem.model), len(problem.model.blocks))


def _updates(problem: Problem, table: StageTable, *, shard: int, several: bool) -> FloatArray:
    """(rows, parts) seconds of the update of one of each part, states shared by `shard` replicas."""
    passes = gradient_pass_bytes(problem, np.array([1 + several]))
    traffic = np.array([table.facts[pool].update_bytes for pool, _ in table.tps]) / shard + passes
    rate = np.array([table.facts[pool].bandwidth for pool, _ in table.tps])
    update = table.elements * (traffic / rate)[:, None]
    if table.tied:
        update[:, [BEFORE, AFTER]] = 0.0
    result: FloatArray = update[table.pairs]
    return result


def first_frames(ground: Ground) -> tuple[Frame, ...]:
    """The frame of all plans."""
    return (Frame(replicas=(1, ground.most_replicas), tp=ground.least_tp, nodes=(0.0, ground.nodes)),)


def split(frame: Frame) -> tuple[Frame, ...]:
    """The frame in two, by filled nodes and then by replicas, at edges that are the same in every cluster; () where it lies between two.

    So a plan lies in the same smallest frame whatever other nodes there are, and no bound rises where some are added.
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
    return ()


def _node_edges(most: float) -> list[float]:
    """To as many digits as plan files keep."""
    return [float(f"{2 ** (quarter / 4):.5g}") for quarter in range(1 + int(4 * log2(max(most, 1.0))))]


def replica_edges(most: int) -> list[int]:
    """Replicas that frames begin with: powers of two, and of its root between them."""
    return sorted({round(2 ** (half / 2)) for half in range(2 * most.bit_length())} - {0})
