"""A general plan's Program as the kernel's tasks: seconds of each template, and what it takes of
links and multiprocessors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, Int32Array, IntArray
from shardwright.cost.bounds.longest_path import picoseconds
from shardwright.cost.network.plan_groups import plan_units, working_problem
from shardwright.cost.network.stage_transfers import Crossing, around_seconds, crossing_of
from shardwright.cost.step.overlapped_pairs import pair_share
from shardwright.cost.step.stage_costs import StageCosts, action_table, update_seconds
from shardwright.errors import InfeasibleError
from shardwright.hardware.graph import Units, repeats_after
from shardwright.lazy_dataclass import dataclass
from shardwright.program.instances import TaskKind
from shardwright.program.problem import Problem
from shardwright.program.program import DeviceClass, Program, class_numbers
from shardwright.program.same import Same
from shardwright.program.stages.parts import working_devices
from shardwright.simulator.kernel.events import SCALE
from shardwright.units import PICOSECONDS_PER_SECOND

_LAST = 2**62
"""Picosecond, as the clock may run that far again while tasks that share a device slow each other.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sends:
    """What goes along the edges.

    Args:
        each: (class of senders, its part of an edge's messages), equal ones once.
        of: (templates,) which of them, -1 = no send.
    """

    each: tuple[tuple[int, Crossing], ...]
    of: IntArray


def _sends(problem: Problem, program: Program) -> _Sends:
    """The sends of a Program. Edges between stages of one class each that lie alike in the network
    share theirs.
    """
    class_of, unit = class_numbers(program.classes), repeats_after(plan_units(problem))
    alike: dict[tuple[int, int], Crossing] = {}
    number: dict[tuple[int, ...], int] = {}
    each: list[tuple[int, Crossing]] = []
    templates, posts = program.templates, program.posts
    of = np.full(len(templates), -1, dtype=np.int64)
    sent = np.flatnonzero(templates.edge >= 0)
    for index, kind, klass, edge in zip(
        sent.tolist(),
        *(c[sent].tolist() for c in (templates.kind, templates.klass, templates.edge)),
        strict=True,
    ):
        one = program.edges[edge]
        messages = one.forward if kind == TaskKind.SEND_F else one.backward
        ends = posts.of_stage[one.lane, one.edge.source], posts.of_stage[one.lane, one.edge.target]
        single = len(ends[0]) == len(ends[1]) == 1 and not messages.collectives
        (other,) = ends[kind == TaskKind.SEND_F] if single else (-1,)
        known = (id(messages.sends), messages.base % unit if unit else messages.base)
        key = (*known, klass, other) if single else (kind, edge, klass)
        if key not in number:
            if not single:
                found = crossing_of(problem, messages, klass, class_of)
            else:
                if known not in alike:
                    alike[known] = crossing_of(problem, messages, klass, class_of)
                found = replace(alike[known], into=((other, alike[known].into[0][1]),))
            number[key] = len(each)
            each.append((klass, found))
        of[index] = number[key]
    return _Sends(each=tuple(each), of=of)


@lru_cache(maxsize=64)
def _lying(
    classes: tuple[DeviceClass, ...], units: tuple[Units, ...], total: int
) -> tuple[IntArray, IntArray]:
    """(levels, classes) unit of each class's first device, and (levels, classes, 2) its members
    there over the unit's devices.
    """
    firsts = np.array([c.devices.first for c in classes], dtype=np.int64)
    unit = np.array([level.of(firsts) for level in units])
    sizes = [np.minimum(level.sizes(firsts), total).tolist() for level in units]
    members = [
        [one.devices.within(*level.around(one.devices.first)) for one in classes] for level in units
    ]
    return unit, np.stack([np.array(members), np.array(sizes)], axis=2)


class _Uses:
    """Resources by number, and what each template takes of them."""

    def __init__(self, problem: Problem, program: Program, costs: StageCosts) -> None:
        units = plan_units(problem)
        self.count, self.levels = len(program.classes), len(units)
        unit, load = _lying(program.classes, units, problem.cluster.num_devices)
        self.unit, self.load = unit.tolist(), load.tolist()
        most_units = int(unit.max()) + 1
        self.out, self.into = self.count, self.count + self.count * self.levels
        self.pool_out = self.count + 2 * self.count * self.levels
        self.pool_in = self.pool_out + most_units * self.levels
        self.num_resources = self.pool_in + most_units * self.levels
        self.shares, self.extra = [], []
        for device_class in program.classes:
            here = {
                id(step): step
                for place in device_class.families
                for step in costs.families[place].slices[:1]
            }.values()
            self.shares.append(np.max([step.shares for step in here], axis=0).tolist())
            self.extra.append(max(round((max(step.slowdown for step in here) - 1.0) * SCALE), 0))

    def pool(self, klass: int, base: int, tier: int, weight: int) -> list[tuple[int, int]]:
        """The uplinks between the island and `tier`, loaded by all devices of the class in that
        unit.
        """
        result = []
        for below in range(1, tier):
            members, devices = self.load[below][klass]
            result.append(
                (
                    base + self.unit[below][klass] * self.levels + below,
                    -(-weight // devices) * members,
                )
            )
        return result

    def action(self, klass: int) -> list[tuple[int, int]]:
        """(resource, weight) of an action of a class that may run beside a collective."""
        return [(klass, SCALE)] if self.extra[klass] else []

    def sync(self, klass: int) -> list[tuple[int, int]]:
        """(resource, weight) of a gather or a reduction."""
        uses = [(klass, self.extra[klass])] if self.extra[klass] else []
        for tier, share in enumerate(self.shares[klass]):
            weight = min(round(share * SCALE), SCALE)
            if weight:
                uses += [
                    (self.out + klass * self.levels + tier, weight),
                    (self.into + klass * self.levels + tier, weight),
                ]
                uses += self.pool(klass, self.pool_out, tier, weight) + self.pool(
                    klass, self.pool_in, tier, weight
                )
        return uses

    def send(self, klass: int, sent: Crossing) -> list[tuple[int, int]]:
        """(resource, weight) of a send."""
        weight = max(round(sent.sent / sent.most * SCALE), 1)
        uses = [
            (self.out + klass * self.levels + sent.tier, weight),
            *self.pool(klass, self.pool_out, sent.tier, weight),
        ]
        for other, elements in sent.into:
            weight = max(round(elements / sent.most * SCALE), 1)
            uses += [
                (self.into + other * self.levels + sent.tier, weight),
                *self.pool(other, self.pool_in, sent.tier, weight),
            ]
        return uses


def plan_kernel_tasks(
    problem: Problem, program: Program, costs: StageCosts
) -> tuple[IntArray, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, int]:
    """The Program as the kernel's arguments: work, dependencies, and what each task takes of the
    shared resources.
    """
    problem = working_problem(problem, working_devices(Same(program.stages)))
    sends = _sends(problem, program)
    templates, instances = program.templates, program.instances
    seconds = template_seconds(problem, program, costs, sends)
    _require_countable(
        seconds,
        instances=np.bincount(instances.template, minlength=len(seconds)),
        pieces=templates.pieces,
    )
    work = picoseconds(seconds)
    work = (
        work * (templates.piece + 1) // templates.pieces
        - work * templates.piece // templates.pieces
    )
    uses = _Uses(problem, program, costs)
    count = len(program.classes)
    rows = [uses.action(k) for k in range(count)] + [uses.sync(k) for k in range(count)] + [[]]
    row = np.where(templates.kind <= TaskKind.R, templates.klass, templates.klass + count)
    row[templates.kind == TaskKind.STEP] = 2 * count
    row = np.where(sends.of >= 0, 2 * count + 1 + sends.of, row)
    rows += [uses.send(klass, sent) for klass, sent in sends.each]
    which = row[instances.template]
    which = np.where(
        (templates.kind[instances.template] <= TaskKind.R) & ~instances.beside_sync,
        2 * count,
        which,
    )
    start = np.concatenate([[0], np.cumsum([len(one) for one in rows])]).astype(np.int64)
    per_task = start[which + 1] - start[which]
    use_start = np.concatenate([[0], np.cumsum(per_task)])
    within = np.arange(int(use_start[-1])) - np.repeat(use_start[:-1], per_task)
    pairs = np.array([pair for one in rows for pair in one], dtype=np.int64).reshape(-1, 2)[
        np.repeat(start[which], per_task) + within
    ]
    return (
        work[instances.template],
        instances.indegree,
        instances.successor_start,
        instances.successor,
        use_start.astype(np.int32),
        pairs[:, 0].astype(np.int32),
        pairs[:, 1].astype(np.int32),
        uses.num_resources,
    )


def _require_countable(seconds: FloatArray, *, instances: IntArray, pieces: IntArray) -> None:
    """All tasks one after another end before the clock, of 64 bits, does."""
    if (
        max(float(seconds / pieces @ instances), float((seconds * pieces).max()))
        * PICOSECONDS_PER_SECOND
        > _LAST
    ):
        days = float(seconds.max()) / 86400
        raise InfeasibleError(
            f"a step takes longer than the simulated clock counts: one task alone {days:.3g} days",
            hint="a smaller batch, shorter sequences or a faster network",
        )


def template_seconds(
    problem: Problem, program: Program, costs: StageCosts, sends: _Sends
) -> FloatArray:
    """(templates,) uncontended seconds of all pieces of each template."""
    templates, posts = program.templates, program.posts
    numbers = {key: i for i, key in enumerate(costs.families)}
    family_of = np.array(
        [
            numbers[key]
            for key in zip(
                posts.lane.tolist(), posts.chunk.tolist(), posts.family.tolist(), strict=True
            )
        ]
    )
    kind = templates.kind

    def family(lane: IntArray, chunk: IntArray) -> IntArray:
        return np.asarray(
            family_of[posts.number[templates.klass, posts.first_stage[lane] + chunk]],
            dtype=np.int64,
        )

    own = family(np.maximum(templates.lane, 0), np.maximum(templates.chunk, 0))
    table = action_table(costs)
    action = kind <= TaskKind.R
    seconds = np.zeros(len(kind))
    seconds[action] = table.seconds[
        templates.early[action], kind[action], own[action], templates.slice[action]
    ]
    for which, name in (
        (TaskKind.GATHER, "gather_s"),
        (TaskKind.REDUCE, "reduce_s"),
        (TaskKind.REDUCE_TIED, "tied_s"),
    ):
        at = np.flatnonzero(kind == which)
        if len(at):
            of = np.array(
                [float(getattr(cost.slices[0], name)[0]) for cost in costs.families.values()]
            )
            seconds[at] = of[own[at]]
    both = np.flatnonzero(templates.partner_kind >= 0)
    if len(both):
        other = family(
            np.maximum(templates.partner_lane, 0), np.maximum(templates.partner_chunk, 0)
        )[both]
        early, mine, theirs = templates.early[both], kind[both], templates.partner_kind[both]
        places = (
            (mine, own[both], templates.slice[both]),
            (theirs, other, templates.partner_slice[both]),
        )
        one, two = (
            (table.seconds[early, *at], table.routed[at], table.products[at]) for at in places
        )
        seconds[both] = pair_share(one, two, costs.taken)
    for klass, device_class in enumerate(program.classes):
        seconds[(kind == TaskKind.STEP) & (templates.klass == klass)] = update_seconds(
            costs, device_class
        )
    if not sends.each:
        return seconds
    at = np.flatnonzero(sends.of >= 0)
    latency, bandwidth, most = np.array(
        [(c.latency_s, c.bandwidth, c.most) for _, c in sends.each]
    )[sends.of[at]].T
    scales = [
        [costs.element * length / sum(lengths) for length in lengths] for lengths in costs.lengths
    ]
    lanes, slices = templates.lane[at].tolist(), templates.slice[at].tolist()
    scale = np.array([scales[lane][part] for lane, part in zip(lanes, slices, strict=True)])
    seconds[at] = latency + most * scale / bandwidth
    for place, (index, which) in enumerate(zip(at.tolist(), sends.of[at].tolist(), strict=True)):
        one = sends.each[which][1]
        if one.collectives:
            seconds[index] += around_seconds(
                problem, one.collectives, one.around, scale=float(scale[place])
            )
    return seconds
