"""Grid of an image's patches, and interpolation of position tables to the grid."""

from __future__ import annotations

import torch

from shardwright.errors import DataError
from shardwright.model.ir.numerical_constants import ImageInput, PositionAxes, PositionGrid

CUBIC_SLOPE = -0.75
"""Slope of the cubic interpolation kernel at distance 1."""


def image_grid(image: ImageInput | None, *, patches: int) -> tuple[int, int]:
    """(rows, columns) of patches in a square image; DataError if it is no square of whole blocks.

    Raises:
        DataError: the image is not a square of whole blocks.
    """
    assert image is not None, "the image tower's settings are known"
    grid = image.grid(patches)
    if grid is None:
        raise DataError(
            f"an image of {patches} patches is no square of whole blocks of {image.block[0]} x"
            f" {image.block[1]}",
            hint=(
                f"give square images, of {_next_valid_patches(image, patches)} patches for example:"
                " --image-tokens"
            ),
        )
    return grid


def _next_valid_patches(image: ImageInput, patches: int) -> int:
    """Number of patches of the next larger image that is a square of whole blocks."""
    return next(
        candidate for candidate in range(patches, 2 * patches + 4096**2) if image.grid(candidate)
    )


def patch_coordinates(
    numbers: torch.Tensor, *, columns: int, block: tuple[int, int]
) -> torch.Tensor:
    """(patches, 2) row and column of patches whose numbers count block by block."""
    high, wide = block
    within, number = numbers % (high * wide), numbers // (high * wide)
    across = columns // wide
    return torch.stack(
        [number // across * high + within // wide, number % across * wide + within % wide], dim=-1
    )


def interpolated_rows(
    coordinates: torch.Tensor,
    grid: tuple[int, int],
    table: PositionGrid,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of the table, their weights) for each patch, by interpolation of the table to the grid.

    Both are (patches, rows that count for one); weights of a patch add up to one.

    Args:
        coordinates: (patches, 2) row and column.
        grid: rows and columns of the image; as large as the table, every patch has its own row.
    """
    if grid == (table.rows, table.columns):
        return (coordinates[:, :1] * table.columns + coordinates[:, 1:]), torch.ones(
            len(coordinates), 1, dtype=dtype, device=coordinates.device
        )
    rows, down = _interpolation_along_side(coordinates[:, 0], grid[0], table.rows, table)
    columns, across = _interpolation_along_side(coordinates[:, 1], grid[1], table.columns, table)
    numbers = rows.unsqueeze(2) * table.columns + columns.unsqueeze(1)
    return numbers.flatten(1), (down.unsqueeze(2) * across.unsqueeze(1)).flatten(1).to(dtype)


def rows_by_axis(
    coordinates: torch.Tensor,
    grid: tuple[int, int],
    table: PositionAxes,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(table rows, weights 1), (patches, 2): column and `table.rows` + row; DataError if too large.

    Raises:
        DataError: an image has more rows or columns than a table.
    """
    if max(grid) > table.rows:
        raise DataError(
            f"an image of {grid[0]} x {grid[1]} patches, of which the model knows {table.rows}"
            " positions along a side",
            hint="give smaller images: --image-tokens",
        )
    numbers = torch.stack([coordinates[:, 1], coordinates[:, 0] + table.rows], dim=-1)
    return numbers, torch.ones(numbers.shape, dtype=dtype, device=coordinates.device)


def _interpolation_along_side(
    coordinates: torch.Tensor, size: int, table_size: int, table: PositionGrid
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers, weights) of table places near each image place, along one side.

    Beyond an end, the last place is used.
    """
    exact = coordinates.to(torch.float64)
    exact = (
        exact * ((table_size - 1) / max(size - 1, 1))
        if table.corners
        else (exact + 0.5) * (table_size / size) - 0.5
    )
    reach = 2 if table.cubic else 1
    near = exact.floor().unsqueeze(1) + torch.arange(
        1 - reach, reach + 1, device=coordinates.device
    )
    distance = (exact.unsqueeze(1) - near).abs()
    weights = _cubic_weights(distance) if table.cubic else 1.0 - distance
    return near.long().clamp(0, table_size - 1), weights


def _cubic_weights(distance: torch.Tensor) -> torch.Tensor:
    """Keys' cubic kernel for distances 0 to 2, with slope -0.75 at 1: 1 at 0, and 0 at 1 and 2."""
    squared, cubed = distance**2, distance**3
    inner = (CUBIC_SLOPE + 2) * cubed - (CUBIC_SLOPE + 3) * squared + 1
    outer = CUBIC_SLOPE * (cubed - 5 * squared + 8 * distance - 4)
    return torch.where(distance <= 1, inner, outer)
