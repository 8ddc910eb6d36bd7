"""What an operator asks of the other devices of its groups."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from shardwright.execute.transport.requests import Exchange, Reduce, Reduction, Task
from shardwright.execute.transport.torch_device import OperatorShare


def members(place: OperatorShare, name: str) -> tuple[int, ...]:
    """The devices of a group, sorted; () where nothing is split (one device or none)."""
    group = place.groups.get(name, ())
    return tuple(sorted(group)) if len(group) > 1 else ()


def reduced(
    place: OperatorShare,
    group: str,
    tensor: torch.Tensor,
    *,
    what: str,
    reduction: Reduction = Reduction.SUM,
) -> Task[torch.Tensor]:
    """The reduction of all members' tensors; the tensor itself where nothing is split.

    Args:
        what: which one of the operator's reductions it is; the request's key is (operator's name,
            what).
    """
    devices = members(place, group)
    if not devices:
        return tensor
    answer = yield Reduce(
        group=devices, tensor=tensor, key=(place.operator.name, what), reduction=reduction
    )
    assert isinstance(answer, torch.Tensor)
    return answer


def exchanged(
    place: OperatorShare,
    group: tuple[int, ...],
    gives: dict[int, torch.Tensor],
    receives: Mapping[int, tuple[int, ...]],
    *,
    what: str,
    kind: str,
    elements: int | None = None,
) -> Task[dict[int, torch.Tensor]]:
    """What the others of `group` give to this device. Neither `gives` nor `receives` names the
    device itself.

    Args:
        elements: full buffer, for the trace; None = what this device gives and receives.
    """
    total = (
        sum(t.numel() for t in gives.values()) + sum(map(prod, receives.values()))
        if elements is None
        else elements
    )
    answer = yield Exchange(
        group=group,
        gives=gives,
        receives=dict(receives),
        key=(place.operator.name, what),
        kind=kind,
        elements=total,
    )
    assert isinstance(answer, dict)
    return {device: tensor for device, tensor in answer.items() if device != place.device}
