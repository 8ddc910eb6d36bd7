"""Horizontal bars with a label and a value each, as static SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.charts.share_bar import append_share_bar
from shardwright.report.page.markup.sentences_with_json_values import append_sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A bar.

    Args:
        label: template of the words and numbers above the bar.
        lengths: lengths of its segments, as fractions of the width.
        description: words for readers that do not see the bar.
    """

    label: str
    lengths: Sequence[float]
    description: str


def append_bar_rows(parent: Element, report_json: Any, rows: Sequence[BarRow]) -> None:
    """Append each row's label (sentence template) and its bar; segment `k` has ``--series-k``."""
    for row in rows:
        group = SubElement(parent, "div", {"class": "bar-row"})
        append_sentence(SubElement(group, "p"), report_json, row.label)
        append_share_bar(group, row.lengths, description=row.description)
