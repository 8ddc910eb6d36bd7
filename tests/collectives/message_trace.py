"""Collectives carried out message by message in plain Python: the independent count that the
formulas must equal.

A rank's place is its index in the group; ranks r and s meet at the lowest tier whose unit holds
both. A trace is a list of rounds of messages (source, target, bytes); payloads are followed so that
a wrong schedule fails here, not only in the count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import prod


@dataclass
class Trace:
    """Messages in rounds; bytes are exact fractions of the volume."""

    members: tuple[int, ...]
    rounds: list[list[tuple[int, int, Fraction]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return prod(self.members)

    def tier(self, source: int, target: int) -> int:
        unit = 1
        for tier, count in enumerate(self.members):
            unit *= count
            if source // unit == target // unit:
                return tier
        raise AssertionError("ranks outside the group")

    def sent(self, rank: int, *, tier: int, received: bool = False) -> Fraction:
        """Bytes of `rank` on the links of `tier`: the island's carry what stays inside, a network
        tier's all that goes that far."""
        total = Fraction(0)
        for messages in self.rounds:
            for source, target, size in messages:
                if (target if received else source) == rank:
                    crossed = self.tier(source, target)
                    total += size if crossed == tier or (tier > 0 and crossed > tier) else 0
        return total

    def busiest(self, tier: int, *, received: bool = False) -> Fraction:
        return max(self.sent(rank, tier=tier, received=received) for rank in range(self.size))

    def mean(self, tier: int) -> Fraction:
        return (
            sum((self.sent(rank, tier=tier) for rank in range(self.size)), Fraction(0)) / self.size
        )

    def latency(self, latencies: tuple[float, ...]) -> float:
        """Seconds of the rounds one after another, each as slow as its slowest message."""
        return sum(
            max(latencies[self.tier(s, t)] for s, t, _ in messages)
            for messages in self.rounds
            if messages
        )

    def chain_latency(self, latencies: tuple[float, ...], start: int) -> float:
        """Seconds that the piece starting at `start` needs when it moves on by one message a
        round."""
        place, total = start, 0.0
        for messages in self.rounds:
            target = next(t for s, t, _ in messages if s == place)
            total += latencies[self.tier(place, target)]
            place = target
        return total


def ring_reduce_scatter(members: tuple[int, ...]) -> Trace:
    trace = Trace(members)
    n = trace.size
    summed = [{piece: {rank} for piece in range(n)} for rank in range(n)]
    for step in range(n - 1):
        moves = [(rank, (rank + 1) % n, (rank - step) % n) for rank in range(n)]
        arriving = [(target, piece, set(summed[source][piece])) for source, target, piece in moves]
        trace.rounds.append([(source, target, Fraction(1, n)) for source, target, _ in moves])
        for target, piece, part in arriving:
            assert not summed[target][piece] & part
            summed[target][piece] |= part
    assert all(len(summed[rank][(rank + 1) % n]) == n for rank in range(n))
    return trace


def ring_all_gather(members: tuple[int, ...]) -> Trace:
    trace = Trace(members)
    n = trace.size
    have = [{rank} for rank in range(n)]
    for step in range(n - 1):
        moves = [(rank, (rank + 1) % n, (rank - step) % n) for rank in range(n)]
        assert all(
            piece in have[source] and piece not in have[target] for source, target, piece in moves
        )
        for _, target, piece in moves:
            have[target].add(piece)
        trace.rounds.append([(source, target, Fraction(1, n)) for source, target, _ in moves])
    assert all(len(pieces) == n for pieces in have)
    return trace


def nested_reduce_scatter(members: tuple[int, ...], factors: tuple[int, ...]) -> Trace:
    """A ring reduce_scatter along each factor in turn, innermost first; the factors multiply to the
    group."""
    trace = Trace(members)
    n = trace.size
    assert prod(factors) == n
    whole = frozenset(range(n))
    holds = [{piece: {rank} for piece in whole} for rank in range(n)]
    stride = 1
    for count in factors:
        steps: list[list[tuple[int, int, Fraction]]] = [[] for _ in range(count - 1)]
        for base in range(n):
            if (base // stride) % count:
                continue
            peers = [base + i * stride for i in range(count)]
            owned = sorted(holds[base])
            blocks = [
                owned[i * len(owned) // count : (i + 1) * len(owned) // count] for i in range(count)
            ]
            for step in range(count - 1):
                moves = [(i, (i + 1) % count, (i - 1 - step) % count) for i in range(count)]
                arriving = [
                    (t, b, {p: set(holds[peers[s]][p]) for p in blocks[b]}) for s, t, b in moves
                ]
                for s, t, b in moves:
                    steps[step].append((peers[s], peers[t], Fraction(len(blocks[b]), n)))
                for t, _, parts in arriving:
                    for piece, part in parts.items():
                        assert not holds[peers[t]][piece] & part
                        holds[peers[t]][piece] |= part
            for i, peer in enumerate(peers):
                holds[peer] = {piece: holds[peer][piece] for piece in blocks[i]}
        trace.rounds += steps
        stride *= count
    assert all(len(parts) == n for held in holds for parts in held.values())
    assert sorted(piece for held in holds for piece in held) == list(range(n))
    return trace


def recursive_halving(members: tuple[int, ...]) -> Trace:
    """reduce_scatter with partners at distance 1, 2, 4, ...; half of what is left goes each
    time."""
    trace = Trace(members)
    n = trace.size
    holds = [{piece: {rank} for piece in range(n)} for rank in range(n)]
    distance = 1
    while distance < n:
        before = [{piece: set(parts) for piece, parts in held.items()} for held in holds]
        messages = []
        for rank in range(n):
            partner = rank ^ distance
            given = [piece for piece in before[rank] if (piece & distance) == (partner & distance)]
            messages.append((rank, partner, Fraction(len(given), n)))
            for piece in given:
                assert not holds[partner][piece] & before[rank][piece]
                holds[partner][piece] |= before[rank][piece]
                del holds[rank][piece]
        trace.rounds.append(messages)
        distance *= 2
    assert all(held == {rank: set(range(n))} for rank, held in enumerate(holds))
    return trace


def pairwise_all_to_all(members: tuple[int, ...]) -> Trace:
    trace = Trace(members)
    n = trace.size
    trace.rounds = [
        [(rank, (rank + step) % n, Fraction(1, n)) for rank in range(n)] for step in range(1, n)
    ]
    return trace


def hierarchical_all_to_all(members: tuple[int, ...]) -> Trace:
    """One exchange a tier: a parcel moves to the peer whose place on that tier is its target's."""
    trace = Trace(members)
    n = trace.size
    at = [[(rank, target) for target in range(n)] for rank in range(n)]
    stride = 1
    for count in members:
        moved: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        loads: dict[tuple[int, int], int] = {}
        for rank, parcels in enumerate(at):
            for parcel in parcels:
                place, wanted = (rank // stride) % count, (parcel[1] // stride) % count
                peer = rank + (wanted - place) * stride
                moved[peer].append(parcel)
                if peer != rank:
                    loads[rank, peer] = loads.get((rank, peer), 0) + 1
        for step in range(1, count):
            trace.rounds.append(
                [
                    (s, t, Fraction(load, n))
                    for (s, t), load in loads.items()
                    if ((t // stride) - (s // stride)) % count == step
                ]
            )
        at = moved
        stride *= count
    assert all(target == rank for rank, parcels in enumerate(at) for _, target in parcels)
    return trace


def flat_scatter(members: tuple[int, ...], size: Fraction) -> Trace:
    trace = Trace(members)
    trace.rounds = [[(0, rank, size)] for rank in range(1, trace.size)]
    return trace


def binomial_rounds(members: tuple[int, ...], *, scatter: bool) -> Trace:
    """Broadcast or scatter, farthest units first; ranges of units are halved, the upper half goes
    to its first unit."""
    trace = Trace(members)
    n = trace.size
    holders = {0: n}  # rank -> ranks from it on that it must serve
    unit = n
    for count in reversed(members):
        unit //= count
        while any(span > unit for span in holders.values()):
            messages = []
            for rank, span in list(holders.items()):
                units = span // unit
                if units > 1:
                    kept = (units + 1) // 2 * unit
                    messages.append(
                        (rank, rank + kept, Fraction(span - kept, n) if scatter else Fraction(1))
                    )
                    holders[rank], holders[rank + kept] = kept, span - kept
            trace.rounds.append(messages)
    assert sorted(holders) == list(range(n))
    return trace


def in_order_tree(count: int) -> dict[int, int]:
    """child -> parent of the balanced binary search tree over 0 .. count - 1 in which odd ranks (of
    a full tree) are inner nodes."""
    parents: dict[int, int] = {}

    def build(low: int, high: int) -> int:
        depth = (high - low + 1).bit_length() - 1
        root = low + (1 << depth) - 1
        if root >= high:
            root = low + (1 << depth >> 1) - 1
        if low < root:
            parents[build(low, root)] = root
        if root + 1 < high:
            parents[build(root + 1, high)] = root
        return root

    build(0, count)
    return parents


def double_tree_bytes(count: int) -> list[Fraction]:
    """Bytes each island sends in an all_reduce over the tree above and its mirror image (shifted by
    one when the count is odd)."""
    first = in_order_tree(count)
    turned = {
        rank: (count - 1 - rank) if count % 2 == 0 else (rank + 1) % count for rank in range(count)
    }
    second = {turned[child]: turned[parent] for child, parent in first.items()}
    sent = [Fraction(0)] * count
    for child, parent in (*first.items(), *second.items()):
        sent[child] += Fraction(1, 2)
        sent[parent] += Fraction(1, 2)
    return sent
