"""Blocks of keys that an indexer selects for every query, and what of them its core sees
(MiniMax-M3).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.local_tensors import fine, numbers
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.numerics.base.top_k_choice import highest
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines,
    rotary_rates,
    rotary_scale,
    turned,
    turned_pairs,
)
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import BlockChoice

RULE = "execute.selected"


def chosen_blocks(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """(samples, positions, scorer's heads x blocks) numbers of blocks that a query's heads see, -1
    behind the last of fewer.

    A block scores the highest product of the query with one of its keys up to the query's own, both
    turned as those of the core; the query's own block and the nearest before it, so many as are
    local, go before all others.
    """
    choice, shape = place.operator.choice, place.operator.attention
    assert choice is not None, "only indexers of blocks run"
    assert shape is not None, "an indexer has heads"
    assert place.positions == ((0, place.length),), "cuts of positions are refused before a step"
    (query, *_), (key, *_) = inputs
    query, key = (_by_head(one, place, choice, width=shape.head_dim) for one in (query, key))
    at = numbers(place.positions, like=query)
    scores = (query @ key.transpose(-1, -2)).masked_fill(at > at.unsqueeze(-1), -torch.inf)
    blocks = (
        functional.pad(scores, (0, -len(at) % choice.size), value=-torch.inf)
        .unflatten(-1, (-1, choice.size))
        .amax(-1)
    )
    if choice.local:
        near = (at // choice.size).unsqueeze(-1) - torch.arange(choice.local, device=at.device)
        blocks.scatter_(-1, near.clamp(min=0).expand(*blocks.shape[:-1], -1), torch.inf)
    best = highest(blocks, choice.count)
    best = best.masked_fill(blocks.gather(-1, best) == -torch.inf, -1)
    best = functional.pad(best, (0, choice.count - best.shape[-1]), value=-1)
    return (best.transpose(1, 2).flatten(2),)


def _by_head(
    x: torch.Tensor, place: OperatorShare, choice: BlockChoice, *, width: int
) -> torch.Tensor:
    """(samples, heads, positions, width), turned."""
    settings = place.settings
    rates = rotary_rates(
        settings, turned_pairs(settings, choice.width), length=place.length, on=x.device
    )
    cos, sin = cosines(
        numbers(place.positions, like=rates), rates, scale=rotary_scale(settings), dtype=x.dtype
    )
    return fine(turned(x, cos, sin, width=width)).unflatten(-1, (-1, width)).transpose(1, 2)


def selected(place: OperatorShare, blocks: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(samples, local heads, queries, keys) whether a query's head sees the block of a key.

    Args:
        blocks: see `chosen_blocks`.
        positions: of the keys.
    """
    choice, shape = place.operator.choice, place.operator.attention
    assert choice is not None, "only cores whose blocks are known run"
    assert shape is not None, "a core has heads"
    own = blocks.unflatten(-1, (choice.heads, -1)).transpose(1, 2)
    most = -(-place.length // choice.size) + 1
    # What is behind the last block lies in a column of its own.
    seen = torch.zeros((*own.shape[:-1], most), dtype=torch.bool, device=own.device).scatter_(
        -1, own.remainder(most), True
    )
    seen[..., -1] = False
    heads = torch.arange(*place.heads, device=own.device) * choice.heads // shape.heads
    return seen[:, heads][..., positions // choice.size]


def selection_of(
    place: OperatorShare, inputs: tuple[Values, ...]
) -> tuple[tuple[Values, ...], Values]:
    """(inputs without the selection, the selection where keys are selected).

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
