"""What every family of every stage costs, with what follows from it: who waits for whom, and the
seconds of each action.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.cost.step.device_family_costs import FamilyCosts, slice_lengths
from shardwright.cost.step.grid_seconds import RECOMPUTE_PART, StepCosts
from shardwright.cost.step.overlapped_pairs import Taken, taken_of
from shardwright.cost.time_parts import ATTENTION, CP, EP, GEMM, TP
from shardwright.hardware.device_list import DeviceList
from shardwright.lazy_dataclass import dataclass
from shardwright.program.instances import TaskKind
from shardwright.program.problem import Problem
from shardwright.program.program import DeviceClass, Holders, class_numbers
from shardwright.program.same import Same
from shardwright.program.stages.holdings import HeldParameters, Holdings, Use
from shardwright.program.stages.parts import StageParts
from shardwright.strategy.plan.plan import Plan

_COMMUNICATION = (TP, CP, EP)
_PRODUCTS = (GEMM, ATTENTION)

Group = tuple[DeviceList, int]
"""Devices, and how many further on they are than these numbers say: equal stages share the numbers.
"""
Sharing = tuple[tuple[int, int, int], HeldParameters, int, tuple[Use, ...]]
"""(lane, chunk, family), parameters that it sums, how many devices further on it does so than they
say, and their uses."""
Uses = dict[tuple[int, int, int], dict[tuple[int, int], dict[tuple[int, int], Group]]]
"""By (lane, chunk, family) and (lane, chunk) of each use: the groups that hold the parameters too,
each once."""


def sharing(stage: StageParts, holdings: Holdings) -> list[Sharing]:
    """What the families of a stage sum, as `StageCosts.of` takes it."""
    number = {family.first: index for index, family in enumerate(stage.families)}
    return [
        ((stage.lane, stage.chunk, number[d]), h, 0, h.uses)
        for (*_, d), held in holdings.items()
        for h in held
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of every family of every stage.

    Args:
        families: by (lane, chunk, family).
        stages: by lane and chunk.
        coupled: families of the same stage that start together.
        pieces: of the last backward, by (lane, chunk).
        uses: of each family's gradients: the groups that hold them too;
        tied: the same of weights that other stages use under another name.
        element: bytes of an activation element.
        taken: see `pairs.Taken`.
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
    taken: Taken

    @staticmethod
    def of(
        problem: Problem,
        plan: Plan,
        stages: tuple[tuple[StageParts, ...], ...],
        families: dict[tuple[int, int, int], FamilyCosts],
        sums: Iterable[Sharing],
    ) -> StageCosts:
        """Costs with what follows from them: coupling, pieces, holders."""
        coupled: dict[tuple[int, int, int], tuple[int, ...]] = {}
        pieces: dict[tuple[int, int], int] = {}
        uses: Uses = {}
        tied: Uses = {}
        for lane in stages:
            for stage in lane:
                for index, joined in enumerate(_joined(stage, families)):
                    coupled[stage.lane, stage.chunk, index] = joined
                cost = families[stage.lane, stage.chunk, 0]
                pieces[stage.lane, stage.chunk] = int(cost.slices[0].pieces[0])
        for key, held, by, used in sums:
            if held.group.size > 1 or len(used) > 1:
                mine = (tied if held.is_tied else uses).setdefault(key, {})
                for lane_number, chunk, _ in used:
                    mine.setdefault((lane_number, chunk), {})[id(held.group), by] = held.group, by
        return StageCosts(
            families=families,
            stages=stages,
            coupled=coupled,
            pieces=pieces,
            uses=uses,
            tied=tied,
            lengths=tuple(
                slice_lengths(plan, lane, length=problem.job.sequence_length)
                for lane in range(len(plan.lanes))
            ),
            element=problem.job.activation.bits // 8,
            taken=taken_of(problem),
        )

    @property
    def gathers(self) -> bool:
        """Parameters are gathered at the start of the step."""
        return any(
            float(step.gather_s.sum()) > 0.0
            for cost in self.families.values()
            for step in cost.slices
        )

    def holders_of(self, classes: tuple[DeviceClass, ...], *, tied: bool = False) -> Holders:
        """For each (lane, chunk, class): whose last backwards its reduction, or that of its tied
        weights, waits for.
        """
        same = Same(classes)
        known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}

        def classes_in(groups: dict[tuple[int, int], Group]) -> tuple[int, ...]:
            key = tuple(groups)
            if key not in known:
                known[key] = _classes_in(tuple(groups.values()), same)
            return known[key]

        result = {}
        for k, device_class in enumerate(classes):
            for place in device_class.families:
                uses = (self.tied if tied else self.uses).get(place, {})
                if uses or not tied:
                    result[place[0], place[1], k] = tuple(
                        [(use, classes_in(groups)) for use, groups in uses.items()]
                    )
        return result

    def step(self, lane: int, chunk: int, family: int, part: int = 0) -> StepCosts:
        """The composed step of one chunk."""
        return self.families[lane, chunk, family].slices[part]

    def seconds(
        self, lane: int, chunk: int, family: int, part: int, kind: TaskKind, *, early: bool = False
    ) -> float:
        """Seconds of an action: the slowest of the coupled families; those that run different
        operators one after the other.

        Args:
            early: what it recomputes has an action of its own.
        """
        longest: dict[frozenset[str], float] = {}
        for one in self.coupled[lane, chunk, family]:
            cost = self.families[lane, chunk, one]
            longest[cost.operators] = max(
                longest.get(cost.operators, 0.0),
                action_seconds(cost.slices[part], kind, early=early),
            )
        return sum(longest.values())


@lru_cache(maxsize=4096)
def _classes_in(
    groups: tuple[tuple[DeviceList, int], ...], classes: Same[tuple[DeviceClass, ...]]
) -> tuple[int, ...]:
    """The classes that members of some groups, each moved by a number of devices, are of."""
    class_of = class_numbers(classes.value)
    devices = np.concatenate([group.array + by for group, by in groups])
    return tuple(np.flatnonzero(np.bincount(class_of[devices])).tolist())


def action_seconds(step: StepCosts, kind: TaskKind, *, early: bool = False) -> float:
    """Seconds of one action of the only chunk of `step`."""
    forward, backward, weight = (
        float(step.forward_s[0]),
        float(step.backward_s[0]),
        float(step.weight_s[0]),
    )
    again = float(step.parts[1, 0, RECOMPUTE_PART])
    back = backward - again if early else backward
    return {
        TaskKind.F: forward,
        TaskKind.B: back,
        TaskKind.I: back - weight,
        TaskKind.W: weight,
        TaskKind.R: again,
    }.get(kind, 0.0)


def product_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of an action in products and attention, without what runs again (a weight gradient's
    action is all products).
    """
    if kind is TaskKind.W:
        return float(step.weight_s[0])
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    whole = float(step.parts[0 if kind is TaskKind.F else 1, 0, list(_PRODUCTS)].sum())
    return max(whole - float(step.weight_s[0]), 0.0) if kind is TaskKind.I else whole


def exposed_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of an action in which its kernels wait for communication (of a whole backward, all in
    the input gradient).
    """
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    return float(step.parts[0 if kind is TaskKind.F else 1, 0, list(_COMMUNICATION)].sum())


def routed_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of an action in which tokens travel to their experts or back and its kernels wait:
    what an overlapped pair can hide.
    """
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    return float(step.parts[0 if kind is TaskKind.F else 1, 0, EP].sum())


def _joined(
    stage: StageParts, families: dict[tuple[int, int, int], FamilyCosts]
) -> tuple[tuple[int, ...], ...]:
    """For each family, those that blocking collectives join with it, itself included
    (transitively).
    """
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
class ActionTable:
    """Seconds of every action.

    Args:
        seconds: (2, kinds, families, slices) of an action, waiting for coupled families included;
            [1]: what it recomputes has an action of its own.
        routed, products: (kinds, families, slices) of them in which the family's own kernels wait
            for tokens on their way to experts or back, and in which they multiply.
    """

    seconds: FloatArray
    routed: FloatArray
    products: FloatArray


def action_table(costs: StageCosts) -> ActionTable:
    """The seconds of every action of every family, in the order of `costs.families`."""
    kinds = range(int(TaskKind.R) + 1)
    slices = max([len(c.slices) for c in costs.families.values()])
    seconds = np.zeros((2, len(kinds), len(costs.families), slices))
    routed, products = np.zeros((2, len(kinds), len(costs.families), slices))
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (key, cost) in enumerate(costs.families.items()):
        joined = [id(costs.families[*key[:2], one].slices) for one in costs.coupled[key]]
        places.setdefault((id(cost.slices), *joined), []).append(place)
    keys = list(costs.families)
    for alike in places.values():
        key = keys[alike[0]]
        parts = range(len(costs.families[key].slices))
        waited = np.array(
            [
                [[costs.seconds(*key, p, TaskKind(k), early=early) for p in parts] for k in kinds]
                for early in (False, True)
            ]
        )
        alone, dense = (
            np.array([[spent(costs.step(*key, p), TaskKind(k)) for p in parts] for k in kinds])
            for spent in (routed_seconds, product_seconds)
        )
        seconds[:, :, alike, : len(parts)] = waited[:, :, None]
        routed[:, alike, : len(parts)] = np.minimum(alone, waited[0])[:, None]
        products[:, alike, : len(parts)] = np.minimum(dense, waited[0])[:, None]
    return ActionTable(seconds=seconds, routed=routed, products=products)


def update_seconds(costs: StageCosts, device_class: DeviceClass) -> float:
    """Seconds of the end of the step of a class: the norm of all gradients once, then the update
    and what it gathers, stage by stage.
    """
    steps = [costs.families[place].slices[0] for place in device_class.families]
    each = {
        id(s): (float(s.optimizer_s[0]) - float(s.update_s[0]), float(s.update_s[0] + s.after_s[0]))
        for s in steps
    }
    return max([norm for norm, _ in each.values()]) + sum([each[id(s)][1] for s in steps])
