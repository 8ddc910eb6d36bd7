"""Parser of the pipeline order in a plan's text: a named schedule, or a table of actions."""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import nearest
from shardwright.strategy.plan.pipeline_order import Action, Entry, Kind, NamedOrder, Table
from shardwright.strategy.text.plan_text_line_cursor import (
    PlanLineReader,
    read_count,
    read_lane_names,
)
from shardwright.strategy.text.print_plan import DOTTED, NAME

_ORDER: Final = re.compile(rf"order ({NAME.pattern})\(([^()]*)\)((?: [^ ]+)*)", re.ASCII)
_TABLE: Final = re.compile("order table")
_ROW: Final = re.compile(r"(\d+): ?(.*)", re.ASCII)
_ACTION: Final = re.compile(rf"(?:({NAME.pattern})/)?(\d+)([FIWBR])(\d+)(?:\.(\d+))?", re.ASCII)
_INTEGER: Final = re.compile(r"\d{1,18}", re.ASCII)


def read_order(reader: PlanLineReader, *, all_lanes: tuple[str, ...]) -> NamedOrder | Table | None:
    """Parse ``order 1f1b(main) seed=0`` or a table; else None; `all_lanes`: for ``order table``."""
    if reader.next(_TABLE) is not None:
        return _read_rows(reader, lanes=all_lanes)
    line = reader.next(_ORDER, first="order ")
    if line is None:
        return None
    lanes = tuple(name.strip() for name in line[2].split(",")) if line[2].strip() else ()
    read_lane_names(reader, lanes)
    if line[1] == "table":
        return _read_rows(reader, lanes=lanes)
    parameters: list[tuple[str, int | str]] = []
    for word in line[3].split():
        key, _, value = word.partition("=")
        if not NAME.fullmatch(key) or not (_INTEGER.fullmatch(value) or DOTTED.fullmatch(value)):
            raise reader.error(f"{word[:40]!r} is not key=value")
        parameters.append((key, int(value) if _INTEGER.fullmatch(value) else value))
    return NamedOrder(schedule=line[1], lanes=lanes, parameters=tuple(parameters))


def _read_rows(reader: PlanLineReader, *, lanes: tuple[str, ...]) -> Table:
    """Parse rows ``0: down/0F0 ..``: lowest of the devices with equal stages, their actions."""
    rows: list[tuple[int, tuple[Entry, ...]]] = []
    while (line := reader.next(_ROW)) is not None:
        reader.place -= 1
        entries = tuple(
            _entry(reader, word, lanes=lanes) for word in re.sub(r" ?\| ?", "|", line[2]).split()
        )
        rows.append((read_count(reader, line[1]), entries))
        reader.place += 1
    return Table(lanes=lanes, rows=tuple(rows))


def _entry(reader: PlanLineReader, word: str, *, lanes: tuple[str, ...]) -> Entry:
    """Parse one action, or an overlapped pair ``(down/1F0|up/2B0)``."""
    if word.startswith("(") and word.endswith(")") and word.count("|") == 1:
        overlapped_action, _, overlapping_action = word[1:-1].partition("|")
        return _action(reader, overlapped_action, lanes=lanes), _action(
            reader, overlapping_action, lanes=lanes
        )
    return _action(reader, word, lanes=lanes)


def _action(reader: PlanLineReader, word: str, *, lanes: tuple[str, ...]) -> Action:
    """Parse an action: [lane/]chunk, a letter of F I W B R, microbatch[.slice]; lane if several."""
    match = _ACTION.fullmatch(word)
    if match is None:
        raise reader.error(
            f"{word[:40]!r} is no action",
            hint="lane/chunk, a letter of F I W B R, microbatch[.slice]: down/0F3",
        )
    if match[1] is None and len(lanes) != 1:
        raise reader.error(f"{word[:40]!r} names no lane", hint=f"lanes: {', '.join(lanes[:8])}")
    if match[1] is not None and match[1] not in lanes:
        raise reader.error(f"{word[:40]!r}: unknown lane", hint=nearest(match[1], lanes))
    return Action(
        lane=lanes.index(match[1]) if match[1] is not None else 0,
        chunk=read_count(reader, match[2]),
        kind=Kind(match[3]),
        microbatch=read_count(reader, match[4]),
        slice=read_count(reader, match[5]) if match[5] else 0,
    )
