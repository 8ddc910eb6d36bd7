"""Cheapest activation recomputation that makes stages of mixed plans fit in memory.

There is a choice for every table row, stage role, number of microbatches in flight and number of
layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import communicator_bytes
from shardwright.cost.step.shared_scalar_cost_formulas import activation_room, gathered_elements
from shardwright.kernel_compilation import allocation_free, inner, python_form
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import AFTER, BEFORE, LAYER
from shardwright.search.mixed.stages.stage_cost_table import MODES, StageTable
from shardwright.strategy.grid.grid_rules import MAX_STAGE

FIRST, LAST = 1, 2
"""Role bits of a stage: it holds the blocks before the first layer, or after the last layer."""
ROLES = 4
MOST_STAGES = 32
"""Largest number of stages of a pipeline shape."""


class Recompute(NamedTuple):
    """The cheapest recomputation under which stages fit.

    Array axes: (rows of several stages, roles, microbatches in flight, layers + 1).

    seconds: seconds added to a microbatch's backward; inf = the stage does not fit, or it is the
        last stage with more than one microbatch in flight, which never occurs.
    full: number of first layers that are recomputed in full.
    selective: number of the next layers whose attention core is recomputed.
    whole, whole_full, whole_selective: (rows of one stage,) the same of a stage with all layers.
    """

    seconds: FloatArray
    full: IntArray
    selective: IntArray
    whole: FloatArray
    whole_full: IntArray
    whole_selective: IntArray


class StateSharers(NamedTuple):
    """Numbers of replicas and members that share the optimizer states of a plan.

    members: data-parallel members of all replicas, for each pair of pool and mesh.
    replicas: replicas that share the optimizer states of experts.
    several: there are two replicas or more.
    lanes: (row, replicas) of lanes that shard for themselves; other rows have as many replicas as
        there may be.
    apart: optimizer states are of other elements than the shards of such a lane.
    """

    members: tuple[int, ...]
    replicas: int
    several: bool
    lanes: tuple[tuple[int, int], ...] = ()
    apart: bool = False


def least_recompute(problem: Problem, table: StageTable, sharers: StateSharers) -> Recompute:
    """Cheapest recomputation that fits, for each row, role, microbatches in flight and layers.

    The first x layers are recomputed in full, and as few of the others selectively as memory
    allows.
    """
    static = static_bytes(table, sharers)
    rooms = np.array(
        [
            [
                _activation_room_bytes(problem, table, static, role, mode, several=sharers.several)
                for mode in range(MODES)
            ]
            for role in range(ROLES)
        ]
    )
    ends = np.zeros((ROLES, len(table)))
    for role in range(ROLES):
        for bit, part in ((FIRST, BEFORE), (LAST, AFTER)):
            ends[role] += table.saved[:, part, 0] * bool(role & bit)
    shape, alone = (
        (table.several, ROLES, min(MOST_STAGES, table.layers), table.layers + 1),
        len(table) - table.several,
    )
    several = [np.full(shape, np.inf), *(np.zeros(shape, dtype=np.int64) for _ in range(2))]
    whole = [np.full(alone, np.inf), *(np.zeros(alone, dtype=np.int64) for _ in range(2))]
    recompute = Recompute(*several, *whole)
    host = _host_bytes(problem, table, sharers)
    _least(
        recompute,
        rooms,
        static[:, LAYER],
        ends,
        np.ascontiguousarray(table.saved[:, LAYER]),
        table.again,
        host,
    )
    return recompute


def _host_bytes(problem: Problem, table: StageTable, sharers: StateSharers) -> FloatArray:
    """(rows, 4) host bytes: a layer's shards, its offloads (selective, full), and a device's share.

    Columns: shards of a layer's parameters; a selectively recomputed layer and a fully recomputed
    one, each for a microbatch in flight; the node's memory for each device of a stage, inf where
    the cluster does not state the memory. A stage lies in one node. Left out are embeddings, heads
    and the other stages of the node: both only add.
    """
    runtime, kinds = problem.runtime, [group.kind for group in problem.cluster.groups]
    memory = np.array([float(kind.host.memory_bytes) or np.inf for kind in kinds])
    shards = np.zeros(len(table))
    if runtime.parameters_on_host:
        width = (
            problem.job.parameter.bits
            // 8
            * (1.0 + runtime.host_buffer_percent / 100.0)
            * (1.0 - 1e-9)
        )
        replicas = _sharding_replicas(table, sharers)
        elements, experts, still = (
            column[table.pairs, LAYER] for column in (table.elements, table.experts, table.still)
        )
        members = replicas * (table.size // table.tp)
        shards = width * ((elements + still) / members + experts / replicas)
        shards[table.zero != MAX_STAGE] = 0.0
    return np.stack(
        [shards, table.parked[:, 1], table.parked[:, 2], memory[table.pool] / table.size], axis=1
    )


@inner
def _cheapest(
    n: int,
    flight: int,
    row: int,
    role: int,
    rooms: FloatArray,
    static: FloatArray,
    ends: FloatArray,
    saved: FloatArray,
    again: FloatArray,
    host: FloatArray,
) -> tuple[float, int, int]:
    """(s added a microbatch, full, selective layers) of the cheapest at row `row`; inf = none."""
    host_room = host[row, 3] - n * host[row, 0]
    plain, some, full = saved[row, 0], saved[row, 1], saved[row, 2]
    best, best_full, best_selective = np.inf, 0, 0
    saves = flight * (plain - some)
    # Where full recomputation saves the least bytes, it makes the most layers fit. If all layers do
    # not fit so, no choice does.
    hopeless = (
        full <= some
        and flight * (ends[role, row] + n * full) > rooms[role, 2, row] - n * static[row]
    )
    for x in range(n + 1):
        if x * again[row, 2] >= best or (x > 0 and hopeless):
            break
        left = host_room - flight * x * host[row, 2]
        if left < 0.0:
            break
        use = flight * (ends[role, row] + (n - x) * plain + x * full)
        if use <= rooms[role, 2 if x else 0, row] - n * static[row]:
            return x * again[row, 2], x, 0
        over = use - (rooms[role, 2 if x else 1, row] - n * static[row])
        if saves <= 0.0 or over > (n - x) * saves:
            continue
        wanted = max(np.ceil(over / saves - 1e-9), 1.0)
        spent = x * again[row, 2] + wanted * again[row, 1]
        if wanted <= n - x and spent < best and flight * wanted * host[row, 1] <= left:
            best, best_full, best_selective = spent, x, int(wanted)
    return best, best_full, best_selective


@allocation_free
def _least(
    found: Recompute,
    rooms: FloatArray,
    static: FloatArray,
    ends: FloatArray,
    saved: FloatArray,
    again: FloatArray,
    host: FloatArray,
) -> None:
    rows, roles, flights, sizes = found.seconds.shape
    for row in range(rows):
        for role in range(roles):
            # Behind the last stage there is no other, so it has one microbatch in flight.
            for flight in range(1, 2 if role & LAST else flights + 1):
                for n in range(sizes):
                    at = row, role, flight - 1, n
                    found.seconds[at], found.full[at], found.selective[at] = _cheapest(
                        n, flight, row, role, rooms, static, ends, saved, again, host
                    )
    for place in range(len(found.whole)):
        found.whole[place], found.whole_full[place], found.whole_selective[place] = _cheapest(
            sizes - 1, 1, rows + place, FIRST | LAST, rooms, static, ends, saved, again, host
        )


def static_bytes(table: StageTable, sharers: StateSharers) -> FloatArray:
    """(rows, parts) device bytes of parameters, gradients, states: of a layer unit and each end."""
    found = np.zeros_like(table.elements)
    for pair, (pool, _) in enumerate(table.meshes):
        facts = table.facts[pool]
        each = facts.parameter_bytes + facts.gradient_bytes + facts.own_gradient_bytes
        states = np.full(3, facts.state_bytes / sharers.members[pair])
        if table.tied:
            # All holders of a tied weight share its states; their number is not known here.
            states[[BEFORE, AFTER]] = 0.0
        found[pair] = (
            table.elements[pair] * (each + states) + table.frozen[pair] * facts.parameter_bytes
        )
        found[pair] += table.experts[pair] * (each + facts.state_bytes / sharers.replicas)
    result: FloatArray = found[table.pairs]
    if table.sharded.any():
        which = np.flatnonzero(table.sharded)
        result[which] = _sharded_bytes(table, sharers, which)
    return result


def _sharded_bytes(table: StageTable, sharers: StateSharers, rows: IntArray) -> FloatArray:
    """(which, parts) bytes of parameters, gradients and states in rows of lanes that shard.

    Each lane shards among as many replicas as `_sharding_replicas` returns.
    """

    def fact(name: str) -> FloatArray:
        """(given rows, 1) the field `name` of `ProblemNumbers` of each row's pool."""
        return table.fact(name)[rows, None]

    pairs, replicas = table.pairs[rows], _sharding_replicas(table, sharers)[rows, None]
    dense, experts = table.elements[pairs], table.experts[pairs]
    members = replicas * (table.size // table.tp)[rows, None]
    shared = dense / members + experts / replicas
    states = dense / np.array(sharers.members)[pairs, None] + experts / sharers.replicas
    width = fact("frozen_shard_bytes" if sharers.apart else "shard_bytes")
    parameters = np.where(
        table.zero[rows, None] == MAX_STAGE,
        shared * width + table.still[pairs] / members * fact("frozen_shard_bytes"),
        (dense + experts) * fact("parameter_bytes") + table.frozen[pairs] * fact("parameter_bytes"),
    )
    states_bytes = fact("state_bytes") * states * np.array([1.0, not table.tied, not table.tied])
    return np.asarray(parameters + shared * fact("gradient_bytes") + states_bytes)


def _sharding_replicas(table: StageTable, sharers: StateSharers) -> IntArray:
    """(rows,) replicas among which a lane of each row shards.

    From `StateSharers.lanes`; other rows have as many as there may be.
    """
    replicas = np.minimum(table.max_replicas, max(sharers.replicas, 2))
    for row, lane_replicas in sharers.lanes:
        replicas[row] = lane_replicas
    return np.asarray(replicas)


def gathered_bytes(table: StageTable, role: int) -> FloatArray:
    """(rows,) bytes of parameters that ZeRO-3 holds gathered at once in a stage of `role`.

    The ends for the whole step, and the largest block with the blocks that are prefetched.
    """
    parts = [LAYER, *(part for bit, part in ((FIRST, BEFORE), (LAST, AFTER)) if role & bit)]
    ends, largest = table.root[:, parts].sum(axis=1), table.unit[:, parts].max(axis=1)
    elements = python_form(gathered_elements)(ends, largest, table.facts[0].prefetch)
    return np.asarray(elements * table.fact("parameter_bytes"))


def _has_expert_groups(table: StageTable) -> IntArray:
    """(rows,) 1 where experts spread over several devices, else 0."""
    return np.array([mesh.ep > 1 for _, mesh in table.meshes], dtype=np.int64)[table.pairs]


def _activation_room_bytes(
    problem: Problem, table: StageTable, static: FloatArray, role: int, mode: int, *, several: bool
) -> FloatArray:
    """(rows,) device bytes left for saved activations, before its layers' states are subtracted.

    Args:
        mode: the strongest recomputation that is used.
    """
    runtime = problem.runtime
    last = bool(role & LAST)
    logits, blocks = (
        (table.logits, table.logits_blocks)
        if last
        else (np.zeros(len(table)), np.zeros(len(table)))
    )
    end = np.where(role > 0, table.end_bytes[table.pairs], 0.0)
    again = table.made[:, mode]
    temporary = np.maximum(end, again - logits)
    members = several | (table.size > table.tp)
    groups = (
        (table.tp > 1).astype(np.int64)
        + members
        + _has_expert_groups(table)
        + (role != FIRST | LAST)
        + 1
    )
    outside = (
        communicator_bytes(problem, groups) + table.overlap + table.buffers + table.fact("context")
    )
    ends = sum(
        (static[:, part] for bit, part in ((FIRST, BEFORE), (LAST, AFTER)) if role & bit),
        np.zeros(len(table)),
    )
    fixed = ends + float(runtime.workspace_bytes) + table.workspace
    if table.sharded.any():
        fixed = fixed + gathered_bytes(table, role)
    return activation_room(
        table.fact("capacity") - outside,
        fixed,
        temporary,
        logits,
        blocks + again + end,
        table.facts[0].reserve,
    )
