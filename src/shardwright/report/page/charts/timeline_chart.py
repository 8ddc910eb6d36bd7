"""The pipeline's timeline as static SVG: what each device does at each point of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.plot_area import (
    UNITS,
    append_horizontal_axis,
    append_plot_area,
)
from shardwright.report.page.charts.series_legend import append_legend
from shardwright.report.page.markup.sentences_with_json_values import require_no_digits
from shardwright.report.page.markup.value_at_json_pointer import value_at

WORK_CLASSES: Final = {
    "F": "work-forward",
    "R": "work-forward",
    "B": "work-backward",
    "I": "work-backward",
    "W": "work-other",
    "U": "work-other",
}
"""Style class of each action, by its letter; idle time has the colours of its causes."""
_WORK_LEGEND: Final = {
    "work-forward": "forward and recompute",
    "work-backward": "backward and input gradient",
    "work-other": "weight gradient and update",
}
_ROW_PIXELS: Final = (28, 20, 16)
_COLUMNS: Final = 1024
_FEWEST_COLUMNS: Final = 64
"""Columns of a row: a power of two, halved until the picture is small enough."""
_MOST_CHARACTERS: Final = 50_000
_Covered = dict[str, float]
"""Style class -> part of a column that it fills."""


def append_timeline(parent: Element, report_json: Any, pointer: str, *, description: str) -> None:
    """Append the timeline whose data (`view_data_types.pipeline_timeline`) is at a pointer.

    Each row is divided into columns of equal time, and each column has the colour of what fills
    most of it. The script ``timeline.js`` replaces the picture with one that can be zoomed.

    Args:
        description: words for readers that do not see the chart.
    """
    timeline = value_at(report_json, pointer)
    rows = timeline["rows"]
    figure = SubElement(parent, "figure", {"data-chart": "timeline", "data-source": pointer})
    row_pixels = _ROW_PIXELS[(len(rows) > 8) + (len(rows) > 16)]
    area = append_plot_area(figure, height=58 + row_pixels * len(rows), description=description)
    places = [tick / timeline["end_s"] for tick in timeline["axis"]["ticks"]]
    append_horizontal_axis(area, report_json, f"{pointer}/axis", places=places)
    for number in range(len(rows)):
        level = f"{100.0 * (number + 0.5) / len(rows):.2f}%"
        style = {"x": "-6", "y": level, "dy": "4", "text-anchor": "end"}
        leaf = {"data-leaf": f"{pointer}/rows/{number}/stage", "data-form": "text"}
        SubElement(area.labels, "text", style | leaf).text = rows[number]["stage"]
    for name, path in _paths(timeline).items():
        SubElement(area.drawing, "path", {"class": name, "d": path})
    append_legend(
        figure, report_json, [f"{pointer}/causes/{k}/name" for k in range(len(timeline["causes"]))]
    )
    _append_work_legend(figure[-1])


def _append_work_legend(legend: Element) -> None:
    """Insert legend entries of forward, backward and other actions before the other entries."""
    for number, (name, words) in enumerate(_WORK_LEGEND.items()):
        entry = Element("span", {"class": "legend-entry"})
        SubElement(entry, "span", {"class": f"swatch {name}", "aria-hidden": "true"})
        entry[0].tail = require_no_digits(words)
        legend.insert(number, entry)


def _paths(timeline_json: Any) -> dict[str, str]:
    """By style class, SVG path data of a timeline, at the finest resolution not too long."""
    rows = [_covered_columns(timeline_json, row) for row in timeline_json["rows"]]
    paths = _paths_of_columns(rows)
    while sum(map(len, paths.values())) > _MOST_CHARACTERS and len(rows[0]) > _FEWEST_COLUMNS:
        rows = [_halved(row) for row in rows]
        paths = _paths_of_columns(rows)
    return paths


def _paths_of_columns(rows: Sequence[Sequence[_Covered]]) -> dict[str, str]:
    """By style class, SVG path data of columns; a column has the class that fills most of it."""
    height, width = UNITS / len(rows), UNITS / len(rows[0])
    parts: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        top, bottom = (number + 0.08) * height, (number + 0.92) * height
        names = [max(column, key=lambda name: column[name], default="") for column in row]
        column = 0
        for name, run in groupby(names):
            left, column = column, column + len(list(run))
            if name:
                parts.setdefault(name, []).append(
                    f"M{left * width:.0f} {top:.0f}H{column * width:.0f}V{bottom:.0f}"
                    f"H{left * width:.0f}z"
                )
    return {name: "".join(texts) for name, texts in sorted(parts.items())}


def _covered_columns(timeline_json: Any, row_json: Any) -> list[_Covered]:
    """For each column of a row's time axis, the fraction that each work or idle class fills."""
    scale = _COLUMNS * timeline_json["tick_s"] / timeline_json["end_s"]
    covered: list[_Covered] = [{} for _ in range(_COLUMNS)]
    for track in row_json["tracks"]:
        if track["name"] not in ("compute", "idle"):
            continue
        names = _class_of_each_work(timeline_json, idle=track["name"] == "idle")
        for start, end, work in _spans(track):
            name, low, high = names[work], start * scale, min(end * scale, float(_COLUMNS))
            first, last = min(int(low), _COLUMNS - 1), min(int(high), _COLUMNS - 1)
            if first == last < _COLUMNS - 1:
                # Most spans are shorter than a column.
                covered[first][name] = covered[first].get(name, 0.0) + (high - low)
                continue
            for column in range(first, last + 1):
                part = min(high, column + 1.0) - max(low, float(column))
                covered[column][name] = covered[column].get(name, 0.0) + part
    return covered


def _halved(row: Sequence[_Covered]) -> list[_Covered]:
    """Row with half as many columns: the fills of each pair of neighbours are added."""
    return [
        {name: one.get(name, 0.0) + other.get(name, 0.0) for name in (one | other)}
        for one, other in zip(row[::2], row[1::2], strict=True)
    ]


def _class_of_each_work(timeline_json: Any, *, idle: bool) -> Sequence[str]:
    """Style class of each work number of a track: a kind of work, or with `idle` an idle cause."""
    if not idle:
        return [WORK_CLASSES.get(work["letter"], "work-other") for work in timeline_json["works"]]
    causes = len(timeline_json["causes"])
    # Pieces of the imbalance name a stage; all have the colour of the last cause.
    return [
        f"series-{min(code, causes - 1)}"
        for code in range(causes + len(timeline_json["imbalances"]))
    ]


def _spans(track_json: Any) -> Iterable[tuple[int, int, int]]:
    """Yield (start, end, work) of each span of a track, in ticks."""
    end = 0
    for gap, length, work in zip(
        *(
            map(int, filter(None, track_json[name].split(",")))
            for name in ("gaps", "lengths", "works")
        ),
        strict=True,
    ):
        start, end = end + gap, end + gap + length
        yield start, end, work
