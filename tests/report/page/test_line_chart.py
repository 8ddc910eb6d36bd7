"""Line charts: round ticks around the values; pictures and tables with the JSON's numbers."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

from hypothesis import given
from hypothesis import strategies as st

from shardwright.files.canonical_json import to_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.report.page.charts.line_chart import append_line_chart, append_line_table
from shardwright.report.page.markup.number_formats import FORMATS, formatted
from shardwright.report.page.markup.page_frame import page_html
from shardwright.report.page.markup.view import View
from shardwright.report.page.view_data_types.line_chart_data import (
    MOST_TICKS,
    ChartAxis,
    ChartSeries,
    LineChart,
    round_ticks,
    round_ticks_of_ratios,
)
from tests.report.page.page_numbers import require_numbers_of_document

_SIZES = st.floats(min_value=1e-9, max_value=1e15)


@given(st.lists(st.floats(min_value=0, max_value=1e15) | _SIZES, min_size=1, max_size=5))
def test_ticks_are_round_and_around_the_values(values: list[float]) -> None:
    ticks = round_ticks(values)
    assert 2 <= len(ticks) <= MOST_TICKS + 1
    assert ticks[0] <= min(values) * (1 + 1e-9)
    assert ticks[-1] >= max(values) * (1 - 1e-9)
    distance = ticks[1] - ticks[0]
    digits = f"{distance:.6e}".split("e")[0].rstrip("0").rstrip(".")
    assert digits in {"1", "2", "2.5", "5"} or max(ticks) / distance > 1e9
    for left, right in pairwise(ticks):
        assert math.isclose(right - left, distance, rel_tol=1e-6)
    # The axis is not mostly empty.
    if max(values) > min(values):
        assert max(values) - min(values) >= distance / 10


def test_byte_ticks_are_round_in_the_unit_that_is_shown() -> None:
    ticks = round_ticks([0.0, 79.1 * 2**30], form="bytes")
    assert [formatted(tick, "bytes") for tick in ticks] == [
        "0 B",
        "16 GiB",
        "32 GiB",
        "48 GiB",
        "64 GiB",
        "80 GiB",
    ]


@given(st.lists(_SIZES, min_size=1, max_size=5))
def test_ticks_of_ratios_are_powers_of_two_around_the_values(values: list[float]) -> None:
    ticks = round_ticks_of_ratios(values)
    assert 2 <= len(ticks) <= MOST_TICKS
    assert ticks[0] <= min(values)
    assert ticks[-1] >= max(values)
    assert len({right / left for left, right in pairwise(ticks)}) == 1
    assert all(math.frexp(tick)[0] == 0.5 for tick in ticks)


def _document(chart: LineChart) -> Any:
    """JSON document of a page with one chart."""
    body = {"title": "T", "version": "v", "command": "c", "curve": to_json_value(chart, names={})}
    return json.loads(to_text(body))


def _html(document: Any) -> str:
    """Page with the chart at ``/curve`` and its table."""
    view = View(
        name="curve",
        question="How?",
        reading="So.",
        chart=lambda parent, document: append_line_chart(
            parent, document, "/curve", description="a curve"
        ),
        tables=lambda parent, document: (
            append_line_table(parent, document, "/curve", caption="values") and None
        ),
    )
    return page_html(document, [view], scripts=())


_VALUES = st.lists(
    st.none() | st.floats(min_value=0, max_value=2**40), min_size=1, max_size=12
).filter(lambda values: any(value is not None for value in values))


@given(
    values=_VALUES,
    steps=st.booleans(),
    logarithmic=st.booleans(),
    form=st.sampled_from(sorted(FORMATS)),
)
def test_page_of_any_chart_has_the_numbers_of_its_json(
    values: list[float | None], steps: bool, logarithmic: bool, form: str
) -> None:
    across = tuple(2.0**place for place in range(len(values)))
    heights = [value for value in values if value is not None]
    ticks = round_ticks_of_ratios(across) if logarithmic else round_ticks(across)
    document = _document(
        LineChart(
            x=ChartAxis(
                name="devices", form="count", ticks=ticks, values=across, logarithmic=logarithmic
            ),
            y=ChartAxis(name="height", form=form, ticks=round_ticks([0.0, *heights])),
            series=(
                ChartSeries(name="plan 8", values=tuple(values)),
                ChartSeries(name="plan 16", values=tuple(values)),
            ),
            steps=steps,
            capacity=max(heights),
        )
    )
    page = require_numbers_of_document(_html(document), document)
    assert len(page.cells) == 3 * len(values)
    assert len(page.leaves) == 3 + len(ticks) + len(document["curve"]["y"]["ticks"]) + 2 + 2 + 3


def _points(chart: LineChart) -> list[list[tuple[float, float]]]:
    """Corners of the drawn lines, in thousandths from the left and from the top."""
    parent = Element("div")
    append_line_chart(parent, _document(chart), "/curve", description="a curve")
    lines = fromstring(tostring(parent)).iter("polyline")
    return [
        [
            (float(one), float(two))
            for one, two in re.findall(r"([\d.]+),([\d.]+)", line.attrib["points"])
        ]
        for line in lines
    ]


def _line(values: tuple[float | None, ...], *, steps: bool) -> LineChart:
    """A chart of one series at 0, 5 and 10 of 10, with heights out of 4."""
    return LineChart(
        x=ChartAxis(name="x", form="number", ticks=(0.0, 10.0), values=(0.0, 5.0, 10.0)),
        y=ChartAxis(name="y", form="number", ticks=(0.0, 4.0)),
        series=(ChartSeries(name="s", values=values),),
        steps=steps,
    )


def test_lines_are_drawn_at_their_places() -> None:
    assert _points(_line((1.0, 2.0, 4.0), steps=False)) == [[(0, 750), (500, 500), (1000, 0)]]


def test_steps_hold_a_value_until_the_next_position() -> None:
    corners = [(0, 750), (500, 750), (500, 500), (1000, 500), (1000, 0)]
    assert _points(_line((1.0, 2.0, 4.0), steps=True)) == [corners]


def test_a_missing_value_is_a_gap() -> None:
    assert _points(_line((1.0, None, 4.0), steps=False)) == [
        [(0, 750), (0, 750)],
        [(1000, 0), (1000, 0)],
    ]
