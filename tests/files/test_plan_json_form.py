"""Plans in files: any of them is read as it was written, and any damage is one error that says
where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.files.plan_json import PLAN, plan_from_json, plan_to_json
from tests.files.test_json_schemas import wrong
from tests.strategies import plans
from tests.strategy.test_notation import ZOO
from tests.tiers import examples


@examples(25, 500)
@given(plan=plans())
def test_any_plan_round_trips(plan: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_options_of_a_plan_stay_with_it() -> None:
    plan = replace(
        parse_plan((ZOO / "12-chimera.plan").read_text()),
        options=(("tp_overlap", "userbuffers"), ("recompute_norms", "on")),
    )
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_equal_trees_are_one_object() -> None:
    plan = parse_plan((ZOO / "19-deepseek-v3.plan").read_text())
    again = plan_from_json(plan_to_json(plan))
    for one in (plan, again):
        assert len({id(s.placements) for lane in one.lanes for s in lane.stages}) == 1
    large = parse_plan((ZOO / "09-llama405b.plan").read_text())
    assert len(json.dumps(plan_to_json(large))) < 16 * 1024


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
_ANY_PLAN = plan_to_json(parse_plan((ZOO / "12-chimera.plan").read_text()))


@examples(30, 1000)
@given(value=_json)
def test_only_data_errors_escape_json(value: object) -> None:
    with pytest.raises(DataError):
        plan_from_json(value)


@examples(40, 1500)
@given(value=_json, steps=st.lists(st.integers(0, 20), max_size=9))
def test_damaged_json_raises_only_our_errors(value: object, steps: list[int]) -> None:
    plan = json.loads(json.dumps(_ANY_PLAN))
    node = plan
    for step in steps:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(node[key], (dict, list)) or step == steps[-1]:
            node[key] = value
            break
        node = node[key]
    try:
        plan_from_json(plan)
    except DataError:
        return


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"devices": "4"}, "plan: devices is '4', not a whole number of at least 0"),
        ({"devices": True}, "not a whole number"),
        ({"devices": -4}, "not a whole number"),
        ({"device": 4}, "did you mean devices"),
        ({"version": 2}, "version is 2, not 1"),
        ({"version": True}, "version is True, not a whole number"),
        ({"lanes": [{}]}, "lanes 0: name is missing"),
        ({"lanes": None}, "lanes is None, not a list of objects"),
        ({"placements": 3}, "placements is 3, not a list"),
        ({"placements": []}, r"stage 0 of lane '\w+' has placements of number 0"),
        (
            {"placements": [[{"select": {}, "split": {"dim": "q", "parts": 2, "step": 1}}]]},
            "split: dim is 'q', not b or",
        ),
        (
            {"placements": [[{"select": {}, "split": {"dim": "b", "parts": 0, "step": 1}}]]},
            "placements 0 0: split: .* at least 1",
        ),
        (
            {"placements": [[{"select": {}, "split": {"dim": "b", "parts": "2", "step": 1}}]]},
            "parts is .2., not .* or a list of numbers",
        ),
        (
            {"orders": [{}]},
            "orders 0 is {}, not an object of schedule and lanes or an object of lanes and rows",
        ),
        ({"orders": [{"lanes": ["main"], "rows": [[0, [{"chunk": 0}]]]}]}, "orders 0: rows 0 1 0"),
    ],
)
def test_json_errors_name_the_path(change: dict[str, object], part: str) -> None:
    with pytest.raises(DataError, match=part):
        plan_from_json({**_ANY_PLAN, **change})


def test_deep_json_is_refused() -> None:
    split: object = None
    for _ in range(900):
        split = {"dim": "x", "parts": 1, "step": 1, "children": [split]}
    with pytest.raises(DataError, match="placements 0 0: split is nested too deep"):
        plan_from_json({**_ANY_PLAN, "placements": [[{"select": {}, "split": split}]]})


@examples(25, 300)
@given(plan=plans())
def test_plans_have_the_schema(plan: Plan) -> None:
    assert wrong(json.loads(json.dumps(plan_to_json(plan))), PLAN.schema, PLAN.schema) == []
