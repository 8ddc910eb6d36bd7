"""A stored file in which one leaf was changed is refused, whichever leaf it is; an honest one is
accepted, whatever its time limit was.

Every leaf of 30 files, and 50 plans of stopped searches, are proofs.
"""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardwright.api import table_of_general_plan_searches as general_searches
from shardwright.api import verify_plan_file_by_repetition as verify_stored_answers
from shardwright.api.searches import grid_search
from shardwright.cli.main import run
from shardwright.errors import DataError, ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import question_digest
from shardwright.files.profile_file import parse_profile, profile_document
from shardwright.files.read_plan_and_simulation_files import parse_saved
from shardwright.files.trace_file import parse_traces
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.profile.apply_profile import apply_profile
from shardwright.registry import load_target
from shardwright.report.screens.step_trace_screen import render_trace
from tests.calibrate.profiles import profile
from tests.files.edits import changed, edits
from tests.files.saved import (
    KINDS,
    NARROW,
    SMALL,
    grid_plan,
    joint_plan,
    paths,
    simulated,
    text_of_kind,
)
from tests.files.test_trace_file import TEXT as TRACES
from tests.tiers import cases, in_both, in_proof

SAMPLE = 6
"""Leaves of each file; in a proof all."""


REPEATED = cache(grid_search.repeat_search)
SEARCHES = {
    search.plan: cache(load_target(search.plan)) for search in general_searches.SEARCHES.values()
}


@pytest.fixture
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search of the same question is made once: what is changed in a file is not part of
    it."""
    monkeypatch.setattr(
        grid_search,
        "repeat_search",
        lambda *words, progress=None, **named: REPEATED(*words, **named),
    )

    def once(search: Any) -> Any:
        return lambda *words, progress=None, engine=None, **named: search(*words, **named)

    monkeypatch.setattr(
        general_searches,
        "load_target",
        lambda target: once(SEARCHES[target]) if target in SEARCHES else load_target(target),
    )


def put(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def refusal(document: dict[str, Any]) -> ShardwrightError | None:
    try:
        verify_stored_answers.check_file(parse_saved(json.dumps(document)))
    except ShardwrightError as error:
        return error
    return None


def every_leaf_is_found(made: dict[str, Any], leaves: int) -> None:
    document = json.loads(to_text(made))
    assert refusal(document) is None
    found = list(paths(document))
    for path in found if in_proof() else random.Random(0).sample(found, min(leaves, len(found))):
        value: Any = document
        for key in path:
            value = value[key]
        error = refusal(put(document, path, changed(value)))
        assert error is not None, f"{path}: {value!r} was changed and not found"
        assert "\n" not in str(error)
        dotted = ".".join(map(str, path))
        if "made again" in error.message:
            assert f"{dotted} says " in error.message


@in_both
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize("kind", list(KINDS)[:4])
def test_every_changed_leaf_is_found(kind: str) -> None:
    every_leaf_is_found(json.loads(text_of_kind(kind)), SAMPLE)


EDITS = 15
"""Edits of each file; in a proof all, and as many of what only looks at it."""


def some_edits(document: dict[str, Any], count: int) -> list[Any]:
    found = list(edits(document))
    return found if in_proof() else random.Random(0).sample(found, min(count, len(found)))


@in_both
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize("kind", KINDS)
def test_every_edit_is_found(kind: str) -> None:
    """Leaves changed and emptied, keys and items deleted, items doubled: each is refused in a line,
    never verified and never a fault."""
    document = json.loads(text_of_kind(kind))
    assert refusal(document) is None
    lists = [
        edit
        for edit in edits(document)
        if edit.what in ("delete", "twice", "empty") and "devices" in edit.path
    ]
    for edit in [*some_edits(document, EDITS), *lists[:10]]:
        error = refusal(edit.of(document))
        assert error is not None, f"{edit} was not found"
        assert "\n" not in str(error)


@pytest.mark.usefixtures("searched_once")
def test_what_further_searches_found_cannot_be_left_out() -> None:
    """Whether they were made is part of what the digest is of, not read off the fields that would
    be missing."""
    document = json.loads(text_of_kind("grid"))
    assert document["sensitivity"] is not None
    without = {**document, "sensitivity": None, "nearby": []}
    assert "is not what its digest is of" in str(refusal(without))
    short = json.loads(to_text(grid_plan(NARROW, limit=1000.0)))
    assert (short["sensitivity"], short["certificate"]["stopped_at"]) == (None, 0)
    assert refusal(short) is None


@in_both
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "of a front"])
def test_an_edited_file_is_shown_or_refused_in_a_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also under a digest that fits, which `explain`, `draw` and `export` do not make again."""
    document, path = json.loads(text_of_kind(kind)), tmp_path / "edited.json"
    verbs = (
        ["explain", str(path)],
        ["draw", str(path), "--quiet"],
        ["export", str(path), "--to", "megatron", "-o", str(tmp_path / "out")],
    )
    tied = [
        edit
        for edit in edits(document)
        if edit.path[:1] == ("classes",)
        or edit.path[-1:] == ("rank",)
        or edit.path[1:2] == ("lanes",)
    ]
    for number, edit in enumerate([*some_edits(document, 15), *tied[:9]]):
        edited = edit.of(document)
        body = {
            key: value
            for key, value in edited.items()
            if key not in ("schema", "version", "digest")
        }
        with suppress(AttributeError, TypeError):
            edited["digest"] = question_digest(body)
        path.write_text(json.dumps(edited))
        for words in verbs if in_proof() else (verbs[number % len(verbs)],):
            code = run(words)
            said = capsys.readouterr().err
            assert code in (0, 2, 3, 4, 5, 6, 7, 8), f"{words[0]} after {edit}: {said}"
            assert said.count("error: ") == (code not in (0, 6)) or code == 6


@in_both
@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_an_edited_trace_or_profile_is_taken_or_refused_in_a_line(kind: str) -> None:
    """What was measured cannot be made again; that its form is another one is said."""
    text = TRACES if kind == "trace" else to_text(profile_document(profile()))
    document = json.loads(text)
    for edit in some_edits(document, 120):
        said = ""
        try:
            if kind == "trace":
                for one in parse_traces(json.dumps(edit.of(document))):
                    render_trace(one)
            else:
                apply_profile(
                    parse_cluster("h100-sxm:8"), parse_profile(json.dumps(edit.of(document)))
                )
        except ShardwrightError as error:
            said = str(error)
        assert "\n" not in said, str(edit)


@pytest.mark.usefixtures("searched_once")
def test_a_false_prediction_is_refused_with_its_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of a tenth and an MFU of 99 %, under a digest that fits."""
    for made in (
        grid_plan(),
        joint_plan(space="joint-named"),
        simulated("tp2 sp pp2 dp4 mbs1 zero1"),
    ):
        document = json.loads(to_text(made))
        false = put(
            document, ("prediction", "step_time_s"), document["prediction"]["step_time_s"] / 10
        )
        false = put(false, ("prediction", "mfu_causal"), 0.99)
        error = refusal(put(false, ("digest",), question_digest(false)))
        assert isinstance(error, DataError)
        assert "prediction.mfu_causal says 0.99, found 0." in error.message
        assert "prediction.step_time_s says " in error.message


@pytest.mark.parametrize("limit", cases([0.0, 0.02, 0.2, 1.0], 2))
@pytest.mark.parametrize(
    "made",
    [lambda t: grid_plan(NARROW, limit=t), lambda t: joint_plan(SMALL, limit=t)],
    ids=["grid", "joint"],
)
def test_plans_of_stopped_searches_hold(made: Any, limit: float) -> None:
    document = made(limit)
    again = json.loads(to_text(document))
    assert refusal(again) is None
    if limit == 0.0:
        assert again["certificate"]["stopped_at"] > 0 or (again["certificate"]["joint"] or {}).get(
            "grid_stopped_at"
        )


MODELS = ("llama-3.2-1b", "gpt2", "gemma-2-2b", "qwen2.5-0.5b", "qwen1.5-moe-a2.7b")
MANY = [
    (model, devices, kind)
    for model in MODELS
    for devices in (4, 8)
    for kind in ("grid", "joint-named", "simulation")
]


@pytest.mark.proof
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize(("model", "devices", "kind"), MANY)
def test_every_changed_leaf_of_many_files_is_found(model: str, devices: int, kind: str) -> None:
    asked = replace(SMALL, model=model, cluster=f"h100-sxm:{devices}", global_batch=2 * devices)
    if kind == "simulation":
        experts = (
            "ep4 " if "moe" in model else ""
        )  # whole experts do not fit, which `check` would say
        text = (
            "pp4 mbs1 recompute=full"
            if devices == 4
            else f"tp2 sp {experts}pp2 dp2 mbs1 schedule=zb-v"
        )
        every_leaf_is_found(simulated(text, asked), SAMPLE)
    else:
        every_leaf_is_found(
            grid_plan(asked) if kind == "grid" else joint_plan(asked, space=kind), SAMPLE
        )


@pytest.mark.proof
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limit", [0.0, 0.01, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("space", ["grid", "joint"])
def test_many_plans_of_stopped_searches_hold(model: str, limit: float, space: str) -> None:
    asked = replace(SMALL, model=model, cluster="h100-sxm:8", global_batch=16, pins=())
    document = grid_plan(asked, limit=limit) if space == "grid" else joint_plan(asked, limit=limit)
    assert refusal(json.loads(to_text(document))) is None
