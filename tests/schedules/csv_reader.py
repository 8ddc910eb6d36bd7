"""Action letters and CSV tables, read: what the writer's texts say to PyTorch
(``_PipelineScheduleRuntime._load_csv``)."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import (
    slots,
    table_of_entries,
)
from shardwright.schedules.format_action import PAIR, format_action
from shardwright.strategy.plan.pipeline_order import Action, Entry, Kind, actions_of

_ACTION: Final = re.compile(
    r"(?:([A-Za-z_][\w-]*)/)?([0-9]{1,7})([FIWBR])([0-9]{1,7})(?:\.([0-9]{1,7}))?", re.ASCII
)
_COMMUNICATION: Final = re.compile(r"[0-9]+(?:SEND|RECV|UNSHARD|RESHARD|REDUCE)", re.ASCII)


def parse_action(text: str, *, lanes: tuple[str, ...] = ()) -> Entry:
    """The entry that `text` says; DataError if it says none."""
    word = text.strip()
    if word.startswith("(") and word.endswith(f"){PAIR}"):
        parts = word[1 : -len(PAIR) - 1].split(";")
        if len(parts) != 2:
            raise DataError(f"a pair has two actions, {_shown(word)} has {len(parts)}")
        return _parse_one(parts[0], lanes), _parse_one(parts[1], lanes)
    return _parse_one(word, lanes)


def _parse_one(text: str, lanes: tuple[str, ...]) -> Action:
    """A single action."""
    word = text.strip()
    match = _ACTION.fullmatch(word)
    if match is None:
        only = (
            "communication is not written into a compute-only table; "
            if _COMMUNICATION.match(word)
            else ""
        )
        raise DataError(
            f"{_shown(word)} is not an action",
            hint=f"{only}write chunk, one of F I W B R, and microbatch, such as 2F0",
        )
    name, chunk, kind, microbatch, part = match.groups()
    if name is not None and name not in lanes:
        raise DataError(
            f"unknown lane {_shown(name)} in {_shown(word)}",
            hint=f"lanes: {', '.join(lanes[:8])}" if lanes else "there is one lane",
        )
    lane = lanes.index(name) if name is not None else 0
    return Action(
        chunk=int(chunk),
        kind=Kind(kind),
        microbatch=int(microbatch),
        lane=lane,
        slice=int(part or 0),
    )


def _shown(word: str) -> str:
    """A word of the input, short enough for one line."""
    return repr(word if len(word) <= 40 else word[:37] + "...")


def parse_csv(text: str, *, lanes: tuple[str, ...] = ()) -> ActionTable:
    """The table that `text` holds; `lanes` are the names its actions may have before them.

    Raises:
        DataError: a cell is no action, an action is there twice or missing, or the table deadlocks.
    """
    rows = [
        [
            _cell(cell, rank, column, lanes)
            for column, cell in enumerate(line.split(","))
            if cell.strip()
        ]
        for rank, line in enumerate(_lines(text))
    ]
    if not rows:
        raise DataError("the table is empty", hint="one row a rank, cells such as 2F0")
    _check_complete(rows)
    table = table_of_entries(rows)
    try:
        slots(table)
    except StrategyError as error:
        raise DataError(error.message, hint=error.hint) from error
    return table


def _lines(text: str) -> list[str]:
    """Lines without the blank ones at the end."""
    lines = text.replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _cell(cell: str, rank: int, column: int, lanes: tuple[str, ...]) -> Entry:
    """One cell; an error says which."""
    try:
        return parse_action(cell, lanes=lanes)
    except DataError as error:
        raise DataError(f"row {rank}, column {column}: {error.message}", hint=error.hint) from error


def _check_complete(rows: list[list[Entry]]) -> None:
    """Each chunk has one forward of each microbatch and slice, nothing is there twice, and B stands
    beside no I or W of the same thing."""
    seen: set[Action] = set()
    for rank, row in enumerate(rows):
        if not row:
            raise DataError(f"row {rank} has no action", hint="one row a rank")
        for action in (action for entry in row for action in actions_of(entry)):
            if action in seen:
                raise DataError(f"{format_action(action)} is there twice, again in row {rank}")
            seen.add(action)
    for action in seen:
        if action.kind in (Kind.I, Kind.W) and replace(action, kind=Kind.B) in seen:
            raise DataError(
                f"{format_action(action)} is there beside the full backward of the same chunk and"
                " microbatch"
            )
    counts = [
        max(values) + 1
        for values in zip(*((a.lane, a.chunk, a.microbatch, a.slice) for a in seen), strict=True)
    ]
    forwards = {(a.lane, a.chunk, a.microbatch, a.slice) for a in seen if a.kind is Kind.F}
    if len(forwards) < prod(counts):
        lane, chunk, microbatch, part = _first_missing(forwards, counts)
        missing = Action(chunk=chunk, kind=Kind.F, microbatch=microbatch, lane=lane, slice=part)
        raise DataError(
            f"{format_action(missing)} is missing{f' in lane {lane}' if lane else ''}",
            hint=(
                f"the table speaks of {counts[1]} chunks and {counts[2]} microbatches: each needs"
                " its forward"
            ),
        )


def _first_missing(
    forwards: set[tuple[int, int, int, int]], counts: list[int]
) -> tuple[int, int, int, int]:
    """The first (lane, chunk, microbatch, slice) below `counts` that has no forward."""
    lanes, chunks, microbatches, parts = counts
    return next(
        place
        for lane in range(lanes)
        for chunk in range(chunks)
        for microbatch in range(microbatches)
        for part in range(parts)
        if (place := (lane, chunk, microbatch, part)) not in forwards
    )
