"""The page of a report: its views in order, with the scripts of their charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardwright.report.page.markup.page_frame import page_html
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.answer_card_view import answer_view
from shardwright.report.page.views.communication_view import communication_view
from shardwright.report.page.views.compared_strategies_view import compared_strategies_view
from shardwright.report.page.views.faster_launch_changes_view import launch_advice_view
from shardwright.report.page.views.memory_view import memory_view
from shardwright.report.page.views.prediction_accuracy_view import prediction_accuracy_view
from shardwright.report.page.views.searched_members_view import searched_members_view
from shardwright.report.page.views.serving_latencies_view import serving_latencies_view
from shardwright.report.page.views.step_time_parts_view import step_time_view
from shardwright.report.page.views.timeline_view import timeline_view
from shardwright.report.page.views.what_if_view import what_if_view

VIEWS: Final[dict[str, Callable[[Any], View]]] = {
    "answer": answer_view,
    "time": step_time_view,
    "memory": memory_view,
    "timeline": timeline_view,
    "communication": communication_view,
    "members": searched_members_view,
    "what_if": what_if_view,
    "accuracy": prediction_accuracy_view,
    "comparison": compared_strategies_view,
    "advice": launch_advice_view,
    "serving": serving_latencies_view,
}
"""View of each part of a report, in the order of the page; the key is the part's name in JSON."""
SCRIPTS: Final = (
    "uPlot.iife.min.js",
    "document.js",
    "number_formats.js",
    "line_chart.js",
    "canvas_chart.js",
    "timeline_spans.js",
    "timeline.js",
    "device_map.js",
    "position_slider.js",
    "scatter.js",
    "start.js",
)
"""Files of `report.page.browser`, in the order in which the page embeds them."""


def report_views(report_json: Any) -> list[View]:
    """The views of a report's JSON document, in the order of the page.

    Parts that are null have no view.
    """
    return [view(report_json) for name, view in VIEWS.items() if report_json.get(name) is not None]


def report_html(report_json: Any) -> str:
    """HTML page of a report, made from its JSON document."""
    return page_html(report_json, report_views(report_json), scripts=SCRIPTS)
