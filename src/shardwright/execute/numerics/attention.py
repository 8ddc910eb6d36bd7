"""softmax(Q K^T) V with every mask of the catalog, keys of the device's positions or of all members of its group."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.boxes import given, hollow, numbers, returned
from shardwright.execute.numerics.groups import exchanged, members
from shardwright.execute.numerics.local import detached, gradients
from shardwright.execute.numerics.protocol import Gradients, Saved, Values, Weights
from shardwright.execute.place import Place
from shardwright.execute.requests import Task
from shardwright.model.operator import AttentionShape, Mask
from shardwright.program.layout import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The core: local query heads against the key heads that they read; scores are divided by the root of a key head's width.

    Inputs: q k v in one, or q and (k, v) in two (cross-attention: keys' positions are the memory's).
    Where positions are split over `groups["ring"]`, keys and values of all members are gathered, again in backward, and the gradients of
    theirs go back to them. Backward runs the softmax again; it keeps the output and the logarithm of its denominator only for sinks.
    """

    def forward(self, place: Place, inputs: tuple[Values, ...], weights: Weights) -> Task[tuple[Values, Saved]]:
        """See `Numerics`.

        Raises:
            StrategyError: an indexer selects keys (rule ``execute.selected``).
        """
        if shape_of(place).selected:
            raise StrategyError(
                f"{place.operator.name} attends to keys that an indexer selects",
                hint="sparse selections cannot be executed yet",
                rule="execute.selected",
            )
        query, key, value = _parts(inputs)
        keys, values, positions = yield from _gathered(place, key, value, what="keys")
        sinks = weights[place.operator.parameters[0].name] if place.operator.parameters else None
        with torch.no_grad():
            out, normal = attend(place, query, keys, values, positions, sinks)
        own = (out, normal) if sinks is not None else ()
        return (out,), Saved(inputs=tuple(tuple(v if i < 3 else hollow(v) for i, v in enumerate(values)) for values in inputs), own=own)

    def input_grad(self, place: Place, saved: Saved, grads: Gradients, weights: Weights) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        query, key, value = _parts(saved.inputs)
        keys, values, positions = yield from _gathered(place, key, value, what="keys again")
        sinks = weights[place.operator.parameters[0].name] if place.operator.parameters else None
        with torch.enable_grad():
            leaves = [detached(query), detached(keys), detached(values)]
            out, _ = attend(place, leaves[0], leaves[1], leaves[2], positions, sinks)
            dq, dk, dv = gradients((out,), leaves, grads)
        dk, dv = yield from _sent_back(place, dk, dv)
        if len(saved.inputs) == 1:
            return (returned(saved.inputs[0], {0: dq, 1: dk, 2: dv}),)
        return returned(saved.inputs[0], {0: dq}), returned(saved.inputs[1], {0: dk, 1: dv})

    def weight_grad(self, place: Place, saved: Saved, grads: Gradients, weights: Weights) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`: of a sink, -p(sink) x <output, its gradient>, summed over tokens."""
        yield from ()
        if not place.operator.parameters:
            return {}
        name = place.operator.parameters[0].name
        out, normal = saved.own
        products = (given(grads[0]) * out).unflatten(-1, (-1, shape_of(place).value_dim)).sum(-1)
        share = (weights[name] - normal).exp()
        return {name: -(share * products).sum((0, 1))}


def shape_of(place: Place) -> AttentionShape:
    """The shape of the place's core."""
    assert place.operator.attention is not None
    return place.operator.attention


def attend(
    place: Place, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, logarithm of the softmax's denominator): (samples, queries, heads x value_dim) and (samples, queries, heads).

    Args:
        key, value: (samples, keys, local key heads x width). positions: of the keys, global. sinks: one score for each local head.
    """
    shape = shape_of(place)
    low, high = place.heads
    heads = torch.arange(low, high, device=query.device)
    reads = heads * shape.kv_heads // shape.heads - place.kv_heads[0]
    q = query.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
    k = key.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)[:, reads]
    v = value.unflatten(-1, (-1, shape.value_dim)).transpose(1, 2)[:, reads]
    scores = q @ k.transpose(-1, -2) * shape.head_dim**-0.5
    if shape.soft_cap:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    distance = numbers(place.positions, like=query).unsqueeze(-1) - positions
    if shape.alibi:
        scores = scores - slopes(shape.heads)[low:high].to(scores).view(-1, 1, 1) * distance.abs()
    scores = scores.masked_fill(~visible(shape, distance, positions), -torch.inf)
    normal = scores.logsumexp(-1)
    if sinks is not None:
        normal = torch.logaddexp(normal, sinks.view(1, -1, 1).expand_as(normal))
    out = (scores - normal.unsqueeze(-1)).exp() @ v
    return out.transpose(1, 2).flatten(-2), normal.transpose(1, 2)


def visible(shape: AttentionShape, distance: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees: (queries, keys), from query minus key positions and the keys' positions."""
    seen = distance >= 0 if shape.mask is Mask.CAUSAL else torch.ones_like(distance, dtype=torch.bool)
    if not shape.window:
        return seen
    if shape.chunked:
        return seen & ((distance + positions) // shape.window == positions // shape.window)
    return seen & (distance.abs() < shape.window)


def slopes(heads: int) -> torch.Tensor:
    """ALiBi's slope of every head (Press et al. 2021, arXiv 2108.12409): a geometric sequence, filled up from the next power of two."""

    def of(count: int) -> torch.Tensor:
        return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64) / count)

    power = 1 << int(log2(heads))
    return of(power) if power == heads else torch.cat([of(power), of(2 * power)[::2][: heads - power]])


def _parts(inputs: tuple[Values, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = [v for values in inputs for v in values][:3]
    return query, key, value


def _own_positions(place: Place) -> tuple[tuple[int, int], ...]:
    if place.key_positions:
        return place.key_positions
    return place.memory_positions if shape_of(place).cross else place.positions


def _gathered(place: Place, key: torch.Tensor, value: torch.Tensor, *, what: str) -> Task[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(keys, values, their positions) of all members, in the order of the members."""
    own = numbers(_own_positions(place), like=key)
    group = members(place, "ring")
    if not group:
        return key, value, own
    sent = torch.cat([key, value], dim=-1)
    others = {d: place.ring_positions[d] for d in group if d != place.device}
    receives = {d: (sent.shape[0], count(positions), sent.shape[2]) for d, positions in others.items()}
    total = sent.numel() + sum(a * b * c for a, b, c in receives.values())
    came = yield from exchanged(place, group, dict.fromkeys(others, sent), receives, what=what, kind="all_gather", elements=total)
    whole = torch.cat([sent if d == place.device else came[d] for d in group], dim=1)
    positions = torch.cat([own if d == place.device else numbers(others[d], like=key) for d in group])
    keys, values = whole.split([key.shape[-1], value.shape[-1]], dim=-1)
    return keys, values, positions


def _sent_back(place: Place, key: torch.Tensor, value: torch.Tensor) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """The gradients of the device's own keys and values, summed over all members' queries."""
    group = members(place, "ring")
    if not group:
        return key, value
    lengths = [count(place.ring_positions[d]) if d != place.device else count(_own_positions(place)) for d in group]
    pieces = dict(zip(group, torch.cat([key, value], dim=-1).split(lengths, dim=1), strict=True))
    own = pieces.pop(place.device)
    receives = {d: tuple(own.shape) for d in pieces}
    total = own.numel() * len(group)
    came = yield from exchanged(place, group, pieces, receives, what="key gradients", kind="reduce_scatter", elements=total)
    for device in sorted(came):
        own = own + came[device]
    dk, dv = own.split([key.shape[-1], value.shape[-1]], dim=-1)
    return dk, dv
