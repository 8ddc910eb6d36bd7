"""Attention mask of image tokens in a text: an image's tokens see each other in both directions.

Gemma 3 and 4 use it.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)


def image_run_numbers(ids: torch.Tensor, *, token: int) -> torch.Tensor:
    """Number, from 0 in each sample, of the image-token run that holds each position; -1 for text.

    Args:
        ids: (samples, positions), whole texts.
        token: the token id at the places of an image.

    Worked: with 9 as token, 9 9 3 9 have the run numbers 0 0 -1 1.
    """
    places = ids == token
    begins = places.clone()
    begins[:, 1:] &= ~places[:, :-1]
    return torch.where(places, begins.cumsum(1) - 1, -1)


def same_image_mask(
    place: OperatorShare, runs: torch.Tensor, positions: torch.Tensor, *, window: int
) -> torch.Tensor:
    """(samples, queries, keys): True if in one image run and query - key < `window` (0: no limit).

    The key must not be further before the query than the window.

    Args:
        runs: run numbers of the device's samples, at all positions.
        positions: positions of the keys.
        window: maximum number of keys that a query sees; 0 = all.
    """
    own_positions = index_tensor(place.positions, like=runs)
    query_runs, key_runs = runs[:, own_positions].unsqueeze(-1), runs[:, positions].unsqueeze(-2)
    same_run = (query_runs == key_runs) & (query_runs >= 0)
    return same_run & (own_positions.unsqueeze(-1) - positions < window) if window else same_run
