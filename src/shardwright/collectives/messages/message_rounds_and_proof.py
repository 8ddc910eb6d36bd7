"""Collectives written as rounds of messages, with their proof and the seconds of a round.

The proof is that the messages add up.

A message carries its sender's sum of a piece, as far as the sender has it. The receiver adds it to
its own sum if no member is in both, and takes it in place of its own if it contains every member of
its own. Anything else would count a member twice.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray, distinct
from shardwright.collectives.groups.links_of_one_group import Layout, hop_seconds, link_seconds
from shardwright.errors import RuntimeModelError
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSchedule:
    """Messages of an all-reduce over `size` members, as arrays in the order of their rounds.

    Args:
        shares: each piece's part of the buffer; they add up to one.
        round, source, target, piece: of each message.
    """

    size: int
    shares: tuple[float, ...]
    round: IntArray
    source: IntArray
    target: IntArray
    piece: IntArray


def proven_sum(schedule: MessageSchedule) -> MessageSchedule:
    """The schedule, if every member provably ends with every piece's sum; else RuntimeModelError.

    Every member's part of every piece, each once.

    All messages of a round carry the sums that their senders have before it.

    Raises:
        RuntimeModelError: a part is added twice, or missing at the end.
    """
    all_parts = (1 << schedule.size) - 1
    parts_held = [[1 << member] * len(schedule.shares) for member in range(schedule.size)]
    columns = (schedule.round, schedule.source, schedule.target, schedule.piece)
    rounds: dict[int, list[tuple[int, int, int]]] = {}
    for number, source, target, piece in zip(*(column.tolist() for column in columns), strict=True):
        rounds.setdefault(number, []).append((source, target, piece))
    for number in sorted(rounds):
        arriving = [
            (target, piece, parts_held[source][piece]) for source, target, piece in rounds[number]
        ]
        for target, piece, parts in arriving:
            parts_there = parts_held[target][piece]
            if parts_there & parts and parts_there & ~parts:
                raise RuntimeModelError(
                    f"round {number} adds parts of piece {piece} twice at member {target}",
                    hint="report this: it is a bug of the code that built the schedule",
                )
            parts_held[target][piece] = parts_there | parts
    for member, pieces in enumerate(parts_held):
        lacking = next((piece for piece, parts in enumerate(pieces) if parts != all_parts), None)
        if lacking is not None:
            raise RuntimeModelError(
                f"member {member} ends without the whole of piece {lacking}",
                hint="report this: it is a bug of the code that built the schedule",
            )
    return schedule


def round_costs(schedule: MessageSchedule, layout: Layout) -> tuple[FloatArray, FloatArray]:
    """By round, the busiest member's latency seconds and the busiest link's seconds a buffer byte.

        seconds of a round = max over members of the sum of latencies of its messages (out, or in)
                             + V x busiest link's seconds a byte

    Messages between two members in one round count as one. Rounds follow one another. Left out: a
    round that begins at some members before the last one has ended at others.
    """
    rounds = int(schedule.round.max(initial=-1)) + 1
    size = np.array(schedule.shares)[schedule.piece]
    busy = link_seconds(layout, schedule.source, schedule.target, size, schedule.round, rounds).max(
        axis=1
    )
    pairs_of_round = distinct(
        (schedule.round * layout.size + schedule.source) * layout.size + schedule.target
    )
    number, source, target = (
        pairs_of_round // layout.size**2,
        pairs_of_round // layout.size % layout.size,
        pairs_of_round % layout.size,
    )
    seconds_of_message = hop_seconds(layout, source, target)
    latencies = np.zeros(rounds)
    for end in (source, target):
        by_member = np.bincount(
            number * layout.size + end, weights=seconds_of_message, minlength=rounds * layout.size
        )
        latencies = np.maximum(latencies, by_member.reshape(rounds, layout.size).max(axis=1))
    return latencies, busy
