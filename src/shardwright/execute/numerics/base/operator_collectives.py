"""Collectives of an operator within its process groups."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Reduce,
    Reduction,
    Task,
)


def group_members(place: OperatorShare, name: str) -> tuple[int, ...]:
    """The devices of a group, sorted; empty if the group has fewer than two members."""
    group = place.groups.get(name, ())
    return tuple(sorted(group)) if len(group) > 1 else ()


def all_reduce(
    place: OperatorShare,
    group: str,
    tensor: torch.Tensor,
    *,
    purpose: str,
    reduction: Reduction = Reduction.SUM,
) -> Task[torch.Tensor]:
    """Reduce a tensor over all members of a group; the tensor itself without such a group.

    Args:
        purpose: distinguishes this reduction from the operator's other ones; the request's key is
            (operator's name, purpose).
    """
    devices = group_members(place, group)
    if not devices:
        return tensor
    reduced = yield Reduce(
        group=devices, tensor=tensor, key=(place.operator.name, purpose), reduction=reduction
    )
    assert isinstance(reduced, torch.Tensor)
    return reduced


def exchange_tensors(
    place: OperatorShare,
    group: tuple[int, ...],
    sends: dict[int, torch.Tensor],
    receives: Mapping[int, tuple[int, ...]],
    *,
    purpose: str,
    kind: str,
    elements: int | None = None,
) -> Task[dict[int, torch.Tensor]]:
    """Exchange tensors in `group`: send `sends` by receiver, return shapes `receives` by sender.

    Neither `sends` nor `receives` names the device itself.

    Args:
        elements: elements of the full buffer, for the record; None = elements that this device
            sends and receives.
    """
    total = (
        sum(t.numel() for t in sends.values()) + sum(map(prod, receives.values()))
        if elements is None
        else elements
    )
    received = yield GroupExchange(
        group=group,
        sends=sends,
        receives=dict(receives),
        key=(place.operator.name, purpose),
        kind=kind,
        elements=total,
    )
    assert isinstance(received, dict)
    return {device: tensor for device, tensor in received.items() if device != place.device}
