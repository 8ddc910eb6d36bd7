"""View of communication: who sends to whom, how much, and over which network tier."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.device_map import append_device_map
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.simulated_change_sentence import change_sentence

_GROUPS: Final = (
    Column(field="stage", heading="stage"),
    Column(field="device", heading="device", form="count"),
    Column(field="name", heading="communication"),
    Column(field="size", heading="devices of the group", form="count"),
    Column(field="members", heading="members"),
    Column(field="tier", heading="outermost network tier"),
    Column(field="sent_bytes", heading="bytes sent over it in a step", form="bytes"),
    Column(field="inner_bytes", heading="bytes sent inside the island", form="bytes"),
    Column(field="exposed_s", heading="seconds that nothing hides", form="seconds"),
)


def communication_view(report_json: Any) -> View:
    """View of communication: group with most bytes on the slowest tier, map and table of groups."""
    groups = report_json["communication"]
    return View(
        name="communication",
        question="Who talks to whom?",
        reading=_reading(groups["slowest"]),
        next_change=change_sentence("/communication/change", groups["change"]),
        chart=_append_chart if groups["groups"] else None,
        tables=_append_tables if groups["groups"] else None,
    )


def _reading(group_json: Any) -> str:
    """Template: bytes and waits of the group that sends most on the slowest tier; or none sends."""
    if group_json is None:
        return "No device sends anything to another one."
    exposed = (
        " The critical device waits {/communication/slowest/exposed_s:seconds} for it."
        if group_json["exposed_s"] is not None
        else ""
    )
    return (
        "The outermost network tier in use is called {/communication/slowest/tier}. Most bytes over"
        " it belong to {/communication/slowest/name}: device {/communication/slowest/device:count}"
        " sends {/communication/slowest/sent_bytes:bytes} in a step to a group of"
        f" {{/communication/slowest/size:count}} devices.{exposed}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the map of devices."""
    append_device_map(
        parent,
        report_json,
        "/communication",
        description="Map of the devices with the groups of one device; the table lists the groups",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the groups of one device of each class."""
    append_table(
        parent,
        report_json,
        "/communication/groups",
        _GROUPS,
        caption="Groups of one device of each class",
    )
