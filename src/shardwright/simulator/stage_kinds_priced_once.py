"""Groups of stages with equal costs, which differ only by their place in whole network units.

Each group has the parameters that the devices of its first stage hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from shardwright.cost.tables.plan_block_costs import network_unit
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.stages.held_parameters import (
    HeldParameters,
    Holdings,
    Summing,
    held_by_families,
)
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.training_problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKind:
    """Stages with equal costs, which are priced once.

    Args:
        first: first of the stages.
        held: parameters that its families hold.
        sample: (family, index into the stage's reductions, a parameter), which show the devices
            that reduce gradients together.
    """

    first: StageParts
    held: Holdings
    sample: tuple[tuple[int, int, HeldParameters], ...]


PlacedKind = tuple[StageParts, StageKind, tuple[Summing, ...]]
"""A stage, its kind, and the gradient reductions in which it takes part."""


def stage_kinds(
    problem: Problem, stages: tuple[tuple[StageParts, ...], ...], summings: Iterable[Summing]
) -> tuple[PlacedKind, ...]:
    """(stage, kind that equal stages share, its own gradient sums) of every stage, in order.

    The problem determines where the network's units begin.
    """
    unit = network_unit(problem)
    used: dict[tuple[int, int], list[tuple[int, int, Summing]]] = {}
    for summing in summings:
        for number, (lane_number, chunk, segment) in enumerate(summing.uses):
            used.setdefault((lane_number, chunk), []).append((segment, number, summing))
    kinds: dict[Hashable, StageKind] = {}
    placed: list[PlacedKind] = []
    for stage in (stage for lane in stages for stage in lane):
        base, own_sums = stage.base, used.get((stage.lane, stage.chunk), [])
        firsts = tuple([family.first - base for family in stage.families])
        segment_keys = tuple([(id(s.cells), id(s.block), s.count, s.keeps) for s in stage.segments])
        sum_keys = tuple(
            [
                (
                    n,
                    number,
                    id(summing.sums),
                    summing.base - base,
                    summing.layers,
                    len(summing.uses),
                )
                for n, number, summing in own_sums
            ]
        )
        kind_key = (stage.lane, base % unit if unit else base, firsts, segment_keys, sum_keys)
        if kind_key not in kinds:
            held = held_by_families(
                stages,
                {id(summing): summing for *_, summing in own_sums}.values(),
                only_stage=stage,
            )
            sum_index = {id(summing.uses): index for index, (*_, summing) in enumerate(own_sums)}
            sample = [
                (firsts.index(d - base), sum_index[id(h.uses)], h)
                for (*_, d), held_by_device in held.items()
                for h in _one_for_each_group(held_by_device)
            ]
            kinds[kind_key] = StageKind(first=stage, held=held, sample=tuple(sample))
        placed.append((stage, kinds[kind_key], tuple([summing for *_, summing in own_sums])))
    return tuple(placed)


def _one_for_each_group(parameters: tuple[HeldParameters, ...]) -> Iterable[HeldParameters]:
    """One parameter for each distinct group of devices with which a device reduces."""
    parameter_of_group: dict[tuple[int, int, bool], HeldParameters] = {}
    for parameter in parameters:
        parameter_of_group.setdefault(
            (id(parameter.uses), id(parameter.group), parameter.is_tied), parameter
        )
    return parameter_of_group.values()
