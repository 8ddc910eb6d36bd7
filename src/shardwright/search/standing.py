"""Where a search stands, in the words of its progress line."""

from __future__ import annotations

from math import inf

from shardwright.search.limit import Limit
from shardwright.units import format_percent, format_seconds


def standing(doing: str, *, best_s: float, lower_s: float, limit: Limit) -> str:
    """``refine: best 54.3 s, gap 85.1 %, 2 s left``: what is done, the best plan so far, its gap,
    and the seconds until the limit.

    Args:
        best_s: inf = there is no plan yet.
        lower_s: that no plan of the space is below, 0 = not known yet.
    """
    said = []
    if best_s < inf:
        said.append(f"best {format_seconds(best_s)}")
        said += [f"gap {format_percent(max(1 - lower_s / best_s, 0.0))}"] if lower_s else []
    if limit.left_s < inf:
        said.append(
            f"{limit.left_s:.0f} s left"
            if limit.left_s
            else "time is up"
            if said
            else "time is up, on to the first plan"
        )
    return f"{doing}: {', '.join(said)}" if said else doing
