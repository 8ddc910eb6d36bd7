"""View of searched changes: the best plan at each position of six axes of the request."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.line_chart import append_line_chart
from shardwright.report.page.charts.what_if_slider_and_plan_card import (
    CardFigure,
    append_position_slider,
)
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, value_element
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_HEIGHT: Final = 220
"""Height of a curve in pixels."""
_AGAINST: Final = "against the request"
_FIGURES: Final = (
    CardFigure(
        name="Step",
        template="{/step_s:seconds}",
        explanation=f"{{/step_gain:signed_percent}} {_AGAINST}",
    ),
    CardFigure(
        name="Throughput of a device",
        template="{/rate:rate} tokens/s",
        explanation=f"{{/rate_gain:signed_percent}} {_AGAINST}; {{/tokens_per_s:count}} tokens/s in"
        " all",
    ),
    CardFigure(
        name="Cost of a million tokens",
        template="{/usd_per_million_tokens:dollars}",
        explanation=f"{{/cost_gain:signed_percent}} {_AGAINST}",
    ),
    CardFigure(
        name="Memory",
        template="{/memory_share:whole_percent}",
        explanation="of the fullest device",
    ),
    CardFigure(
        name="Proof",
        template="gap {/gap:percent}",
        explanation="distance from a lower bound of all plans",
    ),
)
_COLUMNS: Final = (
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="rate", heading="tokens/s of a device", form="rate"),
    Column(field="rate_gain", heading=_AGAINST, form="signed_percent"),
    Column(field="tokens_per_s", heading="tokens/s in all", form="count"),
    Column(field="usd_per_million_tokens", heading="cost of a million tokens", form="dollars"),
    Column(field="memory_share", heading="memory", form="whole_percent"),
    Column(field="gap", heading="gap to a lower bound", form="percent"),
    Column(field="plan", heading="best plan"),
    Column(field="command", heading="command that finds it"),
)


def what_if_view(report_json: Any) -> View:
    """View of what-if: best plan at each changed value of a request's axes, with sliders."""
    content = report_json["what_if"]
    return View(
        name="what_if",
        question="What if the request were different?",
        reading=_reading(content),
        next_change=_next_change(content),
        chart=_append_axes,
        tables=_append_tables,
    )


def _reading(what_if_json: Any) -> str:
    """Template: axis that changes a device's throughput most, its extremes, number of searches."""
    searched = "Each of {/what_if/searches:count} positions is a searched plan."
    if not what_if_json["complete"]:
        searched += " The searches were stopped; the remaining positions are missing."
    number = what_if_json["strongest"]
    if number is None:
        return f"No plan fits at any position. {searched}"
    axis, pointer = what_if_json["axes"][number], f"/what_if/axes/{number}"
    low, high = (
        f"{{{pointer}/positions/{axis[end]}/rate:rate}} tokens/s at"
        f" {_amount(axis, pointer, axis[end])}"
        for end in ("lowest", "highest")
    )
    base = axis["positions"][axis["base"]]
    request = (
        f"; the request has {{{pointer}/positions/{axis['base']}/rate:rate}} tokens/s"
        if base["fits"]
        else "; nothing fits at the request itself"
    )
    return (
        f"The {{{pointer}/name}} changes the throughput of a device most: from {low} to"
        f" {high}{request}. {searched}"
    )


def _next_change(what_if_json: Any) -> str:
    """Template of the position with the highest throughput of a device; empty if none fits."""
    number = what_if_json["best"]
    if number is None:
        return ""
    axis, pointer = what_if_json["axes"][number], f"/what_if/axes/{number}"
    position = f"{pointer}/positions/{axis['highest']}"
    if axis["highest"] == axis["base"]:
        return (
            "none along these axes: the request has the highest throughput of a device of all"
            f" positions, {{{position}/rate:rate}} tokens/s."
        )
    gain = axis["positions"][axis["highest"]]["rate_gain"]
    worth = "" if gain is None else f" ({{{position}/rate_gain:signed_percent}})"
    return (
        f"{{{pointer}/name}} of {_amount(axis, pointer, axis['highest'])}, the best of all"
        f" positions: {{{position}/rate:rate}} tokens/s of a device{worth}. The command"
        f" {{{position}/command}} plans it."
    )


def _amount(axis_json: Any, pointer: str, position: int) -> str:
    """Template of a position's amount with unit; `pointer`: JSON pointer to `axis_json`."""
    unit = f" {axis_json['unit']}" if axis_json["unit"] else ""
    return f"{{{pointer}/positions/{position}/amount:{axis_json['form']}}}{unit}"


def _append_axes(parent: Element, report_json: Any) -> None:
    """Append slider, card and curve of each axis, and the reasons of those left out."""
    blocks = SubElement(parent, "div", {"class": "what-if"})
    for number, axis in enumerate(report_json["what_if"]["axes"]):
        pointer = f"/what_if/axes/{number}"
        block = SubElement(blocks, "div")
        heading = SubElement(block, "h3", {"id": f"what-if-{axis['key']}"})
        value_element(heading, report_json, f"{pointer}/name")
        append_position_slider(block, report_json, pointer, _FIGURES)
        if axis["chart"] is not None:
            append_line_chart(
                block,
                report_json,
                f"{pointer}/chart",
                description="Best plan at each position; the table has the numbers",
                height=_HEIGHT,
            )
        if axis["note"]:
            append_sentence(SubElement(block, "p"), report_json, f"Held: {{{pointer}/note}}.")
    for number in range(len(report_json["what_if"]["left_out"])):
        left_out = f"/what_if/left_out/{number}"
        append_sentence(
            SubElement(parent, "p"),
            report_json,
            f"Without {{{left_out}/name}}: {{{left_out}/why}}.",
        )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the table of positions of each axis, and that of the changes of the best plan."""
    for number, axis in enumerate(report_json["what_if"]["axes"]):
        pointer = f"/what_if/axes/{number}"
        heading = SubElement(parent, "h3")
        value_element(heading, report_json, f"{pointer}/name")
        unit = axis["unit"] or "amount"
        append_table(
            parent,
            report_json,
            f"{pointer}/positions",
            (Column(field="amount", heading=unit, form=axis["form"]), *_COLUMNS),
            caption="Best plan at each position",
        )
        if axis["changes"]:
            append_table(
                parent,
                report_json,
                f"{pointer}/changes",
                (
                    Column(field="low", heading=f"{unit}, from", form=axis["form"]),
                    Column(field="high", heading="to", form=axis["form"]),
                    Column(field="low_plan", heading="best plan before"),
                    Column(field="high_plan", heading="best plan after"),
                ),
                caption="Where the best plan changes",
            )
