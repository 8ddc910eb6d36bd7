"""Terminal text of a simulated step: timeline, memory, nodes and traffic by tier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

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
from shardwright.report.terminal_table import plain_table
from shardwright.units import format_bytes, format_percent, format_seconds

MAX_ROWS: Final = 24
MAX_NODES: Final = 12
MAX_TRAFFIC: Final = 24
MEMORY: Final = 30
IDLE: Final = "\N{MIDDLE DOT}"
_LETTERS: Final = {"STEP": "S"}
_SYMBOLS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def render_step(step: StepPicture, *, width: int) -> RenderableType:
    """Terminal renderable of the simulated step, at most `width` characters wide."""
    return Group(*_timeline(step, width), *_memory(step), *_nodes(step), _traffic(step))


def row_line(step: StepPicture, row: TimelineRow, *, columns: int) -> str:
    """Letter of the longest compute action, or of idle time, in each of `columns` equal intervals.

    A dot stands for an interval that is mostly idle.
    """
    spent: list[dict[str, float]] = [{} for _ in range(columns)]
    interval_s = step.end_s / columns
    for span in row.compute:
        first, last = (
            min(int(time / interval_s), columns - 1) for time in (span.start_s, span.end_s)
        )
        for column in range(first, last + 1):
            inside = min(span.end_s, (column + 1) * interval_s) - max(
                span.start_s, column * interval_s
            )
            letter = _LETTERS.get(span.kind, span.kind)
            spent[column][letter] = spent[column].get(letter, 0.0) + max(inside, 0.0)
    return "".join(
        max(
            (*letters.items(), (IDLE, interval_s - sum(letters.values()))),
            key=lambda letter_time: letter_time[1],
        )[0]
        for letters in spent
    )


def _timeline(step: StepPicture, width: int) -> Iterator[Text]:
    """Yield a line of actions for each device, with its idle share."""
    yield Text(
        f"\nOne step on {step.cluster}: {format_seconds(step.step_s)}, as simulated", style="bold"
    )
    rows = step.rows[:MAX_ROWS]
    label = max(len(row_label(row)) for row in rows)
    columns = max(width - label - 14, 10)
    colour = {_LETTERS.get(kind, kind): f"black on {value}" for kind, value in COLOURS.items()} | {
        IDLE: f"black on {BUBBLE}"
    }
    for row in rows:
        text = Text(f"  {row_label(row):>{label}}  ")
        for letter in row_line(step, row, columns=columns):
            text.append(letter, style=colour.get(letter, ""))
        text.append(f"  {format_percent(row.idle_s / step.end_s):>7}")
        yield text
    if len(step.rows) > MAX_ROWS:
        yield Text(f"  .. {len(step.rows) - MAX_ROWS:,} more, all with --json", style="dim")
    interval = format_seconds(step.end_s / columns, digits=3)
    yield Text(
        f"  {'':>{label}}  a letter is {interval}; {IDLE} and the share behind: nothing is computed"
        " (bubbles)",
        style="dim",
    )


def _memory(step: StepPicture) -> Iterator[RenderableType]:
    """Yield a bar of reserved memory against capacity for each device."""
    yield Text("\nMemory of each device against its capacity", style="bold")
    for row in step.rows[:MAX_ROWS]:
        room = capacity_bytes(step, row)
        share = row.memory.reserved / room
        filled = min(round(MEMORY * share), MEMORY)
        bar = "█" * filled + "░" * (MEMORY - filled)
        style = "red" if share > 1.0 else ""
        words = (
            f"{format_bytes(row.memory.reserved)} of {format_bytes(room)} ({format_percent(share)})"
            f"  {row.runs}"
        )
        yield Text.assemble(
            f"  {row_label(row):>{max(len(row_label(r)) for r in step.rows[:MAX_ROWS])}}  ",
            (bar, style),
            f"  {words}",
        )


def _nodes(step: StepPicture) -> Iterator[Text]:
    """Yield a line for equal nodes; a device's symbol is the number of its timeline row."""
    yield Text("\nNodes: each device by the row above that it is in, from 0", style="bold")
    label = max(len(nodes_label(nodes)) for nodes in step.nodes[:MAX_NODES])
    for nodes in step.nodes[:MAX_NODES]:
        text = Text(f"  {nodes_label(nodes):<{label}}  ")
        for row in nodes.rows:
            text.append(
                _SYMBOLS[row % len(_SYMBOLS)] if row >= 0 else "-",
                style=f"black on {PALETTE[row % len(PALETTE)]}" if row >= 0 else "dim",
            )
        yield text
    if len(step.nodes) > MAX_NODES:
        yield Text(f"  .. {len(step.nodes) - MAX_NODES:,} more", style="dim")


def _traffic(step: StepPicture) -> RenderableType:
    """Table of the bytes that each device sends, by group and network tier."""
    sent = [
        (
            row_label(row),
            group_traffic.part,
            group_text(group_traffic.group),
            *(format_bytes(size) if size else "-" for size in group_traffic.sent),
        )
        for row in step.rows
        for group_traffic in row.traffic
    ]
    header = ("device", "part", "group", *step.tiers)
    table = plain_table(
        header, sent[:MAX_TRAFFIC], right=tuple(range(3, len(header))), whole=(0, 1)
    )
    more = (
        [Text(f"  .. {len(sent) - MAX_TRAFFIC:,} more, all with --json", style="dim")]
        if len(sent) > MAX_TRAFFIC
        else []
    )
    title = Text("\nWhat each device sends in a step, over the links of each tier", style="bold")
    return Group(title, table, *more) if sent else Group(title, Text("  nothing"))
