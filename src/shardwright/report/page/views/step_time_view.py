"""View of a step's time: the parts of the critical device's step, and what each would be worth."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.share_bar import append_share_bar
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_COLUMNS = (
    Column(field="name", heading="part"),
    Column(field="seconds", heading="seconds", form="seconds"),
    Column(field="share", heading="share of the step", form="percent"),
)
_FREE_COLUMNS = (
    Column(field="if_free/step_s", heading="best step if it were free", form="seconds"),
    Column(field="if_free/gain", heading="saved", form="percent"),
    Column(field="if_free/strategy", heading="best plan in that case"),
)


def step_time_view(document: Any) -> View:
    """The view of the step's parts."""
    return View(
        name="time",
        question="What limits the step?",
        reading="Of {/time/step_s:seconds}, {/time/parts/0/name} take"
        " {/time/parts/0/seconds:seconds} ({/time/parts/0/share:percent}).",
        chart=_append_chart,
        tables=_append_table,
        tables_open=True,
    )


def _append_chart(parent: Element, document: Any) -> None:
    """Append the bar of the parts."""
    append_share_bar(
        parent,
        [part["share"] for part in document["time"]["parts"]],
        description="Shares of the step by part; the table has the numbers",
    )


def _append_table(parent: Element, document: Any) -> None:
    """Append the table of the parts, with the plans if a part were free where those are known."""
    searched = any(part["if_free"] is not None for part in document["time"]["parts"])
    columns = _COLUMNS + (_FREE_COLUMNS if searched else ())
    append_table(parent, document, "/time/parts", columns, caption="Parts of the step")
