"""Experts' rows as slots of their tokens, for blocks that a pipeline cut divides."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    shape_placeholder,
)
from shardwright.execute.numerics.experts.token_exchange import (
    collect_from_experts,
    send_to_experts,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Extent


def copy_to_slots(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """(slots, expert numbers): each token's row copied topk times, side by side.

    Inputs: x and ``route``'s (probabilities, numbers).
    """
    x, (_, expert_ids) = inputs[0][0], inputs[1]
    return x.unsqueeze(-2).expand(*expert_ids.shape, x.shape[-1]).flatten(-2), expert_ids


def sum_weighted_slots(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
) -> Values:
    """Sum of each token's topk slot rows, weighted by the router's probabilities.

    Inputs: slots with the experts' numbers, and ``route``'s values.
    """
    slots, probabilities = inputs[0][0], inputs[1][0]
    return (
        (probabilities.unsqueeze(-1) * slots.unflatten(-1, (probabilities.shape[-1], -1))).sum(-2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterSlots(WithoutParameters):
    """Send the slots of tokens to their chosen experts.

    The result has rows by (expert, token), with the device's part of the width. Input: slots,
    numbers.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Send token slots to their experts' devices; rows and routes for the local experts.

        See `Numerics`.
        """
        *slots, expert_ids = inputs[0]
        routes, rows = yield from _slots_to_experts(
            place, slots, expert_ids, extents=place.operator.writes, purpose="slots"
        )
        parts = (part[:, low:high] for part, (low, high) in zip(rows, place.writes, strict=True))
        return (*(part.unsqueeze(0) for part in parts), routes), SavedTensors(
            inputs=((expert_ids,),), own=(routes, slots[0].new_empty(0))
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Bring gradients of rows back into the slots of their tokens.

        See `Numerics`.
        """
        routes, like = saved.own
        rows = _full_width_rows(place, grads, place.operator.writes, routes.shape[1], like)
        slots = yield from _slots_from_experts(
            place,
            rows,
            routes,
            saved.inputs[0][0],
            extents=place.operator.writes,
            purpose="slot gradients",
        )
        return ((*slots, None),)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSlots(WithoutParameters):
    """Bring the experts' outputs back into the slots of their tokens.

    Inputs: rows and routes of the device's experts; slots (not read), numbers.

    Outputs of devices with different parts of the width, or of a sum over it, are added; of devices
    with the same part, one returns the outputs.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Collect the experts' output rows from their devices into the slots of local tokens.

        See `Numerics`.
        """
        (*rows, routes), (*unread_slots, expert_ids) = inputs
        extents = place.operator.reads
        full_rows = _full_width_rows(
            place,
            [part for part in rows if part.is_floating_point()],
            extents,
            routes.shape[1],
            unread_slots[0],
        )
        slots = yield from _slots_from_experts(
            place, full_rows, routes, expert_ids, extents=extents, purpose="made slots"
        )
        placeholders = tuple(map(shape_placeholder, unread_slots))
        return (*slots, expert_ids), SavedTensors(
            inputs=((*rows, routes), (*placeholders, expert_ids))
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Send gradients of slots, unweighted by the router, to the experts' rows.

        See `Numerics`.
        """
        *unread_slots, expert_ids = saved.inputs[1]
        extents = place.operator.reads
        topk = expert_ids.shape[-1]
        slot_grads = [grads[i] if i < len(grads) else None for i in range(len(extents))]
        slots = [
            unread_slots[0].new_zeros((*expert_ids.shape[:2], topk * e.size))
            if slot_grad is None
            else slot_grad
            for slot_grad, e in zip(slot_grads, extents, strict=True)
        ]
        _, rows = yield from _slots_to_experts(
            place, slots, expert_ids, extents=extents, purpose="made slot gradients"
        )
        parts = (
            part[:, low:high].unsqueeze(0)
            for part, (low, high) in zip(rows, place.reads, strict=True)
        )
        return (*parts, None), (*(torch.zeros_like(slot_grad) for slot_grad in unread_slots), None)


def _slots_to_experts(
    place: OperatorShare,
    slots: list[torch.Tensor],
    expert_ids: torch.Tensor,
    *,
    extents: tuple[Extent, ...],
    purpose: str,
) -> Task[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
    """Send slots to the chosen experts: (routes, rows of every extent) for local experts."""
    sizes = [e.size for e in extents]
    joined = torch.cat(
        [
            slot.unflatten(-1, (expert_ids.shape[-1], size))
            for slot, size in zip(slots, sizes, strict=True)
        ],
        dim=-1,
    )
    row_by_slot = joined.flatten(0, 1)
    routes, rows = yield from send_to_experts(
        place,
        expert_ids,
        lambda tokens, choices: row_by_slot[tokens, choices],
        width=sum(sizes),
        like=row_by_slot,
        purpose=purpose,
    )
    return routes, rows.split(sizes, dim=-1)


def _slots_from_experts(
    place: OperatorShare,
    rows: torch.Tensor,
    routes: torch.Tensor,
    expert_ids: torch.Tensor,
    *,
    extents: tuple[Extent, ...],
    purpose: str,
) -> Task[list[torch.Tensor]]:
    """Bring the experts' rows back: slots of every extent, for this device's tokens."""
    returned = yield from collect_from_experts(place, expert_ids, routes, rows, purpose=purpose)
    row_by_slot = rows.new_zeros((*expert_ids.flatten(0, 1).shape, rows.shape[-1]))
    for (tokens, choices), part in returned:
        row_by_slot.index_put_((tokens, choices), part, accumulate=True)
    return [
        part.flatten(-2)
        for part in row_by_slot.unflatten(0, expert_ids.shape[:2]).split(
            [e.size for e in extents], dim=-1
        )
    ]


def _full_width_rows(
    place: OperatorShare,
    parts: Gradients | list[torch.Tensor],
    extents: tuple[Extent, ...],
    rows: int,
    like: torch.Tensor,
) -> torch.Tensor:
    """(rows, width of all extents): the device's parts, and zeros for parts it does not have."""
    intervals = place.reads if extents is place.operator.reads else place.writes
    columns = []
    for number, (extent, (low, high)) in enumerate(zip(extents, intervals, strict=True)):
        part = parts[number] if number < len(parts) else None
        if part is None or not rows:
            columns.append(like.new_zeros((rows, extent.size)))
        else:
            columns.append(functional.pad(part.squeeze(0), (low, extent.size - high)))
    return torch.cat(columns, dim=-1)
