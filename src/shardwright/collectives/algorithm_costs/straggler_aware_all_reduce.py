"""All-reduce with one late member: the others reduce-scatter while they wait for it.

The late member joins piece by piece.

Of n members n - 1 are on time; when the late one comes, each holds a piece of V/(n - 1), summed
over them by a ring. In round r the late member gives its part of piece r to member r and takes that
member's sum: both have the whole piece, which goes on among the others in the same rounds.

    seconds after the late member = max(0, ring's reduce_scatter over n - 1 - late)
                                    + R (latency + V/(n - 1) / bandwidth)

R is the number of rounds of the schedule that is made here, n - 2 + ceil(log2 n) at the least: n -
1 for the late member's links, and doubling after the last piece. A ring that waits takes 2 (n - 1)
rounds of V/n.

Legal where one tier joins all members (any two exchange at one rate), some delay is known, and the
group has up to `MOST_MEMBERS`. Left out: a second late member, and a different late member each
time.

Source: Devraj et al. 2025, "Efficient AllReduce with Stragglers" (arXiv:2505.23523; abstract and
introduction read): the exchange with the late member, and n - 2 + log2(n) rounds for powers of two
(from memory). The assignment of messages to rounds is this project's own.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from math import gcd
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective, require_kind
from shardwright.collectives.groups.span_cost_quantities import (
    SpanQuantities,
    per_tier,
    span_quantities,
)
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.collectives.messages.message_rounds_and_proof import MessageSchedule, proven_sum
from shardwright.lazily_compiled_dataclass import dataclass

MOST_MEMBERS: Final = 64
_MOST_GREEDY: Final = 8
"""Members on time up to which the greedy schedule is tried too: it solves an assignment problem in
each round."""


@lru_cache(maxsize=64)
def late_schedule(members: int) -> tuple[MessageSchedule, int]:
    """(all-reduce messages if the last member is late, number of rounds before it arrives).

    Over `members` (3 or more); the second is the number of rounds before it is needed.
    """
    on_time = members - 1
    ring_messages = [
        (step, rank, (rank + 1) % on_time, (rank - 1 - step) % on_time)
        for step in range(on_time - 1)
        for rank in range(on_time)
    ]
    messages = np.array(sorted(ring_messages + _rounds(on_time)), dtype=np.int64).T
    schedule = MessageSchedule(
        size=members,
        shares=(1.0 / on_time,) * on_time,
        round=messages[0],
        source=messages[1],
        target=messages[2],
        piece=messages[3],
    )
    return proven_sum(schedule), on_time - 1


def _rounds(on_time: int) -> list[tuple[int, int, int, int]]:
    """(round, source, target, piece) of all messages from the late member's first exchange on.

    Numbered behind those without: its exchanges, and the messages that carry each piece to all
    other members.
    """
    late_member, first_round = on_time, on_time - 1
    messages = [
        (first_round + r, *ends, r)
        for r in range(on_time)
        for ends in ((late_member, r), (r, late_member))
    ]
    routes = [
        found_route
        for step in range(1, on_time)
        if gcd(step, on_time) == 1
        for last in (False, True)
        if (found_route := _route_of_piece(on_time, step, last))
    ]
    greedy_messages = _greedy_messages(on_time) if on_time <= _MOST_GREEDY or not routes else []
    if greedy_messages and (
        not routes or greedy_messages[-1][0] + 1 <= on_time + min(map(len, routes))
    ):
        return messages + [(first_round + number, *gain) for number, gain in greedy_messages]
    route = min(routes, key=len)
    for piece in range(on_time):
        for rounds_after, pairs in enumerate(route, start=1):
            messages += [
                (
                    first_round + piece + rounds_after,
                    (piece + s) % on_time,
                    (piece + t) % on_time,
                    piece,
                )
                for s, t in pairs
            ]
    return messages


def _route_of_piece(on_time: int, step: int, last: bool) -> list[list[tuple[int, int]]] | None:
    """(source, target) messages by round that spread piece 0 to all on time; None if not found.

    For each round after its exchange (source, target), counted from the member that had it.

    All pieces go the same way, each a round later and a member farther. So a member that sends k
    rounds after the exchange does so for another piece at every k: places less k are used once, and
    never that of the exchange itself. None where this does not end.

    Args:
        step: members are tried as targets in steps of so many.
        last: holders that got the piece last send first.
    """
    holders, sends, gets = [0], {0}, {0}
    waiting = [number * step % on_time for number in range(1, on_time)]
    rounds: list[list[tuple[int, int]]] = []
    while waiting and len(rounds) < 2 * on_time:
        age = len(rounds) + 1
        free_senders = [
            member
            for member in (reversed(holders) if last else holders)
            if (member - age) % on_time not in sends
        ]
        free_receivers = [member for member in waiting if (member - age) % on_time not in gets]
        rounds.append(list(zip(free_senders, free_receivers, strict=False)))
        for source, target in rounds[-1]:
            sends.add((source - age) % on_time)
            gets.add((target - age) % on_time)
            holders.append(target)
            waiting.remove(target)
    return None if waiting else rounds


def _greedy_messages(on_time: int) -> list[tuple[int, tuple[int, int, int]]]:
    """(round, (source, target, piece)): each round the most useful messages, rare pieces first.

    For few members: as many messages as fit beside each exchange with the late member.
    """
    has = np.zeros((on_time + 1, on_time), dtype=np.bool_)  # member x piece: the whole sum
    messages = []
    number = 0
    while not has[:on_time].all():
        busy = np.zeros(on_time + 1, dtype=np.bool_)
        if number < on_time:
            busy[[on_time, number]] = True
        gains = _matched_messages(has, busy)
        messages += [(number, gain) for gain in gains]
        if number < on_time:
            has[[on_time, number], number] = True
        for _, target, piece in gains:
            has[target, piece] = True
        number += 1
    return messages


def _matched_messages(has: BoolArray, busy: BoolArray) -> list[tuple[int, int, int]]:
    """(source, target, piece) messages of one round, by maximum-weight matching of idle members.

    Each member but busy ones sends and gets at most one piece; most messages first, then rare
    pieces.
    """
    holders = has.sum(axis=0)
    value_of_piece = np.where(holders > 0, 1.0 + 1.0 / np.maximum(holders, 1), 0.0)
    useful = (
        has[:, None, :] & ~has[None, :, :] & ~busy[:, None, None] & ~busy[None, :, None]
    ) * value_of_piece
    piece: IntArray = useful.argmax(axis=2)
    gain: FloatArray = useful.max(axis=2)
    # Imported here, as scipy.optimize is slow to import and few plans need it.
    sources, targets = import_module("scipy.optimize").linear_sum_assignment(gain, maximize=True)
    return [
        (int(s), int(t), int(piece[s, t]))
        for s, t in zip(sources, targets, strict=True)
        if gain[s, t] > 0.0
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The all-reduce with one late member as an algorithm that `choose` can pick.

    Its time is not linear in the volume, because the late member's delay hides some rounds.
    """

    name: str = "straggler"
    kinds: frozenset[Collective] = frozenset({Collective.ALL_REDUCE})

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        """Seconds of an all-reduce from its late member's arrival, for each group; inf if unsuited.

        inf where the algorithm does not apply; 0 for groups of one member.
        """
        require_kind(self, kind)
        if span.late_s is None:
            return np.where(span.size == 1, 0.0, np.inf)
        quantities = span_quantities(span)
        ready, rounds, hop, seconds_per_byte = self._rounds_and_seconds(quantities)
        size = np.asarray(volume, dtype=np.float64) * seconds_per_byte
        seconds = np.maximum(ready * (hop + size) - span.late_s, 0.0) + rounds * (hop + size)
        legal = (
            _crosses_one_tier(quantities)
            & (span.late_s > 0.0)
            & (quantities.size > 2.0)
            & (quantities.size <= MOST_MEMBERS)
        ) | (quantities.size == 1.0)
        result: FloatArray = np.where(legal, seconds, np.inf)
        return result

    def wire_bytes(
        self, kind: Collective, *, volume: FloatArray, span: Span
    ) -> tuple[FloatArray, ...]:
        """Bytes that the busiest member of a straggler all-reduce sends over each tier's links."""
        require_kind(self, kind)
        quantities = span_quantities(span)
        sent = np.array([_most_sent(int(size)) for size in quantities.size])
        shares = per_tier(
            quantities, {level.tier: sent * (level.members > 1.0) for level in quantities.levels}
        )
        return tuple(
            (share if quantities.rows is None else share[quantities.rows]) * volume
            for share in shares
        )

    def _rounds_and_seconds(
        self, quantities: SpanQuantities
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """(rounds before, rounds from the late member on, hop seconds, seconds a byte a round)."""
        counts = np.array(
            [_round_counts(int(size)) for size in quantities.size], dtype=np.float64
        ).reshape(-1, 2)
        hop = seconds_per_byte = quantities.zero
        for level in quantities.levels:
            crossed = level.members > 1.0
            hop = np.where(crossed, level.latency_s, hop)
            seconds_per_byte = np.where(crossed, level.seconds_per_byte, seconds_per_byte)
        return (
            counts[:, 0],
            counts[:, 1],
            hop,
            seconds_per_byte / np.maximum(quantities.size - 1.0, 1.0),
        )


def _crosses_one_tier(quantities: SpanQuantities) -> BoolArray:
    """(groups,) True for groups whose members are spread over units of exactly one tier."""
    crossed = [level.members > 1.0 for level in quantities.levels]
    return (
        np.asarray(np.sum(crossed, axis=0) == 1)
        if crossed
        else np.zeros(quantities.size.shape, dtype=np.bool_)
    )


def _round_counts(members: int) -> tuple[int, int]:
    """Rounds before the late member is needed, and from there on; (0, 0) without a schedule.

    0 for group sizes without a schedule.
    """
    if not 3 <= members <= MOST_MEMBERS:
        return 0, 0
    schedule, waiting = late_schedule(members)
    return waiting, int(schedule.round.max()) + 1 - waiting


def _most_sent(members: int) -> float:
    """Bytes of the straggler all-reduce's busiest sender, a byte of volume; 0 if not scheduled."""
    if not 3 <= members <= MOST_MEMBERS:
        return 0.0
    schedule, _ = late_schedule(members)
    return float(np.bincount(schedule.source).max()) * schedule.shares[0]


STRAGGLER = Straggler()
