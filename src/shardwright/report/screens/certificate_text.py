"""Text of an optimality certificate and of the options that a search left at one value."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from shardwright.report.titled_screen_sections import section
from shardwright.search.optimality_certificate import Certificate, claim
from shardwright.search.search_answer import (
    Unsearched,
)
from shardwright.units import format_percent, format_seconds, format_time_change


def certificate_text(c: Certificate, *, search_time_s: float, whole: bool = True) -> Text:
    """The certificate in words: claim, counts, bounds, and the space, shortened unless `whole`.

    The space is shortened unless `whole`.
    """
    lines = (
        claim_text(c, search_time_s=search_time_s),
        *count_lines(c),
        *bound_lines(c),
        f"Space {c.digest[:12]}: {c.space if whole else _shortened(c.space)}",
    )
    return Text("\n".join(lines))


def unsearched_parts(left: Unsearched | None) -> list[RenderableType]:
    """Section of the options that a search held at one value, with the best gain; [] if none."""
    if left is None or not left.fixed:
        return []
    return [
        section(
            "Options that change no numerics and were not searched", Text(_unsearched_text(left))
        )
    ]


def _unsearched_text(left: Unsearched) -> str:
    """Text of the options that were not searched, and the best gain of another value."""
    held = f"The runtime's own values: {' '.join(f'{name}={value}' for name, value in left.fixed)}"
    if left.best is None:
        return f"No other value of one of them saves 0.1 % of the step time.\n{held}"
    best = f"{left.best.option}={left.best.value}"
    seconds = format_seconds(left.best.step_time_s, digits=4)
    return (
        f"{best} would gain most: {seconds}, {format_time_change(-left.best.gain)}. To search with"
        f" it: --pin {best}\n{held}"
    )


def claim_text(c: Certificate, *, search_time_s: float) -> str:
    """Sentence with the proven claim and the seconds of the search."""
    spent = f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""
    return claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s) + spent


def count_lines(c: Certificate) -> tuple[str, ...]:
    """Lines: numbers of strategies infeasible, bounded, simulated; any illegal or duplicates."""
    bounded = c.bounded_b0 + c.bounded_b1
    fates = (
        f"{c.strategies:,} distinct legal strategies: {c.infeasible:,} do not fit in memory,"
        f" {bounded:,} are ruled out by a lower bound of their time ({c.bounded_b0:,} by counting,"
        f" {c.bounded_b1:,} by the longest path), {c.simulated:,} simulated"
    )
    if not (c.illegal or c.duplicates):
        return (fates,)
    values = f"{c.enumerated:,} combinations of axis values"
    return (
        fates,
        (
            f"{values}: {c.illegal:,} break a rule, and {c.duplicates:,} mean the same strategy as"
            " another one"
        ),
    )


def bound_lines(c: Certificate) -> tuple[str, str]:
    """Lines: best time, space's lower bound and gap; percent of the best time any plan needs."""
    return (
        (
            f"Best {c.best_s:.6g} s, lower bound {c.lower_bound_s:.6g} s, gap"
            f" {format_percent(c.gap, digits=2)}"
        ),
        (
            "Any plan at all, in the space or not, takes at least"
            f" {format_percent(1 - c.universal_gap)} of the best's time."
        ),
    )


def _shortened(text: str, limit: int = 96) -> str:
    """Text cut to `limit` characters with a hint at `explain`."""
    return (
        text
        if len(text) <= limit
        else text[: limit - 4].rstrip() + " ... (explain prints all of it)"
    )
