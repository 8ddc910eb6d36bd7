"""View of the searched space: strategies by step time and memory, the front, and their fates."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.scatter_chart import append_scatter_chart
from shardwright.report.page.markup.sentences_with_json_values import append_sentence
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.plans_held_by_file import (
    append_held_plans_chart,
    append_held_plans_tables,
    held_plans_next_change,
    held_plans_reading,
)

_COUNT_COLUMNS: Final = (
    Column(field="fate", heading="outcome"),
    Column(field="members", heading="strategies", form="count"),
    Column(field="share", heading="share of the distinct legal ones", form="percent"),
)
_SIMULATED_COLUMNS: Final = (
    Column(field="strategy", heading="simulated strategy"),
    Column(field="step_s", heading="step", form="seconds"),
    Column(field="reserved_bytes", heading="memory", form="bytes"),
    Column(field="slower", heading="slower than the best", form="percent"),
    Column(field="on_front", heading="on the front", form="yes_no"),
    Column(field="found_by", heading="simulated by the"),
)


def searched_members_view(report_json: Any) -> View:
    """View of the searched space: strategies near the best, next on the front, scatter chart."""
    members = report_json["members"]
    return View(
        name="members",
        question="What else was there?",
        reading=_reading(members),
        next_change=_next_change(members),
        chart=(
            _append_chart
            if members["chart"]
            else append_held_plans_chart
            if members["held"]
            else None
        ),
        tables=_append_tables,
    )


def _reading(members_json: Any) -> str:
    """Template: number of strategies near the best, and the simulated one of least memory."""
    if members_json["held"]:
        return held_plans_reading(members_json["held"])
    if not members_json["chart"]:
        return (
            "The search accounted for {/members/strategies:count} strategies. {/members/note}"
            " The file holds no other plan than the best."
        )
    unlisted = (
        ""
        if not members_json["near"]["unlisted"]
        else ", and perhaps some of {/members/near/unlisted:count} more that only share a bound"
    )
    near = (
        "By their lower bounds, at most {/members/near/members:count} of"
        f" {{/members/strategies:count}} strategies{unlisted} can be within"
        " {/members/near/share:whole_percent} of the best step."
    )
    least = members_json["near"]["least"]
    if least is None or least["saved_bytes"] <= 0:
        return f"{near} None of those that were simulated needs less memory than the best."
    return (
        f"{near} Of those simulated, the one with the least memory needs"
        " {/members/near/least/reserved_bytes:bytes}"
        " ({/members/near/least/saved_bytes:bytes} less) and takes"
        " {/members/near/least/slower:percent} longer: {/members/near/least/strategy}."
    )


def _next_change(members_json: Any) -> str:
    """Template of the sentence that names the front's next strategy, or the fastest other plan.

    Empty without either.
    """
    if members_json["held"]:
        return held_plans_next_change(members_json["held"])
    if members_json["neighbour"] is None:
        return ""
    neighbour = members_json["neighbour"]
    searched_by = (
        " This command searches it: {/members/neighbour/command:command}"
        if neighbour["command"]
        else ""
    )
    return (
        "{/members/neighbour/strategy} needs {/members/neighbour/saved_bytes:bytes} less memory and"
        " takes {/members/neighbour/slower:percent} longer"
        f" ({{/members/neighbour/step_s:seconds}}, simulated).{searched_by}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the scatter chart, and a note on which strategies it shows."""
    append_scatter_chart(
        parent,
        report_json,
        "/members/chart",
        description="Strategies by step time and memory; the tables have the numbers",
        limit="memory that a plan may fill",
        line="front of the simulated ones",
        shared="/members/shared_words",
    )
    shared = " All have {/members/shared_words}." if report_json["members"]["shared_words"] else ""
    append_sentence(
        SubElement(parent, "p", {"class": "note"}),
        report_json,
        "{/members/plotted:count} strategies are plotted: those that were simulated, the front of"
        " the lower bounds, and others evenly by rank of their lower bound of time, among"
        " {/members/bounded_singly:count} that have a bound of their own. Marks of strategies that"
        " were not simulated stand at their lower bounds. {/members/bounded_together:count} more"
        f" were ruled out together with others and are not plotted.{shared}",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the counts by outcome, and the simulated strategies."""
    append_table(
        parent,
        report_json,
        "/members/counts",
        _COUNT_COLUMNS,
        caption="Combinations of the axes by outcome, as the certificate counts them",
    )
    if report_json["members"]["held"]:
        append_sentence(SubElement(parent, "p", {"class": "note"}), report_json, "{/members/note}")
        append_held_plans_tables(parent, report_json)
    if not report_json["members"]["chart"]:
        return
    append_table(
        parent,
        report_json,
        "/members/simulated",
        _SIMULATED_COLUMNS,
        caption="Simulated strategies, the fastest first",
    )
