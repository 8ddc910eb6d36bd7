"""View of accuracy: published runs predicted and measured, the interval, doubts and sources."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from shardwright.report.page.charts.scatter_chart import append_scatter_chart
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View

_RUN_COLUMNS: Final = (
    Column(field="model", heading="model"),
    Column(field="accelerator", heading="device"),
    Column(field="devices", heading="devices", form="count"),
    Column(field="runtime", heading="framework"),
    Column(field="strategy", heading="parallelism"),
    Column(field="sequence_tokens", heading="tokens a sequence", form="count"),
    Column(field="measured_s", heading="measured", form="seconds"),
    Column(field="predicted_s", heading="predicted", form="seconds"),
    Column(field="error", heading="error", form="signed_percent"),
    Column(field="inside", heading="inside the interval", form="yes_no"),
    Column(field="reference", heading="published in"),
)
_ERROR_COLUMNS: Final = (
    Column(field="name", heading="published runs"),
    Column(field="runs", heading="number", form="count"),
    Column(field="median", heading="median error", form="percent"),
    Column(field="inside", heading="inside their intervals", form="percent"),
)
_PART_COLUMNS: Final = (
    Column(field="name", heading="doubt"),
    Column(field="share", heading="share in this prediction", form="percent"),
    Column(field="half_width", heading="adds to the half-width", form="percent"),
)
_SOURCE_COLUMNS: Final = (
    Column(field="quantity", heading="number"),
    Column(field="value", heading="value"),
    Column(field="evidence", heading="evidence"),
    Column(field="reference", heading="source"),
)


def prediction_accuracy_view(report_json: Any) -> View:
    """View of accuracy: errors of similar published runs, interval, scatter chart, sources."""
    return View(
        name="accuracy",
        question="How true is this?",
        reading=_reading(report_json["accuracy"]),
        next_change=_next_change(report_json["accuracy"]),
        chart=_append_chart,
        tables=_append_tables,
    )


def _reading(accuracy_json: Any) -> str:
    """Template of the sentences with the median errors and the interval."""
    framework = (
        "No published run has this framework."
        if len(accuracy_json["errors"]) < 3
        else "Of {/accuracy/errors/1/name}, the median error of"
        " {/accuracy/errors/1/runs:count} runs is"
        " {/accuracy/errors/1/median:percent}."
    )
    return (
        "The median error of the {/accuracy/errors/0/runs:count} published runs most like"
        " this one is {/accuracy/errors/0/median:percent}, each predicted without its own"
        f" laboratory's runs. {framework} Of comparable runs,"
        " {/accuracy/interval_share:whole_percent} are expected between"
        " {/accuracy/interval_s/0:seconds} and {/accuracy/interval_s/1:seconds} a step."
    )


def _next_change(accuracy_json: Any) -> str:
    """Template: measurement that would narrow the interval most, or to measure one's own runs."""
    if accuracy_json["narrowing"]["interval_s"] is None:
        return (
            "Measure your own runs. Only the {/accuracy/narrowing/part} widen this interval,"
            " and only measured steps of your cluster show that error there. A table to fill in:"
            " {/accuracy/narrowing/command:command}"
        )
    return (
        "Measure it. What widens this interval most is: {/accuracy/narrowing/part}. Without it"
        " the interval would reach from {/accuracy/narrowing/interval_s/0:seconds} to"
        " {/accuracy/narrowing/interval_s/1:seconds}. Command:"
        " {/accuracy/narrowing/command:command}"
    )


def _append_chart(parent: Element, report_json: Any) -> None:
    """Append the chart of predicted against measured steps."""
    append_scatter_chart(
        parent,
        report_json,
        "/accuracy/chart",
        description="Predicted against measured steps of published runs",
        line="predicted = measured",
    )


def _append_tables(parent: Element, report_json: Any) -> None:
    """Append the tables of similar runs, of the doubts and of the sources."""
    append_table(
        parent,
        report_json,
        "/accuracy/nearest",
        _RUN_COLUMNS,
        caption="Published runs most like this one, the nearest first",
    )
    append_table(
        parent,
        report_json,
        "/accuracy/errors",
        _ERROR_COLUMNS,
        caption="Errors of published runs, each predicted without its laboratory's runs",
    )
    append_table(
        parent,
        report_json,
        "/accuracy/parts",
        _PART_COLUMNS,
        caption="What makes the interval of this prediction as wide as it is",
    )
    append_table(
        parent,
        report_json,
        "/accuracy/sources",
        _SOURCE_COLUMNS,
        caption="Source of each number that the prediction used",
    )
