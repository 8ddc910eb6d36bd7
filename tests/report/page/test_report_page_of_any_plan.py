"""Pages of plans and simulations of many kinds: every number is a value of the JSON."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import file_text
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.report_page import report_html, report_views
from tests.api.report.stored_plans import KINDS, stored
from tests.report.page.page_numbers import require_numbers_of_document


@cache
def document_of_kind(kind: str) -> Any:
    """JSON document of the report of a kind's file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "best.json"
        file.write_text(file_text(stored(kind), file))
        return json.loads(to_text(report_document(make_report(file))))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_values_of_the_json(kind: str) -> None:
    document = document_of_kind(kind)
    page = require_numbers_of_document(report_html(document), document)
    parts, memory = document["time"]["parts"], document["memory"]
    cells = sum(
        len(document_list) for document_list in (parts, memory["stages"], memory["changes"])
    )
    assert len(page.cells) > 3 * cells


@pytest.mark.parametrize("kind", KINDS)
def test_readings_are_sentences(kind: str) -> None:
    """Each reading and next change is made of sentences without gaps."""
    document = document_of_kind(kind)
    for view in report_views(document):
        for template in (view.reading, view.next_change):
            text = sentence_text(document, template)
            assert not any(
                mark in text for mark in ("  ", " .", " ,", "None", "{", "}", "..", "- ")
            )
        assert view.reading.endswith((".", "}"))


def test_a_plan_that_does_not_fit_says_so() -> None:
    document = document_of_kind("does not fit")
    memory = next(view for view in report_views(document) if view.name == "memory")
    assert sentence_text(document, memory.reading).startswith("It does not fit: ")
    assert " fits, and the step takes " in sentence_text(document, memory.next_change)
