"""A stored file in which one leaf was changed is refused, whichever leaf it is; an honest one is accepted, whatever its time limit was.

Every leaf of 30 files, and 50 plans of stopped searches, are proofs.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from shardwright.api import checks, general, grids
from shardwright.errors import DataError, ShardwrightError
from shardwright.files.plan_file import parse_saved
from shardwright.files.stored import question_digest
from shardwright.files.text import to_text
from tests.files.saved import KINDS, NARROW, SMALL, grid_plan, joint_plan, paths, simulated
from tests.tiers import cases, in_both, in_proof

SAMPLE = 10
"""Leaves of each file; in a proof all."""


REPEATED, JOINT = cache(grids.repeated), cache(general.plan_joint)


@pytest.fixture
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search of the same question is made once: what is changed in a file is not part of it."""
    monkeypatch.setattr(grids, "repeated", lambda *words, progress=None, **named: REPEATED(*words, **named))
    monkeypatch.setattr(general, "plan_joint", lambda *words, progress=None, **named: JOINT(*words, **named))


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(round(abs(value) * 0.01), 1)
    return value * 1.01 if isinstance(value, float) and value else value + 0.01 if isinstance(value, float) else value + "x"


def put(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def refusal(document: dict[str, Any]) -> ShardwrightError | None:
    try:
        checks.check_file(parse_saved(json.dumps(document)))
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
@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_leaf_is_found(kind: str) -> None:
    every_leaf_is_found(KINDS[kind](), SAMPLE)


@pytest.mark.usefixtures("searched_once")
def test_a_false_prediction_is_refused_with_its_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of a tenth and an MFU of 99 %, under a digest that fits."""
    for made in (grid_plan(), joint_plan(space="joint-named"), simulated("tp2 sp pp2 dp4 mbs1 zero1")):
        document = json.loads(to_text(made))
        false = put(document, ("prediction", "step_time_s"), document["prediction"]["step_time_s"] / 10)
        false = put(false, ("prediction", "mfu_causal"), 0.99)
        error = refusal(put(false, ("digest",), question_digest(false)))
        assert isinstance(error, DataError)
        assert "prediction.mfu_causal says 0.99, found 0." in error.message
        assert "prediction.step_time_s says " in error.message


@pytest.mark.parametrize("limit", cases([0.0, 0.02, 0.2, 1.0], 2))
@pytest.mark.parametrize("made", [lambda t: grid_plan(NARROW, limit=t), lambda t: joint_plan(SMALL, limit=t)], ids=["grid", "joint"])
def test_plans_of_stopped_searches_hold(made: Any, limit: float) -> None:
    document = made(limit)
    again = json.loads(to_text(document))
    assert refusal(again) is None
    if limit == 0.0:
        assert again["certificate"]["stopped_at"] > 0 or (again["certificate"]["joint"] or {}).get("grid_stopped_at")


MODELS = ("llama-3.2-1b", "gpt2", "gemma-2-2b", "qwen2.5-0.5b", "qwen1.5-moe-a2.7b")
MANY = [(model, devices, kind) for model in MODELS for devices in (4, 8) for kind in ("grid", "joint-named", "simulation")]


@pytest.mark.proof
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize(("model", "devices", "kind"), MANY)
def test_every_changed_leaf_of_many_files_is_found(model: str, devices: int, kind: str) -> None:
    asked = replace(SMALL, model=model, cluster=f"h100-sxm:{devices}", global_batch=2 * devices)
    if kind == "simulation":
        experts = "ep4 " if "moe" in model else ""  # whole experts do not fit, which `check` would say
        text = "pp4 mbs1 recompute=full" if devices == 4 else f"tp2 sp {experts}pp2 dp2 mbs1 schedule=zb-v"
        every_leaf_is_found(simulated(text, asked), SAMPLE)
    else:
        every_leaf_is_found(grid_plan(asked) if kind == "grid" else joint_plan(asked, space=kind), SAMPLE)


@pytest.mark.proof
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limit", [0.0, 0.01, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("space", ["grid", "joint"])
def test_many_plans_of_stopped_searches_hold(model: str, limit: float, space: str) -> None:
    asked = replace(SMALL, model=model, cluster="h100-sxm:8", global_batch=16, pins=())
    document = grid_plan(asked, limit=limit) if space == "grid" else joint_plan(asked, limit=limit)
    assert refusal(json.loads(to_text(document))) is None
