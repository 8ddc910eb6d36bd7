"""ZeRO shards of parameter buckets, and the collectives that reduce and gather them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

import torch

from shardwright.execute.device_state.parameter_views_of_flat_buckets import FlatBucket, flat_bucket
from shardwright.execute.device_state.stored_parameter_parts import Key, ParameterStore
from shardwright.execute.device_state.sum_each_parameter_gradient_over_devices import in_own_order
from shardwright.execute.numerics.base.run_precision import RunPrecision
from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Post,
    Reduce,
    Take,
    Task,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Box
from shardwright.program.stages.held_parameters import shares_of
from shardwright.program.stages.uses_of_each_parameter import ParameterPlace
from shardwright.program.transition.transition_steps_and_symbolic_proof import even_ranges

Interval = tuple[int, int]
Places = Mapping[Key, tuple[ParameterPlace, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """Sorted devices that share the states of a bucket, with their ZeRO degrees.

    Args:
        degrees: number of members that share one copy of the optimizer states, of the gradient and
            of the parameter; each divides the one before.
        reduction_groups: groups that each sum and gather for themselves, all devices in total.
            They share gradient and parameter, and their first degree is the number of members that
            share a sum. Empty: all devices are one group.
    """

    devices: tuple[int, ...]
    degrees: tuple[int, int, int]
    reduction_groups: tuple[ShardGroup, ...] = ()

    def reduction_group(self, device: int) -> ShardGroup:
        """The reduction group that has `device`; the whole shard group if there are none."""
        return (
            next(g for g in self.reduction_groups if device in g.devices)
            if self.reduction_groups
            else self
        )

    def is_sharded_in_group(self, device: int) -> bool:
        """True if reduction groups divide the parameters among their members (ZeRO 3)."""
        return bool(self.reduction_groups) and self.reduction_group(device).degrees[2] > 1

    def piece(self, device: int, elements: int, level: int) -> Interval:
        """Elements [low, high) of `device` at ZeRO stage `level`: 1 states, 2 gradient, 3 values.

        Pieces are nested: the piece of the optimizer states lies in that of the gradient, and this
        in that of the parameter (not with several reduction groups). Each run of consecutive
        members owns everything once.
        """
        if self.reduction_groups and level > 1:
            return self.reduction_group(device).piece(device, elements, level)
        position = self.devices.index(device)
        low, high = 0, elements
        for outer, finer in pairwise((1, *reversed(self.degrees[level - 1 :]))):
            low, high = even_ranges(low, high, finer // outer)[
                (position // outer) % (finer // outer)
            ]
        return low, high

    def run(self, device: int, level: int) -> tuple[int, ...]:
        """Consecutive members, with `device`, that share one copy of ZeRO stage `level`'s state."""
        size = self.degrees[level - 1]
        start = self.devices.index(device) // size * size
        return self.devices[start : start + size]

    def replicas(self, device: int, level: int) -> tuple[int, ...]:
        """Members that own the same piece as `device` of ZeRO stage `level`'s state."""
        size = self.degrees[level - 1]
        return self.devices[self.devices.index(device) % size :: size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Flat elements whose gradient the same devices sum and whose states the same devices share.

    Args:
        number: number of the bucket.
        boxes: parameters and their boxes, dims in each parameter's own order.
        members: the devices that sum, sorted.
        copies: (member, its duplicates, which receive the sum).
        sharers: disjoint groups; each shares its own copy of the states.
        counted: this bucket counts for its elements; buckets of duplicates do not.
        in_same_stages: devices whose whole reduction group uses the parameter in the same stages.
        trainable: the parameters have gradients and states.
    """

    number: int
    boxes: tuple[tuple[Key, tuple[Box, ...]], ...]
    sizes: tuple[int, ...]
    members: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    sharers: tuple[ShardGroup, ...]
    counted: bool
    in_same_stages: frozenset[int] = frozenset()
    trainable: bool = True

    @property
    def elements(self) -> int:
        """Number of elements in all boxes of the bucket."""
        return sum(self.sizes)

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that hold the bucket, duplicates among them, sorted."""
        return tuple(sorted({*self.members, *(d for group in self.copies for d in group)}))

    def sharing(self, device: int) -> ShardGroup:
        """The devices with which a device divides the bucket's states."""
        return next(s for s in self.sharers if device in s.devices)

    @property
    def has_reduction_groups(self) -> bool:
        """True if several reduction groups each first sum the bucket; False with duplicates."""
        return not self.copies and any(group.reduction_groups for group in self.sharers)

    def counts_piece(self, device: int) -> bool:
        """True if norms and checkpoints count this device's piece: trained, and the first copy."""
        first = self.sharers[0]
        return (
            self.trainable
            and self.counted
            and device in first.devices
            and first.devices.index(device) < first.degrees[0]
        )


def create_parameter_parts(
    device: int, places: Places, keys: Iterable[Key], *, length: int, store: ParameterStore
) -> None:
    """Read each box of the parameters `keys` that the device needs into its store."""
    for key in dict.fromkeys(keys):
        for place in places[key]:
            if device not in place.devices:
                continue
            for share in shares_of(place, first_device=0, length=length):
                if share.device == device:
                    store.part(key, in_own_order(store.model, key, share.need))


def bucket_views(
    device: int, buckets: tuple[Bucket, ...], store: ParameterStore
) -> dict[int, FlatBucket]:
    """Flat views of the device's parameters, by the number of each of its buckets."""
    return {b.number: flat_bucket(b.boxes, store) for b in buckets if device in b.devices}


def reduce_scatter_bucket(
    device: int,
    bucket: Bucket,
    local_gradient: torch.Tensor,
    *,
    precision: RunPrecision,
    level: int = 1,
) -> Task[torch.Tensor]:
    """Sum a bucket's gradient by reduce-scatter: the device's piece at ZeRO stage `level` (1 or 2).

    Pieces are reduced to their owners within a run, then over runs. Where copies in other stages or
    duplicates share the sum, all devices all-reduce everything and keep their piece. With several
    reduction groups, the result is the device's piece of its group's gradient.

    Args:
        local_gradient: the device's own gradients of the bucket, in the communication format;
            overwritten.
        level: ZeRO stage of the piece: 1 = of the optimizer states, 2 = of the gradient that is
            kept between microbatches.
    """
    sharers = bucket.sharing(device)
    if bucket.has_reduction_groups:
        return (
            yield from _reduce_scatter(
                device, bucket, sharers.reduction_group(device), local_gradient, level=level
            )
        ).to(precision.gradient)
    cut = sharers.degrees[level - 1]
    if cut > 1 and sharers.devices == bucket.members and not bucket.copies:
        return (
            yield from _reduce_scatter(device, bucket, sharers, local_gradient, level=level)
        ).to(precision.gradient)
    total = local_gradient
    if device in bucket.members and len(bucket.members) > 1:
        total = cast(
            torch.Tensor,
            (
                yield Reduce(
                    group=bucket.members,
                    tensor=local_gradient,
                    key=("gradient", bucket.number),
                    used_up=True,
                )
            ),
        )
    for sender, *duplicates in bucket.copies:
        if sender == device:
            for duplicate in duplicates:
                yield Post(to=duplicate, tensor=total, key=("copy", bucket.number, duplicate))
        elif device in duplicates:
            key = ("copy", bucket.number, device)
            total = cast(
                torch.Tensor,
                (
                    yield Take(
                        source=sender,
                        shape=tuple(local_gradient.shape),
                        key=key,
                        dtype=local_gradient.dtype,
                    )
                ),
            )
    total = total.to(precision.gradient)
    if cut == 1:
        return total
    low, high = sharers.piece(device, bucket.elements, level)
    return total[low:high].clone()


def _reduce_scatter(
    device: int, bucket: Bucket, sharers: ShardGroup, local_gradient: torch.Tensor, *, level: int
) -> Task[torch.Tensor]:
    """Sum a bucket's piece by reduce-scatter in a run of members, then all-reduce over runs."""
    run, pieces = (
        sharers.run(device, level),
        {d: sharers.piece(d, bucket.elements, level) for d in sharers.devices},
    )
    low, high = pieces[device]
    if len(sharers.devices) == 1:
        return local_gradient[low:high].clone()
    received = cast(
        dict[int, torch.Tensor],
        (
            yield GroupExchange(
                group=run,
                sends={d: local_gradient[pieces[d][0] : pieces[d][1]] for d in run if d != device},
                receives={d: (high - low,) for d in run if d != device},
                key=("scatter", bucket.number),
                kind="reduce_scatter",
                elements=bucket.elements,
                dtype=local_gradient.dtype,
            )
        ),
    )
    received = {**received, device: local_gradient[low:high]}
    total = sum((received[d] for d in run[1:]), received[run[0]].clone())
    replicas = sharers.replicas(device, level)
    if len(replicas) > 1:
        total = cast(
            torch.Tensor,
            (
                yield Reduce(
                    group=replicas, tensor=total, key=("across", bucket.number), used_up=True
                )
            ),
        )
    return total


def all_gather_bucket(
    device: int, bucket: Bucket, piece: torch.Tensor, *, have: int, want: int, key: str
) -> Task[torch.Tensor]:
    """Gather a device's piece for ZeRO stage `want` (0: everything) from pieces of stage `have`."""
    sharers = bucket.sharing(device).reduction_group(device)
    run = sharers.run(device, have)

    def wanted_piece(member: int) -> Interval:
        """[low, high) of the bucket's elements that a member receives."""
        return sharers.piece(member, bucket.elements, want) if want else (0, bucket.elements)

    low, high = wanted_piece(device)
    group = tuple(d for d in run if wanted_piece(d) == (low, high))
    pieces = {d: sharers.piece(d, bucket.elements, have) for d in group}
    if len(group) == 1:
        return piece
    result = piece.new_empty(high - low)
    piece_size = piece.numel()
    in_turn = [pieces[d] for d in group] == [
        (low + i * piece_size, low + (i + 1) * piece_size) for i in range(len(group))
    ]
    received = cast(
        dict[int, torch.Tensor],
        (
            yield GroupExchange(
                group=group,
                sends={d: piece for d in group if d != device},
                receives={d: (b - a,) for d, (a, b) in pieces.items() if d != device},
                key=(key, bucket.number),
                kind="all_gather",
                elements=high - low,
                dtype=piece.dtype,
                into=result if in_turn else None,
            )
        ),
    )
    for d, (a, b) in pieces.items():
        place, part = result[a - low : b - low], piece if d == device else received[d]
        if d == device or place.data_ptr() != part.data_ptr():
            place.copy_(part)
    return result
