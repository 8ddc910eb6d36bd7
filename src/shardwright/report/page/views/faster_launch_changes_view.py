"""View of advice on a launch: its step, each change alone, and the best plan, as bars."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.bar_rows import BarRow, append_bar_rows
from shardwright.report.page.charts.series_legend import append_legend_words
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_CHANGE_COLUMNS: Final = (
    Column(field="name", heading="change"),
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="gain", heading="saved", form="percent"),
    Column(field="remove", heading="settings to remove"),
    Column(field="add", heading="settings to add"),
)
_LIMIT_COLUMNS: Final = (
    Column(field="name", heading="part of the step"),
    Column(field="seconds", heading="seconds", form="seconds"),
    Column(field="share", heading="share of the step", form="percent"),
)
_RULE_COLUMNS: Final = (
    Column(field="rule", heading="rule"),
    Column(field="message", heading="what breaks it"),
    Column(field="hint", heading="hint"),
)
_SETTING_COLUMNS: Final = (
    Column(field="name", heading="setting"),
    Column(field="value", heading="value"),
    Column(field="verdict", heading="verdict"),
    Column(field="means", heading="meaning"),
)


def launch_advice_view(report_json: Any) -> View:
    """View of a launch's advice: its step and the best plan's, best change, bars, tables."""
    advice = report_json["advice"]
    return View(
        name="advice",
        question="What should I change in this launch?",
        reading=_reading(advice),
        next_change=_next_change(advice),
        chart=_append_chart,
        tables=_append_tables,
        tables_open=True,
    )


def _reading(advice_json: Any) -> str:
    """Template: the launch's step, misfit, main limit or first broken rule; and the best plan."""
    best = (
        "No plan of the search fits in memory."
        if advice_json["best"] is None
        else "The best plan found takes {/advice/best/step_s:seconds}: {/advice/best/name}."
    )
    if advice_json["step_s"] is None:
        return f"This launch cannot run: {{/advice/broken/0/message}}. {best}"
    memory = (
        ""
        if advice_json["fits"]
        else " and does not fit: {/advice/reserved_bytes:bytes} of {/advice/capacity_bytes:bytes}"
    )
    limit = (
        ""
        if not advice_json["limits"]
        else ". Besides matrix multiplication, {/advice/limits/0/name} takes most:"
        " {/advice/limits/0/seconds:seconds}"
    )
    return f"This launch takes {{/advice/step_s:seconds}} a step{memory}{limit}. {best}"


def _next_change(advice_json: Any) -> str:
    """Template of the first change, else the best plan, with settings and worth; empty without."""
    if advice_json["changes"]:
        change, name = "/advice/changes/0", "{/advice/changes/0/name}"
    elif advice_json["best"] is not None:
        change, name = "/advice/best", "{/advice/best/name}"
    else:
        return ""
    chosen = advice_json["changes"][0] if advice_json["changes"] else advice_json["best"]
    worth = "" if chosen["gain"] is None else f", {{{change}/gain:percent}} less"
    return (
        f"{name}. Remove {{{change}/remove}} and add {{{change}/add}}: a step then takes"
        f" {{{change}/step_s:seconds}}{worth}. This was simulated, among"
        " {/advice/considered:count} changes of one decision; the command shardwright advise with"
        " the changed files checks it."
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append bars of steps: launch, each change alone, each cause removed, and the best plan."""
    advice = report_json["advice"]
    rows = []
    now = advice["length"]
    if now is not None:
        rows.append(_bar("This launch: {/advice/step_s:seconds}", now, now))
    for number, change in enumerate(advice["changes"]):
        pointer = f"/advice/changes/{number}"
        label = f"{{{pointer}/name}} alone: {{{pointer}/step_s:seconds}}{_saved(change, pointer)}"
        rows.append(_bar(label, change["length"], now))
    for number, change in enumerate(advice["causes"]):
        pointer = f"/advice/causes/{number}"
        label = f"{{{pointer}/name}}: {{{pointer}/step_s:seconds}}{_saved(change, pointer)}"
        rows.append(_bar(label, change["length"], now))
    if advice["best"] is not None:
        pointer = "/advice/best"
        saved = _saved(advice["best"], pointer)
        label = f"Best plan, {{{pointer}/name}}: {{{pointer}/step_s:seconds}}{saved}"
        rows.append(_bar(label, advice["best"]["length"], now))
    append_bar_rows(parent, report_json, rows)
    if now is not None:
        append_legend_words(parent, ((0, "step"), (8, "saved of the launch's step")))


def _saved(change_json: Any, pointer: str) -> str:
    """Template of the percentage of a step that a change saves; empty if the launch cannot run."""
    return "" if change_json["gain"] is None else f" ({{{pointer}/gain:percent}} saved)"


def _bar(label: str, length: float, now: float | None) -> BarRow:
    """Bar of a step, a fraction of the width, with a pale end up to the launch's length `now`."""
    saved = max((now or 0.0) - length, 0.0)
    return BarRow(
        label=label,
        lengths=(length, *(0.0,) * 7, saved),
        description="Length of the step; the table has the seconds",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the tables with rows of broken rules, changes, causes, limits, doubtful settings."""
    advice = report_json["advice"]
    for field, columns, caption in (
        ("broken", _RULE_COLUMNS, "Rules that the launch breaks"),
        ("changes", _CHANGE_COLUMNS, "Changes of one decision, each alone"),
        ("causes", _CHANGE_COLUMNS, "Properties of the job that cost most"),
        ("limits", _LIMIT_COLUMNS, "What limits the step besides matrix multiplication"),
        ("doubtful", _SETTING_COLUMNS, "Settings to look at"),
    ):
        if advice[field]:
            append_table(parent, report_json, f"/advice/{field}", columns, caption=caption)
