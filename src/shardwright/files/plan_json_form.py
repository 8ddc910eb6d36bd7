"""File form of general plans, in which equal placements are stored once and referred to by number.

A plan of 128 stages with one tree is small so, and stages with equal placements share one object
when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.runtime.framework_description import Options
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.pipeline_order import Action, NamedOrder, Table
from shardwright.strategy.plan.plan import Plan, Shards
from shardwright.strategy.plan.stage_splits_and_policies import (
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)

VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """A plan in a file: `placements` lists the different ones, and a stage refers by number."""

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
    """Convert a plan to its file form, with placements numbered from the first stage's on."""
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
    """Convert a plan's file form to the plan; equal placements are one object."""
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
    """Copy of a lane with `placements[p]` in place of each stage's placement p."""
    return replace(
        lane,
        stages=tuple(
            replace(stage, placements=placements[stage.placements]) for stage in lane.stages
        ),
    )
