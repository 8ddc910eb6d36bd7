"""Layouts for tests, and schedules carried out message by message in plain Python: the independent count of seconds."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import strategies as st

from shardwright.collectives.layout import Layout
from shardwright.collectives.schedule import Schedule


@st.composite
def layouts(draw: st.DrawFn, *, most_islands: int = 6, most_tiers: int = 3) -> Layout:
    """Unequal islands of up to 5 members in unequal units; the network is no faster than the islands and slower from tier to tier."""
    tiers = draw(st.integers(1, most_tiers))
    islands = draw(st.lists(st.integers(1, 5), min_size=1, max_size=most_islands))
    levels = [islands]
    for _ in range(tiers - 1):
        rest, units = list(levels[-1]), []
        counts = []
        while rest:
            take = draw(st.integers(1, len(rest)))
            counts.append(sum(rest[:take]))
            rest = rest[take:]
        units = counts
        levels.append(units)
    bandwidth, latency_s = [draw(st.floats(1e10, 1e12))], [draw(st.floats(1e-7, 1e-5))]
    for _ in range(tiers - 1):
        bandwidth.append(bandwidth[-1] * draw(st.floats(0.05, 1.0)))
        latency_s.append(latency_s[-1] * draw(st.floats(1.0, 5.0)))
    return Layout(
        units=tuple(tuple(level) for level in levels[: tiers - 1]),
        size=sum(islands),
        bandwidth=tuple(bandwidth),
        latency_s=tuple(latency_s),
    )


def places(layout: Layout) -> list[tuple[int, ...]]:
    """Of each member the number of its unit on every tier."""
    found: list[list[int]] = [[] for _ in range(layout.size)]
    for counts in (*layout.units, (layout.size,)):
        number, left = 0, counts[0]
        for member in range(layout.size):
            while left == 0:
                number += 1
                left = counts[number]
            found[member].append(number)
            left -= 1
    return [tuple(one) for one in found]


def simulated_seconds(schedule: Schedule, layout: Layout, volume: float) -> float:
    """Rounds one after another: a member's messages wait for each other's latency, then the fullest link says how long bytes take."""
    where = places(layout)
    rounds: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for number, source, target, piece in zip(schedule.round, schedule.source, schedule.target, schedule.piece, strict=True):
        rounds[int(number)][int(source), int(target)] += volume * schedule.shares[int(piece)]
    total = 0.0
    for messages in rounds.values():
        waits: dict[tuple[str, int], float] = defaultdict(float)
        loads: dict[tuple[object, ...], float] = defaultdict(float)
        for (source, target), size in messages.items():
            tier = next(t for t, (one, other) in enumerate(zip(where[source], where[target], strict=True)) if one == other)
            waits["out", source] += layout.latency_s[tier]
            waits["in", target] += layout.latency_s[tier]
            for side, member in (("out", source), ("in", target)):
                if tier == 0:
                    loads[side, "island", member] += size / layout.bandwidth[0]
                    continue
                loads[side, "card", member] += size / layout.bandwidth[1]
                for level in range(2, tier + 1):
                    unit = where[member][level - 1]
                    rate = layout.units[level - 1][unit] * min(layout.bandwidth[1 : level + 1])
                    loads[side, level, unit] += size / rate
        total += max(waits.values()) + max(loads.values())
    return total


def cut_bound(layout: Layout) -> float:
    """Seconds a byte that no sum is faster than, by cuts alone: what a member, or a unit, has of links to the others."""
    if layout.size == 1:
        return 0.0
    alone = layout.bandwidth[0] + (layout.bandwidth[1] if len(layout.bandwidth) > 1 else 0.0)
    bounds = [1.0 / alone]
    for tier, counts in enumerate(layout.units, start=1):
        bounds += [1.0 / (count * min(layout.bandwidth[1 : tier + 1])) for count in counts if len(counts) > 1]
    return max(bounds)
