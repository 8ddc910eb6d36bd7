"""Attention computed from its scores tile by tile, for operators that no fused kernel supports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2

import torch

from shardwright.execute.numerics.attention.image_token_mask import same_image_mask
from shardwright.execute.numerics.attention.indexer_key_block_selection import selected_mask
from shardwright.execute.numerics.attention.key_value_exchange import KeyBlock
from shardwright.execute.numerics.attention.learned_distance_bias import distance_biases
from shardwright.execute.numerics.attention.merge_fused_attention_calls import PartialAttention
from shardwright.execute.numerics.attention.position_masks import visibility_mask
from shardwright.execute.numerics.attention.split_queries_and_keys_into_tiles import (
    TileRows,
    score_tiles,
)
from shardwright.execute.numerics.base.operator_protocol import Values
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.operator_with_autograd_backward import (
    autograd_gradients,
    detached_leaf,
)
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    index_tensor,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import AttentionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInputs:
    """Inputs of attention scores other than queries, keys and their positions.

    Args:
        table: biases by distance, (rows, local heads), if there are any.
        sinks: for every local head, the logarithm of its denominators' initial value, where there
            are sinks.
        runs: numbers of the runs of image tokens, (samples, all positions), or None.
        chosen: keys that an indexer selected (`split_off_selection`), where one does.
    """

    table: tuple[torch.Tensor, ...] = ()
    sinks: tuple[torch.Tensor, ...] = ()
    runs: torch.Tensor | None = None
    chosen: Values = ()

    def of_rows(self, rows: slice) -> ScoreInputs:
        """Score inputs with the key selection cut to the query rows `rows`; all else unchanged."""
        return (
            replace(self, chosen=tuple(blocks[:, rows] for blocks in self.chosen))
            if self.chosen
            else self
        )


def shape_of(place: OperatorShare) -> AttentionShape:
    """Attention shape of the share's operator: heads of all devices, widths, mask, window."""
    assert place.operator.attention is not None
    return place.operator.attention


def unfused_attention(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    earlier: PartialAttention | None,
    score_inputs: ScoreInputs,
    *,
    scale: float,
) -> PartialAttention:
    """(output, log denominators) after one more block of keys, from explicit scores.

    The result is float32 or wider. Scores are computed a tile at a time (`score_tiles`).

    Args:
        query: (samples, positions, heads x width).
        earlier: attention over the blocks before; None: this is the first block.
        scale: factor of the products of queries with keys.
    """
    out, normal = _no_keys_yet(place, query, score_inputs) if earlier is None else earlier
    parts = []
    for query_rows, key_tiles in _tiles(place, query, keys, score_inputs):
        rows = query_rows.taken
        attended, row_share, row_inputs = (
            (out[:, :, rows], normal[:, :, rows]),
            replace(place, positions=query_rows.positions),
            score_inputs.of_rows(rows),
        )
        for key_rows in key_tiles:
            attended = _merge_tile(
                row_share, query[:, rows], keys.rows(key_rows), attended, row_inputs, scale=scale
            )
        parts.append(attended)
    if len(parts) == 1:
        return parts[0]
    return (
        (torch.cat([o for o, _ in parts], dim=2), torch.cat([n for _, n in parts], dim=2))
        if parts
        else (out, normal)
    )


def unfused_attention_backward(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    attended: PartialAttention,
    grad: torch.Tensor,
    score_inputs: ScoreInputs,
    *,
    scale: float,
) -> tuple[torch.Tensor, KeyBlock, *tuple[torch.Tensor, ...]]:
    """(query gradient, KeyBlock of key and value gradients, *bias table gradient if any).

    They follow from forward's result over all blocks.

    Args:
        grad: gradient of the output, (samples, heads, queries, width).
    """
    leaves = (query, keys.key, keys.value, *score_inputs.table)
    query_tiles = list(_tiles(place, query, keys, score_inputs))
    if [len(key_tiles) for _, key_tiles in query_tiles] == [1] and query_tiles[0][1][
        0
    ].taken.stop == keys.key.shape[1]:
        dq, dk, dv, *table_grads = _tile_gradients(
            place, query, keys, attended, grad, score_inputs, scale=scale
        )
        return dq, KeyBlock(key=dk, value=dv, positions=keys.positions), *table_grads
    dq, dk, dv, *table_grads = (torch.zeros_like(at_least_float32(leaf)) for leaf in leaves)
    for query_rows, key_tiles in query_tiles:
        rows, row_share, row_inputs = (
            query_rows.taken,
            replace(place, positions=query_rows.positions),
            score_inputs.of_rows(query_rows.taken),
        )
        row_attended = attended[0][:, :, rows], attended[1][:, :, rows]
        for key_rows in key_tiles:
            columns = key_rows.taken
            tile_grads = _tile_gradients(
                row_share,
                query[:, rows],
                keys.rows(key_rows),
                row_attended,
                grad[:, :, rows],
                row_inputs,
                scale=scale,
            )
            for total, tile_grad in zip(
                (dq[:, rows], dk[:, columns], dv[:, columns], *table_grads), tile_grads, strict=True
            ):
                total += tile_grad
    return (
        dq,
        KeyBlock(
            key=dk.to(keys.key.dtype), value=dv.to(keys.value.dtype), positions=keys.positions
        ),
        *table_grads,
    )


def _tiles(
    place: OperatorShare, query: torch.Tensor, keys: KeyBlock, score_inputs: ScoreInputs
) -> Iterator[tuple[TileRows, tuple[TileRows, ...]]]:
    """Iterate over (query rows, key rows that they may see) in tiles of limited score memory."""
    scores_per_pair = query.shape[0] * (place.heads[1] - place.heads[0])
    images, accelerated = score_inputs.runs is not None, query.device.type != "cpu"
    return score_tiles(
        shape_of(place),
        place.positions,
        keys.positions,
        scores_per_pair=scores_per_pair,
        images=images,
        accelerated=accelerated,
    )


def _merge_tile(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    earlier: PartialAttention,
    score_inputs: ScoreInputs,
    *,
    scale: float,
) -> PartialAttention:
    """(output, log denominators) of a tile of queries after one more tile of keys."""
    out, normal = earlier
    scores = _scores(place, query, keys, score_inputs, scale=scale)
    total = torch.logaddexp(normal, scores.logsumexp(-1))
    joined, _ = _weighted_values(place, scores, total, keys.value)
    return out * (normal - _finite(total)).exp().unsqueeze(-1) + joined, total


def _tile_gradients(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    attended: PartialAttention,
    grad: torch.Tensor,
    score_inputs: ScoreInputs,
    *,
    scale: float,
) -> list[torch.Tensor]:
    """Gradients of queries, keys, values and, if there is one, the bias table, through one tile."""
    out, normal = attended
    products = (at_least_float32(grad) * out).sum(-1)
    with torch.enable_grad():
        leaves = [
            detached_leaf(leaf) for leaf in (query, keys.key, keys.value, *score_inputs.table)
        ]
        key_leaves = KeyBlock(key=leaves[1], value=leaves[2], positions=keys.positions)
        scores = _scores(
            place,
            leaves[0],
            key_leaves,
            replace(score_inputs, table=tuple(leaves[3:])),
            scale=scale,
        )
        # d scores = p (<gradient, value> - <gradient, output>): the denominator is constant
        # here, and its share is subtracted.
        return autograd_gradients(
            _weighted_values(place, scores, normal, leaves[2]), leaves, (grad, -products)
        )


def _no_keys_yet(
    place: OperatorShare, query: torch.Tensor, score_inputs: ScoreInputs
) -> PartialAttention:
    """Start of online softmax: zero output, and log denominators -inf or of the sinks."""
    like, (low, high) = at_least_float32(query.new_empty(0)), place.heads
    sizes = query.shape[0], high - low, query.shape[1]
    normal = like.new_full(sizes, -torch.inf)
    for sinks in score_inputs.sinks:
        normal = at_least_float32(sinks).unsqueeze(-1).expand_as(normal)
    return like.new_zeros((*sizes, shape_of(place).value_dim)), normal


def _scores(
    place: OperatorShare,
    query: torch.Tensor,
    keys: KeyBlock,
    score_inputs: ScoreInputs,
    *,
    scale: float,
) -> torch.Tensor:
    """Attention scores, (samples, heads, queries, keys), -inf where a query does not see a key."""
    shape, positions = shape_of(place), index_tensor(keys.positions, like=query)
    low, high = place.heads
    q = query.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
    k = keys.key.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)[
        :, _key_head_of_query_head(place, query)
    ]
    scores = at_least_float32(q @ k.transpose(-1, -2)) * scale
    if shape.soft_cap:
        scores = shape.soft_cap * torch.tanh(scores / shape.soft_cap)
    distance = index_tensor(place.positions, like=query).unsqueeze(-1) - positions
    if shape.alibi:
        scores = (
            scores - alibi_slopes(shape.heads)[low:high].to(scores).view(-1, 1, 1) * distance.abs()
        )
    for rows in score_inputs.table:
        scores = scores + distance_biases(
            at_least_float32(rows), distance, mask=shape.mask, reach=place.settings.bias_reach
        )
    mask = visibility_mask(shape, distance, positions)
    if score_inputs.runs is not None:
        mask = (
            mask | same_image_mask(place, score_inputs.runs, positions, window=shape.window)
        ).unsqueeze(1)
    for blocks in score_inputs.chosen:
        mask = mask & selected_mask(place, blocks, positions)
    return scores.masked_fill(~mask, -torch.inf)


def _key_head_of_query_head(place: OperatorShare, like: torch.Tensor) -> torch.Tensor:
    """Number of the local key head that each local query head reads."""
    shape = shape_of(place)
    heads = torch.arange(*place.heads, device=like.device)
    return heads * shape.kv_heads // shape.heads - place.kv_heads[0]


def _weighted_values(
    place: OperatorShare, scores: torch.Tensor, normal: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(exp(scores - normal) V, sum of exp(scores - normal)) by (samples, heads, queries).

    A query that has seen no key has zeros.
    """
    v = value.unflatten(-1, (-1, shape_of(place).value_dim)).transpose(1, 2)[
        :, _key_head_of_query_head(place, value)
    ]
    p = (scores - _finite(normal).unsqueeze(-1)).exp()
    return p.to(v.dtype) @ v, p.sum(-1)


def _finite(normal: torch.Tensor) -> torch.Tensor:
    """Log denominators, with -inf (queries without keys) replaced by 0."""
    return normal.masked_fill(normal == -torch.inf, 0)


def alibi_slopes(heads: int) -> torch.Tensor:
    """ALiBi slope of every head (Press et al. 2021, arXiv 2108.12409).

    A geometric sequence, completed from the next power of two.
    """

    def geometric(count: int) -> torch.Tensor:
        """ALiBi slopes 2^(-8 i / count) of heads i = 1 to `count`."""
        return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64) / count)

    power = 1 << int(log2(heads))
    return (
        geometric(power)
        if power == heads
        else torch.cat([geometric(power), geometric(2 * power)[::2][: heads - power]])
    )
