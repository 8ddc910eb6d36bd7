"""An image's grid of patches: rows and columns of patches, and rows of position tables interpolated
to the grid.
"""

from __future__ import annotations

import torch

from shardwright.errors import DataError
from shardwright.model.ir.operator_constants import ImageInput, PositionAxes, PositionGrid

SHARP = -0.75
"""Slope of the cubic kernel at distance 1."""


def image_grid(image: ImageInput | None, *, patches: int) -> tuple[int, int]:
    """Rows and columns of an image of `patches` patches.

    Raises:
        DataError: it is not a square of whole blocks.
    """
    assert image is not None, "only of towers whose numbers are known"
    grid = image.grid(patches)
    if grid is None:
        raise DataError(
            f"an image of {patches} patches is no square of whole blocks of {image.block[0]} x"
            f" {image.block[1]}",
            hint=(
                f"give square images, of {_near(image, patches)} patches for example:"
                " --image-tokens"
            ),
        )
    return grid


def _near(image: ImageInput, patches: int) -> int:
    """Patches of the next larger image that is a square of whole blocks."""
    return next(
        candidate for candidate in range(patches, 2 * patches + 4096**2) if image.grid(candidate)
    )


def patch_coordinates(
    numbers: torch.Tensor, *, columns: int, block: tuple[int, int]
) -> torch.Tensor:
    """(patches, 2) row and column of the patches with these numbers, which are counted block by
    block.
    """
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
    """(rows of the table, their weights), each (patches, rows that count for one): weights of a
    patch add up to one.

    Args:
        coordinates: (patches, 2) row and column.
        grid: rows and columns of the image; as large as the table, every patch has its own row.
    """
    if grid == (table.rows, table.columns):
        return (coordinates[:, :1] * table.columns + coordinates[:, 1:]), torch.ones(
            len(coordinates), 1, dtype=dtype, device=coordinates.device
        )
    rows, down = _along(coordinates[:, 0], grid[0], table.rows, table)
    columns, across = _along(coordinates[:, 1], grid[1], table.columns, table)
    numbers = rows.unsqueeze(2) * table.columns + columns.unsqueeze(1)
    return numbers.flatten(1), (down.unsqueeze(2) * across.unsqueeze(1)).flatten(1).to(dtype)


def rows_by_axis(
    coordinates: torch.Tensor,
    grid: tuple[int, int],
    table: PositionAxes,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of the tables, their weights), each (patches, 2): a patch's column in the first table,
    and its row in the second.

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


def _along(
    coordinates: torch.Tensor, size: int, table_size: int, table: PositionGrid
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers, weights) along one side: the places of the table near each of `size` places of the
    image; beyond an end the last place is used.
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
    weights = _cubic(distance) if table.cubic else 1.0 - distance
    return near.long().clamp(0, table_size - 1), weights


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Keys' kernel: 1 at distance 0, 0 at 1 and from 2 on, with its slope."""
    squared, cubed = distance**2, distance**3
    inner = (SHARP + 2) * cubed - (SHARP + 3) * squared + 1
    outer = SHARP * (cubed - 5 * squared + 8 * distance - 4)
    return torch.where(distance <= 1, inner, outer)
