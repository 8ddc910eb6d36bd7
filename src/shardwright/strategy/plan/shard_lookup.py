"""Which of a plan's ZeRO rules holds for what."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.strategy.plan.plan import Shards


def last_rule(rules: Iterable[Shards], *names: str, lane: str) -> Shards | None:
    """The last rule that holds for one of some parameter classes in a lane; None if there is none.

    Args:
        names: of the classes.
        lane: its name.
    """
    fitting = [
        r
        for r in rules
        if (not r.parameters or set(r.parameters) & set(names)) and (not r.lanes or lane in r.lanes)
    ]
    return fitting[-1] if fitting else None
