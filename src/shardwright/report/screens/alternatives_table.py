"""Table of the next best strategies: times, memory, and differences from the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.screens.step_time_table import part_name
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import REMARK_STYLE
from shardwright.search.search_answer import (
    Alternative,
    Answer,
)
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes, format_percent, format_seconds

EQUAL_TIME_TOLERANCE = 1e-9
"""Relative difference up to which two step times count as equal."""


def strategy_difference(grid: Grid, *, best: Grid) -> str:
    """Words of `grid` that `best` lacks; after a minus, words of `best` not replaced."""
    words, others = print_grid(grid).split(), print_grid(best).split()
    new = [w for w in words if w not in others]
    keys = {_key(w) for w in new}
    return " ".join([*new, *(f"-{w}" for w in others if w not in words and _key(w) not in keys)])


def _key(word: str) -> str:
    """Axis name of a strategy's word, without its value: ``tp8`` and ``tp=8`` are ``tp``."""
    return word.split("=")[0].rstrip("0123456789")


def distinct_alternatives(answer: Answer) -> tuple[tuple[int, Alternative], ...]:
    """(rank from 2, alternative), without equals of a better one in strategy or time and memory.

    An alternative is left out if a better-ranked strategy is as fast and needs as much memory, or
    if only the order of axes differs and the alternative is neither faster nor smaller.
    """
    better_ranked = [
        (answer.grid, answer.prediction.step_time_s, answer.prediction.allocated_bytes)
    ]
    distinct: list[tuple[int, Alternative]] = []
    for rank, alternative in enumerate(answer.alternatives, start=2):
        if not any(
            alternative.allocated_bytes >= size
            and (
                replace(alternative.grid, order=grid.order) == grid
                or (
                    alternative.step_time_s <= seconds * (1 + EQUAL_TIME_TOLERANCE)
                    and alternative.allocated_bytes == size
                )
            )
            for grid, seconds, size in better_ranked
        ):
            distinct.append((rank, alternative))
        better_ranked.append(
            (alternative.grid, alternative.step_time_s, alternative.allocated_bytes)
        )
    return tuple(distinct)


def alternatives_section(answer: Answer) -> RenderableType:
    """Table of the distinct alternatives, and a note on the number of equivalent strategies."""
    shown = distinct_alternatives(answer)
    hidden = len(answer.alternatives) - len(shown)
    others = "1 other strategy takes" if hidden == 1 else f"{hidden} other strategies take"
    more = f"--json lists all; --top {2 * len(answer.alternatives)} ranks more"
    note_text = f"{others} as long and as much memory as one of these or the best ({more})"
    note = [WrappedText(Text(note_text, style=REMARK_STYLE))] if hidden else []
    return Group(*([_alternatives_table(answer, shown)] if shown else []), *note)


def _alternatives_table(answer: Answer, shown: Sequence[tuple[int, Alternative]]) -> RenderableType:
    """Table of alternatives: step time, slow-down, memory, difference in strategy and in time."""
    rows = [_alternative_row(a, rank=rank, answer=answer) for rank, a in shown]
    header = ("", "s/step", "slower", "allocated", "differs in", "against the best")
    return plain_table(header, rows, right=(0, 1, 2, 3), spare=(3, 5))


def _alternative_row(alternative: Alternative, *, rank: int, answer: Answer) -> tuple[str, ...]:
    """Cells of an alternative: rank, s/step, slow-down, memory, differing words, main changes."""
    slower = alternative.step_time_s / answer.prediction.step_time_s - 1
    changes = ", ".join(
        f"{part_name(name)} {_signed(seconds)}"
        for name, seconds in main_changes(alternative.changes)
    )
    return (
        str(rank),
        f"{alternative.step_time_s:.4g}",
        f"+{format_percent(slower)}" + (" ~" if alternative.indistinguishable else ""),
        format_bytes(alternative.allocated_bytes),
        strategy_difference(alternative.grid, best=answer.grid),
        changes,
    )


def _signed(seconds: float) -> str:
    """Text of seconds with their sign."""
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds), digits=3)}"


def main_changes(changes: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """The first two (part, seconds) changes, and the first of opposite sign if both have one."""
    largest = changes[:2]
    opposite = [change for change in changes[2:] if (change[1] > 0) != (largest[0][1] > 0)]
    return largest + tuple(
        opposite[:1] if len({seconds > 0 for _, seconds in largest}) == 1 else ()
    )
