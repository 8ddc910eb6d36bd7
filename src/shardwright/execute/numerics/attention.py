"""softmax(Q K^T) V with every mask of the catalog, keys of the device's positions, gathered from its group or passed round a ring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

import torch

from shardwright.execute.numerics.boxes import fine, given, hollow, numbers, returned
from shardwright.execute.numerics.distances import biases
from shardwright.execute.numerics.fused_core import fused, fused_back, is_fused
from shardwright.execute.numerics.groups import members
from shardwright.execute.numerics.keys import Keys, gathered, own_positions, passed, sent_back
from shardwright.execute.numerics.local import detached, gradients
from shardwright.execute.numerics.one_image import in_one_image
from shardwright.execute.numerics.protocol import Gradients, SavedTensors, Values, Weights
from shardwright.execute.numerics.selection import selected, selection_of
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import AttentionShape, Mask
from shardwright.model.ir.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The core: local query heads against the key heads that they read.

    Scores are divided by the root of a key head's width (unless they are plain), and multiplied with the settings' factor.
    Inputs: q k v in one, or q and (k, v) in two (cross-attention: keys' positions are the memory's). Keys may be those of more positions
    than the queries (`Place.key_positions`). Where an indexer selects keys, what it selected comes behind the other inputs
    (`selection_of`); of a core that sees images, the runs of image tokens (`image_runs`).
    Where positions are split, keys and values are passed round (`groups["ring"]`; in backward with the gradients that their owner is to
    get), or gathered from all members and gathered again in backward (`groups["gather"]`).
    The gradient of a table of biases by distance is a sum of the scores' cotangents: it is found with the input gradient, where the keys of
    all positions pass by, and given out as the weight's.
    The softmax is built up block by block of keys (Dao et al. 2022, arXiv 2205.14135, section 3.1; Liu et al. 2023, arXiv 2310.01889);
    its output and the logarithm of its denominator are kept. PyTorch's kernel does it where it can (`fused_core`), forward and backward.
    """

    def forward(self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: as `selection_of`.
        """
        shape = shape_of(place)
        inputs, chosen = selection_of(place, inputs)
        query, key, value = _parts(inputs)
        query = tempered(place, query)
        kept = tuple(tuple(v if i < 3 else hollow(v) for i, v in enumerate(values)) for values in inputs)
        if is_fused(place, (query, key, value)):
            out, normal = fused(place, (query, key, value), scale=_scale(place))
            return (out,), SavedTensors(inputs=kept, own=(out, normal))
        low, high = place.heads
        exact = fine(query.new_empty(0))
        normal = exact.new_full((*query.shape[:2], high - low), -torch.inf)
        if shape.sinks:
            normal = fine(weights[place.operator.parameters[0].name]).expand_as(normal)
        beside = _beside(place, inputs, weights, chosen)
        out = exact.new_zeros((*query.shape[:2], high - low, shape.value_dim))
        keys = yield from gathered(place, Keys(key=key, value=value, positions=_own_positions(place, key)), what="keys")
        for step in range(max(len(members(place, "ring")), 1)):
            if step:
                keys = yield from passed(place, keys, step, what="keys")
            out, normal = _more(place, query, keys, out, normal, beside)
        out = out.flatten(-2).to(query.dtype)
        return (out,), SavedTensors(inputs=kept, own=(out, normal, *(torch.zeros_like(fine(t)) for t in beside.table), *chosen))

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        query, key, value = _parts(saved.inputs)
        query = tempered(place, query)
        out, normal, learned, chosen = _kept(place, saved)
        if is_fused(place, (query, key, value)):
            dq, dk, dv = fused_back(place, (query, key, value), out, normal, given(grads[0]), scale=_scale(place))
            return _returned(saved, tempered(place, dq), dk, dv)
        products, beside = _by_head(place, fine(given(grads[0])) * out), _beside(place, saved.inputs, weights, chosen)
        own = yield from gathered(place, Keys(key=key, value=value, positions=_own_positions(place, key)), what="keys again")
        dq, of_own, *found = _back(place, query, own, normal, given(grads[0]), products, beside)
        _added(learned, found)
        keys, of_others = own, None
        size = len(members(place, "ring"))
        for step in range(1, size):
            keys = yield from passed(place, keys, step, what="keys again")
            if of_others is not None:
                of_others = yield from passed(place, of_others, step, what="key gradients")
            more, of_these, *found = _back(place, query, keys, normal, given(grads[0]), products, beside)
            dq, of_others = dq + more, of_these if of_others is None else of_others.plus(of_these)
            _added(learned, found)
        if of_others is not None:
            of_own = of_own.plus((yield from passed(place, of_others, size, what="key gradients")))
        dk, dv = yield from sent_back(place, of_own, key.shape[1])
        return _returned(saved, tempered(place, dq), dk, dv)

    def weight_grad(self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`: of a sink, -p(sink) x <output, its gradient>, summed over tokens; of a table what the input gradient found."""
        yield from ()
        found = {}
        out, normal, learned, _ = _kept(place, saved)
        if shape_of(place).sinks:
            name = place.operator.parameters[0].name
            share = (fine(weights[name]) - normal).exp()
            found[name] = -(share * _by_head(place, fine(given(grads[0])) * out)).sum((0, 1))
        if place.operator.distances is not None:
            (found[place.operator.distances.name],) = learned
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What scores depend on beside queries, keys and their positions.

    Args:
        table: of biases by distance, (rows, local heads), where there is one. runs: of image tokens, (samples, all positions), or None.
        chosen: keys that an indexer selected (`selection_of`), where one does.
    """

    table: tuple[torch.Tensor, ...]
    runs: torch.Tensor | None
    chosen: Values


def _beside(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights, chosen: Values) -> _Beside:
    distances = place.operator.distances
    return _Beside(
        table=() if distances is None else (weights[distances.name],),
        runs=inputs[-1][0] if place.operator.sees_images else None,
        chosen=chosen,
    )


def _kept(place: OperatorShare, saved: SavedTensors) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], Values]:
    """(output, logarithm of the denominator, what scores say of the table of biases, the selection of keys); the last two where there are
    some.
    """
    out, normal, *others = saved.own
    return (out, normal, [], tuple(others)) if shape_of(place).selected else (out, normal, others, ())


def _added(learned: list[torch.Tensor], found: list[torch.Tensor]) -> None:
    """Add what the scores of one block of keys say of the table to what those before said."""
    for total, more in zip(learned, found, strict=True):
        total += more


def _returned(saved: SavedTensors, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> tuple[Gradients, ...]:
    if len(saved.inputs[0]) > 2:
        return (returned(saved.inputs[0], {0: dq, 1: dk, 2: dv}),)
    return returned(saved.inputs[0], {0: dq}), returned(saved.inputs[1], {0: dk, 1: dv})


def shape_of(place: OperatorShare) -> AttentionShape:
    """The shape of the place's core."""
    assert place.operator.attention is not None
    return place.operator.attention


def growth(positions: torch.Tensor, temper: tuple[float, float]) -> torch.Tensor:
    """What queries are multiplied with: 1 + strength ln(1 + floor((p + 1) / every)) at position p, in float64.

    Args:
        temper: (every, strength).

    Worked: with (8192, 0.1) the first 8,191 queries are as they were, the next 8,192 are 1.069 times as long.

    Sources: Nakanishi 2025 (arXiv 2501.19399) for a factor that grows with the logarithm of the length; this form is of Llama 4's
    configuration class in Transformers (``attn_temperature_tuning``).
    """
    every, strength = temper
    return 1.0 + strength * torch.log1p(torch.floor((positions.to(torch.float64) + 1.0) / every))


def tempered(place: OperatorShare, query: torch.Tensor) -> torch.Tensor:
    """Queries (samples, positions, ..), or their gradients, times their `growth`, where they grow with their position."""
    if not place.operator.tempered:
        return query
    factors = growth(numbers(place.positions, like=query), place.settings.temper)
    return query * factors.to(query.dtype).view(1, -1, *(1,) * (query.dim() - 2))


def _scale(place: OperatorShare) -> float:
    """What products of queries with keys are multiplied by."""
    return score_scale(shape_of(place), place.settings)


def score_scale(shape: AttentionShape, settings: Settings) -> float:
    """The settings' factor over the root of a key head's width; the factor alone where scores are plain."""
    return float(settings.score_factor if settings.plain_scores else shape.head_dim**-0.5 * settings.score_factor)


def _scores(place: OperatorShare, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, beside: _Beside) -> torch.Tensor:
    """(samples, heads, queries, keys), -inf where a query does not see a key.

    Args:
        key: (samples, keys, local key heads x width). positions: of the keys, global.
    """
    shape = shape_of(place)
    low, high = place.heads
    q = query.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
    k = key.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)[:, _reads(place, query)]
    scores = fine(q @ k.transpose(-1, -2)) * _scale(place)
    if shape.soft_cap:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    distance = numbers(place.positions, like=query).unsqueeze(-1) - positions
    if shape.alibi:
        scores = scores - slopes(shape.heads)[low:high].to(scores).view(-1, 1, 1) * distance.abs()
    for rows in beside.table:
        scores = scores + biases(fine(rows), distance, mask=shape.mask, reach=place.settings.bias_reach)
    seen = visible(shape, distance, positions)
    if beside.runs is not None:
        seen = (seen | in_one_image(place, beside.runs, positions, window=shape.window)).unsqueeze(1)
    for blocks in beside.chosen:
        seen = seen & selected(place, blocks, positions)
    return scores.masked_fill(~seen, -torch.inf)


def _reads(place: OperatorShare, like: torch.Tensor) -> torch.Tensor:
    """Which local key head each local query head reads."""
    shape = shape_of(place)
    heads = torch.arange(*place.heads, device=like.device)
    return heads * shape.kv_heads // shape.heads - place.kv_heads[0]


def _weighed(place: OperatorShare, scores: torch.Tensor, normal: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(exp(scores - normal) V, sum of exp(scores - normal)) by (samples, queries, heads); a query that has seen no key has zeros."""
    v = value.unflatten(-1, (-1, shape_of(place).value_dim)).transpose(1, 2)[:, _reads(place, value)]
    p = (scores - _finite(normal).transpose(1, 2).unsqueeze(-1)).exp()
    return (p.to(v.dtype) @ v).transpose(1, 2), p.sum(-1).transpose(1, 2)


def _finite(normal: torch.Tensor) -> torch.Tensor:
    return normal.masked_fill(normal == -torch.inf, 0)


def _more(
    place: OperatorShare, query: torch.Tensor, keys: Keys, out: torch.Tensor, normal: torch.Tensor, beside: _Beside
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the logarithm of the denominator once a block of keys has joined."""
    scores = _scores(place, query, keys.key, keys.positions, beside)
    total = torch.logaddexp(normal, scores.logsumexp(-1).transpose(1, 2))
    joined, _ = _weighed(place, scores, total, keys.value)
    return out * (normal - _finite(total)).exp().unsqueeze(-1) + joined, total


def _back(
    place: OperatorShare,
    query: torch.Tensor,
    keys: Keys,
    normal: torch.Tensor,
    grad: torch.Tensor,
    products: torch.Tensor,
    beside: _Beside,
) -> tuple[torch.Tensor, Keys, *tuple[torch.Tensor, ...]]:
    """(gradient of the queries, of a block of keys and values, of the table), from the whole softmax's denominator and <output, its
    gradient>.
    """
    with torch.enable_grad():
        leaves = [detached(one) for one in (query, keys.key, keys.value, *beside.table)]
        own = replace(beside, table=tuple(leaves[3:]))
        found = _weighed(place, _scores(place, leaves[0], leaves[1], keys.positions, own), normal, leaves[2])
        # d scores = p (<gradient, value> - <gradient, output>): the denominator is held fixed and its share taken off.
        dq, dk, dv, *more = gradients(found, leaves, (grad.unflatten(-1, (-1, shape_of(place).value_dim)), -products))
    return dq, Keys(key=dk, value=dv, positions=keys.positions), *more


def _by_head(place: OperatorShare, elements: torch.Tensor) -> torch.Tensor:
    return elements.unflatten(-1, (-1, shape_of(place).value_dim)).sum(-1)


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


def _own_positions(place: OperatorShare, like: torch.Tensor) -> torch.Tensor:
    return numbers(own_positions(place), like=like)
