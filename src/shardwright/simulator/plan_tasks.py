"""A general plan's Program as the kernel's tasks: seconds of each template, and what it takes of links and multiprocessors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from shardwright.collectives.algorithm import Collective
from shardwright.cost.block_table import CP, EP, TP
from shardwright.cost.communication import move_seconds
from shardwright.cost.critical_path import picoseconds
from shardwright.cost.member import RECOMPUTE_PART, StepCosts
from shardwright.cost.plan_costs import FamilyCosts, slice_lengths
from shardwright.cost.plan_network import group_span, network_among, network_of_devices, tiers_between
from shardwright.hardware.cluster import Tier
from shardwright.program.instances import TaskKind
from shardwright.program.plan_program import DeviceClass, Holders, PlanProgram, class_numbers
from shardwright.program.plan_sync import Holdings
from shardwright.program.problem import Problem
from shardwright.program.stage_edges import Messages
from shardwright.program.stage_parts import StageParts
from shardwright.simulator.kernel import SCALE
from shardwright.strategy.plan import Plan

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]

_COMMUNICATION = (TP, CP, EP)


def plan_tiers(problem: Problem) -> tuple[Tier, ...]:
    """The tiers of the network that all devices share."""
    cluster = problem.cluster
    kinds = (0,) if cluster.is_uniform else tuple(sorted(range(len(cluster.groups))))
    return network_among(cluster, kinds, problem.runtime.collective_library).tiers


Uses = dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[tuple[int, ...], ...]], ...]]
"""By (lane, chunk, family): ((lane, chunk), groups of devices) of each use."""


def _listed(uses: dict[tuple[int, int, int], dict[tuple[int, int], dict[int, tuple[int, ...]]]]) -> Uses:
    return {key: tuple((use, tuple(groups.values())) for use, groups in found.items()) for key, found in uses.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCosts:
    """Costs of every family of every stage.

    Args:
        families: by (lane, chunk, family). stages: by lane and chunk. coupled: families of the same stage that start together.
        pieces: of the last backward, by (lane, chunk). uses: of each family's gradients: ((lane, chunk), groups) that hold them too;
            tied: the same of weights that other stages use under another name.
        element: bytes of an activation element.
        lengths: tokens of each slice, by lane.
    """

    families: dict[tuple[int, int, int], FamilyCosts]
    stages: tuple[tuple[StageParts, ...], ...]
    coupled: dict[tuple[int, int, int], tuple[int, ...]]
    pieces: dict[tuple[int, int], int]
    uses: Uses
    tied: Uses
    lengths: tuple[tuple[int, ...], ...]
    element: int

    @staticmethod
    def of(
        problem: Problem,
        plan: Plan,
        stages: tuple[tuple[StageParts, ...], ...],
        families: dict[tuple[int, int, int], FamilyCosts],
        holdings: Holdings,
    ) -> PlanCosts:
        """Costs with what follows from them: coupling, pieces, holders."""
        coupled: dict[tuple[int, int, int], tuple[int, ...]] = {}
        pieces: dict[tuple[int, int], int] = {}
        uses: dict[tuple[int, int, int], dict[tuple[int, int], dict[int, tuple[int, ...]]]] = {}
        tied: dict[tuple[int, int, int], dict[tuple[int, int], dict[int, tuple[int, ...]]]] = {}
        for lane in stages:
            for stage in lane:
                for index, joined in enumerate(_joined(stage, families)):
                    coupled[stage.lane, stage.chunk, index] = joined
                cost = families[stage.lane, stage.chunk, 0]
                pieces[stage.lane, stage.chunk] = int(cost.slices[0].pieces[0])
        index_of = {(s.lane, s.chunk, family[0]): i for lane in stages for s in lane for i, family in enumerate(s.families)}
        for (lane_number, chunk, _, device), held in holdings.items():
            key = (lane_number, chunk, index_of[lane_number, chunk, device])
            for item in held:
                if len(item.group) > 1 or len(item.uses) > 1:
                    mine = (tied if item.is_tied else uses).setdefault(key, {})
                    for other_lane, other_chunk, _ in item.uses:
                        mine.setdefault((other_lane, other_chunk), {})[id(item.group)] = item.group
        return PlanCosts(
            families=families,
            stages=stages,
            coupled=coupled,
            pieces=pieces,
            uses=_listed(uses),
            tied=_listed(tied),
            lengths=tuple(slice_lengths(plan, lane, length=problem.job.sequence_length) for lane in range(len(plan.lanes))),
            element=problem.job.activation.bits // 8,
        )

    @property
    def gathers(self) -> bool:
        """Parameters are gathered at the start of the step."""
        return any(float(step.gather_s.sum()) > 0.0 for cost in self.families.values() for step in cost.slices)

    def holders_of(self, classes: tuple[DeviceClass, ...], *, tied: bool = False) -> Holders:
        """For each (lane, chunk, class): whose last backwards its reduction, or that of its tied weights, waits for."""
        class_of = class_numbers(classes)
        known: dict[int, frozenset[int]] = {}

        def classes_in(group: tuple[int, ...]) -> frozenset[int]:
            if id(group) not in known:
                known[id(group)] = frozenset(np.unique(class_of[list(group)]).tolist())
            return known[id(group)]

        result = {}
        for k, device_class in enumerate(classes):
            for place in device_class.families:
                uses = (self.tied if tied else self.uses).get(place, ())
                if uses or not tied:
                    result[place[0], place[1], k] = tuple(
                        (use, tuple(sorted(frozenset[int]().union(*(classes_in(g) for g in groups))))) for use, groups in uses
                    )
        return result

    def step(self, lane: int, chunk: int, family: int, part: int = 0) -> StepCosts:
        """The composed step of one chunk."""
        return self.families[lane, chunk, family].slices[part]

    def seconds(self, lane: int, chunk: int, family: int, part: int, kind: TaskKind, *, early: bool = False) -> float:
        """Seconds of an action: the slowest of the coupled families; those that run different operators one after the other.

        Args:
            early: what it recomputes has an action of its own.
        """
        longest: dict[frozenset[str], float] = {}
        for one in self.coupled[lane, chunk, family]:
            cost = self.families[lane, chunk, one]
            longest[cost.operators] = max(longest.get(cost.operators, 0.0), action_seconds(cost.slices[part], kind, early=early))
        return sum(longest.values())


def action_seconds(step: StepCosts, kind: TaskKind, *, early: bool = False) -> float:
    """Seconds of one action of the only chunk of `step`."""
    forward, backward, weight = float(step.forward_s[0]), float(step.backward_s[0]), float(step.weight_s[0])
    again = float(step.parts[1, 0, RECOMPUTE_PART])
    back = backward - again if early else backward
    return {TaskKind.F: forward, TaskKind.B: back, TaskKind.I: back - weight, TaskKind.W: weight, TaskKind.R: again}.get(kind, 0.0)


def exposed_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of an action in which its kernels wait for communication (of a whole backward, all in the input gradient)."""
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    return float(step.parts[0 if kind is TaskKind.F else 1, 0, list(_COMMUNICATION)].sum())


def paired(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Seconds of two actions that run overlapped: the longest of both together in kernels, in communication, and each alone.

    Args:
        one, other: (seconds, seconds of them exposed communication).

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 (attention, dispatch, experts and combine of one beside the other's).
    """
    kernels = sum(max(whole - moved, 0.0) for whole, moved in (one, other))
    return max(kernels, one[1] + other[1], one[0], other[0])


def _joined(stage: StageParts, families: dict[tuple[int, int, int], FamilyCosts]) -> tuple[tuple[int, ...], ...]:
    """For each family, those that blocking collectives join with it, itself included (transitively)."""
    count = len(stage.families)
    if count == 1:
        return ((0,),)
    family_of = {d: i for i, family in enumerate(stage.families) for d in family}
    label = list(range(count))
    for index in range(count):
        for device in families[stage.lane, stage.chunk, index].coupled:
            other = family_of.get(device + stage.base)
            if other is not None and label[other] != label[index]:
                old, new = label[other], label[index]
                label = [new if x == old else x for x in label]
    return tuple(tuple(j for j in range(count) if label[j] == label[i]) for i in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What a class of senders sends along an edge, in elements of a whole microbatch.

    Args:
        tier: that it crosses. most: of one device, sent or arriving. sent: of one sender. into: (class, most that one of its devices gets).
        collectives: of the edge, in which sender or receivers take part: (kind, devices, elements).
    """

    tier: int
    most: int
    sent: int
    into: tuple[tuple[int, int], ...]
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...]


def _sent(messages: Messages, klass: int, class_of: Int64, tiers: tuple[Tier, ...]) -> _Sent:
    """A class's part of an edge's messages."""
    ends = messages.sends[:, :2] + messages.base
    mine = class_of[ends[:, 0]] == klass
    source, target, elements = ends[mine, 0], ends[mine, 1], messages.sends[mine, 2]
    sent, received = np.bincount(source, elements), np.bincount(target, elements)
    # What others send to the same devices arrives with it: so one sender, or all of them as one class, take equally long.
    arriving = np.bincount(ends[:, 1], messages.sends[:, 2])[target]
    to = np.unique(target)
    into = tuple((int(k), int(received[to[class_of[to] == k]].max())) for k in np.unique(class_of[to]))
    there = set(source.tolist()) | set(target.tolist()) if messages.collectives else set()
    return _Sent(
        tier=int(tiers_between(source, target, tiers).max()),
        most=int(max(sent.max(), arriving.max())),
        sent=int(sent.max()),
        into=into,
        collectives=tuple(
            (kind, devices, size)
            for kind, group, size in messages.collectives
            if not there.isdisjoint(devices := tuple(d + messages.base for d in group))
        ),
    )


def _sends(problem: Problem, program: PlanProgram) -> dict[tuple[int, int, int], _Sent]:
    """By (kind of send, edge, class). Edges between stages of one class each that lie alike in the network share theirs."""
    class_of, tiers = class_numbers(program.classes), plan_tiers(problem)
    unit = tiers[-2].num_devices if len(tiers) > 1 else 1
    alike: dict[object, _Sent] = {}
    result = {}
    templates, posts = program.templates, program.posts
    for index in np.flatnonzero(templates.edge >= 0).tolist():
        kind, klass, number = int(templates.kind[index]), int(templates.klass[index]), int(templates.edge[index])
        if (kind, number, klass) in result:
            continue
        one = program.edges[number]
        messages = one.forward if kind == TaskKind.SEND_F else one.backward
        ends = [posts.at(one.lane, chunk) for chunk in (one.edge.source, one.edge.target)]
        if len(ends[0]) == len(ends[1]) == 1 and not messages.collectives:
            other = int(posts.klass[ends[1 if kind == TaskKind.SEND_F else 0][0]])
            key = (id(messages.sends), messages.base % unit)
            if key not in alike:
                alike[key] = _sent(messages, klass, class_of, tiers)
            found = replace(alike[key], into=((other, alike[key].into[0][1]),))
        else:
            found = _sent(messages, klass, class_of, tiers)
        result[kind, number, klass] = found
    return result


def crossing_seconds(problem: Problem, messages: Messages, *, scale: float) -> float:
    """Seconds of an edge's messages alone: latency, the busiest device's bytes over the tier's bandwidth, and the collectives around them.

    Args:
        scale: bytes of an element, times the share of the sequence that is at work.
    """
    devices = messages.sends[:, :2] + messages.base
    seconds = 0.0
    if len(devices):
        tiers = plan_tiers(problem)
        tier = int(tiers_between(devices[:, 0], devices[:, 1], tiers).max())
        most = max(np.bincount(devices[:, side], messages.sends[:, 2]).max() for side in (0, 1)) * scale
        seconds = tiers[tier].latency_s + float(most) / tiers[tier].bandwidth
    everywhere = ((kind, tuple(d + messages.base for d in group), size) for kind, group, size in messages.collectives)
    return seconds + _collected(problem, everywhere, scale)


def _collected(problem: Problem, collectives: Iterable[tuple[Collective, tuple[int, ...], int]], scale: float) -> float:
    """Seconds of collectives around the messages of an edge, the slowest group of each kind."""
    longest: dict[object, float] = {}
    for kind, devices, elements in collectives:
        network = network_of_devices(problem, devices)
        volume = np.array([elements * scale])
        spent = float(move_seconds(kind, volume=volume, span=group_span(devices, network), network=network)[0])
        longest[kind] = max(longest.get(kind, 0.0), spent)
    return sum(longest.values())


@lru_cache(maxsize=64)
def _units(classes: tuple[DeviceClass, ...], tiers: tuple[Tier, ...], total: int) -> tuple[Int64, Int64]:
    """(tiers, classes) unit of each class's first device, and (tiers, classes, 2) its members there over the unit's devices."""
    unit = np.array([[c.devices[0] // t.num_devices for c in classes] for t in tiers], dtype=np.int64)
    load = np.array(
        [
            [(sum(d // t.num_devices == c.devices[0] // t.num_devices for d in c.devices), min(t.num_devices, total)) for c in classes]
            for t in tiers
        ],
        dtype=np.int64,
    )
    return unit, load


class _Uses:
    """Resources by number, and what each template takes of them."""

    def __init__(self, problem: Problem, program: PlanProgram, costs: PlanCosts) -> None:
        self.tiers = plan_tiers(problem)
        self.count, self.levels = len(program.classes), len(self.tiers)
        self.unit, self.load = _units(program.classes, self.tiers, problem.cluster.num_devices)
        most_units = int(self.unit.max()) + 1
        self.out, self.into = self.count, self.count + self.count * self.levels
        self.pool_out = self.count + 2 * self.count * self.levels
        self.pool_in = self.pool_out + most_units * self.levels
        self.num_resources = self.pool_in + most_units * self.levels
        self.shares, self.extra = [], []
        for device_class in program.classes:
            here = {id(cost): cost for place in device_class.families if (cost := costs.families[place]).shares}
            slowdown = max((cost.slices[0].slowdown for cost in here.values()), default=1.0)
            self.shares.append(tuple(map(max, zip_longest(*(c.shares for c in here.values()), (0.0,) * self.levels, fillvalue=0.0))))
            self.extra.append(max(round((slowdown - 1.0) * SCALE), 0))

    def pool(self, klass: int, base: int, tier: int, weight: int) -> list[tuple[int, int]]:
        """The uplinks between the island and `tier`, loaded by all devices of the class in that unit."""
        result = []
        for below in range(1, tier):
            members, devices = (int(x) for x in self.load[below, klass])
            result.append((base + int(self.unit[below, klass]) * self.levels + below, -(-weight // devices) * members))
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
                uses += [(self.out + klass * self.levels + tier, weight), (self.into + klass * self.levels + tier, weight)]
                uses += self.pool(klass, self.pool_out, tier, weight) + self.pool(klass, self.pool_in, tier, weight)
        return uses

    def send(self, klass: int, sent: _Sent) -> list[tuple[int, int]]:
        """(resource, weight) of a send."""
        weight = max(round(sent.sent / sent.most * SCALE), 1)
        uses = [(self.out + klass * self.levels + sent.tier, weight), *self.pool(klass, self.pool_out, sent.tier, weight)]
        for other, elements in sent.into:
            weight = max(round(elements / sent.most * SCALE), 1)
            uses += [(self.into + other * self.levels + sent.tier, weight), *self.pool(other, self.pool_in, sent.tier, weight)]
        return uses


def plan_kernel_tasks(
    problem: Problem, program: PlanProgram, costs: PlanCosts
) -> tuple[Int64, Int32, Int32, Int32, Int32, Int32, Int32, int]:
    """The Program as the kernel's arguments: work, dependencies, and what each task takes of the shared resources."""
    sends = _sends(problem, program)
    work = picoseconds(template_seconds(problem, program, costs, sends))
    templates, instances = program.templates, program.instances
    work = work * (templates.piece + 1) // templates.pieces - work * templates.piece // templates.pieces
    uses = _Uses(problem, program, costs)
    count = len(program.classes)
    rows = [uses.action(k) for k in range(count)] + [uses.sync(k) for k in range(count)] + [[]]
    row = np.where(templates.kind <= TaskKind.R, templates.klass, templates.klass + count)
    row[templates.kind == TaskKind.STEP] = 2 * count
    number = {key: 2 * count + 1 + place for place, key in enumerate(sends)}
    rows += [uses.send(key[2], sent) for key, sent in sends.items()]
    for index in np.flatnonzero(templates.edge >= 0).tolist():
        row[index] = number[int(templates.kind[index]), int(templates.edge[index]), int(templates.klass[index])]
    which = row[instances.template]
    which = np.where((templates.kind[instances.template] <= TaskKind.R) & ~instances.beside_sync, 2 * count, which)
    start = np.concatenate([[0], np.cumsum([len(one) for one in rows])]).astype(np.int64)
    per_task = start[which + 1] - start[which]
    use_start = np.concatenate([[0], np.cumsum(per_task)])
    within = np.arange(int(use_start[-1])) - np.repeat(use_start[:-1], per_task)
    pairs = np.array([pair for one in rows for pair in one], dtype=np.int64).reshape(-1, 2)[np.repeat(start[which], per_task) + within]
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


def template_seconds(
    problem: Problem, program: PlanProgram, costs: PlanCosts, sends: dict[tuple[int, int, int], _Sent]
) -> npt.NDArray[np.float64]:
    """(templates,) uncontended seconds of all pieces of each template."""
    templates, posts = program.templates, program.posts
    numbers = {key: i for i, key in enumerate(costs.families)}
    family_of = np.array([numbers[key] for key in zip(posts.lane.tolist(), posts.chunk.tolist(), posts.family.tolist(), strict=True)])
    kind = templates.kind

    def family(lane: Int64, chunk: Int64) -> Int64:
        return np.asarray(family_of[posts.number[templates.klass, posts.first_stage[lane] + chunk]], dtype=np.int64)

    own = family(np.maximum(templates.lane, 0), np.maximum(templates.chunk, 0))
    table = action_table(costs)
    action = kind <= TaskKind.R
    seconds = np.zeros(len(kind))
    seconds[action] = table.seconds[templates.early[action], kind[action], own[action], templates.slice[action]]
    for which, name in ((TaskKind.GATHER, "gather_s"), (TaskKind.REDUCE, "reduce_s"), (TaskKind.REDUCE_TIED, "tied_s")):
        at = np.flatnonzero(kind == which)
        if len(at):
            of = np.array([float(getattr(cost.slices[0], name)[0]) for cost in costs.families.values()])
            seconds[at] = of[own[at]]
    both = np.flatnonzero(templates.partner_kind >= 0)
    if len(both):
        other = family(np.maximum(templates.partner_lane, 0), np.maximum(templates.partner_chunk, 0))[both]
        early, mine, theirs = templates.early[both], kind[both], templates.partner_kind[both]
        one = table.seconds[early, mine, own[both], templates.slice[both]], table.exposed[mine, own[both], templates.slice[both]]
        two = (
            table.seconds[early, theirs, other, templates.partner_slice[both]],
            table.exposed[theirs, other, templates.partner_slice[both]],
        )
        seconds[both] = _paired_share(one, two)
    for klass, device_class in enumerate(program.classes):
        seconds[(kind == TaskKind.STEP) & (templates.klass == klass)] = update_seconds(costs, device_class)
    tiers = plan_tiers(problem)
    for index in np.flatnonzero(templates.edge >= 0).tolist():
        sent = sends[int(kind[index]), int(templates.edge[index]), int(templates.klass[index])]
        lengths = costs.lengths[int(templates.lane[index])]
        scale = costs.element * lengths[int(templates.slice[index])] / sum(lengths)
        spent = tiers[sent.tier].latency_s + sent.most * scale / tiers[sent.tier].bandwidth
        seconds[index] = spent + (_collected(problem, sent.collectives, scale) if sent.collectives else 0.0)
    return seconds


def update_seconds(costs: PlanCosts, device_class: DeviceClass) -> float:
    """Seconds of the end of the step of a class: the norm of all gradients once, then the update and what it gathers, stage by stage."""
    steps = [costs.step(*place) for place in device_class.families]
    norm = max(float(s.optimizer_s[0]) - float(s.update_s[0]) for s in steps)
    return norm + sum(float(s.update_s[0] + s.after_s[0]) for s in steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTable:
    """Seconds of every action.

    Args:
        seconds: (2, kinds, families, slices) of an action, waiting for coupled families included; [1]: what it recomputes has an action of
            its own. exposed: (kinds, families, slices) of them in which the family's own kernels wait for communication.
    """

    seconds: npt.NDArray[np.float64]
    exposed: npt.NDArray[np.float64]


def action_table(costs: PlanCosts) -> ActionTable:
    """The seconds of every action of every family, in the order of `costs.families`."""
    kinds = range(int(TaskKind.R) + 1)
    slices = max(len(c.slices) for c in costs.families.values())
    seconds = np.zeros((2, len(kinds), len(costs.families), slices))
    exposed = np.zeros((len(kinds), len(costs.families), slices))
    known: dict[tuple[int, ...], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}
    for place, ((lane, chunk, family), cost) in enumerate(costs.families.items()):
        joined = tuple(costs.families[lane, chunk, one] for one in costs.coupled[lane, chunk, family])
        key = (id(cost.slices), *(id(c.slices) for c in joined))
        if key not in known:
            parts = range(len(cost.slices))
            waited = np.array(
                [
                    [[costs.seconds(lane, chunk, family, p, TaskKind(k), early=early) for p in parts] for k in kinds]
                    for early in (False, True)
                ]
            )
            alone = np.array([[exposed_seconds(cost.slices[p], TaskKind(k)) for p in parts] for k in kinds])
            known[key] = waited, np.minimum(alone, waited[0])
        seconds[:, :, place, : len(cost.slices)], exposed[:, place, : len(cost.slices)] = known[key]
    return ActionTable(seconds=seconds, exposed=exposed)


def _paired_share(one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray]) -> FloatArray:
    """An action's share of the seconds of an overlapped pair; see `paired`."""
    kernels = sum(np.maximum(whole - moved, 0.0) for whole, moved in (one, other))
    together = np.maximum(np.maximum(kernels, one[1] + other[1]), np.maximum(one[0], other[0]))
    total = one[0] + other[0]
    return np.where(one[0] > 0.0, one[0] * together / np.where(total > 0.0, total, 1.0), 0.0)
