"""SVG picture of a simulated step: timeline to scale, memory, nodes and traffic by tier."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from shardwright.program.step_trace import Span
from shardwright.report.pictures.fill_colours_of_numbered_items import PALETTE
from shardwright.report.pictures.step_picture_content import (
    BUBBLE,
    COLOURS,
    StepPicture,
    TimelineRow,
    capacity_bytes,
    group_text,
    nodes_label,
    row_label,
)
from shardwright.report.pictures.svg_drawing import FAINT, LETTER, LINE, MARGIN, PAD, SvgSheet
from shardwright.units import format_bytes, format_percent, format_seconds

TIMELINE: Final = 1000
"""Width of the step's timeline."""
MEMORY: Final = 400
"""Width of a device's memory bar."""
SENT: Final = 200
"""Width of the bar of the largest traffic over a tier."""
BAR: Final = 14
THIN: Final = 4
MAX_BARS: Final = 20_000
MAX_ROWS: Final = 64
MAX_TRAFFIC: Final = 48
MAX_NODES: Final = 32


def step_parts(sheet: SvgSheet, step: StepPicture, y: float) -> float:
    """Draw the timeline, memory, nodes and traffic of a step from `y`; returns the y below.

    Actions are rects of class ``action``, messages beside them of class ``beside``; bubbles are the
    grey behind. Rects of class ``memory`` and ``sent`` have a device's bytes as lengths. The title
    of each says its content.

    """
    y = _timeline(sheet, step, y)
    y = _memory(sheet, step, y + LINE)
    y = _nodes(sheet, step, y + LINE)
    return _traffic(sheet, step, y + LINE)


def drawn_rows(step: StepPicture) -> tuple[TimelineRow, ...]:
    """The first rows, at most `MAX_ROWS`, with at most `MAX_BARS` spans in all; at least one."""
    spans = accumulate(len(row.compute) + len(row.beside) for row in step.rows)
    return (
        tuple(
            row
            for row, count in zip(step.rows[:MAX_ROWS], spans, strict=False)
            if count <= MAX_BARS
        )
        or step.rows[:1]
    )


def _bars_left(rows: tuple[TimelineRow, ...]) -> float:
    """x coordinate at which the bars begin, right of the longest row label."""
    return MARGIN + max(len(row_label(row)) for row in rows) * LETTER + 2 * PAD


def _timeline(sheet: SvgSheet, step: StepPicture, y: float) -> float:
    """Draw each device's actions and messages to scale; returns the y below."""
    rows = drawn_rows(step)
    sheet.text(
        MARGIN,
        y,
        f"One step on {step.cluster}: {format_seconds(step.step_s)}, as simulated",
        bold=True,
    )
    kinds = [
        kind
        for kind in COLOURS
        if any(s.kind == kind for row in rows for s in (*row.compute, *row.beside))
    ]
    x = float(MARGIN)
    for word, colour in [*((kind, COLOURS[kind]) for kind in kinds), ("bubble", BUBBLE)]:
        sheet.rect(x, y + PAD, 12, 12, fill=colour)
        sheet.text(x + 16, y + LINE, word)
        x += 24 + (len(word) + 1) * LETTER
    y, left = y + 2 * LINE, _bars_left(rows)
    for row in rows:
        sheet.text(MARGIN, y + BAR - 3, row_label(row))
        sheet.bar(
            left,
            y,
            TIMELINE,
            BAR,
            fill=BUBBLE,
            kind="step",
            title=f"device {row.device}: {_idle_text(step, row)}",
        )
        for span in row.compute:
            _span(sheet, step, span, left, y, BAR, kind="action")
        for span in row.beside:
            _span(sheet, step, span, left, y + BAR, THIN, kind="beside")
        y += BAR + 2 * THIN
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        sheet.text(
            left + share * TIMELINE,
            y + LINE / 2,
            format_seconds(share * step.end_s, digits=3),
            colour=FAINT,
            middle=True,
        )
    return _rows_left_out(sheet, len(step.rows) - len(rows), y + LINE * 3 / 2)


def _idle_text(step: StepPicture, row: TimelineRow) -> str:
    """Text ``computes nothing for 12.3 % of the step`` of a row's device."""
    return f"computes nothing for {format_percent(row.idle_s / step.end_s)} of the step"


def _span(
    sheet: SvgSheet,
    step: StepPicture,
    span: Span,
    left: float,
    y: float,
    height: float,
    *,
    kind: str,
) -> None:
    """Draw an action or message as a bar from its start to its end, with a tooltip."""
    scale = TIMELINE / step.end_s
    where = f" lane {span.lane} chunk {span.chunk}" if span.chunk >= 0 else ""
    what = f" microbatch {span.microbatch}" if span.microbatch >= 0 else ""
    title = (
        f"device {span.device}: {span.kind}{where}{what}, {span.start_s:.9g} to {span.end_s:.9g} s"
    )
    width = (span.end_s - span.start_s) * scale
    sheet.bar(
        left + span.start_s * scale,
        y,
        width,
        height,
        fill=COLOURS.get(span.kind, FAINT),
        kind=kind,
        title=title,
    )


def _rows_left_out(sheet: SvgSheet, count: int, y: float) -> float:
    """Draw the text ``.. N more`` for `count` rows left out, if any; returns the y below."""
    if count > 0:
        sheet.text(MARGIN, y, f".. {count:,} more, all with --json", colour=FAINT)
        y += LINE
    return y


def _memory(sheet: SvgSheet, step: StepPicture, y: float) -> float:
    """Draw each device's memory by item against its capacity; returns the y below."""
    rows = step.rows[:MAX_ROWS]
    scale = MEMORY / max(max(capacity_bytes(step, row), row.memory.reserved) for row in rows)
    names = list(dict.fromkeys(name for row in rows for name, _ in row.memory.items))
    sheet.text(MARGIN, y, "Memory of each device against its capacity", bold=True)
    x = float(MARGIN)
    for place, name in enumerate(names):
        sheet.rect(x, y + PAD, 12, 12, fill=PALETTE[place % len(PALETTE)])
        sheet.text(x + 16, y + LINE, name)
        x += 24 + (len(name) + 1) * LETTER
    y, left = y + 2 * LINE, _bars_left(rows)
    for row in rows:
        sheet.text(MARGIN, y + BAR - 3, row_label(row))
        sheet.rect(
            left,
            y,
            capacity_bytes(step, row) * scale,
            BAR,
            fill="#f7f7f7",
            kind="capacity",
            title=f"{capacity_bytes(step, row)} bytes",
        )
        x = left
        for name, size in row.memory.items:
            colour = PALETTE[names.index(name) % len(PALETTE)]
            sheet.bar(
                x,
                y,
                size * scale,
                BAR,
                fill=colour,
                kind="memory",
                title=f"device {row.device}: {name} {size} bytes",
            )
            x += size * scale
        full = format_percent(row.memory.reserved / capacity_bytes(step, row))
        sheet.text(
            left + MEMORY + PAD,
            y + BAR - 3,
            f"{format_bytes(row.memory.reserved)}, {full}  {row.runs}",
        )
        y += BAR + 4
    return _rows_left_out(sheet, len(step.rows) - len(rows), y)


def _nodes(sheet: SvgSheet, step: StepPicture, y: float) -> float:
    """Draw each node's devices coloured by timeline row; returns the y below."""
    sheet.text(MARGIN, y, "Nodes: devices coloured by the row that they are in", bold=True)
    y += LINE
    left = (
        MARGIN + max(len(nodes_label(nodes)) for nodes in step.nodes[:MAX_NODES]) * LETTER + 2 * PAD
    )
    for nodes in step.nodes[:MAX_NODES]:
        sheet.text(MARGIN, y + BAR - 3, nodes_label(nodes))
        for place, row in enumerate(nodes.rows):
            colour = PALETTE[row % len(PALETTE)] if row >= 0 else "#f7f7f7"
            name = (
                f"as device {step.rows[row].device}: {step.rows[row].runs}"
                if row >= 0
                else "runs nothing"
            )
            sheet.rect(
                left + place * (BAR + 2), y, BAR, BAR, fill=colour, kind="device", title=name
            )
        y += BAR + 4
    return _rows_left_out(sheet, len(step.nodes) - MAX_NODES, y)


def _traffic(sheet: SvgSheet, step: StepPicture, y: float) -> float:
    """Draw the bytes that each device sends, by group and network tier; returns the y below."""
    sheet.text(
        MARGIN,
        y,
        "What each device sends in a step, by group, over the links of each tier",
        bold=True,
    )
    y += LINE
    sent = [(row, group_traffic) for row in step.rows for group_traffic in row.traffic]
    most = max((size for _, group_traffic in sent for size in group_traffic.sent), default=0.0)
    words = [
        f"{row_label(row)}  {group_traffic.part}  {group_text(group_traffic.group)}"
        for row, group_traffic in sent[:MAX_TRAFFIC]
    ]
    left = MARGIN + max(map(len, words), default=0) * LETTER + 2 * PAD
    for place, tier in enumerate(step.tiers):
        sheet.text(left + place * (SENT + 100), y, tier, colour=FAINT)
    for (row, group_traffic), label in zip(sent[:MAX_TRAFFIC], words, strict=True):
        y += LINE
        sheet.text(MARGIN, y, label)
        for place, (tier, size) in enumerate(zip(step.tiers, group_traffic.sent, strict=True)):
            x, width = left + place * (SENT + 100), size / most * SENT if most else 0.0
            title = f"device {row.device}: {group_traffic.part} {size:.0f} bytes over {tier}"
            sheet.bar(x, y - 10, width, BAR - 4, fill=PALETTE[place], kind="sent", title=title)
            sheet.text(x + width + PAD, y, format_bytes(size) if size else "-")
    return _rows_left_out(sheet, len(sent) - MAX_TRAFFIC, y + LINE)
