"""View of a step's time: the parts of the critical device's step, and what each would be worth."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.share_bar import append_share_bar
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.next_change_sentences import faster_option, second_best

_COLUMNS = (
    Column(field="name", heading="part", swatch=True),
    Column(field="seconds", heading="seconds", form="seconds"),
    Column(field="share", heading="share of the step", form="percent"),
)
_FREE_COLUMNS = (
    Column(field="if_free/step_s", heading="step if it took no time", form="seconds"),
    Column(field="if_free/gain", heading="saved", form="percent"),
    Column(field="if_free/same_plan_s", heading="this plan's step then", form="seconds"),
    Column(field="if_free/strategy", heading="best plan then"),
)
_NOTE = Column(field="note", heading="not removed, because")


def step_time_view(report_json: Any) -> View:
    """View of the step's parts: largest, dearest, and second best plan or faster option."""
    return View(
        name="time",
        question="What limits the step?",
        reading=_reading(report_json["time"]),
        next_change=second_best(report_json["time"]) or faster_option(report_json["time"]),
        chart=_append_chart,
        tables=_append_table,
        tables_open=True,
    )


def _reading(time_json: Any) -> str:
    """Template of the sentence that names the largest part, and the part whose removal saves most.

    The two differ where another part hides behind the largest.
    """
    largest = (
        "The largest part of the busiest device's step is {/time/parts/0/name}:"
        " {/time/parts/0/seconds:seconds} of {/time/step_s:seconds}"
        " ({/time/parts/0/share:percent})."
    )
    dearest = time_json["dearest"]
    if dearest < 0:
        return largest
    part = f"/time/parts/{dearest}"
    plan = (
        "the best plan, searched again, would take"
        if time_json["parts"][dearest]["if_free"]["searched"]
        else "this plan would take"
    )
    name = "this part" if dearest == 0 else f"{{{part}/name}}"
    others = [
        number
        for number, other in enumerate(time_json["parts"])
        if number != dearest and other["if_free"] is not None and other["if_free"]["gain"] > 0
    ]
    second = max(others, key=lambda k: time_json["parts"][k]["if_free"]["gain"], default=None)
    following = (
        ""
        if second is None
        else f" Next is {{/time/parts/{second}/name}}:"
        f" {{/time/parts/{second}/if_free/gain:percent}} less."
    )
    return (
        f"{largest} Without {name}, {plan} {{{part}/if_free/step_s:seconds}}"
        f" ({{{part}/if_free/gain:percent}} less).{following}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the bar of the step's parts, each as wide as its share of the step."""
    append_share_bar(
        parent,
        [part["share"] for part in report_json["time"]["parts"]],
        description="Shares of the step by part; the table has the numbers",
    )


def _append_table(parent: Element, report_json: Any) -> None:
    """Append the table of the parts, with the plans if a part were free where those are known."""
    parts = report_json["time"]["parts"]
    removed = [part["if_free"] for part in parts if part["if_free"] is not None]
    columns = _COLUMNS + (_FREE_COLUMNS if removed else ())
    columns += (_NOTE,) if removed and len(removed) < len(parts) else ()
    caption = "Parts of the step on the busiest device"
    if any(one["searched"] for one in removed):
        caption += (
            ". Each was removed from the cost model, and the best plan of the same space was"
            " searched again. No option of plan can do that; report repeats these searches"
        )
    elif removed:
        caption += ". Each was removed from the cost model, and this plan was simulated again"
    append_table(parent, report_json, "/time/parts", columns, caption=caption)
