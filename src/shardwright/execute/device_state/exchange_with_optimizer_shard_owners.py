"""Exchange between reduction groups of a bucket and the owners of its optimizer states.

Sums go to the owners, and new parameter values come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch

from shardwright.execute.device_state.zero_bucket_collectives import (
    Bucket,
    Interval,
    ShardGroup,
    all_gather_bucket,
    reduce_scatter_bucket,
)
from shardwright.execute.numerics.base.run_precision import RunPrecision
from shardwright.execute.transport.communication_requests import GroupExchange, Task

Runs = tuple[tuple[int, ...], ...]


def owned_gradient(
    device: int, bucket: Bucket, local_gradient: torch.Tensor, *, precision: RunPrecision
) -> Task[torch.Tensor]:
    """Sum local gradients over the bucket's devices; return the device's optimizer piece.

    Own gradients as in `reduce_scatter_bucket`.
    """
    total = yield from reduce_scatter_bucket(device, bucket, local_gradient, precision=precision)
    return (
        (yield from _sums_to_owners(device, bucket, total, precision))
        if bucket.has_reduction_groups
        else total
    )


def owned_gradient_of_sums(
    device: int, bucket: Bucket, total: torch.Tensor, *, precision: RunPrecision
) -> Task[torch.Tensor]:
    """Gradient of the device's optimizer piece, from `total`, its already summed gradient piece.

    `total`: the device's piece of the gradient, summed after each microbatch.
    """
    if bucket.has_reduction_groups:
        return (yield from _sums_to_owners(device, bucket, total, precision))
    gradient_piece, optimizer_piece = (
        bucket.sharing(device).piece(device, bucket.elements, level) for level in (2, 1)
    )
    return total[optimizer_piece[0] - gradient_piece[0] : optimizer_piece[1] - gradient_piece[0]]


def _sums_to_owners(
    device: int, bucket: Bucket, total: torch.Tensor, precision: RunPrecision
) -> Task[torch.Tensor]:
    """Exchange reduction groups' sums in wire format; return owner's total in gradient format."""
    return (yield from _to_owners(device, bucket, total.to(precision.wire))).to(precision.gradient)


def new_values(
    device: int, bucket: Bucket, piece: torch.Tensor, *, want: int
) -> Task[torch.Tensor]:
    """Gather owners' updated pieces to the piece that ZeRO stage `want` keeps (0: all elements)."""
    if bucket.sharing(device).reduction_groups:
        piece = yield from _from_owners(device, bucket, piece)
    return (yield from all_gather_bucket(device, bucket, piece, have=1, want=want, key="new"))


def _to_owners(device: int, bucket: Bucket, total: torch.Tensor) -> Task[torch.Tensor]:
    """Exchange reduction groups' sums, and add those of the device's optimizer piece (ZeRO 1)."""
    groups = [
        group for sharers in bucket.sharers for group in (sharers.reduction_groups or (sharers,))
    ]
    group_of = {d: group for group in groups for d in group.devices}
    swap = _Swap(
        group=bucket.devices,
        have=lambda d: group_of[d].piece(d, bucket.elements, 1),
        want=lambda d: bucket.sharing(d).piece(d, bucket.elements, 1),
        sources=lambda d: tuple(_serving_run(group, bucket.devices.index(d)) for group in groups),
    )
    sums = yield from _exchange(device, swap, total, key=("owners", bucket.number))
    return torch.stack(sums).sum(dim=0)


def _from_owners(device: int, bucket: Bucket, piece: torch.Tensor) -> Task[torch.Tensor]:
    """Exchange owners' updated values: those of the device's piece in its reduction group."""
    sharers = bucket.sharing(device)
    swap = _Swap(
        group=sharers.devices,
        have=lambda d: sharers.piece(d, bucket.elements, 1),
        want=lambda d: sharers.reduction_group(d).piece(d, bucket.elements, 1),
        sources=lambda d: (_serving_run(sharers, sharers.devices.index(d)),),
    )
    (values,) = yield from _exchange(device, swap, piece, key=("renewed", bucket.number))
    return values


def _serving_run(sharers: ShardGroup, number: int) -> tuple[int, ...]:
    """Members that send to receiver `number`: run `number` mod run count; a run has all pieces."""
    size = sharers.degrees[0]
    start = number % (len(sharers.devices) // size) * size
    return sharers.devices[start : start + size]


class _Swap(NamedTuple):
    """Intervals of elements that each device has and wants in an exchange, and its sources.

    `sources` are the runs from which a device receives everything.
    """

    group: tuple[int, ...]
    have: Callable[[int], Interval]
    want: Callable[[int], Interval]
    sources: Callable[[int], Runs]

    def interval(self, giver: int, receiver: int) -> Interval:
        """Elements that `giver` has and `receiver` wants, [low, high); empty if high <= low."""
        (a, b), (low, high) = self.have(giver), self.want(receiver)
        return max(a, low), min(b, high)


def _exchange(
    device: int, swap: _Swap, local_values: torch.Tensor, *, key: tuple[str, int]
) -> Task[list[torch.Tensor]]:
    """All-to-all: elements that the device wants, in full from each source run, not yet added."""
    begin, (low, high) = swap.have(device)[0], swap.want(device)
    sent = {
        d: swap.interval(device, d)
        for d in swap.group
        if any(device in run for run in swap.sources(d))
    }
    received = {d: swap.interval(d, device) for run in swap.sources(device) for d in run}
    received_elements = cast(
        dict[int, torch.Tensor],
        (
            yield GroupExchange(
                group=swap.group,
                sends={
                    d: local_values[a - begin : b - begin]
                    for d, (a, b) in sent.items()
                    if d != device and a < b
                },
                receives={d: (b - a,) for d, (a, b) in received.items() if d != device and a < b},
                key=key,
                kind="all_to_all",
                elements=sum(max(b - a, 0) for a, b in sent.values()),
                dtype=local_values.dtype,
            )
        ),
    )
    result = []
    for run in swap.sources(device):
        joined = local_values.new_empty(high - low)
        for d, (a, b) in ((d, received[d]) for d in run):
            if a < b:
                joined[a - low : b - low] = (
                    local_values[a - begin : b - begin] if d == device else received_elements[d]
                )
        result.append(joined)
    return result
