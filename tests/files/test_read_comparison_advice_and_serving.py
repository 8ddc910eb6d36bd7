"""Strict reading of what `compare`, `advise` and `serve-simulate` write."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest

from shardwright.errors import DataError
from shardwright.files.canonical_json import to_text
from shardwright.files.comparison_advice_serving_document_classes import (
    StoredAdvice,
    StoredComparison,
    StoredServing,
)
from shardwright.files.read_comparison_advice_and_serving import parse_other_answer
from tests.files.other_answers import OTHER_KINDS
from tests.files.saved import paths

KINDS = {"strategies": StoredComparison, "advice": StoredAdvice, "serving": StoredServing}


@cache
def _text(kind: str) -> str:
    """What the verb of a kind writes."""
    return to_text(OTHER_KINDS[kind]())


def _parse(document: Any) -> Any:
    """The contents of a document."""
    return parse_other_answer(json.dumps(document), name="answer.json")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read(kind: str) -> None:
    assert isinstance(parse_other_answer(_text(kind), name="answer.json"), KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_of_another_type_is_an_error(kind: str) -> None:
    """Each leaf in turn is a list: one line that names the file."""
    document = json.loads(_text(kind))
    leaves = list(paths(document))
    assert len(leaves) > 30
    for path in leaves[:: max(len(leaves) // 60, 1)]:
        changed = copy.deepcopy(document)
        inside = changed
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = [[]]
        with pytest.raises(DataError, match=r"answer\.json") as raised:
            _parse(changed)
        assert "\n" not in raised.value.message


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_and_missing_fields_are_errors(kind: str) -> None:
    document = json.loads(_text(kind))
    with pytest.raises(DataError, match="extra"):
        _parse({**document, "extra": 1})
    lacking = {
        "strategies": {**document, "costs": document.get("costs", [])[:-1]},
        "advice": {key: value for key, value in document.items() if key != "job"},
        "serving": {key: value for key, value in document.items() if key != "devices"},
    }[kind]
    with pytest.raises(DataError):
        _parse(lacking)


def test_facts_that_options_add_are_left_out() -> None:
    document = json.loads(_text("serving"))
    assert _parse({**document, "sources": [1], "execution": {}}) == _parse(document)


def test_an_estimate_of_means_is_refused() -> None:
    means = {"ttft_s": 1.0, "tpot_s": 1.0, "e2e_s": 2.0}
    with pytest.raises(DataError, match="estimate of means") as raised:
        _parse(means)
    assert "--estimate" in (raised.value.hint or "")


@pytest.mark.parametrize("document", [{}, [], 1, {"schema": "shardwright.plan"}, {"costs": []}])
def test_other_documents_are_left_to_other_readers(document: Any) -> None:
    assert _parse(document) is None


@pytest.mark.parametrize(
    "document",
    [
        {"strategies": [], "costs": []},
        {"strategies": {}, "costs": []},
        {"strategies": [1], "costs": [1]},
        {"strategies": [{}], "costs": [{}]},
    ],
)
def test_comparisons_without_strategies_are_errors(document: Any) -> None:
    with pytest.raises(DataError):
        _parse(document)
