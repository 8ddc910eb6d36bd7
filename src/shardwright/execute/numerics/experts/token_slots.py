"""Experts' rows as slots of their tokens, for blocks that a pipeline cut divides."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.execute.numerics.base.local_tensors import shape_placeholder
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.experts.token_exchange import (
    collect_from_experts,
    send_to_experts,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Extent


def copy_to_slots(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """The token's row in all its slots, and the experts' numbers. Inputs: x and ``route``'s
    (probabilities, numbers).
    """
    x, (_, chosen) = inputs[0][0], inputs[1]
    return x.unsqueeze(-2).expand(*chosen.shape, x.shape[-1]).flatten(-2), chosen


def sum_weighted_slots(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
) -> Values:
    """y = sum over a token's slots of probability x row. Inputs: slots with the experts' numbers
    and ``route``'s values.
    """
    slots, probabilities = inputs[0][0], inputs[1][0]
    return (
        (probabilities.unsqueeze(-1) * slots.unflatten(-1, (probabilities.shape[-1], -1))).sum(-2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter(WithoutParameters):
    """Slots of tokens, sent to the chosen experts: rows by (expert, token), the device's part of
    the width. Input: slots, numbers.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        *slots, chosen = inputs[0]
        routes, rows = yield from _sent(
            place, slots, chosen, extents=place.operator.writes, what="slots"
        )
        parts = (part[:, low:high] for part, (low, high) in zip(rows, place.writes, strict=True))
        return (*(part.unsqueeze(0) for part in parts), routes), SavedTensors(
            inputs=((chosen,),), own=(routes, slots[0].new_empty(0))
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        routes, like = saved.own
        rows = _padded(place, grads, place.operator.writes, routes.shape[1], like)
        slots = yield from _brought(
            place,
            rows,
            routes,
            saved.inputs[0][0],
            extents=place.operator.writes,
            what="slot gradients",
        )
        return ((*slots, None),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(WithoutParameters):
    """Experts' outputs, sent back into the slots of their tokens. Inputs: rows and routes of the
    device's experts; slots (not read), numbers.

    Devices with other parts of the width, or of a sum over it, add up; one of those with the same
    answers for all.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        (*rows, routes), (*read, chosen) = inputs
        extents = place.operator.reads
        whole = _padded(
            place,
            [part for part in rows if part.is_floating_point()],
            extents,
            routes.shape[1],
            read[0],
        )
        slots = yield from _brought(
            place, whole, routes, chosen, extents=extents, what="made slots"
        )
        kept = tuple(map(shape_placeholder, read))
        return (*slots, chosen), SavedTensors(inputs=((*rows, routes), (*kept, chosen)))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        *read, chosen = saved.inputs[1]
        extents = place.operator.reads
        topk = chosen.shape[-1]
        given = [grads[i] if i < len(grads) else None for i in range(len(extents))]
        slots = [
            read[0].new_zeros((*chosen.shape[:2], topk * e.size)) if one is None else one
            for one, e in zip(given, extents, strict=True)
        ]
        _, rows = yield from _sent(
            place, slots, chosen, extents=extents, what="made slot gradients"
        )
        parts = (
            part[:, low:high].unsqueeze(0)
            for part, (low, high) in zip(rows, place.reads, strict=True)
        )
        return (*parts, None), (*(torch.zeros_like(one) for one in read), None)


def _sent(
    place: OperatorShare,
    slots: list[torch.Tensor],
    chosen: torch.Tensor,
    *,
    extents: tuple[Extent, ...],
    what: str,
) -> Task[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
    """(routes, rows of every extent) of the device's experts."""
    sizes = [e.size for e in extents]
    joined = torch.cat(
        [
            one.unflatten(-1, (chosen.shape[-1], size))
            for one, size in zip(slots, sizes, strict=True)
        ],
        dim=-1,
    )
    each = joined.flatten(0, 1)
    routes, rows = yield from send_to_experts(
        place,
        chosen,
        lambda tokens, choices: each[tokens, choices],
        width=sum(sizes),
        like=each,
        purpose=what,
    )
    return routes, rows.split(sizes, dim=-1)


def _brought(
    place: OperatorShare,
    rows: torch.Tensor,
    routes: torch.Tensor,
    chosen: torch.Tensor,
    *,
    extents: tuple[Extent, ...],
    what: str,
) -> Task[list[torch.Tensor]]:
    """Slots of every extent, of the tokens held here."""
    answers = yield from collect_from_experts(place, chosen, routes, rows, purpose=what)
    each = rows.new_zeros((*chosen.flatten(0, 1).shape, rows.shape[-1]))
    for (tokens, choices), part in answers:
        each.index_put_((tokens, choices), part, accumulate=True)
    return [
        part.flatten(-2)
        for part in each.unflatten(0, chosen.shape[:2]).split([e.size for e in extents], dim=-1)
    ]


def _padded(
    place: OperatorShare,
    parts: Gradients | list[torch.Tensor],
    extents: tuple[Extent, ...],
    rows: int,
    like: torch.Tensor,
) -> torch.Tensor:
    """The device's parts of all extents as rows of the whole width, zeros elsewhere; zeros where it
    has none.
    """
    held = place.reads if extents is place.operator.reads else place.writes
    whole = []
    for number, (extent, (low, high)) in enumerate(zip(extents, held, strict=True)):
        part = parts[number] if number < len(parts) else None
        if part is None or not rows:
            whole.append(like.new_zeros((rows, extent.size)))
        else:
            whole.append(functional.pad(part.squeeze(0), (low, extent.size - high)))
    return torch.cat(whole, dim=-1)
