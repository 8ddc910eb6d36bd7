"""What stages take inside a frame at least; and the frames that make up a mixed space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bytes_per_parameter import gradient_pass_bytes
from shardwright.cost.critical_path import jitter_of_nodes
from shardwright.cost.device_buffers import communicator_bytes
from shardwright.cost.device_network import group_problem
from shardwright.cost.terms import activation_room
from shardwright.program.problem import Problem
from shardwright.search.frames import Frame
from shardwright.search.joint.chain import chain_of
from shardwright.search.mixed.choices import Choices
from shardwright.search.mixed.sends import send_table
from shardwright.search.mixed.tables import AFTER, BEFORE, LAYER, MODES, StageTable, parts_of, stage_rows, stage_table, sums_table

FIRST, LAST = 1, 2
"""Roles of a stage, added: it holds what stands before the first layer, or behind the last one."""
ROLES = 4
MOST_STAGES = 32
"""Stages of a shape at most."""


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
        sums = [_sums(problem, table, pair, degrees, most) for pair in range(len(table.tps))]
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


def static_bytes(problem: Problem, table: StageTable, *, shard: int) -> FloatArray:
    """(rows, parts) bytes of parameters, gradients and states of one of each part, states shared by `shard` replicas."""
    found = np.zeros_like(table.elements)
    for pair, (pool, _) in enumerate(table.tps):
        facts = table.facts[pool]
        each = facts.parameter_bytes + facts.gradient_bytes + facts.own_gradient_bytes
        states = np.full(3, facts.state_bytes / shard)
        if table.tied:
            # Whoever holds a shared weight shares its states, as many as there may be.
            states[[BEFORE, AFTER]] = 0.0
        found[pair] = table.elements[pair] * (each + states) + table.frozen[pair] * facts.parameter_bytes
    result: FloatArray = found[table.pairs]
    return result


class Redone(NamedTuple):
    """The cheapest recompute under which stages fit: (rows, roles, in flight, layers + 1).

    seconds: that it adds to a microbatch's backward; inf = nothing fits. full: layers that run again whole, the first ones. selective: of
    the next ones, those whose attention core does.
    """

    seconds: FloatArray
    full: IntArray
    selective: IntArray


def least_recompute(problem: Problem, table: StageTable, *, shard: int, several: bool) -> Redone:
    """Of n layers the first x run again in full and as many of the others selectively as it needs; of all x the cheapest."""
    layers, most = table.layers, min(MOST_STAGES, table.layers)
    flight = np.arange(1, most + 1)[None, :, None]
    n = np.arange(layers + 1)[None, None, :]
    static = static_bytes(problem, table, shard=shard)
    shape = (len(table), ROLES, most, layers + 1)
    found = Redone(np.full(shape, np.inf), np.zeros(shape, dtype=np.int16), np.zeros(shape, dtype=np.int16))
    plain, selective, full = (table.saved[:, LAYER, mode, None, None] for mode in range(MODES))
    saves = flight * (plain - selective)
    for role in range(ROLES):
        room = [_room(problem, table, static, role, mode, n=n, several=several) for mode in range(MODES)]
        ends = sum((table.saved[:, part, 0] for bit, part in ((FIRST, BEFORE), (LAST, AFTER)) if role & bit), np.zeros(len(table)))
        for x in range(layers + 1):
            use = flight * (ends[:, None, None] + np.maximum(n - x, 0) * plain + np.minimum(x, n) * full)
            for some in (False, True):
                over = use - room[2 if x else int(some)]
                wanted = np.zeros_like(over)
                if some:
                    wanted = np.maximum(np.ceil(np.divide(over, saves, out=np.full_like(over, np.inf), where=saves > 0) - 1e-9), 0.0)
                able = (n >= x) & ((wanted <= n - x) & (wanted > 0) if some else over <= 0)
                counted = np.where(able, wanted, 0.0)
                spent = np.where(able, x * table.again[:, 2, None, None] + counted * table.again[:, 1, None, None], np.inf)
                better = spent < found.seconds[:, role]
                found.seconds[:, role][better] = spent[better]
                found.full[:, role][better] = x
                found.selective[:, role][better] = counted[better].astype(np.int16)
    return found


def _room(problem: Problem, table: StageTable, static: FloatArray, role: int, mode: int, *, n: IntArray, several: bool) -> FloatArray:
    """(rows, 1, layers + 1) bytes that are left for saved activations on a device, if `mode` is the strongest recompute that is used."""
    runtime = problem.runtime
    last = bool(role & LAST)
    logits, blocks = (table.logits, table.logits_blocks) if last else (np.zeros(len(table)), np.zeros(len(table)))
    end = np.where(role > 0, table.end_bytes[table.pairs], 0.0)
    again = table.made[:, mode]
    temporary = np.maximum(end, again - logits)
    groups = (table.tp > 1).astype(np.int64) + several + (role != FIRST | LAST) + 1
    capacity = np.array([table.facts[pool].capacity for pool in table.pool])
    context = np.array([table.facts[pool].context for pool in table.pool])
    reserve = table.facts[0].reserve
    outside = communicator_bytes(problem, groups) + table.overlap + table.buffers + context
    most = capacity - outside
    ends = sum(static[:, part] for bit, part in ((FIRST, BEFORE), (LAST, AFTER)) if role & bit)
    fixed = ends + float(runtime.workspace_bytes) + table.workspace
    room = activation_room(most, fixed, temporary, logits, blocks + again + end, reserve)
    return np.asarray(np.asarray(room)[:, None, None] - n * static[:, LAYER, None, None])


def first_frames(ground: Ground) -> tuple[Frame, ...]:
    """Frames that make up the space: by the least tensor parallel degree, and by whether more than half of the nodes are filled."""
    half = ground.nodes / 2
    return tuple(
        Frame(replicas=(1, ground.most_replicas), tp=tp, nodes=nodes)
        for tp in ground.degrees
        for nodes in ((half, ground.nodes), (0.0, half))
    )


def split(frame: Frame) -> tuple[Frame, ...]:
    """The frame in two by replicas; () if all have as many."""
    low, high = frame.replicas
    if low == high:
        return ()
    middle = int((low * high) ** 0.5)
    return replace(frame, replicas=(middle + 1, high)), replace(frame, replicas=(low, middle))
