"""Exchange of a bucket that several parties sum separately: their pieces go to the owners of
optimizer states, and new values come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch

from shardwright.execute.device_state.optimizer_shards import (
    Bucket,
    Interval,
    Sharers,
    all_gather_bucket,
    reduce_scatter_bucket,
)
from shardwright.execute.numerics.base.run_precision import Precision
from shardwright.execute.transport.requests import Exchange, Task

Runs = tuple[tuple[int, ...], ...]


def owned_gradient(
    device: int, bucket: Bucket, own: torch.Tensor, *, precision: Precision
) -> Task[torch.Tensor]:
    """The gradient of the step for the device's piece of the optimizer's states, from its own
    gradients, as `reduce_scatter_bucket` has them.
    """
    total = yield from reduce_scatter_bucket(device, bucket, own, precision=precision)
    return (
        (yield from _sums_to_owners(device, bucket, total, precision))
        if bucket.in_parties
        else total
    )


def owned_gradient_of_sums(
    device: int, bucket: Bucket, total: torch.Tensor, *, precision: Precision
) -> Task[torch.Tensor]:
    """The same from its piece of what has been summed after each microbatch."""
    if bucket.in_parties:
        return (yield from _sums_to_owners(device, bucket, total, precision))
    wide, narrow = (
        bucket.sharing(device).piece(device, bucket.elements, level) for level in (2, 1)
    )
    return total[narrow[0] - wide[0] : narrow[1] - wide[0]]


def _sums_to_owners(
    device: int, bucket: Bucket, total: torch.Tensor, precision: Precision
) -> Task[torch.Tensor]:
    """Of several parties, their sums to the owners."""
    return (yield from _to_owners(device, bucket, total.to(precision.wire))).to(precision.gradient)


def new_values(
    device: int, bucket: Bucket, piece: torch.Tensor, *, want: int
) -> Task[torch.Tensor]:
    """The new values of stage `want` (0: everything), from the pieces of the owners of optimizer
    states.
    """
    if bucket.sharing(device).parties:
        piece = yield from _from_owners(device, bucket, piece)
    return (yield from all_gather_bucket(device, bucket, piece, have=1, want=want, key="new"))


def _to_owners(device: int, bucket: Bucket, total: torch.Tensor) -> Task[torch.Tensor]:
    """The sum over parties, in their order, of the device's piece of the optimizer's states."""
    parties = [party for one in bucket.sharers for party in (one.parties or (one,))]
    party_of = {d: party for party in parties for d in party.devices}
    swap = _Swap(
        group=bucket.devices,
        have=lambda d: party_of[d].piece(d, bucket.elements, 1),
        want=lambda d: bucket.sharing(d).piece(d, bucket.elements, 1),
        sources=lambda d: tuple(_run(party, bucket.devices.index(d)) for party in parties),
    )
    found = yield from _swapped(device, swap, total, key=("owners", bucket.number))
    return torch.stack(found).sum(dim=0)


def _from_owners(device: int, bucket: Bucket, piece: torch.Tensor) -> Task[torch.Tensor]:
    """The device's piece of its party, of new values."""
    sharers = bucket.sharing(device)
    swap = _Swap(
        group=sharers.devices,
        have=lambda d: sharers.piece(d, bucket.elements, 1),
        want=lambda d: sharers.party(d).piece(d, bucket.elements, 1),
        sources=lambda d: (_run(sharers, sharers.devices.index(d)),),
    )
    (found,) = yield from _swapped(device, swap, piece, key=("renewed", bucket.number))
    return found


def _run(sharers: Sharers, number: int) -> tuple[int, ...]:
    """Of the runs that each have everything, the one that serves the device of a number."""
    size = sharers.degrees[0]
    start = number % (len(sharers.devices) // size) * size
    return sharers.devices[start : start + size]


class _Swap(NamedTuple):
    """An exchange of elements: the devices, the intervals that each has, wants and gives, and the
    runs that each receives everything from.
    """

    group: tuple[int, ...]
    have: Callable[[int], Interval]
    want: Callable[[int], Interval]
    sources: Callable[[int], Runs]

    def passed(self, giver: int, receiver: int) -> Interval:
        """The elements that one device has and another wants; empty if none."""
        (a, b), (low, high) = self.have(giver), self.want(receiver)
        return max(a, low), min(b, high)


def _swapped(
    device: int, swap: _Swap, own: torch.Tensor, *, key: tuple[str, int]
) -> Task[list[torch.Tensor]]:
    """The elements that the device wants, once from each of its sources: an all-to-all of unequal
    parts.
    """
    begin, (low, high) = swap.have(device)[0], swap.want(device)
    given = {
        d: swap.passed(device, d)
        for d in swap.group
        if any(device in run for run in swap.sources(d))
    }
    received = {d: swap.passed(d, device) for run in swap.sources(device) for d in run}
    came = cast(
        dict[int, torch.Tensor],
        (
            yield Exchange(
                group=swap.group,
                gives={
                    d: own[a - begin : b - begin]
                    for d, (a, b) in given.items()
                    if d != device and a < b
                },
                receives={d: (b - a,) for d, (a, b) in received.items() if d != device and a < b},
                key=key,
                kind="all_to_all",
                elements=sum(max(b - a, 0) for a, b in given.values()),
                dtype=own.dtype,
            )
        ),
    )
    result = []
    for run in swap.sources(device):
        whole = own.new_empty(high - low)
        for d, (a, b) in ((d, received[d]) for d in run):
            if a < b:
                whole[a - low : b - low] = own[a - begin : b - begin] if d == device else came[d]
        result.append(whole)
    return result
