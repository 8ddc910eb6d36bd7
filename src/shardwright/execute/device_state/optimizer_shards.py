"""ZeRO as the plan says: buckets of parameters whose gradients the same devices sum, and which
piece of each a device owns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

import torch

from shardwright.execute.device_state.device_parameters import Key, ParameterStore
from shardwright.execute.device_state.flat_buckets import FlatBucket, flat_bucket
from shardwright.execute.device_state.gradient_reduction import in_own_order
from shardwright.execute.numerics.base.run_precision import Precision
from shardwright.execute.transport.requests import Exchange, Post, Reduce, Take, Task
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Box
from shardwright.program.stages.held_parameters import ParameterPlace, shares_of
from shardwright.program.transition.transition_steps import even_ranges

Interval = tuple[int, int]
Places = Mapping[Key, tuple[ParameterPlace, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharers:
    """Devices, sorted, that share states of a bucket.

    Args:
        degrees: members that share one copy of the optimizer's states, of the gradient and of the
            parameter; each divides the one before.
        parties: several that each sum and gather for themselves, together all devices: gradient and
            parameter are shared in these, and their first degree is of members that share a sum.
            Empty: all devices are one.
    """

    devices: tuple[int, ...]
    degrees: tuple[int, int, int]
    parties: tuple[Sharers, ...] = ()

    def party(self, device: int) -> Sharers:
        """The party of a device."""
        return next(p for p in self.parties if device in p.devices) if self.parties else self

    def is_apart(self, device: int) -> bool:
        """Its piece of the optimizer's states is not inside its piece of the parameter."""
        return bool(self.parties) and self.party(device).degrees[2] > 1

    def piece(self, device: int, elements: int, level: int) -> Interval:
        """[low, high) of so many elements that a device owns of the state that ZeRO stage `level`
        shards.

        Pieces are nested: of the optimizer's states in that of the gradient, and that in the
        parameter's; not of several parties. Runs of consecutive members each own everything once.
        """
        if self.parties and level > 1:
            return self.party(device).piece(device, elements, level)
        position = self.devices.index(device)
        low, high = 0, elements
        for outer, finer in pairwise((1, *reversed(self.degrees[level - 1 :]))):
            low, high = even_ranges(low, high, finer // outer)[
                (position // outer) % (finer // outer)
            ]
        return low, high

    def run(self, device: int, level: int) -> tuple[int, ...]:
        """The run of consecutive members that own all pieces of a state together."""
        size = self.degrees[level - 1]
        start = self.devices.index(device) // size * size
        return self.devices[start : start + size]

    def alike(self, device: int, level: int) -> tuple[int, ...]:
        """Members that own the same piece as `device`."""
        size = self.degrees[level - 1]
        return self.devices[self.devices.index(device) % size :: size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Elements whose gradient the same devices sum, and whose states the same devices share: flat.

    Args:
        number: of all buckets.
        boxes: parameters and their boxes, dims in each parameter's own order.
        members: who sums, sorted.
        copies: (member, duplicates ..) that are sent the sum.
        sharers: disjoint; each shares its own copy of the states.
        counted: no other bucket of duplicates has been counted for the same elements.
        together: devices that, as all of their party, have the same stages work on it.
        trainable: they have gradients and states.
    """

    number: int
    boxes: tuple[tuple[Key, tuple[Box, ...]], ...]
    sizes: tuple[int, ...]
    members: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    sharers: tuple[Sharers, ...]
    counted: bool
    together: frozenset[int] = frozenset()
    trainable: bool = True

    @property
    def elements(self) -> int:
        """Of all boxes."""
        return sum(self.sizes)

    @property
    def devices(self) -> tuple[int, ...]:
        """Members and duplicates."""
        return tuple(sorted({*self.members, *(d for group in self.copies for d in group)}))

    def sharing(self, device: int) -> Sharers:
        """With whom a device shares states."""
        return next(s for s in self.sharers if device in s.devices)

    @property
    def in_parties(self) -> bool:
        """Several parties sum it for themselves first."""
        return not self.copies and any(one.parties for one in self.sharers)

    def answers(self, device: int) -> bool:
        """The device's piece of the states is the one that is counted, of all copies. Frozen
        parameters have none.
        """
        first = self.sharers[0]
        return (
            self.trainable
            and self.counted
            and device in first.devices
            and first.devices.index(device) < first.degrees[0]
        )


def create_parts(
    device: int, places: Places, keys: Iterable[Key], *, length: int, store: ParameterStore
) -> None:
    """Make every part of parameters that a device needs, before its first use."""
    for key in dict.fromkeys(keys):
        for place in places[key]:
            if device not in place.devices:
                continue
            for share in shares_of(place, base=0, length=length):
                if share.device == device:
                    store.part(key, in_own_order(store.model, key, share.need))


def bucket_views(
    device: int, buckets: tuple[Bucket, ...], store: ParameterStore
) -> dict[int, FlatBucket]:
    """The device's parts behind each of its buckets."""
    return {b.number: flat_bucket(b.boxes, store) for b in buckets if device in b.devices}


def reduce_scatter_bucket(
    device: int, bucket: Bucket, own: torch.Tensor, *, precision: Precision, level: int = 1
) -> Task[torch.Tensor]:
    """The device's piece of the whole gradient of a bucket.

    Pieces are reduced to their owners: to the members of a run, then the sums over runs. Where
    other stages' copies or duplicates share the sum, all sum everything and keep their piece. Of
    several parties it is the device's piece of its party's gradient.

    Args:
        own: the device's own gradients of the bucket, in the format of the wire; they are used up.
        level: whose piece: 1 = of the optimizer, who reads the step's whole gradient; 2 = of the
            gradient, kept between microbatches.
    """
    sharers = bucket.sharing(device)
    if bucket.in_parties:
        return (yield from _scattered(device, bucket, sharers.party(device), own, level=level)).to(
            precision.gradient
        )
    cut = sharers.degrees[level - 1]
    if cut > 1 and sharers.devices == bucket.members and not bucket.copies:
        return (yield from _scattered(device, bucket, sharers, own, level=level)).to(
            precision.gradient
        )
    total = own
    if device in bucket.members and len(bucket.members) > 1:
        total = cast(
            torch.Tensor,
            (
                yield Reduce(
                    group=bucket.members, tensor=own, key=("gradient", bucket.number), used_up=True
                )
            ),
        )
    for sender, *others in bucket.copies:
        if sender == device:
            for other in others:
                yield Post(to=other, tensor=total, key=("copy", bucket.number, other))
        elif device in others:
            key = ("copy", bucket.number, device)
            total = cast(
                torch.Tensor,
                (yield Take(source=sender, shape=tuple(own.shape), key=key, dtype=own.dtype)),
            )
    total = total.to(precision.gradient)
    if cut == 1:
        return total
    low, high = sharers.piece(device, bucket.elements, level)
    return total[low:high].clone()


def _scattered(
    device: int, bucket: Bucket, sharers: Sharers, own: torch.Tensor, *, level: int
) -> Task[torch.Tensor]:
    """Pieces to their owners in the run, summed in the order of devices; then over runs."""
    run, pieces = (
        sharers.run(device, level),
        {d: sharers.piece(d, bucket.elements, level) for d in sharers.devices},
    )
    low, high = pieces[device]
    if len(sharers.devices) == 1:
        return own[low:high].clone()
    came = cast(
        dict[int, torch.Tensor],
        (
            yield Exchange(
                group=run,
                gives={d: own[pieces[d][0] : pieces[d][1]] for d in run if d != device},
                receives={d: (high - low,) for d in run if d != device},
                key=("scatter", bucket.number),
                kind="reduce_scatter",
                elements=bucket.elements,
                dtype=own.dtype,
            )
        ),
    )
    came = {**came, device: own[low:high]}
    total = sum((came[d] for d in run[1:]), came[run[0]].clone())
    across = sharers.alike(device, level)
    if len(across) > 1:
        total = cast(
            torch.Tensor,
            (yield Reduce(group=across, tensor=total, key=("across", bucket.number), used_up=True)),
        )
    return total


def all_gather_bucket(
    device: int, bucket: Bucket, piece: torch.Tensor, *, have: int, want: int, key: str
) -> Task[torch.Tensor]:
    """The piece of stage `want` (0: everything), from pieces of stage `have` of the members of a
    run: of the device's party.
    """
    sharers = bucket.sharing(device).party(device)
    run = sharers.run(device, have)

    def wanted(one: int) -> Interval:
        return sharers.piece(one, bucket.elements, want) if want else (0, bucket.elements)

    low, high = wanted(device)
    group = tuple(d for d in run if wanted(d) == (low, high))
    pieces = {d: sharers.piece(d, bucket.elements, have) for d in group}
    if len(group) == 1:
        return piece
    result = piece.new_empty(high - low)
    each = piece.numel()
    in_turn = [pieces[d] for d in group] == [
        (low + i * each, low + (i + 1) * each) for i in range(len(group))
    ]
    came = cast(
        dict[int, torch.Tensor],
        (
            yield Exchange(
                group=group,
                gives={d: piece for d in group if d != device},
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
        place, part = result[a - low : b - low], piece if d == device else came[d]
        if d == device or place.data_ptr() != part.data_ptr():
            place.copy_(part)
    return result
