from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.ir.tensor_dims import Dim
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.operator_split_tree import Exchange, Split, devices_of
from shardwright.strategy.plan.pipeline_order import Kind, NamedOrder, Table
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, ShardUnit, State
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import nodes
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Placement, Stage
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.files.plan_json import plan_from_json, plan_to_json
from tests.registries import place, require_same_members
from tests.strategy.zoo_plans import FOLDER, ZooPlan, schedule_grid, zoo

ZOO = zoo()
each = pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)


def test_the_zoo_is_large() -> None:
    files = [entry for entry in ZOO if not entry.name.startswith("schedule-")]
    assert len(files) == len(list(FOLDER.glob("*"))) >= 44
    assert len({entry.plan for entry in ZOO}) == len(ZOO)
    assert sum(entry.plan.devices <= 32 for entry in ZOO) >= 60


@each
def test_it_is_valid(entry: ZooPlan) -> None:
    assert (
        verify(
            entry.plan, model=entry.model, global_batch=entry.global_batch, seq_len=entry.seq_len
        )
        == ()
    )
    assert parse_cluster(entry.cluster).num_devices == entry.plan.devices


@each
def test_it_round_trips(entry: ZooPlan) -> None:
    plan, name = entry.plan, entry.text.split()[1]
    assert entry.name.partition("-")[2] == name
    assert (
        print_plan(plan, name=name) == entry.text
    )  # what is stored is canonical, in the general form
    shown = print_plan(plan, name=name, model=entry.model)
    assert ("\ngrid " in shown) == (grid_of(plan, model=entry.model) is not None)
    assert parse_plan(shown, model=entry.model) == plan
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


GRIDS = {
    "01-grid3d": "tp8 pp4 dp2 mbs4 zero0 recompute=none schedule=1f1b order=tp-cp-ep-pp-dp",
    "02-tp-sp": "tp8 sp dp2 mbs2 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "03-ring-cp": "tp2 sp cp4 dp2 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "04-ulysses": "cp8 ulysses8 dp2 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "04-usp": "cp8 ulysses4 dp2 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "05-ep-fold": "tp2 sp cp2 ep4 etp2 dp8 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "07-zero1-pp": "tp4 sp pp4 dp8 mbs2 zero1 recompute=none schedule=1f1b order=tp-cp-ep-pp-dp",
    "08-uneven": "tp8 sp pp8 dp2 mbs2 zero1 recompute=none schedule=1f1b order=tp-cp-ep-dp-pp",
    "09-llama405b": (
        "tp8 sp pp16 vpp8 dp128 mbs1 zero1 recompute=none schedule=interleaved-1f1b"
        " order=tp-cp-ep-dp-pp"
    ),
    "18-gqa-tp8": "tp8 sp dp1 mbs1 zero0 recompute=none",
    "26-cp-gather": "tp2 sp cp4 cp-gather dp2 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "27-zero2": "tp2 sp dp4 mbs2 zero2 recompute=none order=tp-cp-ep-dp-pp",
    "28-zero3": "dp8 mbs1 zero3 recompute=none",
    "29-offload": (
        "tp2 sp pp2 dp2 mbs1 zero1 recompute=none offload=50 schedule=1f1b order=tp-cp-ep-dp-pp"
    ),
    "30-selective": (
        "tp2 sp pp2 dp2 mbs1 zero0 recompute=selective schedule=1f1b order=tp-cp-ep-dp-pp"
    ),
    "31-full": "pp4 dp1 mbs1 zero0 recompute=full schedule=1f1b",
    "32-full-n": "pp2 dp2 mbs1 zero1 recompute=full:2 schedule=1f1b order=tp-cp-ep-dp-pp",
    "33-first-last": "pp4 first=1 last=1 dp1 mbs1 zero0 recompute=none schedule=1f1b",
    "34-vpp": (
        "tp2 sp pp2 vpp2 dp2 mbs1 zero0 recompute=none schedule=interleaved-1f1b"
        " order=tp-cp-ep-dp-pp"
    ),
    "35-layers": "pp4 layers=1,2,3,2 dp1 mbs1 zero0 recompute=none schedule=1f1b",
    "36-ep": "ep8 dp8 mbs1 zero1 recompute=none order=tp-cp-ep-dp-pp",
    "37-gpipe": "tp2 pp4 dp1 mbs1 zero0 recompute=none schedule=gpipe order=tp-cp-ep-dp-pp",
    "38-pp-inside": "tp2 pp2 dp2 mbs1 zero0 recompute=none schedule=1f1b order=cp-ep-pp-dp-tp",
    "38-usp-tp": "tp2 sp cp4 ulysses2 dp2 mbs1 zero0 recompute=none order=tp-cp-ep-dp-pp",
    "39-eager-1f1b": "pp4 dp1 mbs1 zero0 recompute=none schedule=eager-1f1b",
    "40-breadth-first": (
        "tp2 sp pp2 vpp2 dp1 mbs2 zero0 recompute=none schedule=breadth-first order=tp-cp-ep-dp-pp"
    ),
    "41-looped-bfs": (
        "tp2 sp pp2 vpp2 dp1 mbs2 zero0 recompute=none schedule=looped-bfs order=tp-cp-ep-dp-pp"
    ),
    "42-zb-h1": "pp4 dp1 mbs1 zero0 recompute=none schedule=zb-h1",
    "43-zb-h2": "pp4 dp1 mbs1 zero0 recompute=none schedule=zb-h2",
    "60-hybrid": (
        "tp2 sp ep4 pp2 first=5 dp2 mbs1 zero1 recompute=none schedule=1f1b order=tp-cp-ep-dp-pp"
    ),
    "61-moe-mtp": "ep2 pp2 dp2 mbs1 zero0 recompute=none schedule=zb-h1 order=tp-cp-ep-dp-pp",
    "10-zb-v": "tp2 sp pp4 vpp2 dp2 mbs2 zero0 recompute=none schedule=zb-v order=tp-cp-ep-dp-pp",
    "11-dualpipe": "pp8 dp1 mbs1 zero0 recompute=none schedule=dualpipe",
    "11-dualpipe-v": "pp4 vpp2 dp1 mbs1 zero0 recompute=none schedule=dualpipe-v",
    "19-deepseek-v3": (
        "ep64 pp16 layers=4,4,4,4,4,4,4,4,4,4,4,4,4,4,3,2 dp128 mbs1 zero1 recompute=none"
        " schedule=dualpipe order=tp-cp-ep-dp-pp"
    ),
    "21-seq1f1b-cp": (
        "tp2 sp cp2 pp4 dp2 mbs1 zero0 recompute=none schedule=seq-1f1b slices=4"
        " order=tp-cp-ep-dp-pp"
    ),
    "44-v-half": "pp4 vpp2 dp1 mbs1 zero0 recompute=none schedule=v-half",
    "45-v-min": "pp4 vpp2 dp1 mbs1 zero0 recompute=none schedule=v-min",
    "48-hanayo": (
        "tp2 sp pp2 vpp4 dp1 mbs1 zero0 recompute=none schedule=hanayo order=tp-cp-ep-dp-pp"
    ),
}


@each
def test_exactly_these_are_grids(entry: ZooPlan) -> None:
    grid = grid_of(entry.plan, model=entry.model)
    kind, _, schedule = entry.name.partition("-")
    wanted = schedule_grid(schedule) if kind == "schedule" else GRIDS.get(entry.name)
    assert (print_grid(grid) if grid else None) == wanted


def _stages(plan: Plan) -> Iterator[Stage]:
    for lane in plan.lanes:
        yield from lane.stages


def _placements() -> Iterator[Placement]:
    for entry in ZOO:
        for stage in _stages(entry.plan):
            yield from stage.placements


def _cuts() -> Iterator[Split]:
    for placement in _placements():
        yield from nodes(placement.split)


def test_every_schedule_and_kind_of_action_is_there() -> None:
    orders = [order for entry in ZOO if entry.trains for order in entry.plan.orders]
    named = {order.schedule for order in orders if isinstance(order, NamedOrder)}
    require_same_members(
        named, SCHEDULES, place("src/shardwright/schedules/schedule_registry.py", "SCHEDULES")
    )
    rows = [row for order in orders if isinstance(order, Table) for _, row in order.rows]
    assert len(rows) >= 16
    flat = [a for row in rows for e in row for a in (e if isinstance(e, tuple) else (e,))]
    assert {action.kind for action in flat} == set(Kind)
    assert any(isinstance(e, tuple) for row in rows for e in row)


def test_every_cut_and_choice_is_there() -> None:
    cuts = list(_cuts())
    assert {cut.dim for cut in cuts} == set(Dim)
    weighted = {cut.dim for cut in cuts if isinstance(cut.parts, tuple)}
    assert {Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.FFN, Dim.EXPERTS} <= weighted
    assert {cut.zigzag for cut in cuts} == {True, False}
    placements = list(_placements())
    assert {placement.exchange for placement in placements} == {None, *Exchange}
    assert any(placement.offset for placement in placements)
    assert any(placement.select.blocks for placement in placements)
    keeps = [keep for entry in ZOO for stage in _stages(entry.plan) for keep in stage.keeps]
    assert {keep.how for keep in keeps} == set(ActivationPolicy)
    assert max(keep.unit for keep in keeps) > 1
    assert min(keep.percent for keep in keeps) < 100
    shards = [rule for entry in ZOO for rule in entry.plan.shards]
    assert {rule.unit for rule in shards} == set(ShardUnit)
    assert {rule.gather for rule in shards} | {rule.reduce for rule in shards} == set(Cadence)
    assert {state for rule in shards for state, _ in rule.host} == set(State)
    degrees = {(rule.optimizer, rule.gradient, rule.parameter) for rule in shards}
    assert {
        (ALL, 1, 1),
        (ALL, ALL, 1),
        (ALL, ALL, ALL),
        (8, 8, 8),
        (ALL, ALL, 8),
        (1, 1, ALL),
    } <= degrees
    assert any(rule.by_memory for rule in shards)


def _devices(stage: Stage) -> frozenset[int]:
    return frozenset(
        d for p in stage.placements for d in devices_of(p.split, stage.base + p.offset)
    )


def test_every_shape_of_pipeline_is_there() -> None:
    shapes: Counter[str] = Counter()
    for entry in ZOO:
        plan = entry.plan
        for lane in plan.lanes:
            sets = [_devices(stage) for stage in lane.stages]
            counts = [sum(item.count for item in stage.items) for stage in lane.stages]
            shapes["uneven"] += len({c for c in counts if c}) > 1
            shapes["everywhere"] += len(sets) > 1 and frozenset(range(plan.devices)) in sets
            shapes["overlapping"] += any(a != b and a & b for a in sets for b in sets)
            shapes["sizes"] += len({len(s) for s in sets}) > 1
            shapes["returning"] += len(set(sets)) < len(sets)
            shapes["slices"] += len(set(lane.slices)) > 1
            shapes["operators"] += any(
                "." in item.name for stage in lane.stages for item in stage.items
            )
        devices = [tuple(stage.base for stage in lane.stages) for lane in plan.lanes]
        shapes["opposite"] += (
            len(devices) == 2 and len(devices[0]) > 1 and devices[0] == devices[1][::-1]
        )
        shapes["replicas"] += len({lane.samples for lane in plan.lanes}) > 1
        shapes["branches"] += sum(not run.inputs for run in entry.model.runs) > 1
    assert set(shapes) == {shape for shape, count in shapes.items() if count}
    assert len(shapes) == 10
