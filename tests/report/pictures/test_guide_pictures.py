"""Pictures of a guide have the numbers of its JSON, in places that follow from them."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from shardwright.report.guide.guide_html_page import guide_html
from shardwright.report.guide.guide_pictures import guide_pictures, picture_file
from shardwright.report.page.charts.guide_picture_svg import WIDTH
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.markup.value_at_json_pointer import value_at
from shardwright.report.pictures.guide.break_evens_picture_content import break_evens_content
from shardwright.report.pictures.guide.rule_losses_picture_content import rule_losses_content
from tests.report.page.page_numbers import require_numbers_of_document
from tests.report.pictures.guide_of_six_rules import RULES, guide_json

GUIDE = guide_json()
SVG = "{http://www.w3.org/2000/svg}"
MAIN_TEXT = 328
"""Width in pixels of a page's text on a screen of 360 pixels."""


def drawn(name: str, document: Any = GUIDE) -> ET.Element:
    [picture] = [one for one in guide_pictures(document) if one.name == name]
    return ET.fromstring(picture_file(picture, document))


def of_class(svg: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in svg.iter() if element.get("class") == kind]


def test_rules_stand_by_loss_with_words_for_those_without_a_plan() -> None:
    content = rule_losses_content(GUIDE)
    assert content is not None
    assert [(row.question, row.loss, row.outcome, row.others) for row in content.rows] == [
        ("What of condition?", 0.5, "loses", (0.0,)),
        ("What of costs?", 0.25, "loses", (0.1,)),
        ("What of last?", 0.05, "loses", ()),
        ("What of holds?", 0.0, "holds", (4.5,)),
        ("What of impossible?", None, "does not fit", ()),
    ]
    assert sentence_text(GUIDE, content.reading) == (
        "1 of the 5 rules that could be judged hold here; the costliest is the answer to"
        " “What of condition?”."
        " Here it loses 50.0 %."
    )
    assert sentence_text(GUIDE, content.next_change) == (
        "In its place take “ring”: with ring has 75 tokens a second instead of 50."
        " plan ring repeats it."
    )


def test_the_best_plan_is_the_next_change_of_a_rule_without_a_condition() -> None:
    document = guide_json((RULES[0], RULES[2]))
    content = rule_losses_content(document)
    assert content is not None
    text = sentence_text(document, content.next_change)
    assert text.startswith("In its place take the best plan: dp64 has 100 tokens a second")
    held = guide_json(RULES[:2])
    content = rule_losses_content(held)
    assert content is not None
    assert sentence_text(held, content.reading) == (
        "1 of the 1 rules that could be judged hold here, and none costs time."
    )
    assert content.next_change == ""


def test_break_evens_stand_by_distance_from_the_own_value() -> None:
    content = break_evens_content(GUIDE)
    assert content is not None
    found = [(row.pointer, row.sides, row.nearest) for row in content.rows]
    assert found == [
        ("/rules/3/break_even", ((0.5, True), (1.0, False)), 0),
        ("/rules/5/break_even", ((0.5, False), (4.0, True)), 0),
        ("/rules/2/break_even", ((1.0, False), (2.8, True)), 1),
        ("/rules/0/break_even", ((0.25, True),), None),
        ("/rules/1/break_even", ((8.0, False),), None),
    ]
    assert [sentence_text(GUIDE, row.status) for row in content.rows] == [
        "sequence length: up to 2,048, no longer at 4,096",
        "sequence length: from 16,384 on, not yet at 2,048",
        "memory of a device: from 112 GiB on, not yet at 40 GiB",
        "devices: already at 16",
        "global batch: at no searched value up to 2,048",
    ]
    reading = "The nearest change is at 0.5 times your value: A change of sequence length."
    assert sentence_text(GUIDE, content.reading) == reading
    assert "There pp2 is the best plan, with 50 tokens a second." in sentence_text(
        GUIDE, content.next_change
    )


def test_a_guide_without_changes_says_so() -> None:
    content = break_evens_content(guide_json(RULES[:2]))
    assert content is not None
    assert content.reading == "The best plan changes at no searched value."
    assert guide_pictures(guide_json(RULES[4:5]))[0].name == "rules"
    assert [one.name for one in guide_pictures(guide_json(RULES[:1]))] == ["break-evens"]
    assert guide_pictures(guide_json(())) == []
    without_devices = replace(RULES[0], formulas=())
    assert guide_pictures(guide_json((without_devices,))) == []


def test_bars_are_as_long_as_the_losses() -> None:
    svg = drawn("rules")
    _, *bars = of_class(svg, "loss")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert [width / widths[0] for width in widths] == pytest.approx([1.0, 0.5, 0.1], abs=1e-3)
    # The legend has one of both; the choice of 450 % is beyond the scale.
    shapes = [element.tag.removeprefix(SVG) for element in of_class(svg, "other")]
    assert sorted(shapes) == ["circle"] * 3 + ["polygon"] * 2


def test_intervals_lie_at_the_logarithms_of_the_factors() -> None:
    svg = drawn("break-evens")
    _, *intervals = of_class(svg, "interval")
    ends = [[float(line.attrib[name]) for name in ("x1", "x2")] for line in intervals]
    unit = (ends[0][1] - ends[0][0]) / log(2)
    for (left, right), factors in zip(ends, ((0.5, 1.0), (0.5, 4.0), (1.0, 2.8)), strict=True):
        assert right - left == pytest.approx(unit * log(factors[1] / factors[0]), abs=0.05)
    _, *ranges = of_class(svg, "range")
    own = ends[0][1]
    for line in ranges:
        assert float(line.attrib["x1"]) <= own <= float(line.attrib["x2"])


@pytest.mark.parametrize("name", ["rules", "break-evens"])
def test_texts_are_values_of_the_guide_and_legible_on_a_narrow_screen(name: str) -> None:
    svg = drawn(name)
    assert [svg[place].tag for place in (0, 1)] == [f"{SVG}title", f"{SVG}desc"]
    leaves = [element for element in svg.iter() if "data-leaf" in element.attrib]
    assert len(leaves) >= 10
    for leaf in leaves:
        value = value_at(GUIDE, leaf.attrib["data-leaf"])
        assert "".join(leaf.itertext()) == formatted(value, leaf.attrib["data-form"])
    assert svg.attrib["viewBox"].split()[2] == str(WIDTH)
    size = re.search(r"font: (\d+)px", "".join(svg.itertext()))
    assert size is not None
    assert int(size[1]) * MAIN_TEXT / WIDTH > 10


def test_the_page_has_the_pictures_of_the_files() -> None:
    page = guide_html(GUIDE)
    require_numbers_of_document(page, GUIDE)
    for name in ("rules", "break-evens"):
        inside = re.search(rf'<section id="{name}".*?(<svg.*?</svg>)', page, flags=re.DOTALL)
        assert inside is not None
        texts = [text for text in ET.fromstring(inside[1]).itertext() if text.strip()]
        assert texts == [text for text in drawn(name).itertext() if text.strip()]
