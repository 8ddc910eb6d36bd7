"""What stages of mixed plans run again in their backward so that they fit: the cheapest choice for every row, role, flight and size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import allocation_free
from shardwright.cost.device_buffers import communicator_bytes
from shardwright.cost.terms import activation_room
from shardwright.program.problem import Problem
from shardwright.search.mixed.pattern import AFTER, BEFORE, LAYER
from shardwright.search.mixed.tables import MODES, StageTable

FIRST, LAST = 1, 2
"""Roles of a stage, added: it holds what stands before the first layer, or behind the last one."""
ROLES = 4
MOST_STAGES = 32
"""Stages of a shape at most."""


class Redone(NamedTuple):
    """The cheapest recompute under which stages fit: (rows, roles, in flight, layers + 1).

    seconds: that it adds to a microbatch's backward; inf = nothing fits. full: layers that run again whole, the first ones. selective: of
    the next ones, those whose attention core does.
    """

    seconds: FloatArray
    full: IntArray
    selective: IntArray


class Sharers(NamedTuple):
    """Who shares states of a plan.

    members: of each pair of pool and mesh, data-parallel members of all replicas. replicas: that share those of experts. several: there are
    two replicas or more.
    """

    members: tuple[int, ...]
    replicas: int
    several: bool


def least_recompute(problem: Problem, table: StageTable, sharers: Sharers) -> Redone:
    """Of n layers the first x run again in full and as many of the others selectively as it needs; of all x the cheapest."""
    static = static_bytes(table, sharers)
    rooms = np.array(
        [[_room(problem, table, static, role, mode, several=sharers.several) for mode in range(MODES)] for role in range(ROLES)]
    )
    ends = np.zeros((ROLES, len(table)))
    for role in range(ROLES):
        for bit, part in ((FIRST, BEFORE), (LAST, AFTER)):
            ends[role] += table.saved[:, part, 0] * bool(role & bit)
    shape = (len(table), ROLES, min(MOST_STAGES, table.layers), table.layers + 1)
    found = Redone(np.full(shape, np.inf), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
    _least(found, rooms, static[:, LAYER], ends, np.ascontiguousarray(table.saved[:, LAYER]), table.again)
    return found


@allocation_free
def _least(found: Redone, rooms: FloatArray, static: FloatArray, ends: FloatArray, saved: FloatArray, again: FloatArray) -> None:
    rows, roles, flights, sizes = found.seconds.shape
    for row in range(rows):
        plain, some, full = saved[row, 0], saved[row, 1], saved[row, 2]
        for role in range(roles):
            for flight in range(1, flights + 1):
                saves = flight * (plain - some)
                for n in range(sizes):
                    best = np.inf
                    for x in range(n + 1):
                        if x * again[row, 2] >= best:
                            break
                        use = flight * (ends[role, row] + (n - x) * plain + x * full)
                        if use <= rooms[role, 2 if x else 0, row] - n * static[row]:
                            best = x * again[row, 2]
                            found.full[row, role, flight - 1, n] = x
                            found.selective[row, role, flight - 1, n] = 0
                            break
                        over = use - (rooms[role, 2 if x else 1, row] - n * static[row])
                        if saves <= 0.0 or over > (n - x) * saves:
                            continue
                        wanted = max(np.ceil(over / saves - 1e-9), 1.0)
                        spent = x * again[row, 2] + wanted * again[row, 1]
                        if wanted <= n - x and spent < best:
                            best = spent
                            found.full[row, role, flight - 1, n] = x
                            found.selective[row, role, flight - 1, n] = int(wanted)
                    found.seconds[row, role, flight - 1, n] = best


def static_bytes(table: StageTable, sharers: Sharers) -> FloatArray:
    """(rows, parts) bytes of parameters, gradients and states of one of each part."""
    found = np.zeros_like(table.elements)
    for pair, (pool, _) in enumerate(table.meshes):
        facts = table.facts[pool]
        each = facts.parameter_bytes + facts.gradient_bytes + facts.own_gradient_bytes
        states = np.full(3, facts.state_bytes / sharers.members[pair])
        if table.tied:
            # Whoever holds a shared weight shares its states, as many as there may be.
            states[[BEFORE, AFTER]] = 0.0
        found[pair] = table.elements[pair] * (each + states) + table.frozen[pair] * facts.parameter_bytes
        found[pair] += table.experts[pair] * (each + facts.state_bytes / sharers.replicas)
    result: FloatArray = found[table.pairs]
    return result


def _spreads(table: StageTable) -> IntArray:
    """(rows,) groups over which experts spread: one where they do."""
    return np.array([mesh.ep > 1 for _, mesh in table.meshes], dtype=np.int64)[table.pairs]


def _room(problem: Problem, table: StageTable, static: FloatArray, role: int, mode: int, *, several: bool) -> FloatArray:
    """(rows,) bytes that a stage without layers leaves for saved activations, if `mode` is the strongest recompute that is used."""
    runtime = problem.runtime
    last = bool(role & LAST)
    logits, blocks = (table.logits, table.logits_blocks) if last else (np.zeros(len(table)), np.zeros(len(table)))
    end = np.where(role > 0, table.end_bytes[table.pairs], 0.0)
    again = table.made[:, mode]
    temporary = np.maximum(end, again - logits)
    members = several | (table.size > table.tp)
    groups = (table.tp > 1).astype(np.int64) + members + _spreads(table) + (role != FIRST | LAST) + 1
    capacity = np.array([table.facts[pool].capacity for pool in table.pool])
    context = np.array([table.facts[pool].context for pool in table.pool])
    reserve = table.facts[0].reserve
    outside = communicator_bytes(problem, groups) + table.overlap + table.buffers + context
    ends = sum((static[:, part] for bit, part in ((FIRST, BEFORE), (LAST, AFTER)) if role & bit), np.zeros(len(table)))
    fixed = ends + float(runtime.workspace_bytes) + table.workspace
    return activation_room(capacity - outside, fixed, temporary, logits, blocks + again + end, reserve)
