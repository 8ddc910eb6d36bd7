"""Tokens of one image in a text, which may see each other whatever their order (Gemma 3 and 4)."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.local_tensors import numbers
from shardwright.execute.transport.torch_device import OperatorShare


def image_runs(ids: torch.Tensor, *, token: int) -> torch.Tensor:
    """Of every token of a text, the number of the run of image tokens that it is in; -1: of none.

    Args:
        ids: (samples, positions), whole texts.
        token: the one that stands in the places of an image.

    Worked: with 9 as token, 9 9 3 9 are of the runs 0 0 -1 1.
    """
    places = ids == token
    begins = places.clone()
    begins[:, 1:] &= ~places[:, :-1]
    return torch.where(places, begins.cumsum(1) - 1, -1)


def in_one_image(
    place: OperatorShare, runs: torch.Tensor, positions: torch.Tensor, *, window: int
) -> torch.Tensor:
    """(samples, queries, keys) whether query and key are of one run, and the key not so far before
    the query that a window leaves it out.

    Args:
        runs: of the device's samples, all positions.
        positions: of the keys.
        window: keys that a query sees at most; 0 = all.
    """
    own = numbers(place.positions, like=runs)
    asking, asked = runs[:, own].unsqueeze(-1), runs[:, positions].unsqueeze(-2)
    together = (asking == asked) & (asking >= 0)
    return together & (own.unsqueeze(-1) - positions < window) if window else together
