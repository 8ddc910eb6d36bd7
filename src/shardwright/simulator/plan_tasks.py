"""A general plan's Program as the kernel's tasks: seconds of each template, and what it takes of links and multiprocessors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.cost.block_table import CP, EP, TP
from shardwright.cost.communication import move_seconds
from shardwright.cost.critical_path import picoseconds
from shardwright.cost.member import RECOMPUTE_PART, StepCosts
from shardwright.cost.plan_costs import FamilyCosts, group_slowdown, slice_lengths
from shardwright.cost.plan_network import group_span, kind_problem, network_among, network_of_devices, tiers_between
from shardwright.cost.plan_shards import group_shares, shard_rule
from shardwright.hardware.cluster import Tier
from shardwright.program.instances import TaskKind
from shardwright.program.plan_program import DeviceClass, PlanProgram, PlanTemplate, class_numbers
from shardwright.program.plan_sync import Holdings
from shardwright.program.problem import Problem
from shardwright.program.stage_edges import Messages
from shardwright.program.stage_parts import StageParts
from shardwright.simulator.kernel import SCALE
from shardwright.strategy.plan import Plan

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

_COMMUNICATION = (TP, CP, EP)


def plan_tiers(problem: Problem) -> tuple[Tier, ...]:
    """The tiers of the network that all devices share."""
    cluster = problem.cluster
    kinds = (0,) if cluster.is_uniform else tuple(sorted(range(len(cluster.groups))))
    return network_among(cluster, kinds, problem.runtime.collective_library).tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCosts:
    """Costs of every family of every stage.

    Args:
        families: by (lane, chunk, family). stages: by lane and chunk. coupled: families of the same stage that start together.
        pieces: of the last backward, by (lane, chunk). uses: of each family's gradients: ((lane, chunk), devices) that hold them too.
        element: bytes of an activation element.
        lengths: tokens of each slice, by lane.
    """

    families: dict[tuple[int, int, int], FamilyCosts]
    stages: tuple[tuple[StageParts, ...], ...]
    coupled: dict[tuple[int, int, int], tuple[int, ...]]
    pieces: dict[tuple[int, int], int]
    uses: dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[int, ...]], ...]]
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
        uses: dict[tuple[int, int, int], dict[tuple[int, int], set[int]]] = {}
        for lane in stages:
            for stage in lane:
                for index, joined in enumerate(_joined(stage, families)):
                    coupled[stage.lane, stage.chunk, index] = joined
                cost = families[stage.lane, stage.chunk, 0]
                pieces[stage.lane, stage.chunk] = int(cost.slices[0].pieces[0])
        index_of = {(s.lane, s.chunk, family[0]): i for lane in stages for s in lane for i, family in enumerate(s.families)}
        for (lane_number, chunk, _, device), held in holdings.items():
            mine = uses.setdefault((lane_number, chunk, index_of[lane_number, chunk, device]), {})
            for item in held:
                if len(item.group) > 1 or len(item.uses) > 1:
                    for other_lane, other_chunk, _ in item.uses:
                        mine.setdefault((other_lane, other_chunk), set()).update(item.group)
        return PlanCosts(
            families=families,
            stages=stages,
            coupled=coupled,
            pieces=pieces,
            uses={key: tuple((use, tuple(sorted(devices))) for use, devices in found.items()) for key, found in uses.items()},
            lengths=tuple(slice_lengths(plan, lane, length=problem.job.sequence_length) for lane in range(len(plan.lanes))),
            element=problem.job.activation.bits // 8,
        )

    @property
    def gathers(self) -> bool:
        """Parameters are gathered at the start of the step."""
        return any(float(step.gather_s.sum()) > 0.0 for cost in self.families.values() for step in cost.slices)

    def holders_of(
        self, classes: tuple[DeviceClass, ...]
    ) -> dict[tuple[int, int, int], tuple[tuple[tuple[int, int], tuple[int, ...]], ...]]:
        """For each (lane, chunk, class): whose last backwards its reduction waits for."""
        class_of = class_numbers(classes)
        result = {}
        for k, device_class in enumerate(classes):
            for lane, chunk, family in device_class.families:
                found = self.uses.get((lane, chunk, family), ())
                result[lane, chunk, k] = tuple((use, tuple(np.unique(class_of[list(devices)]).tolist())) for use, devices in found)
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
    family_of = {d: i for i, family in enumerate(stage.families) for d in family}
    count = len(stage.families)
    label = list(range(count))
    for index in range(count):
        for device in families[stage.lane, stage.chunk, index].coupled:
            other = family_of.get(device)
            if other is not None and label[other] != label[index]:
                old, new = label[other], label[index]
                label = [new if x == old else x for x in label]
    return tuple(tuple(j for j in range(count) if label[j] == label[i]) for i in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """One send of a class: seconds of it alone; tier; share of the sender's link out, and of each receiving class's link in."""

    seconds: float
    tier: int
    out: float
    into: tuple[tuple[int, float], ...]


def _send(problem: Problem, program: PlanProgram, template: PlanTemplate, costs: PlanCosts, class_of: Int64) -> _Sent:
    """What a class's part of an edge's messages takes; collectives on either side are done by the time that it arrives."""
    lane_edge = program.edges[template.edge]
    messages = lane_edge.forward if template.kind is TaskKind.SEND_F else lane_edge.backward
    lengths = costs.lengths[template.lane]
    scale = costs.element * lengths[template.slice] / sum(lengths)
    ends = messages.sends[:, :2] + messages.base
    mine = class_of[ends[:, 0]] == template.klass
    source, target, elements = ends[mine, 0], ends[mine, 1], messages.sends[mine, 2]
    tiers = plan_tiers(problem)
    tier = int(tiers_between(source, target, tiers).max())
    sent, received = np.bincount(source, elements), np.bincount(target, elements)
    # What others send to the same devices arrives with it: so one sender, or all of them as one class, take equally long.
    arriving = np.bincount(ends[:, 1], messages.sends[:, 2])[target]
    most = max(sent.max(), arriving.max()) * scale
    seconds = tiers[tier].latency_s + most / tiers[tier].bandwidth
    if messages.collectives:
        seconds += _collected(problem, messages, set(source.tolist()) | set(target.tolist()), scale)
    reached = np.unique(target)
    into = [(int(k), float(received[reached[class_of[reached] == k]].max() * scale / most)) for k in np.unique(class_of[reached])]
    return _Sent(seconds=seconds, tier=tier, out=float(sent.max() * scale / most), into=tuple(into))


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
    there = {d + messages.base for _, group, _ in messages.collectives for d in group}
    return seconds + _collected(problem, messages, there, scale)


def _collected(problem: Problem, messages: Messages, devices: set[int], scale: float) -> float:
    """Seconds of the collectives of an edge that these devices take part in, the slowest group of each kind."""
    longest: dict[object, float] = {}
    for kind, group, elements in messages.collectives:
        there = tuple(d + messages.base for d in group)
        if not devices.isdisjoint(there):
            network = network_of_devices(problem, there)
            volume = np.array([elements * scale])
            spent = float(move_seconds(kind, volume=volume, span=group_span(there, network), network=network)[0])
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
        rule = shard_rule(program.plan)
        for device_class in program.classes:
            slowdown, shares = 1.0, (0.0,) * self.levels
            for lane, chunk, family in device_class.families:
                cost = costs.families[lane, chunk, family]
                if cost.groups:
                    own = kind_problem(problem, device_class.devices[0])
                    slowdown = max(slowdown, group_slowdown(own, problem, cost.groups[0]))
                    found = group_shares(problem, cost.groups[0], rule=rule, levels=self.levels)
                    shares = tuple(max(a, b) for a, b in zip(shares, found, strict=True))
            self.shares.append(shares)
            self.extra.append(max(round((slowdown - 1.0) * SCALE), 0))

    def pool(self, klass: int, base: int, tier: int, weight: int) -> list[tuple[int, int]]:
        """The uplinks between the island and `tier`, loaded by all devices of the class in that unit."""
        result = []
        for below in range(1, tier):
            members, devices = (int(x) for x in self.load[below, klass])
            result.append((base + int(self.unit[below, klass]) * self.levels + below, -(-weight // devices) * members))
        return result

    def of(self, template: PlanTemplate, sent: _Sent | None) -> list[tuple[int, int]]:
        """(resource, weight) of one template."""
        klass = template.klass
        if template.kind <= TaskKind.R:
            return [(klass, SCALE)] if self.extra[klass] else []
        if sent is not None:
            weight = max(round(sent.out * SCALE), 1)
            uses = [(self.out + klass * self.levels + sent.tier, weight), *self.pool(klass, self.pool_out, sent.tier, weight)]
            for other, share in sent.into:
                weight = max(round(share * SCALE), 1)
                uses += [(self.into + other * self.levels + sent.tier, weight), *self.pool(other, self.pool_in, sent.tier, weight)]
            return uses
        if template.kind is TaskKind.STEP:
            return []
        uses = [(klass, self.extra[klass])] if self.extra[klass] else []
        for tier, share in enumerate(self.shares[klass]):
            weight = min(round(share * SCALE), SCALE)
            if weight:
                uses += [(self.out + klass * self.levels + tier, weight), (self.into + klass * self.levels + tier, weight)]
                uses += self.pool(klass, self.pool_out, tier, weight) + self.pool(klass, self.pool_in, tier, weight)
        return uses


def plan_kernel_tasks(
    problem: Problem, program: PlanProgram, costs: PlanCosts
) -> tuple[Int64, Int32, Int32, Int32, Int32, Int32, Int32, int]:
    """The Program as the kernel's arguments: work, dependencies, and what each task takes of the shared resources."""
    class_of = class_numbers(program.classes)
    uses = _Uses(problem, program, costs)
    work, taken, start = [], [], [0]
    idle = []
    for template in program.templates:
        sent = _send(problem, program, template, costs, class_of) if template.kind in (TaskKind.SEND_F, TaskKind.SEND_B) else None
        whole = int(picoseconds(np.array([_seconds(program, template, costs, sent)]))[0])
        work.append(whole * (template.piece + 1) // template.pieces - whole * template.piece // template.pieces)
        taken += uses.of(template, sent)
        start.append(len(taken))
        idle.append(template.kind <= TaskKind.R)
    instances = program.instances
    which = instances.template
    first, per = np.array(start[:-1], dtype=np.int64), np.diff(np.array(start, dtype=np.int64))
    counts = np.where(np.array(idle)[which] & ~instances.beside_sync, 0, per[which])
    use_start = np.concatenate([[0], np.cumsum(counts)])
    within = np.arange(int(use_start[-1])) - np.repeat(use_start[:-1], counts)
    pairs = np.array(taken, dtype=np.int64).reshape(-1, 2)[np.repeat(first[which], counts) + within]
    return (
        np.array(work, dtype=np.int64)[which],
        instances.indegree,
        instances.successor_start,
        instances.successor,
        use_start.astype(np.int32),
        pairs[:, 0].astype(np.int32),
        pairs[:, 1].astype(np.int32),
        uses.num_resources,
    )


def _seconds(program: PlanProgram, template: PlanTemplate, costs: PlanCosts, sent: _Sent | None) -> float:
    """Uncontended seconds of all pieces of a template."""
    if sent is not None:
        return sent.seconds
    families = program.classes[template.klass].families
    if template.kind is TaskKind.STEP:
        steps = [costs.step(*place) for place in families]
        norm = max(float(s.optimizer_s[0]) - float(s.update_s[0]) for s in steps)
        return norm + sum(float(s.update_s[0] + s.after_s[0]) for s in steps)
    family = next(f for lane, chunk, f in families if (lane, chunk) == (template.lane, template.chunk))
    if template.kind <= TaskKind.R:
        return _action(costs, families, template)
    step = costs.step(template.lane, template.chunk, family)
    return float(step.gather_s[0] if template.kind is TaskKind.GATHER else step.reduce_s[0])


def _action(costs: PlanCosts, families: tuple[tuple[int, int, int], ...], template: PlanTemplate) -> float:
    """Seconds of an action; of one that runs overlapped with another, its share of the pair's."""
    family_of = {(lane, chunk): family for lane, chunk, family in families}

    def spent(lane: int, chunk: int, kind: int, part: int, *, early: bool) -> tuple[float, float]:
        family = family_of[lane, chunk]
        seconds = costs.seconds(lane, chunk, family, part, TaskKind(kind), early=early)
        return seconds, min(exposed_seconds(costs.step(lane, chunk, family, part), TaskKind(kind)), seconds)

    own = spent(template.lane, template.chunk, int(template.kind), template.slice, early=template.early)
    if template.partner is None or own[0] == 0.0:
        return own[0]
    other = spent(*template.partner, early=template.early)
    return own[0] * paired(own, other) / (own[0] + other[0])
