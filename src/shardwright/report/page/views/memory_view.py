"""View of memory: items of each stage against the capacity, over time, and ways to make room."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.line_chart import append_line_chart, append_line_table
from shardwright.report.page.charts.vertical_stacked_bars import StackedBar, append_stacked_bars
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, append_words
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_CHANGE_COLUMNS = (
    Column(field="change", heading="change"),
    Column(field="freed_bytes", heading="frees", form="bytes"),
    Column(field="reserved_bytes", heading="fullest device then", form="bytes"),
    Column(field="longer", heading="step longer by", form="signed_percent"),
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="strategy", heading="strategy"),
    Column(field="command", heading="command", form="command"),
)


def memory_view(report_json: Any) -> View:
    """View of memory: fullest stage, change that makes room, bars of stages, curve, tables."""
    return View(
        name="memory",
        question="Does it fit, and what would make room?",
        reading=_reading(report_json["memory"]),
        next_change=_next_change(report_json["memory"]),
        chart=_append_charts,
        tables=_append_tables,
    )


def _reading(memory_json: Any) -> str:
    """Template of the sentence that names the fullest stage and its largest item."""
    stage = f"/memory/stages/{memory_json['fullest']}"
    item = f"/memory/items/{memory_json['largest']}"
    size = f"{stage}/bytes_by_item/{memory_json['largest']}"
    verb = "It fits" if memory_json["fits"] else "It does not fit"
    host = (
        ""
        if not memory_json["host"]
        else " Devices offload {/memory/host/0/needed_bytes:bytes} to the host memory of the"
        " fullest node"
        + (
            "."
            if memory_json["host"][0]["capacity_bytes"] is None
            else ", which has {/memory/host/0/capacity_bytes:bytes}."
        )
    )
    return (
        f"{verb}: {{{stage}/name}} is the fullest with {{{stage}/reserved_bytes:bytes}} of"
        f" {{{stage}/capacity_bytes:bytes}} ({{{stage}/share:percent}}), {{{size}:bytes}} of it"
        f" {{{item}}}.{host}"
    )


def _next_change(memory_json: Any) -> str:
    """Template of the sentence that names the cheapest change that frees memory; else empty."""
    if not memory_json["changes"]:
        return ""
    change, effect = memory_json["changes"][0], "/memory/changes/0"
    strategy = f": {{{effect}/strategy}}" if change["searched"] else ""
    longer = f"{{{effect}/longer:signed_percent}}"
    cost = f"the step takes {{{effect}/step_s:seconds}} ({longer}){strategy}."
    command = f" To repeat it: {{{effect}/command:command}}" if change["command"] else ""
    if memory_json["fits"]:
        return f"{{{effect}/change}} frees {{{effect}/freed_bytes:bytes}}, and {cost}{command}"
    if change["fits"]:
        return f"{{{effect}/change}} fits, and {cost}{command}"
    return (
        f"no simulated change fits. {{{effect}/change}} still needs"
        f" {{{effect}/reserved_bytes:bytes}}.{command}"
    )


def _append_charts(parent: Element, report_json: Any) -> None:
    """Append the bars of the stages and the curve of the fullest stage."""
    memory = report_json["memory"]
    bars = [
        StackedBar(
            name=f"/memory/stages/{number}/name",
            sizes=stage["bytes_by_item"],
            limit=stage["capacity_bytes"],
        )
        for number, stage in enumerate(memory["stages"])
    ]
    append_stacked_bars(
        parent,
        report_json,
        "/memory/axis",
        bars,
        items=[f"/memory/items/{number}" for number in range(len(memory["items"]))],
        limit_name="capacity",
        description="Memory of a device of each stage by item; the table has the numbers",
    )
    if memory["stages_left_out"]:
        append_sentence(
            SubElement(parent, "p", {"class": "note"}),
            report_json,
            "{/memory/stages_left_out:count} stages that are less full are left out.",
        )
    caption = SubElement(parent, "p", {"class": "note"})
    stage = f"/memory/stages/{memory['fullest']}"
    append_sentence(caption, report_json, f"A device of {{{stage}/name}} during the step:")
    append_line_chart(
        parent,
        report_json,
        "/memory/curve",
        description="Memory of the fullest stage over the step; the table has the numbers",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the tables of changes, of stages by item, of host memory, and of the curve."""
    memory = report_json["memory"]
    if memory["changes"]:
        append_table(
            parent,
            report_json,
            "/memory/changes",
            _CHANGE_COLUMNS,
            caption=(
                "Changes that free memory, the shortest step first; each was simulated, or searched"
                " where it says so" + ("" if memory["fits"] else ". Those that fit come first")
            ),
        )
    append_table(
        parent, report_json, "/memory/stages", _stage_columns(memory), caption="Memory by stage"
    )
    for number in range(len(memory["host"])):
        _append_host(parent, report_json, number)
    append_line_table(
        parent, report_json, "/memory/curve", caption="Memory of the fullest stage over the step"
    )


def _stage_columns(memory_json: Any) -> tuple[Column, ...]:
    """Columns of the stage table: name, kind, layers, devices, used, capacity, share, each item."""
    several_kinds = any(stage["kind"] for stage in memory_json["stages"])
    return (
        Column(field="name", heading="stage"),
        *((Column(field="kind", heading="devices are"),) if several_kinds else ()),
        Column(field="layers", heading="layers"),
        Column(field="devices", heading="devices", form="count"),
        Column(field="reserved_bytes", heading="all", form="bytes"),
        Column(field="capacity_bytes", heading="capacity", form="bytes"),
        Column(field="share", heading="share", form="percent"),
        *(
            Column(field=f"bytes_by_item/{number}", heading=name, form="bytes", colour=number)
            for number, name in enumerate(memory_json["items"])
        ),
    )


def _append_host(parent: Element, report_json: Any, number: int) -> None:
    """Append need, capacity and item table of host memory of the node group at index `number`."""
    host, pointer = report_json["memory"]["host"][number], f"/memory/host/{number}"
    paragraph = SubElement(parent, "p", {"class": "note"})
    kind = f" of {{{pointer}/kind}}" if host["kind"] else ""
    nodes = "the node" if host["nodes"] == 1 else f"each of {{{pointer}/nodes:count}} nodes"
    need = f"{{{pointer}/needed_bytes:bytes}}"
    append_sentence(paragraph, report_json, f"Host memory that {nodes}{kind} needs: {need}")
    if host["capacity_bytes"] is None:
        append_words(paragraph, "; how much they have is not stated.")
    else:
        append_sentence(paragraph, report_json, f" of {{{pointer}/capacity_bytes:bytes}}.")
    columns = (
        Column(field="name", heading="item"),
        Column(field="size_bytes", heading="bytes", form="bytes"),
    )
    append_table(parent, report_json, f"{pointer}/items", columns, caption="Host memory of a node")
