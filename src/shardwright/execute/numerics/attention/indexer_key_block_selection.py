"""Selection of key blocks by an indexer for every query, and the resulting mask (MiniMax-M3)."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    index_tensor,
)
from shardwright.execute.numerics.base.top_k_experts import stable_top_k
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines_and_sines,
    rotary_rates,
    rotary_scale,
    rotate_pairs,
    rotated_pair_count,
)
from shardwright.model.ir.operator import BlockChoice

RULE = "execute.selected"


def select_key_blocks(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """Key blocks each query selects, (samples, queries, heads x k): nearest, then best; -1 pads.

    The heads are the indexer's. Unused entries at the end are -1.

    A block's score is the highest product of the query with one of its keys up to the query's own
    position, both with the attention's rotary positions. The query's own block and the nearest
    blocks before it (`local` in all) precede all others.
    """
    choice, shape = place.operator.choice, place.operator.attention
    assert choice is not None, "only indexers of blocks run"
    assert shape is not None, "an indexer has heads"
    assert place.positions == ((0, place.length),), "cuts of positions are rejected before a step"
    (query, *_), (key, *_) = inputs
    query, key = (_by_head(values, place, choice, width=shape.head_dim) for values in (query, key))
    positions = index_tensor(place.positions, like=query)
    scores = (query @ key.transpose(-1, -2)).masked_fill(
        positions > positions.unsqueeze(-1), -torch.inf
    )
    blocks = (
        functional.pad(scores, (0, -len(positions) % choice.size), value=-torch.inf)
        .unflatten(-1, (-1, choice.size))
        .amax(-1)
    )
    if choice.local:
        local_blocks = (positions // choice.size).unsqueeze(-1) - torch.arange(
            choice.local, device=positions.device
        )
        blocks.scatter_(-1, local_blocks.clamp(min=0).expand(*blocks.shape[:-1], -1), torch.inf)
    selected = stable_top_k(blocks, choice.count)
    selected = selected.masked_fill(blocks.gather(-1, selected) == -torch.inf, -1)
    selected = functional.pad(selected, (0, choice.count - selected.shape[-1]), value=-1)
    return (selected.transpose(1, 2).flatten(2),)


def _by_head(
    x: torch.Tensor, place: OperatorShare, choice: BlockChoice, *, width: int
) -> torch.Tensor:
    """Queries or keys of the indexer, (samples, heads, positions, width), with rotary positions."""
    settings = place.settings
    rates = rotary_rates(
        settings, rotated_pair_count(settings, choice.width), length=place.length, device=x.device
    )
    cos, sin = cosines_and_sines(
        index_tensor(place.positions, like=rates),
        rates,
        scale=rotary_scale(settings),
        dtype=x.dtype,
    )
    return (
        at_least_float32(rotate_pairs(x, cos, sin, width=width))
        .unflatten(-1, (-1, width))
        .transpose(1, 2)
    )


def selected_mask(
    place: OperatorShare, blocks: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """(samples, local heads, queries, keys): True where a query's head sees the key's block.

    Args:
        blocks: see `select_key_blocks`.
        positions: positions of the keys.
    """
    choice, shape = place.operator.choice, place.operator.attention
    assert choice is not None, "only cores whose blocks are known run"
    assert shape is not None, "a core has heads"
    head_blocks = blocks.unflatten(-1, (choice.heads, -1)).transpose(1, 2)
    columns = -(-place.length // choice.size) + 1
    # Entries of -1 go to one more column.
    mask = torch.zeros(
        (*head_blocks.shape[:-1], columns), dtype=torch.bool, device=head_blocks.device
    ).scatter_(-1, head_blocks.remainder(columns), True)
    mask[..., -1] = False
    heads = torch.arange(*place.heads, device=head_blocks.device) * choice.heads // shape.heads
    return mask[:, heads][..., positions // choice.size]


def split_off_selection(
    place: OperatorShare, inputs: tuple[Values, ...]
) -> tuple[tuple[Values, ...], Values]:
    """(other inputs, selected key blocks or () without an indexer); StrategyError for single keys.

    Raises:
        StrategyError: single keys are selected (rule ``execute.selected``).
    """
    shape = place.operator.attention
    assert shape is not None, "a core has heads"
    if not shape.selected:
        return inputs, ()
    if place.operator.choice is None:
        raise StrategyError(
            f"{place.operator.name} attends to single keys that an indexer selects",
            hint="such selections cannot be executed yet",
            rule=RULE,
        )
    return inputs[:-1], inputs[-1]
