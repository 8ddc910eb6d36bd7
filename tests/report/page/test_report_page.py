"""The page of a report: each number is a value of its JSON, nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.files.canonical_json import to_text
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, sentence_text
from shardwright.report.page.report_page import VIEWS, report_html, report_views
from tests.files.saved import grid_plan
from tests.report.page.page_numbers import require_numbers_of_document


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """JSON document of the report of a small plan, as it is written."""
    file = tmp_path_factory.mktemp("report") / "best.json"
    file.write_text(to_text(grid_plan()))
    return json.loads(to_text(report_document(make_report(file, tokens=1e12))))


def test_numbers_are_values_of_the_json(document: Any) -> None:
    page = require_numbers_of_document(report_html(document), document)
    assert len(page.leaves) > 20
    assert len(page.cells) >= 3 * len(document["time"]["parts"])


def test_every_part_of_the_json_has_a_view(document: Any) -> None:
    heading = {"schema", "schema_version", "kind", "title", "command", "version", "what_if_command"}
    assert set(VIEWS) == set(document) - heading
    shown = [view.name for view in report_views(document)]
    assert shown == [name for name in VIEWS if document[name] is not None]


def test_a_changed_number_is_noticed(document: Any) -> None:
    html = report_html(document)
    changed = json.loads(json.dumps(document))
    changed["answer"]["step_s"] *= 2
    with pytest.raises(AssertionError):
        require_numbers_of_document(html, changed)


def test_nothing_is_loaded_from_elsewhere(document: Any) -> None:
    html = report_html(document)
    without_scripts = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#|data:)""", without_scripts)
    assert "default-src 'none'" in html


def test_words_with_digits_are_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="has a digit"):
        append_sentence(Element("p"), document, "8 devices")


def test_sentence_as_text(document: Any) -> None:
    template = "A step takes {/answer/step_s:seconds}."
    element = Element("p")
    append_sentence(element, document, template)
    assert "".join(element.itertext()) == sentence_text(document, template)
