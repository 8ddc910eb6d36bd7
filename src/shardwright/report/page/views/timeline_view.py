"""View of the pipeline's timeline: where devices wait, and for what."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.timeline_chart import append_timeline
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.simulated_change_sentence import change_sentence

_CAUSES: Final = (
    Column(field="name", heading="cause", swatch=True),
    Column(field="seconds", heading="seconds of the mean device", form="seconds"),
    Column(field="share", heading="share of the step", form="percent"),
)
_IMBALANCES: Final = (
    Column(field="name", heading="stage"),
    Column(field="seconds", heading="seconds of the mean device", form="seconds"),
    Column(field="share", heading="share of the step", form="percent"),
)
_ROWS: Final = (
    Column(field="stage", heading="stage"),
    Column(field="device", heading="first device", form="count"),
    Column(field="devices", heading="equal devices", form="count"),
    Column(field="layers", heading="layers"),
    Column(field="chunks", heading="pipeline chunks"),
    Column(field="busy_s", heading="busy", form="seconds"),
    Column(field="idle_s", heading="idle", form="seconds"),
    Column(field="warm_up_s", heading="warm-up", form="seconds"),
    Column(field="cool_down_s", heading="cool-down", form="seconds"),
    Column(field="order_s", heading="order", form="seconds"),
    Column(field="message_s", heading="messages", form="seconds"),
    Column(field="reduction_s", heading="gradient reductions", form="seconds"),
    Column(field="gather_s", heading="gathers and updates", form="seconds"),
    Column(field="imbalance_s", heading="imbalance", form="seconds"),
)


def timeline_view(report_json: Any) -> View:
    """View of idle time: its share and causes, best simulated change, timeline, tables."""
    timeline = report_json["timeline"]
    return View(
        name="timeline",
        question="Where do devices wait?",
        reading=_reading(timeline),
        next_change=change_sentence("/timeline/change", timeline["change"]),
        chart=_append_chart,
        tables=_append_tables,
    )


def _reading(timeline_json: Any) -> str:
    """Template of the sentence that says how long devices wait, and for what most of all."""
    jitter = (
        " Random delays of devices add {/timeline/jitter_s:seconds}."
        if timeline_json["jitter_s"]
        else ""
    )
    if timeline_json["largest"] is None:
        return f"No device waits for another one.{jitter}"
    stage = (
        ", most of it because of {/timeline/largest_imbalance/name}"
        if timeline_json["largest_imbalance"] is not None
        else ""
    )
    return (
        "A device computes nothing for {/timeline/idle/seconds:seconds} of a step"
        " ({/timeline/idle/share:percent}). The largest cause is {/timeline/largest/name}:"
        f" {{/timeline/largest/seconds:seconds}} ({{/timeline/largest/share:percent}}){stage}."
        f"{jitter}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the timeline of the devices' actions and idle time."""
    append_timeline(
        parent,
        report_json,
        "/timeline",
        description="What each device does during the step; the tables have the numbers",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append tables of idle time: by cause, by stage with unequal work, by device of each class."""
    append_table(parent, report_json, "/timeline/causes", _CAUSES, caption="Idle time by cause")
    if report_json["timeline"]["imbalances"]:
        append_table(
            parent,
            report_json,
            "/timeline/imbalances",
            _IMBALANCES,
            caption="Imbalance by the stage that has more work, or less in its own wait",
        )
    timeline = report_json["timeline"]
    shown = (
        "Busy and idle time of one device of each class"
        if len(timeline["rows"]) == timeline["classes"]
        else "Busy and idle time of one device of the classes that wait longest"
    )
    append_table(parent, report_json, "/timeline/rows", _ROWS, caption=shown)
