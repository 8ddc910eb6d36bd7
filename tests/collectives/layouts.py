"""Layouts for tests, and schedules carried out message by message in plain Python: the independent
count of seconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.groups.span_members_by_network_tier import Between
from shardwright.collectives.messages.message_rounds_and_proof import MessageSchedule


@st.composite
def layouts(draw: st.DrawFn, *, most_islands: int = 6, most_tiers: int = 3) -> Layout:
    """Unequal islands of up to 5 members in unequal units; the network is no faster than the
    islands and slower from tier to tier."""
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


@st.composite
def paired_layouts(draw: st.DrawFn) -> Layout:
    """Two to four zones of up to three islands each, and a link of its own from each zone to each
    other."""
    islands = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=2, max_size=4)
    )
    units = (
        tuple(count for zone in islands for count in zone),
        tuple(sum(zone) for zone in islands),
    )
    inside, card = draw(st.floats(1e11, 1e12)), draw(st.floats(1e9, 1e11))
    pairs = [
        [
            0.0 if one == other else card * draw(st.sampled_from((0.01, 0.1, 0.3, 1.0)))
            for other in range(len(islands))
        ]
        for one in range(len(islands))
    ]
    waits = [
        [
            0.0 if one == other else draw(st.sampled_from((1e-5, 1e-3, 3e-2)))
            for other in range(len(islands))
        ]
        for one in range(len(islands))
    ]
    slowest, latest = (
        min(rate for row in pairs for rate in row if rate),
        max(wait for row in waits for wait in row),
    )
    return Layout(
        units=units,
        size=sum(units[0]),
        bandwidth=(inside, card, slowest),
        latency_s=(2e-6, 1e-5, latest),
        between=Between(
            units=units, bandwidth=tuple(map(tuple, pairs)), latency_s=tuple(map(tuple, waits))
        ),
    )


def without_pairs(layout: Layout) -> Layout:
    """The layout with all links of outermost units as slow as the slowest."""
    return replace(layout, between=None)


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


def simulated_seconds(schedule: MessageSchedule, layout: Layout, volume: float) -> float:
    """Rounds one after another: a member's messages wait for each other's latency, then the fullest
    link says how long bytes take."""
    where = places(layout)
    rounds: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for number, source, target, piece in zip(
        schedule.round, schedule.source, schedule.target, schedule.piece, strict=True
    ):
        rounds[int(number)][int(source), int(target)] += volume * schedule.shares[int(piece)]
    total = 0.0
    for messages in rounds.values():
        waits: dict[tuple[str, int], float] = defaultdict(float)
        loads: dict[tuple[object, ...], float] = defaultdict(float)
        for (source, target), size in messages.items():
            tier = next(
                t
                for t, (one, other) in enumerate(zip(where[source], where[target], strict=True))
                if one == other
            )
            pairs = layout.between if tier == len(layout.units) else None
            ends = (where[source][-2], where[target][-2]) if pairs else (0, 0)
            latency_s = pairs.latency_s[ends[0]][ends[1]] if pairs else layout.latency_s[tier]
            waits["out", source] += latency_s
            waits["in", target] += latency_s
            if pairs:
                room = (
                    min(layout.units[-1][end] for end in ends) * pairs.bandwidth[ends[0]][ends[1]]
                )
                loads["zones", *ends] += size / room
            for side, member in (("out", source), ("in", target)):
                if tier == 0:
                    loads[side, "island", member] += size / layout.bandwidth[0]
                    continue
                loads[side, "card", member] += size / layout.bandwidth[1]
                for level in range(2, tier + 1 - (pairs is not None)):
                    unit = where[member][level - 1]
                    rate = layout.units[level - 1][unit] * min(layout.bandwidth[1 : level + 1])
                    loads[side, level, unit] += size / rate
        total += max(waits.values()) + max(loads.values())
    return total


def cut_bound(layout: Layout) -> float:
    """Seconds a byte that no sum is faster than, by cuts alone: what a member, or a unit, has of
    links to the others."""
    if layout.size == 1:
        return 0.0
    alone = layout.bandwidth[0] + (layout.bandwidth[1] if len(layout.bandwidth) > 1 else 0.0)
    bounds = [1.0 / alone]
    for tier, counts in enumerate(layout.units, start=1):
        bounds += [
            1.0 / (count * min(layout.bandwidth[1 : tier + 1]))
            for count in counts
            if len(counts) > 1
        ]
    return max(bounds)


def pair_cut_bound(layout: Layout) -> float:
    """Seconds a byte that no sum over units with links of their own is faster than: over every cut
    of the units all of the buffer goes each way once.
    """
    assert layout.between is not None
    units = range(len(layout.units[-1]))
    room = [
        [
            min(layout.units[-1][a], layout.units[-1][b]) * layout.between.bandwidth[a][b]
            for b in units
        ]
        for a in units
    ]
    sides = [set(some) for size in range(1, len(units)) for some in combinations(units, size)]
    return max(
        1.0 / sum(room[a][b] for a in side for b in units if b not in side) for side in sides
    )
