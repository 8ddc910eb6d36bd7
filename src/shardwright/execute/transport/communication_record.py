"""Record of actual communication: every answered request, with the elements of its tensors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from math import prod

from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Post,
    Reduce,
    TransferRequest,
)
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SentElements:
    """Kind, group and element counts of one device's part in one communication.

    Args:
        kind: a kind of `Collective`; ``send`` and ``receive`` for messages, ``all_reduce`` for a
            `Reduce`.
        group: sorted devices; the two devices of a message.
        elements: elements of the full buffer, as `Collective` counts them.
        sent, received: elements that the device sent and received, by the tensors' sizes. An
            all-reduce counts a reduce-scatter and an all-gather: 2 (n - 1) / n of the buffer,
            rounded up.
        element: bytes of one element.
        action: the device's action at that time; empty if not reported.
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
class CommunicationRecord:
    """Records of all communications, in the order of the answers.

    `doing`: the current action of each device, which its interpreter sets and its records carry.
    """

    records: list[SentElements] = field(default_factory=list)
    doing: dict[int, str] = field(default_factory=dict)

    def add(self, device: int, request: TransferRequest) -> None:
        """Append the record of a device's request, with the device's current action."""
        self.records.append(record_of_request(device, request, action=self.doing.get(device, "")))

    def elements(self) -> dict[tuple[int, str, tuple[int, ...]], int]:
        """Sum of full-buffer elements of all requests, by (device, kind, group)."""
        total: dict[tuple[int, str, tuple[int, ...]], int] = {}
        for record in self.records:
            key = record.device, record.kind, record.group
            total[key] = total.get(key, 0) + record.elements
        return total


def record_of_request(device: int, request: TransferRequest, *, action: str = "") -> SentElements:
    """Record of a device's request: kind, group, and elements that it sends and receives."""
    if isinstance(request, Reduce):
        n, elements = len(request.group), request.tensor.numel()
        sent = -(-2 * (n - 1) * elements // n)
        kind, group, received, element = (
            "all_reduce",
            request.group,
            sent,
            request.tensor.element_size(),
        )
    elif isinstance(request, GroupExchange):
        sent = sum(tensor.numel() for peer, tensor in request.sends.items() if peer != device)
        received = sum(prod(shape) for peer, shape in request.receives.items() if peer != device)
        sent_tensor = next(iter(request.sends.values()), None)
        element = (
            sent_tensor.element_size()
            if sent_tensor is not None
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


def _pair(first: int, second: int) -> tuple[int, ...]:
    """Sorted pair of two device numbers, which names the group of a message."""
    return (first, second) if first < second else (second, first)
