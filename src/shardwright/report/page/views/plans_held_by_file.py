"""Parts of the view of other plans for a file whose other plans are few: chart, words, tables."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.scatter_chart import append_scatter_chart
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, value_element
from shardwright.report.page.markup.value_tables import Column, append_table

_HELD: Final = "/members/held"
_COLUMNS: Final = (
    Column(field="strategy", heading="plan", colour_field="series"),
    Column(field="kind", heading="found as"),
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="slower", heading="against the best", form="signed_percent"),
    Column(field="memory_share", heading="memory in use", form="percent"),
    Column(field="reserved_bytes", heading="bytes in use", form="bytes"),
    Column(field="capacity_bytes", heading="capacity", form="bytes"),
    Column(field="device", heading="fullest device"),
    Column(field="verdict", heading="verdict"),
    Column(field="on_front", heading="on the front", form="yes_no"),
)


def held_plans_reading(held_json: Any) -> str:
    """Template: number of other plans, and the fitting one whose fullest device is least full."""
    unfit = f", of which {{{_HELD}/unfit:count}} do not fit in memory" if held_json["unfit"] else ""
    begin = (
        "The search accounted for {/members/strategies:count} strategies. Beside the best one, the"
        f" file holds {{{_HELD}/others:count}} other plans{unfit}."
    )
    best = f"{{{_HELD}/best/memory_share:percent}}"
    if held_json["least"] is None:
        return (
            f"{begin} None that fits uses a smaller share of its fullest device's memory than the"
            f" best plan, {best}."
        )
    least = f"{_HELD}/least"
    name = "" if held_json["least"] == held_json["neighbour"] else f": {{{least}/strategy}}"
    return (
        f"{begin} Of those that fit, the one with the most free memory uses"
        f" {{{least}/memory_share:percent}} of its fullest device's memory, and the best plan uses"
        f" {best}; its step takes {{{least}/step_s:seconds}} ({{{least}/slower:signed_percent}})"
        f"{name}."
    )


def held_plans_next_change(held_json: Any) -> str:
    """Template: the front's plan after the best one, or the fastest other plan; empty without."""
    if held_json["neighbour"] is not None:
        plan = f"{_HELD}/neighbour"
        searched_by = (
            " This command searches the best plan that leaves as much memory free:"
            f" {{{_HELD}/command:command}}"
            if held_json["command"]
            else ""
        )
        return (
            f"a plan with more free memory uses {{{plan}/memory_share:percent}} of its fullest"
            f" device's memory instead of {{{_HELD}/best/memory_share:percent}}, and its step takes"
            f" {{{plan}/step_s:seconds}} ({{{plan}/slower:signed_percent}}, simulated):"
            f" {{{plan}/strategy}}.{searched_by}"
        )
    place = next(
        (
            place
            for place, plan in enumerate(held_json["plans"])
            if plan != held_json["best"] and plan["verdict"] == held_json["best"]["verdict"]
        ),
        None,
    )
    if place is None:
        return ""
    plan = f"{_HELD}/plans/{place}"
    return (
        "of the other plans that the file holds, the fastest takes"
        f" {{{plan}/step_s:seconds}} ({{{plan}/slower:signed_percent}}): {{{plan}/strategy}}"
        f" ({{{plan}/kind}})."
    )


def append_held_plans_chart(parent: Element, report_json: Any) -> None:
    """Append the scatter chart, and a note on which memory it shows."""
    append_scatter_chart(
        parent,
        report_json,
        f"{_HELD}/chart",
        description="Plans of the file by step time and memory; the tables have the numbers",
        limit="share that a plan may fill",
        line="front of the plans that fit",
        notations=f"{_HELD}/plans",
    )
    held = report_json["members"]["held"]
    differ = (
        " The kinds of devices differ in memory, so the chart shows shares; the table has bytes."
        if held["unequal_devices"]
        else ""
    )
    usual = (
        " Steps are those of the cluster without its scenarios." if held["has_scenarios"] else ""
    )
    append_sentence(
        SubElement(parent, "p", {"class": "note"}),
        report_json,
        "Each plan stands at the share of its memory that its fullest device uses: of what a"
        f" program can allocate there, the largest share of all devices.{differ} The search found"
        f" these plans, and the report simulated them.{usual}",
    )


def append_held_plans_tables(parent: Element, report_json: Any) -> None:
    """Append the table of the plans, and the text of each that is no grid in notation."""
    append_table(
        parent,
        report_json,
        f"{_HELD}/plans",
        _COLUMNS,
        caption="Plans that the file holds, the fastest first",
    )
    for number, plan in enumerate(report_json["members"]["held"]["plans"]):
        if plan["notation"] is not None:
            append_sentence(
                SubElement(parent, "p", {"class": "note"}),
                report_json,
                f"In notation: {{{_HELD}/plans/{number}/strategy}}"
                f" ({{{_HELD}/plans/{number}/kind}})",
            )
            value_element(
                SubElement(parent, "pre", {"tabindex": "0"}),
                report_json,
                f"{_HELD}/plans/{number}/notation",
            )
