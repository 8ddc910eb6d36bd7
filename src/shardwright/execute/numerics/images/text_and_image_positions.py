"""Positions of the tokens of a text with an image in it: time, row and column, by which pairs of
rotary elements turn.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.images.patch_grid import grid_of
from shardwright.model.ir.settings import ImageInput


def text_positions(ids: torch.Tensor, image: ImageInput | None, *, patches: int) -> torch.Tensor:
    """(samples, positions, 3) of texts with an image of so many patches each.

    Raises:
        DataError: the image is no square of whole blocks.
    """
    assert image is not None, "only of models whose images are known"
    rows, columns = grid_of(image, patches=patches)
    return grid_positions(
        ids, token=image.token, grid=(rows // image.block[0], columns // image.block[1])
    )


def grid_positions(ids: torch.Tensor, *, token: int, grid: tuple[int, int]) -> torch.Tensor:
    """(samples, positions, 3) time, row and column of every token.

    Words have one position three times, which counts up. The k-th place of an image that begins at
    position p has time p, row p + k // columns and column p + k % columns; words behind it go on at
    p + max(rows, columns).

    Args:
        ids: (samples, positions), whole texts, whose places are one row of as many as the grid has
            (`image_places.require_written`).
        token: of places of image tokens.
        grid: rows and columns of them.
    """
    rows, columns = grid
    places = ids == token
    counts, first = places.sum(1, keepdim=True), places.int().argmax(1, keepdim=True)
    number = torch.arange(ids.shape[1], device=ids.device) - first
    behind = torch.where(counts > 0, max(rows, columns) - counts, 0)
    plain = (number + first + torch.where(number >= counts, behind, 0)).unsqueeze(-1)
    of_image = first.unsqueeze(-1) + torch.stack(
        [torch.zeros_like(number), number // columns, number % columns], dim=-1
    )
    return torch.where(places.unsqueeze(-1), of_image, plain)
