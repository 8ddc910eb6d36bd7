"""Positions of the tokens of a text with images, by time, row and column (M-RoPE)."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import image_grid
from shardwright.model.ir.numerical_constants import ImageInput


def text_image_positions(
    ids: torch.Tensor, image: ImageInput | None, *, patches: int
) -> torch.Tensor:
    """(samples, positions, 3): M-RoPE time, row, column; DataError unless `patches` are a square.

    Raises:
        DataError: the image is no square of whole blocks.
    """
    assert image is not None, "the model's image settings are known"
    rows, columns = image_grid(image, patches=patches)
    return grid_positions(
        ids, token=image.token, grid=(rows // image.block[0], columns // image.block[1])
    )


def grid_positions(ids: torch.Tensor, *, token: int, grid: tuple[int, int]) -> torch.Tensor:
    """(samples, positions, 3): time, row and column of every token (M-RoPE).

    Text tokens have the same number three times, which counts up. The k-th token of an image that
    begins at position p has time p, row p + k // columns and column p + k % columns; the text after
    it continues at p + max(rows, columns).

    Args:
        ids: (samples, positions), whole texts, whose places are one row of as many as the grid has
            (`require_image_positions`).
        token: token id at places of image tokens.
        grid: number of rows and columns of image tokens.
    """
    rows, columns = grid
    places = ids == token
    counts, first_place = places.sum(1, keepdim=True), places.int().argmax(1, keepdim=True)
    offset = torch.arange(ids.shape[1], device=ids.device) - first_place
    shift = torch.where(counts > 0, max(rows, columns) - counts, 0)
    text_position = (offset + first_place + torch.where(offset >= counts, shift, 0)).unsqueeze(-1)
    image_position = first_place.unsqueeze(-1) + torch.stack(
        [torch.zeros_like(offset), offset // columns, offset % columns], dim=-1
    )
    return torch.where(places.unsqueeze(-1), image_position, text_position)
