"""Costs of every device family of every stage of a plan: seconds of each action.

And the families that wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.part_phase_recompute_keys import ATTENTION, CP, EP, GEMM, TP
from shardwright.cost.step.overlapped_action_pair_seconds import (
    CommunicationShare,
    communication_share,
)
from shardwright.cost.step.strategy_task_seconds import RECOMPUTE_PART, StepCosts
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import (
    DeviceClass,
    Holders,
    class_numbers,
)
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import largest_remainder
from shardwright.program.lowered_program import Program
from shardwright.program.stages.held_parameters import HeldParameters, Holdings
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.stages.uses_of_each_parameter import Use
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import KINDS, B, F, R, W
from shardwright.strategy.plan.plan import Plan

_COMMUNICATION = (TP, CP, EP)
_PRODUCTS = (GEMM, ATTENTION)
_SIGN_OF_KIND: Final = np.zeros(len(KINDS), dtype=np.int64)
"""1 for kinds of actions that keep activations, -1 for kinds that release them."""
_SIGN_OF_KIND[[F, R]] = 1
_SIGN_OF_KIND[[B, W]] = -1

Group = tuple[DeviceList, int]
"""Devices, and how many further on they are than these numbers say: equal stages share the numbers.
"""
Sharing = tuple[tuple[int, int, int], HeldParameters, int, tuple[Use, ...]]
"""(lane, chunk, family), parameters that it sums, how many devices further on it does so than they
say, and their uses."""
Uses = dict[tuple[int, int, int], dict[tuple[int, int], dict[tuple[int, int], Group]]]
"""By (lane, chunk, family) and (lane, chunk) of each use: the groups that hold the parameters too,
each once."""


def sharings_of_stage(stage: StageParts, holdings: Holdings) -> list[Sharing]:
    """Records for `StageCosts.of` of the parameters whose gradients a stage's families reduce."""
    number = {family.first: index for index, family in enumerate(stage.families)}
    return [
        ((stage.lane, stage.chunk, number[d]), h, 0, h.uses)
        for (*_, d), held in holdings.items()
        for h in held
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of every device family of every stage, with the families that wait for each other.

    Args:
        families: by (lane, chunk, family).
        stages: by lane and chunk.
        coupled: families of the same stage that start together.
        pieces: of the last backward, by (lane, chunk).
        uses: for each family's gradients, the groups that hold them too.
        tied: the same for weights that other stages use under another name.
        element: bytes of an activation element.
        taken: share of the device that communication of overlapped pairs takes.
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
    taken: CommunicationShare

    @staticmethod
    def of(
        problem: Problem,
        plan: Plan,
        stages: tuple[tuple[StageParts, ...], ...],
        families: dict[tuple[int, int, int], FamilyCosts],
        sums: Iterable[Sharing],
    ) -> StageCosts:
        """Create a plan's costs: families, coupled families, reduction pieces and holders."""
        coupled: dict[tuple[int, int, int], tuple[int, ...]] = {}
        pieces: dict[tuple[int, int], int] = {}
        uses: Uses = {}
        tied: Uses = {}
        for lane in stages:
            for stage in lane:
                for index, joined in enumerate(_joined_families(stage, families)):
                    coupled[stage.lane, stage.chunk, index] = joined
                cost = families[stage.lane, stage.chunk, 0]
                pieces[stage.lane, stage.chunk] = int(cost.slices[0].pieces[0])
        for key, held, offset, uses_of_parameter in sums:
            if held.group.size > 1 or len(uses_of_parameter) > 1:
                holders_of_family = (tied if held.is_tied else uses).setdefault(key, {})
                for lane_number, chunk, _ in uses_of_parameter:
                    holders_of_family.setdefault((lane_number, chunk), {})[
                        id(held.group), offset
                    ] = held.group, offset
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
            taken=communication_share(problem),
        )

    @property
    def gathers(self) -> bool:
        """True if some chunk all-gathers parameters at the start of the step."""
        return any(
            float(step.gather_s.sum()) > 0.0
            for cost in self.families.values()
            for step in cost.slices
        )

    def holders_of(self, classes: tuple[DeviceClass, ...], *, tied: bool = False) -> Holders:
        """((lane, chunk), classes) that each (lane, chunk, class)'s gradient reduction awaits."""
        keyed_classes = Same(classes)
        classes_of_groups: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}

        def classes_in(groups: dict[tuple[int, int], Group]) -> tuple[int, ...]:
            """Numbers of the device classes that the members of `groups` belong to (cached)."""
            key = tuple(groups)
            if key not in classes_of_groups:
                classes_of_groups[key] = _classes_of_moved_groups(
                    tuple(groups.values()), keyed_classes
                )
            return classes_of_groups[key]

        holders = {}
        for k, device_class in enumerate(classes):
            for place in device_class.families:
                uses = (self.tied if tied else self.uses).get(place, {})
                if uses or not tied:
                    holders[place[0], place[1], k] = tuple(
                        [(use, classes_in(groups)) for use, groups in uses.items()]
                    )
        return holders

    def step(self, lane: int, chunk: int, family: int, part: int = 0) -> StepCosts:
        """Costs of slice `part` of a chunk's sequence on a device family."""
        return self.families[lane, chunk, family].slices[part]

    def seconds(
        self, lane: int, chunk: int, family: int, part: int, kind: TaskKind, *, early: bool = False
    ) -> float:
        """Seconds of an action: slowest coupled family of each set of operators, these added.

        The slowest of the coupled families; those that run different operators one after the other.

        Args:
            early: its recompute is an action of its own.
        """
        longest: dict[frozenset[str], float] = {}
        for family_joined in self.coupled[lane, chunk, family]:
            cost = self.families[lane, chunk, family_joined]
            longest[cost.operators] = max(
                longest.get(cost.operators, 0.0),
                action_seconds(cost.slices[part], kind, early=early),
            )
        return sum(longest.values())


@lru_cache(maxsize=4096)
def _classes_of_moved_groups(
    groups: tuple[tuple[DeviceList, int], ...], classes: Same[tuple[DeviceClass, ...]]
) -> tuple[int, ...]:
    """Numbers of device classes with members of (device list, offset added to it) groups.

    Each group is moved by a number of devices.
    """
    class_of = class_numbers(classes.value)
    devices = np.concatenate([group.array + offset for group, offset in groups])
    return tuple(np.flatnonzero(np.bincount(class_of[devices])).tolist())


def action_seconds(step: StepCosts, kind: TaskKind, *, early: bool = False) -> float:
    """Seconds of one action (F, B, I, W, R) of a chunk; `early`: without recompute in B and I."""
    forward, backward, weight = (
        float(step.forward_s[0]),
        float(step.backward_s[0]),
        float(step.weight_s[0]),
    )
    recompute = float(step.parts[1, 0, RECOMPUTE_PART])
    gradient = backward - recompute if early else backward
    return {
        TaskKind.F: forward,
        TaskKind.B: gradient,
        TaskKind.I: gradient - weight,
        TaskKind.W: weight,
        TaskKind.R: recompute,
    }.get(kind, 0.0)


def product_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds that an F, B, I or W action spends in GEMMs and attention; recompute left out.

    A weight gradient's action is all GEMMs.
    """
    if kind is TaskKind.W:
        return float(step.weight_s[0])
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    all_products = float(step.parts[0 if kind is TaskKind.F else 1, 0, list(_PRODUCTS)].sum())
    return max(all_products - float(step.weight_s[0]), 0.0) if kind is TaskKind.I else all_products


def exposed_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of F, B or I in which kernels wait for TP, CP or EP collectives; 0 for other kinds.

    Of a whole backward, all in the input gradient.
    """
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    return float(step.parts[0 if kind is TaskKind.F else 1, 0, list(_COMMUNICATION)].sum())


def routed_seconds(step: StepCosts, kind: TaskKind) -> float:
    """Seconds of F, B or I in which kernels wait for tokens to or from experts; 0 for other kinds.

    An overlapped pair can hide them.
    """
    if kind not in (TaskKind.F, TaskKind.B, TaskKind.I):
        return 0.0
    return float(step.parts[0 if kind is TaskKind.F else 1, 0, EP].sum())


def _joined_families(
    stage: StageParts, families: dict[tuple[int, int, int], FamilyCosts]
) -> tuple[tuple[int, ...], ...]:
    """For each family, the families that blocking collectives join with it, itself included.

    Transitively.
    """
    count = len(stage.families)
    if count == 1:
        return ((0,),)
    family_of = {d: i for i, family in enumerate(stage.families) for d in family}
    label = list(range(count))
    for index in range(count):
        for device in families[stage.lane, stage.chunk, index].coupled:
            partner = family_of.get(device + stage.base)
            if partner is not None and label[partner] != label[index]:
                old_label, new_label = label[partner], label[index]
                label = [new_label if x == old_label else x for x in label]
    return tuple(tuple(j for j in range(count) if label[j] == label[i]) for i in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSeconds:
    """Seconds of every action of every device family, by kind and slice.

    Args:
        seconds: (2, kinds, families, slices) of an action, waiting for coupled families included;
            [1]: its recompute is an action of its own.
        routed, products: (kinds, families, slices) of them in which the family's own kernels wait
            for tokens on their way to experts or back, and in which they multiply.
    """

    seconds: FloatArray
    routed: FloatArray
    products: FloatArray


def action_seconds_table(costs: StageCosts) -> ActionSeconds:
    """Tabulate the seconds of every action of every family, in the order of `costs.families`."""
    kinds = range(int(TaskKind.R) + 1)
    slices = max([len(c.slices) for c in costs.families.values()])
    seconds = np.zeros((2, len(kinds), len(costs.families), slices))
    routed, products = np.zeros((2, len(kinds), len(costs.families), slices))
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (key, cost) in enumerate(costs.families.items()):
        joined = [
            id(costs.families[*key[:2], family_joined].slices)
            for family_joined in costs.coupled[key]
        ]
        places.setdefault((id(cost.slices), *joined), []).append(place)
    keys = list(costs.families)
    for equal_places in places.values():
        key = keys[equal_places[0]]
        parts = range(len(costs.families[key].slices))
        with_waiting = np.array(
            [
                [[costs.seconds(*key, p, TaskKind(k), early=early) for p in parts] for k in kinds]
                for early in (False, True)
            ]
        )
        tokens_moving, multiplying = (
            np.array([[spent(costs.step(*key, p), TaskKind(k)) for p in parts] for k in kinds])
            for spent in (routed_seconds, product_seconds)
        )
        seconds[:, :, equal_places, : len(parts)] = with_waiting[:, :, None]
        routed[:, equal_places, : len(parts)] = np.minimum(tokens_moving, with_waiting[0])[:, None]
        products[:, equal_places, : len(parts)] = np.minimum(multiplying, with_waiting[0])[:, None]
    return ActionSeconds(seconds=seconds, routed=routed, products=products)


def update_seconds(costs: StageCosts, device_class: DeviceClass) -> float:
    """Seconds of a device class's gradient norm, optimizer updates and end gathers.

    The norm of all gradients once, then the update and its gathers, stage by stage.
    """
    steps = [costs.families[place].slices[0] for place in device_class.families]
    norm_and_update = {
        id(s): (float(s.optimizer_s[0]) - float(s.update_s[0]), float(s.update_s[0] + s.after_s[0]))
        for s in steps
    }
    return max([norm for norm, _ in norm_and_update.values()]) + sum(
        [norm_and_update[id(s)][1] for s in steps]
    )


def kept_changes(
    program: Program,
    costs: StageCosts,
    device_class: DeviceClass,
    *,
    kept_by: str = "saved_bytes",
    again_by: str = "restored_bytes",
) -> IntArray:
    """(actions,) bytes of activations that each action of a class's row keeps (+) or releases (-).

    Kept from the action's start on, released at its end.

    Args:
        kept_by, again_by: fields of `StepCosts`: bytes that a microbatch keeps, and bytes of them
            that an early recompute makes again (empty = none).
    """
    rows = program.rows
    span = slice(int(rows.row_start[device_class.row]), int(rows.row_start[device_class.row + 1]))
    kinds = rows.kind[span]
    sign = _SIGN_OF_KIND[kinds]
    lane, chunk, part, microbatch = (
        c[span] for c in (rows.lane, rows.chunk, rows.slice, rows.microbatch)
    )
    slices = max([len(costs.families[place].slices) for place in device_class.families])
    lanes, chunks, _ = map(max, zip(*device_class.families, strict=True))
    kept = np.zeros((2, lanes + 1, chunks + 1, slices), dtype=np.int64)
    for number, stage, family in device_class.families:
        for cut, step in enumerate(costs.families[number, stage, family].slices):
            kept[:, number, stage, cut] = (
                int(getattr(step, kept_by)[0]),
                int(getattr(step, again_by)[0]) if again_by else 0,
            )
    place = (lane * (chunks + 1) + chunk) * slices + part
    saved = kept[0].reshape(-1)[place]
    changes: IntArray = sign * saved
    if (kinds == R).any():
        # What is made again early lives from there to the last gradient.
        restored = kept[1].reshape(-1)[place]
        width = int(microbatch.max(initial=0)) + 1
        action = place.astype(np.int64) * width + microbatch
        early = np.isin(action, action[kinds == R])
        changes = sign * np.where(
            early & (kinds == R),
            restored,
            saved + restored * (early & ((kinds == B) | (kinds == W))),
        )
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCosts:
    """Costs of one family of identical devices of one stage.

    Args:
        slices: one composed step of one chunk for each slice of a microbatch (one if it is whole).
        coupled: devices that a blocking collective inside the stage joins with the family, counted
            from the stage's first.
        operators: names of the operators that run here.
    """

    slices: tuple[StepCosts, ...]
    coupled: tuple[int, ...]
    operators: frozenset[str]


def slice_lengths(plan: Plan, lane: int, *, length: int) -> tuple[int, ...]:
    """Number of tokens of each slice of a lane's sequence, by weight; one slice if it is whole."""
    weights = plan.lanes[lane].slices
    return largest_remainder(length, weights) if weights else (length,)
