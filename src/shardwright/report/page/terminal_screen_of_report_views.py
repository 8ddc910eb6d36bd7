"""Screen of a report: question, reading and next change of each view of its page."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.report_page import report_views
from shardwright.report.titled_screen_sections import section


def render_report(report_json: Any) -> RenderableType:
    """The report's views in words: each question, its answer, and the next change."""
    parts: list[RenderableType] = [Text(report_json["title"], style="bold")]
    for view in report_views(report_json):
        templates = (view.reading, view.next_change)
        words = [sentence_text(report_json, template) for template in templates if template]
        parts.append(section(view.question, Text("\n".join(words))))
    return Group(*parts)


def report_line(report_json: Any) -> str:
    """Line of ``--quiet``: title, a tab, and the number of views."""
    return f"{report_json['title']}\t{len(report_views(report_json))} views\n"
