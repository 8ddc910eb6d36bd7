from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hypothesis import given, seed
from hypothesis import strategies as st

from shardwright.errors import DataError, StrategyError
from shardwright.model.ir.tensor_dims import Dim
from shardwright.schedules.schedule_registry import SCHEDULES, schedule
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import depth, nodes, overlaps
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.files.plan_json import plan_from_json, plan_to_json
from tests.strategy.plans import FORMS, FREE, Case, plans, plans_of_form
from tests.tiers import FEWEST, examples, in_both, random_of


def _check(case: Case) -> None:
    """It is legal, round-trips, and its trees are as small as the generator says."""
    plan = case.plan
    assert (
        verify(plan, model=case.model, global_batch=case.global_batch, seq_len=case.seq_len) == ()
    )
    assert parse_plan(print_plan(plan)) == plan
    assert parse_plan(print_plan(plan, model=case.model), model=case.model) == plan
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    for lane in plan.lanes:
        for stage in lane.stages:
            for placement in stage.placements:
                assert depth(placement.split) <= 3
                assert not overlaps(placement.split)


def _forms(case: Case) -> set[str]:
    """What a plan shows of the paradigm."""
    plan = case.plan
    placements = [p for lane in plan.lanes for stage in lane.stages for p in stage.placements]
    cuts = [cut for p in placements for cut in nodes(p.split)]
    forms = {f"cut {cut.dim.value}" for cut in cuts} | {f"model {case.model.name}"}
    forms |= {
        f"order {order.schedule}" if isinstance(order, NamedOrder) else "order table"
        for order in plan.orders
    }
    forms |= {"weighted" for cut in cuts if isinstance(cut.parts, tuple)}
    forms |= {"ragged" for cut in cuts if len(set(cut.children)) > 1}
    forms |= {"lanes" for order in plan.orders if isinstance(order, Table) and len(order.lanes) > 1}
    forms |= {"range" for p in placements if p.select.blocks}
    forms |= {"keep" for lane in plan.lanes for stage in lane.stages if stage.keeps}
    forms |= {"slices" for lane in plan.lanes if len(lane.slices) > 1}
    return forms | {"shards" for _ in plan.shards}


def _under_every_schedule(case: Case) -> Iterator[Case]:
    """The plan; and, of one that has its order by name, the same lanes under each of the other
    schedules that such lanes can have."""
    yield case
    (order, *_) = case.plan.orders
    if isinstance(order, NamedOrder):
        names = next(names for names in FORMS.values() if order.schedule in names)
        yield from (
            replace(case, plan=replace(case.plan, orders=(replace(order, schedule=n),)))
            for n in names
            if n != order.schedule
        )


NAMED: Final = {f"order {name}" for name in SCHEDULES}
CUTS: Final = {f"cut {dim.value}" for dim in Dim if dim is not Dim.CONTEXT}
ZOO: Final = {f"model {name}" for name in ("dense", "sparse", "small-jamba", "small-t5")}
WANTED: Final = (
    NAMED
    | CUTS
    | ZOO
    | {"order table", "weighted", "ragged", "lanes", "range", "keep", "slices", "shards"}
)
"""What generated plans must show of the paradigm."""
MOST_ROUNDS: Final = 40
"""Rounds of `FEWEST` plans after which something that none showed cannot be generated: half of the
plans have a form in question and a tenth of them a rare cut, so that ten rounds suffice."""


@in_both
def test_generated_plans_are_legal_round_trip_and_show_the_whole_paradigm() -> None:
    """Every plan of every form; and plans of all forms until all of `WANTED` was shown, as what a
    fixed number of examples shows depends on what else was imported (tests/tiers.py)."""
    seen: Counter[str] = Counter()

    def check_plans(generated: st.SearchStrategy[Case], number: int) -> None:
        @seed(random_of(f"plans {number}").randrange(10**9))
        @examples(FEWEST, 400)
        @given(case=generated)
        def run(case: Case) -> None:
            for same in _under_every_schedule(case):
                _check(same)
                seen.update(_forms(same))

        run()

    for form in (FREE, *FORMS):
        check_plans(plans_of_form(form), 0)
    for number in range(MOST_ROUNDS):
        if set(seen) >= WANTED:
            break
        check_plans(plans(), number)
    assert set(seen) >= WANTED


def test_named_orders_of_generated_plans_exist() -> None:
    assert sorted(name for names in FORMS.values() for name in names) == sorted(SCHEDULES)
    assert {schedule(name).placement.lanes for name in FORMS["opposite"]} == {2}
    assert all(FORMS.values())


def _wreck(draw: st.DrawFn, value: Any) -> Any:
    """`value` with one random number, word or list in it changed; JSON in, JSON out."""
    value = json.loads(json.dumps(value))
    node, key = value, "lanes"
    for _ in range(draw(st.integers(1, 12))):
        keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if not isinstance(node[key], (dict, list)) or not node[key]:
            break
        node = node[key]
    keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return value
    key = draw(st.sampled_from(keys))
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int):
        node[key] = draw(st.sampled_from((0, 1, old + 1, 2 * old, max(0, old - 1), 10**6)))
    elif isinstance(old, str):
        node[key] = draw(
            st.sampled_from(
                (
                    "b",
                    "s",
                    "t",
                    "e",
                    "core",
                    "experts",
                    "full",
                    "host",
                    "F",
                    "W",
                    "R",
                    "train",
                    "decode",
                    "main",
                    "x",
                )
            )
        )
    elif isinstance(old, list):
        node[key] = draw(st.sampled_from(([], old + old[:1], old[1:], old[::-1])))
    else:
        node[key] = None
    return value


@st.composite
def wrecks(draw: st.DrawFn) -> tuple[Case, Any]:
    """A case and the JSON of its plan after one to three changes."""
    case = draw(plans())
    value: Any = plan_to_json(case.plan)
    for _ in range(draw(st.integers(1, 3))):
        value = _wreck(draw, value)
    return case, value


@examples(25, 2000)
@given(wreck=wrecks())
def test_a_changed_plan_is_judged_and_never_crashes(wreck: tuple[Case, Any]) -> None:
    case, value = wreck
    try:
        plan = plan_from_json(value)
    except DataError:
        return
    for violation in verify(
        plan, model=case.model, global_batch=case.global_batch, seq_len=case.seq_len
    ):
        assert violation.rule
        assert violation.message
    try:
        text = print_plan(plan)
        again = parse_plan(text)
    except StrategyError:
        return
    assert again == plan


@examples(25, 500)
@given(case=plans())
def test_a_generated_plan_is_for_its_batch_and_devices_alone(case: Case) -> None:
    rules = {
        v.rule for v in verify(case.plan, model=case.model, global_batch=case.global_batch + 1)
    }
    assert rules == {"lane.samples"}
    used = replace(case.plan, devices=1)
    spread = any(
        isinstance(p.split, Split) or stage.base + p.offset
        for lane in used.lanes
        for stage in lane.stages
        for p in stage.placements
    )
    assert (
        "plan.devices"
        in {v.rule for v in verify(used, model=case.model, global_batch=case.global_batch)}
    ) == spread
