"""softmax(Q K^T) V from the scores themselves, a tile at a time, with every mask and bias of the
catalog: what no fused kernel computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2

import torch

from shardwright.execute.numerics.attention.distance_bias import biases
from shardwright.execute.numerics.attention.fused_kernel_calls import Made
from shardwright.execute.numerics.attention.image_token_mask import in_one_image
from shardwright.execute.numerics.attention.key_exchange import Keys
from shardwright.execute.numerics.attention.position_masks import visible
from shardwright.execute.numerics.attention.score_tiles import TileRows, tiles
from shardwright.execute.numerics.attention.selected_key_blocks import selected
from shardwright.execute.numerics.base.local_operators import detached, gradients
from shardwright.execute.numerics.base.local_tensors import fine, numbers
from shardwright.execute.numerics.base.operator_protocol import Values
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import AttentionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInputs:
    """What a core depends on beside queries, keys and their positions.

    Args:
        table: of biases by distance, (rows, local heads), where there is one.
        sinks: of every local head the logarithm of what its denominators begin with, where there
            are some.
        runs: of image tokens, (samples, all positions), or None.
        chosen: keys that an indexer selected (`selection_of`), where one does.
    """

    table: tuple[torch.Tensor, ...] = ()
    sinks: tuple[torch.Tensor, ...] = ()
    runs: torch.Tensor | None = None
    chosen: Values = ()

    def of(self, rows: slice) -> ScoreInputs:
        """Of these rows of queries."""
        return (
            replace(self, chosen=tuple(one[:, rows] for one in self.chosen))
            if self.chosen
            else self
        )


def shape_of(place: OperatorShare) -> AttentionShape:
    """The shape of the place's core."""
    assert place.operator.attention is not None
    return place.operator.attention


def built(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    before: Made | None,
    beside: ScoreInputs,
    *,
    scale: float,
) -> Made:
    """What is made once a block of keys has joined; fine (`boxes.fine`). Scores are held a tile at
    a time (`tiles`).

    Args:
        query: (samples, positions, heads x width).
        before: None: no block has.
        scale: of the products of queries with keys.
    """
    out, normal = _begun(place, query, beside) if before is None else before
    parts = []
    for some, others in _tiles(place, query, keys, beside):
        rows = some.taken
        made, here, own = (
            (out[:, :, rows], normal[:, :, rows]),
            replace(place, positions=some.positions),
            beside.of(rows),
        )
        for other in others:
            made = _joined(here, query[:, rows], keys.of(other), made, own, scale=scale)
        parts.append(made)
    if len(parts) == 1:
        return parts[0]
    return (
        (torch.cat([o for o, _ in parts], dim=2), torch.cat([n for _, n in parts], dim=2))
        if parts
        else (out, normal)
    )


def built_back(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    made: Made,
    grad: torch.Tensor,
    beside: ScoreInputs,
    *,
    scale: float,
) -> tuple[torch.Tensor, Keys, *tuple[torch.Tensor, ...]]:
    """Gradients of queries, of a block of keys and values, and of the table, from what forward made
    of all blocks.

    Args:
        grad: of the output, (samples, heads, queries, width).
    """
    leaves = (query, keys.key, keys.value, *beside.table)
    held = list(_tiles(place, query, keys, beside))
    if [len(others) for _, others in held] == [1] and held[0][1][0].taken.stop == keys.key.shape[1]:
        dq, dk, dv, *more = _gradients(place, query, keys, made, grad, beside, scale=scale)
        return dq, Keys(key=dk, value=dv, positions=keys.positions), *more
    dq, dk, dv, *more = (torch.zeros_like(fine(one)) for one in leaves)
    for some, others in held:
        rows, here, own = (
            some.taken,
            replace(place, positions=some.positions),
            beside.of(some.taken),
        )
        known = made[0][:, :, rows], made[1][:, :, rows]
        for other in others:
            columns = other.taken
            found = _gradients(
                here, query[:, rows], keys.of(other), known, grad[:, :, rows], own, scale=scale
            )
            for whole, part in zip(
                (dq[:, rows], dk[:, columns], dv[:, columns], *more), found, strict=True
            ):
                whole += part
    return (
        dq,
        Keys(key=dk.to(keys.key.dtype), value=dv.to(keys.value.dtype), positions=keys.positions),
        *more,
    )


def _tiles(
    place: OperatorShare, query: torch.Tensor, keys: Keys, beside: ScoreInputs
) -> Iterator[tuple[TileRows, tuple[TileRows, ...]]]:
    each = query.shape[0] * (place.heads[1] - place.heads[0])
    there, accelerated = beside.runs is not None, query.device.type != "cpu"
    return tiles(
        shape_of(place),
        place.positions,
        keys.positions,
        each=each,
        images=there,
        accelerated=accelerated,
    )


def _joined(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    before: Made,
    beside: ScoreInputs,
    *,
    scale: float,
) -> Made:
    """`built` of one tile."""
    out, normal = before
    scores = _scores(place, query, keys, beside, scale=scale)
    total = torch.logaddexp(normal, scores.logsumexp(-1))
    joined, _ = _weighed(place, scores, total, keys.value)
    return out * (normal - _finite(total)).exp().unsqueeze(-1) + joined, total


def _gradients(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    made: Made,
    grad: torch.Tensor,
    beside: ScoreInputs,
    *,
    scale: float,
) -> list[torch.Tensor]:
    """Of queries, keys, values and the table through one tile."""
    out, normal = made
    products = (fine(grad) * out).sum(-1)
    with torch.enable_grad():
        leaves = [detached(one) for one in (query, keys.key, keys.value, *beside.table)]
        own = Keys(key=leaves[1], value=leaves[2], positions=keys.positions)
        scores = _scores(
            place, leaves[0], own, replace(beside, table=tuple(leaves[3:])), scale=scale
        )
        # d scores = p (<gradient, value> - <gradient, output>): the denominator is held fixed and
        # its share taken off.
        return gradients(_weighed(place, scores, normal, leaves[2]), leaves, (grad, -products))


def _begun(place: OperatorShare, query: torch.Tensor, beside: ScoreInputs) -> Made:
    """Of no keys: an output of zeros, and denominators of sinks or of nothing."""
    exact, (low, high) = fine(query.new_empty(0)), place.heads
    sizes = query.shape[0], high - low, query.shape[1]
    normal = exact.new_full(sizes, -torch.inf)
    for sinks in beside.sinks:
        normal = fine(sinks).unsqueeze(-1).expand_as(normal)
    return exact.new_zeros((*sizes, shape_of(place).value_dim)), normal


def _scores(
    place: OperatorShare, query: torch.Tensor, keys: Keys, beside: ScoreInputs, *, scale: float
) -> torch.Tensor:
    """(samples, heads, queries, keys), -inf where a query does not see a key."""
    shape, positions = shape_of(place), numbers(keys.positions, like=query)
    low, high = place.heads
    q = query.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
    k = keys.key.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)[:, _reads(place, query)]
    scores = fine(q @ k.transpose(-1, -2)) * scale
    if shape.soft_cap:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    distance = numbers(place.positions, like=query).unsqueeze(-1) - positions
    if shape.alibi:
        scores = scores - slopes(shape.heads)[low:high].to(scores).view(-1, 1, 1) * distance.abs()
    for rows in beside.table:
        scores = scores + biases(
            fine(rows), distance, mask=shape.mask, reach=place.settings.bias_reach
        )
    seen = visible(shape, distance, positions)
    if beside.runs is not None:
        seen = (seen | in_one_image(place, beside.runs, positions, window=shape.window)).unsqueeze(
            1
        )
    for blocks in beside.chosen:
        seen = seen & selected(place, blocks, positions)
    return scores.masked_fill(~seen, -torch.inf)


def _reads(place: OperatorShare, like: torch.Tensor) -> torch.Tensor:
    """Which local key head each local query head reads."""
    shape = shape_of(place)
    heads = torch.arange(*place.heads, device=like.device)
    return heads * shape.kv_heads // shape.heads - place.kv_heads[0]


def _weighed(
    place: OperatorShare, scores: torch.Tensor, normal: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(exp(scores - normal) V, sum of exp(scores - normal)) by (samples, heads, queries); a query
    that has seen no key has zeros.
    """
    v = value.unflatten(-1, (-1, shape_of(place).value_dim)).transpose(1, 2)[
        :, _reads(place, value)
    ]
    p = (scores - _finite(normal).unsqueeze(-1)).exp()
    return p.to(v.dtype) @ v, p.sum(-1)


def _finite(normal: torch.Tensor) -> torch.Tensor:
    return normal.masked_fill(normal == -torch.inf, 0)


def slopes(heads: int) -> torch.Tensor:
    """ALiBi's slope of every head (Press et al. 2021, arXiv 2108.12409): a geometric sequence,
    filled up from the next power of two.
    """

    def of(count: int) -> torch.Tensor:
        return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64) / count)

    power = 1 << int(log2(heads))
    return (
        of(power) if power == heads else torch.cat([of(power), of(2 * power)[::2][: heads - power]])
    )
