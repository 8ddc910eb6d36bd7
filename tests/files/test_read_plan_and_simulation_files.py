"""The JSON faces: names, digits, bytes, and the way back."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    document_of,
    plan_document,
    prediction_document,
    simulation_document,
)
from shardwright.files.read_plan_and_simulation_files import (
    parse_saved,
    read_plan_file,
    require_breakdown_sum,
)
from tests.cli.answers import ANSWER, BEST, PREDICTION, REQUEST, simulated
from tests.files.saved import text_of_kind
from tests.golden.files import assert_golden
from tests.tiers import examples

TEXT = to_text(plan_document(ANSWER))


def test_plan_file_is_golden() -> None:
    assert_golden("plan.json", TEXT)


def test_names_of_the_plan_face() -> None:
    document = json.loads(TEXT)
    named = {
        "request",
        "space",
        "plan",
        "strategy",
        "runtime",
        "prediction",
        "certificate",
        "alternatives",
        "sensitivity",
        "sources",
    }
    assert named <= set(document)
    assert {
        "step_time_s",
        "interval_s",
        "tokens_per_s",
        "tokens_per_s_per_device",
        "mfu_causal",
        "mfu_full",
        "peak_memory_bytes",
        "stages",
        "breakdown_s",
    } <= set(document["prediction"])
    assert set(document["prediction"]["peak_memory_bytes"]) == {"allocated", "reserved"}
    assert all(stage["memory_bytes"] for stage in document["prediction"]["stages"])
    assert {
        "space",
        "digest",
        "enumerated",
        "illegal",
        "duplicates",
        "infeasible",
        "bounded_b0",
        "bounded_b1",
        "simulated",
        "best_s",
        "lower_bound_s",
        "gap",
        "optimal",
        "universal_gap",
    } <= set(document["certificate"])


def test_clock_values_are_not_in_the_file() -> None:
    assert "search_time_s" not in json.loads(TEXT)


def test_names_of_the_simulate_face() -> None:
    """`simulate --json` is the object that stands under `prediction`, in a simulation's file and in
    a plan's."""
    document = simulation_document(simulated())
    assert document["strategy"].startswith("tp2 sp pp4 dp8")
    assert document["runtime"] == "megatron-core-0.12"
    assert (
        document["prediction"]
        == prediction_document(PREDICTION)
        == plan_document(ANSWER)["prediction"]
    )
    assert document["prediction"]["step_time_s"] == 2.0
    assert set(document) <= set(plan_document(ANSWER))


def test_floats_have_nine_digits_and_keys_are_sorted() -> None:
    text = to_text({"b": 1 / 3, "a": [math.inf, 1.0], "c": (2, True, None)})
    assert (
        text
        == '{\n "a": [\n  null,\n  1.0\n ],\n "b": 0.333333333,\n "c": [\n  2,\n  true,\n  null\n'
        " ]\n}\n"
    )


def test_a_space_may_have_more_members_than_a_machine_word_counts() -> None:
    """80 layers have 4e143 joint plans: the certificate counts them all, and its file is read
    again."""
    many = replace(ANSWER.certificate, enumerated=4 * 10**143, bounded_b0=4 * 10**143 - 400)
    text = to_text(plan_document(replace(ANSWER, certificate=many)))
    assert parse_saved(text, name="plan.json").certificate == many  # type: ignore[attr-defined]


@pytest.mark.parametrize("samples", [-7.27595761e-12, -40.0, 0.0, 12.5])
def test_dual_prices_may_add_up_to_less_than_nothing(samples: float) -> None:
    """A negative price of replicas can outweigh those of all devices and nodes of a subspace."""
    document = json.loads(text_of_kind("mixed"))
    frame = {"replicas": [1, 2], "tp": 1, "nodes": [1.0, 2.0], "sharded": False, "alone": False}
    dual = {"frame": {**frame, "sole": None}, "limit_s": 1.0, "devices": [0.0, 0.0]}
    dual |= {"nodes": 0.0, "replicas": -20.0, "samples": samples}
    document["certificate"]["mixed"]["closed"] = [{"options": [], "duals": [dual]}]
    saved = parse_saved(to_text(document), name="plan.json")
    assert isinstance(saved, StoredPlan)
    assert saved.certificate.mixed is not None
    assert saved.certificate.mixed.closed[0].duals[0].samples == samples


def test_the_way_back() -> None:
    found = parse_saved(TEXT)
    assert found.request == REQUEST
    assert found.grid == BEST
    assert to_text(document_of(found)) == TEXT
    assert isinstance(found, StoredPlan)
    assert found.answer is not None
    assert to_text(plan_document(found.answer)) == TEXT


def _without(path: tuple[str, ...]) -> str:
    document = json.loads(TEXT)
    place = document
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("strategy",), "plan file: strategy is missing"),
        (("request", "seq_len"), "plan file: request: seq_len is missing"),
        (("certificate", "gap"), "plan file: certificate: gap is missing"),
        (("schema",), "plan file is not a plan file: its schema is not shardwright.plan"),
    ],
)
def test_a_missing_field_is_named(path: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError) as raised:
        parse_saved(_without(path))
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "plan file: version 2 is not 3"),
        (("version",), 4, "plan file: version 4 is not 3"),
        (("certificate", "gapp"), 0, "plan file: certificate: unknown field 'gapp'"),
        (("request", "seq_len"), 8192, "plan file: what was asked is not what its digest is of"),
        (
            ("request", "global_batch"),
            0,
            "plan file: request: global_batch is 0, not a whole number of at least 1",
        ),
        (
            ("request", "pins"),
            {"tp": 8},
            "plan file: request: pins: tp is 8, not a list of strings",
        ),
        (("certificate", "optimal"), 1, "plan file: certificate: optimal is 1, not true or false"),
        (
            ("certificate", "best_s"),
            1e999,
            "plan file: certificate: best_s is inf, not a number of at least 0",
        ),
        (
            ("prediction", "interval_s"),
            [1],
            "plan file: prediction: interval_s is [1], not a list of two numbers",
        ),
        (("alternatives",), [3], "plan file: alternatives is [3], not a list of objects"),
    ],
)
def test_a_wrong_value_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    document = json.loads(TEXT)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(DataError) as raised:
        parse_saved(json.dumps(document))
    assert raised.value.message == message


@pytest.mark.parametrize("key", ["'" * 5000, "line\nbreak"])
def test_a_key_of_any_length_is_one_short_line(key: str) -> None:
    document = json.loads(TEXT)
    document["prediction"]["breakdown_s"][key] = "no number"
    with pytest.raises(DataError, match="breakdown_s") as refused:
        parse_saved(json.dumps(document))
    assert len(refused.value.message) < 200
    assert refused.value.message.isprintable()


def test_unreadable_files(tmp_path: Any) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_plan_file(tmp_path / "absent.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not text"):
        read_plan_file(tmp_path / "bytes.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


PATHS = _paths(json.loads(TEXT))


@examples(25, 500)
@given(text=st.text(max_size=60) | JSON.map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(ShardwrightError):
        parse_saved(text)


@examples(25, 500)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_any_field_may_hold_anything(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(TEXT)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with suppress(ShardwrightError):  # anything else is a failure
        parse_saved(json.dumps(document))


def test_parts_that_are_not_the_step_are_refused() -> None:
    """A tampered breakdown would draw bars as long as it says."""
    document = json.loads(to_text(plan_document(ANSWER)))
    document["prediction"]["breakdown_s"]["gemm"] = 1e29
    with pytest.raises(DataError, match="parts of the step are 1e\\+29 s"):
        require_breakdown_sum(parse_saved(json.dumps(document)))
