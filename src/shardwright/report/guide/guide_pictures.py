"""Pictures of a guide: question, reading, next change and SVG, for its HTML and Markdown pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element, tostring

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.charts.guide_break_even_intervals import append_break_even_intervals
from shardwright.report.page.charts.guide_rule_loss_bars import append_rule_loss_bars
from shardwright.report.pictures.guide.break_evens_picture_content import (
    COMPARED,
    break_evens_content,
)
from shardwright.report.pictures.guide.rule_losses_picture_content import rule_losses_content


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidePicture:
    """A picture of a guide.

    Args:
        name: last part of its file's name.
        question: question that it answers.
        reading, next_change: sentence templates; no next change is "".
        append: appends its SVG to an element, from the guide's JSON.
    """

    name: str
    question: str
    reading: str
    next_change: str
    append: Callable[[Element, Any], None]


def guide_pictures(guide_json: Any) -> list[GuidePicture]:
    """The pictures that a guide has data for."""
    pictures = []
    losses, changes = rule_losses_content(guide_json), break_evens_content(guide_json)
    if losses is not None:
        question = "Which rules of thumb cost time here?"
        pictures.append(
            GuidePicture(
                name="rules",
                question=question,
                reading=losses.reading,
                next_change=losses.next_change,
                append=partial(append_rule_loss_bars, picture=losses, question=question),
            )
        )
    if changes is not None:
        question = f"Where does {COMPARED[guide_json['kind']]} change?"
        pictures.append(
            GuidePicture(
                name="break-evens",
                question=question,
                reading=changes.reading,
                next_change=changes.next_change,
                append=partial(append_break_even_intervals, picture=changes, question=question),
            )
        )
    return pictures


def picture_file(picture: GuidePicture, guide_json: Any) -> str:
    """Text of the SVG file of a picture."""
    parent = Element("figure")
    picture.append(parent, guide_json)
    text: str = tostring(parent[0], encoding="unicode")
    return f"{text}\n"
