"""View of a step's trace: seconds of compute, communication and waiting of its devices."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from shardwright.report.page.markup.quantity_card import append_card, append_figure
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_COLUMNS = (
    Column(field="device", heading="device", form="count"),
    Column(field="alike", heading="stands for", form="count"),
    Column(field="runs", heading="layers"),
    Column(field="compute_s", heading="compute", form="seconds"),
    Column(field="communication_s", heading="communication", form="seconds"),
    Column(field="waiting_s", heading="waiting", form="seconds"),
    Column(field="held_bytes", heading="most memory held", form="bytes"),
)


def step_trace_view(report_json: Any) -> View:
    """The view of a step's trace: the device that waits longest, and seconds of each device."""
    trace = report_json["trace"]
    idlest = f"/trace/rows/{trace['idlest']}"
    waits = (
        f"Device {{{idlest}/device:count}} waits longest: {{{idlest}/waiting_s:seconds}},"
        " {/trace/waiting_share:percent} of the step."
    )
    return View(
        name="trace",
        question="Where does the step's time go?",
        reading=waits if trace["waiting_share"] else "No device waits for another.",
        chart=_append_card,
        tables=_append_table,
    )


def _append_card(parent: Element, report_json: Any) -> None:
    """Append the card of the trace: step time, compute share of the busiest device, devices."""
    busiest = f"/trace/rows/{report_json['trace']['busiest']}"
    figures = append_card(parent, report_json, "One {/trace/origin} step", lines=("{/trace/plan}",))
    append_figure(figures, report_json, "Step", "{/trace/step_s:seconds}")
    append_figure(
        figures,
        report_json,
        "Compute",
        "{/trace/compute_share:percent}",
        f"of the step on device {{{busiest}/device:count}}, which waits least",
    )
    append_figure(
        figures,
        report_json,
        "Devices",
        "{/trace/devices:count}",
        "{/trace/traced:count} of them traced, with {/trace/spans:count} stretches of work",
    )


def _append_table(parent: Element, report_json: Any) -> None:
    """Append the table of each traced device's seconds."""
    append_table(parent, report_json, "/trace/rows", _COLUMNS, caption="Seconds of each device")
