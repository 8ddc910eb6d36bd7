"""Where an image's patches lie, and what follows from it: what rotary positions turn by, and rows
of a table that is stretched.
"""

from __future__ import annotations

import torch

from shardwright.errors import DataError
from shardwright.model.ir.settings import ImageInput, PositionAxes, PositionGrid

SHARP = -0.75
"""Of the cubic kernel: its slope where the distance is 1."""


def grid_of(image: ImageInput | None, *, patches: int) -> tuple[int, int]:
    """Rows and columns of an image.

    Raises:
        DataError: it is not a square of whole blocks.
    """
    assert image is not None, "only of towers whose numbers are known"
    found = image.grid(patches)
    if found is None:
        raise DataError(
            f"an image of {patches} patches is no square of whole blocks of {image.block[0]} x"
            f" {image.block[1]}",
            hint=(
                f"give square images, of {_near(image, patches)} patches for example:"
                " --image-tokens"
            ),
        )
    return found


def _near(image: ImageInput, patches: int) -> int:
    """The next larger image that is one."""
    return next(n for n in range(patches, 2 * patches + 4096**2) if image.grid(n))


def places(numbers: torch.Tensor, *, columns: int, block: tuple[int, int]) -> torch.Tensor:
    """(patches, 2) row and column of the patches with these numbers, which are counted block by
    block.
    """
    high, wide = block
    within, number = numbers % (high * wide), numbers // (high * wide)
    across = columns // wide
    return torch.stack(
        [number // across * high + within // wide, number % across * wide + within % wide], dim=-1
    )


def stretched(
    at: torch.Tensor,
    grid: tuple[int, int],
    table: PositionGrid,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of the table, their weights), each (patches, rows that count for one): weights of a
    patch add up to one.

    Args:
        at: (patches, 2) row and column.
        grid: rows and columns of the image; as large as the table, every patch has its own row.
    """
    if grid == (table.rows, table.columns):
        return (at[:, :1] * table.columns + at[:, 1:]), torch.ones(
            len(at), 1, dtype=dtype, device=at.device
        )
    rows, down = _along(at[:, 0], grid[0], table.rows, table)
    columns, across = _along(at[:, 1], grid[1], table.columns, table)
    numbers = rows.unsqueeze(2) * table.columns + columns.unsqueeze(1)
    return numbers.flatten(1), (down.unsqueeze(2) * across.unsqueeze(1)).flatten(1).to(dtype)


def by_axis(
    at: torch.Tensor,
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
    numbers = torch.stack([at[:, 1], at[:, 0] + table.rows], dim=-1)
    return numbers, torch.ones(numbers.shape, dtype=dtype, device=at.device)


def _along(
    at: torch.Tensor, size: int, known: int, table: PositionGrid
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers, weights) along one side: of `known` places those near each of `size` places; beyond
    an end the last one counts.
    """
    exact = at.to(torch.float64)
    exact = (
        exact * ((known - 1) / max(size - 1, 1))
        if table.corners
        else (exact + 0.5) * (known / size) - 0.5
    )
    reach = 2 if table.cubic else 1
    near = exact.floor().unsqueeze(1) + torch.arange(1 - reach, reach + 1, device=at.device)
    distance = (exact.unsqueeze(1) - near).abs()
    weights = _cubic(distance) if table.cubic else 1.0 - distance
    return near.long().clamp(0, known - 1), weights


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Keys' kernel: 1 at distance 0, 0 at 1 and from 2 on, with its slope."""
    squared, cubed = distance**2, distance**3
    inner = (SHARP + 2) * cubed - (SHARP + 3) * squared + 1
    outer = SHARP * (cubed - 5 * squared + 8 * distance - 4)
    return torch.where(distance <= 1, inner, outer)
