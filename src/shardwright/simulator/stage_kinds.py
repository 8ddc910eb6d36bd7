"""Stages of a plan that differ only by their place in whole units of the network, with what the
devices of the first of them hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from shardwright.cost.tables.plan_blocks import network_unit
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.stages.holdings import HeldParameters, Holdings, Summing, held_by_families
from shardwright.program.stages.parts import StageParts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKind:
    """Stages that are priced once.

    Args:
        first: of them.
        held: by its families.
        sample: (family, which of the stage's sums, a parameter) that say who sums with whom.
    """

    first: StageParts
    held: Holdings
    sample: tuple[tuple[int, int, HeldParameters], ...]


PlacedKind = tuple[StageParts, StageKind, tuple[Summing, ...]]
"""A stage, its kind, and the sums that it has a part in."""


def stage_kinds(
    problem: Problem, stages: tuple[tuple[StageParts, ...], ...], summings: Iterable[Summing]
) -> tuple[PlacedKind, ...]:
    """Every stage in order, with its kind: of the problem this reads where the network's units
    begin.
    """
    unit = network_unit(problem)
    used: dict[tuple[int, int], list[tuple[int, int, Summing]]] = {}
    for one in summings:
        for number, (lane_number, chunk, segment) in enumerate(one.uses):
            used.setdefault((lane_number, chunk), []).append((segment, number, one))
    known: dict[Hashable, StageKind] = {}
    placed: list[PlacedKind] = []
    for stage in (stage for lane in stages for stage in lane):
        base, mine = stage.base, used.get((stage.lane, stage.chunk), [])
        firsts = tuple([family.first - base for family in stage.families])
        parts = tuple([(id(s.cells), id(s.block), s.count, s.keeps) for s in stage.segments])
        sums = tuple(
            [
                (n, number, id(one.sums), one.base - base, one.layers, len(one.uses))
                for n, number, one in mine
            ]
        )
        alike = (stage.lane, base % unit if unit else base, firsts, parts, sums)
        if alike not in known:
            held = held_by_families(
                stages, {id(one): one for *_, one in mine}.values(), only_stage=stage
            )
            turn = {id(one.uses): index for index, (*_, one) in enumerate(mine)}
            sample = [
                (firsts.index(d - base), turn[id(h.uses)], h)
                for (*_, d), hs in held.items()
                for h in _distinct(hs)
            ]
            known[alike] = StageKind(first=stage, held=held, sample=tuple(sample))
        placed.append((stage, known[alike], tuple([one for *_, one in mine])))
    return tuple(placed)


def _distinct(held: tuple[HeldParameters, ...]) -> Iterable[HeldParameters]:
    """Of what a device sums with the same devices one parameter, which says who they are."""
    found: dict[tuple[int, int, bool], HeldParameters] = {}
    for h in held:
        found.setdefault((id(h.uses), id(h.group), h.is_tied), h)
    return found.values()
