"""Record of actual communication: every request that a transport answered, counted on its
tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from math import prod

from shardwright.execute.transport.requests import Exchange, Moving, Post, Reduce
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SentElements:
    """One device's part in one communication.

    Args:
        kind: words of `Collective`; ``send`` and ``receive`` for messages, ``all_reduce`` for a
            `Reduce`.
        group: sorted devices; of a message its two ends.
        elements: the full buffer, as `Collective` counts it.
        sent, received: elements that the device gave to others and got from them, by the tensors'
            sizes; of a reduce those of the textbook's share-out and gather, 2 (n - 1) / n of the
            buffer, rounded up.
        element: bytes of one.
        action: what the device was doing; empty if nobody said.
    """

    device: int
    kind: str
    group: tuple[int, ...]
    elements: int
    sent: int
    received: int
    element: int
    key: Hashable
    action: str = ""


@dataclass(slots=True)
class Trace:
    """Records in the order of the answers. `doing`: what each device does now; its interpreter says
    so, and its records carry it.
    """

    records: list[SentElements] = field(default_factory=list)
    doing: dict[int, str] = field(default_factory=dict)

    def add(self, device: int, request: Moving) -> None:
        """Record a request of a device."""
        self.records.append(moved(device, request, action=self.doing.get(device, "")))

    def elements(self) -> dict[tuple[int, str, tuple[int, ...]], int]:
        """Elements of full buffers by (device, kind, group)."""
        total: dict[tuple[int, str, tuple[int, ...]], int] = {}
        for one in self.records:
            key = one.device, one.kind, one.group
            total[key] = total.get(key, 0) + one.elements
        return total


def moved(device: int, request: Moving, *, action: str = "") -> SentElements:
    """The record of a request."""
    if isinstance(request, Reduce):
        n, elements = len(request.group), request.tensor.numel()
        sent = -(-2 * (n - 1) * elements // n)
        kind, group, received, element = (
            "all_reduce",
            request.group,
            sent,
            request.tensor.element_size(),
        )
    elif isinstance(request, Exchange):
        sent = sum(tensor.numel() for other, tensor in request.gives.items() if other != device)
        received = sum(prod(shape) for other, shape in request.receives.items() if other != device)
        given = next(iter(request.gives.values()), None)
        element = (
            given.element_size()
            if given is not None
            else request.dtype.itemsize
            if request.dtype is not None
            else 0
        )
        kind, group, elements = request.kind, request.group, request.elements
    elif isinstance(request, Post):
        elements = sent = request.tensor.numel()
        kind, group, received, element = (
            "send",
            _pair(device, request.to),
            0,
            request.tensor.element_size(),
        )
    else:
        elements = received = prod(request.shape)
        kind, group, sent, element = (
            "receive",
            _pair(device, request.source),
            0,
            request.dtype.itemsize if request.dtype is not None else 0,
        )
    return SentElements(
        device=device,
        kind=kind,
        group=group,
        elements=elements,
        sent=sent,
        received=received,
        element=element,
        key=request.key,
        action=action,
    )


def _pair(one: int, other: int) -> tuple[int, ...]:
    return (one, other) if one < other else (other, one)
