"""Lookup of the ZeRO rule of a parameter class in a lane."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.strategy.plan.plan import Shards


def last_rule(rules: Iterable[Shards], *names: str, lane: str) -> Shards | None:
    """The last ZeRO rule that applies to a lane and to any of the named parameter classes, or None.

    Args:
        names: names of the parameter classes.
        lane: the lane's name.
    """
    fitting = [
        r
        for r in rules
        if (not r.parameters or set(r.parameters) & set(names)) and (not r.lanes or lane in r.lanes)
    ]
    return fitting[-1] if fitting else None
