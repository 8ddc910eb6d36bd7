"""General plans as they stand in a file: the plan's own fields, and each stage's placements by
their number in a list.

A plan of 128 stages with one tree is small so, and stages with equal placements hold one object
when it is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.runtime.runtime import Options
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import Action, NamedOrder, Table
from shardwright.strategy.plan.plan import Plan, Shards
from shardwright.strategy.plan.split_tree import Split
from shardwright.strategy.plan.stages import Item, Keep, Placement, Selector, Stage

VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """A plan as a file holds it: `placements` are the different ones, and a stage's are the number
    of one of them.
    """

    version: int
    placements: tuple[tuple[Placement, ...], ...]
    devices: int
    lanes: tuple[Lane, ...]
    orders: tuple[NamedOrder | Table, ...]
    shards: tuple[Shards, ...] = ()
    options: Options = ()


SPARSE: Final = frozenset(
    {
        Action,
        Item,
        Keep,
        Lane,
        NamedOrder,
        Placement,
        PlanDocument,
        Selector,
        Shards,
        Split,
        Stage,
        Table,
    }
)
"""Classes whose fields at their default are left out, as plans have very many of them."""


def plan_to_document(plan: Plan) -> PlanDocument:
    """`plan` with placements by number, the first stage's first."""
    numbers: dict[Any, int] = {}
    for lane in plan.lanes:
        for stage in lane.stages:
            numbers.setdefault(stage.placements, len(numbers))
    lanes = tuple(map(partial(_with_placements, placements=numbers), plan.lanes))
    listed = tuple(numbers)
    return PlanDocument(
        version=VERSION,
        placements=listed,
        devices=plan.devices,
        lanes=lanes,
        orders=plan.orders,
        shards=plan.shards,
        options=plan.options,
    )


def document_to_plan(document: PlanDocument) -> Plan:
    """The plan of a document; equal placements are one object.

    Raises:
        DataError: a stage has placements that are not listed.
    """
    interned = {placements: placements for placements in document.placements}
    numbered: dict[Any, Any] = {
        number: interned[placements] for number, placements in enumerate(document.placements)
    }
    for lane in document.lanes:
        for i, stage in enumerate(lane.stages):
            if stage.placements not in numbered:
                where = f"stage {i} of lane {lane.name[:40]!r}"
                raise DataError(
                    f"plan: {where} has placements of number {stage.placements}",
                    hint=f"there are {len(numbered)}, from 0",
                )
    lanes = tuple(map(partial(_with_placements, placements=numbered), document.lanes))
    return Plan(
        devices=document.devices,
        lanes=lanes,
        orders=document.orders,
        shards=document.shards,
        options=document.options,
    )


def _with_placements(lane: Lane, placements: Mapping[Any, Any]) -> Lane:
    """`lane` with what stands for the placements of each stage."""
    return replace(
        lane,
        stages=tuple(
            replace(stage, placements=placements[stage.placements]) for stage in lane.stages
        ),
    )
