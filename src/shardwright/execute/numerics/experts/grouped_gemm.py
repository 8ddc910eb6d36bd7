"""Grouped GEMM: matrix products of groups of rows, each group with its own matrix.

The kernel reads the ends of the groups on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
ALIGNED = 16
"""Bytes to which the rows that the kernel reads must be aligned."""


def group_ends(groups: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) int32 row after the last row of each group, from the sorted group of each row.

    Args:
        groups: the group of each row, in ascending order.
        count: number of groups, some of which may have no row.

    Example: rows of groups 0, 0, 2 end at 2, 2, 3.
    """
    return torch.searchsorted(
        groups.contiguous(), torch.arange(count, device=groups.device), right=True
    ).to(torch.int32)


def grouped_matmul(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply each group's rows by the group's matrix: (rows, n).

    Args:
        rows: (rows, k), group by group.
        matrices: (groups, k, n).
        ends: of `group_ends`.
    """
    if not len(matrices) or not len(rows):
        return rows.new_zeros((len(rows), matrices.shape[-1]))
    if _is_supported(rows, matrices):
        return functional.grouped_mm(rows, matrices, offs=ends)
    return torch.cat(
        [part @ matrix for part, matrix in zip(_rows_by_group(rows, ends), matrices, strict=True)]
    )


def grouped_outer_products(
    rows: torch.Tensor, right_rows: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """(groups, k, n): each group's `rows` transposed times its `right_rows`.

    Args:
        rows: (rows, k).
        right_rows: (rows, n).
        ends: of `group_ends`.
    """
    if not len(ends) or not len(rows):
        return rows.new_zeros((len(ends), rows.shape[-1], right_rows.shape[-1]))
    if _is_supported(rows, right_rows):
        return functional.grouped_mm(rows.t(), right_rows, offs=ends)
    return torch.stack(
        [
            a.T @ b
            for a, b in zip(
                _rows_by_group(rows, ends), _rows_by_group(right_rows, ends), strict=True
            )
        ]
    )


def _is_supported(*tensors: torch.Tensor) -> bool:
    """True if grouped_mm takes the tensors: float32, bf16 or fp16, rows aligned to 16 bytes."""
    return all(
        tensor.dtype in FORMATS
        and min(tensor.stride()[-2:]) == 1
        and all(
            step == 1 or step * tensor.element_size() % ALIGNED == 0 for step in tensor.stride()
        )
        and tensor.data_ptr() % ALIGNED == 0
        for tensor in tensors
    )


def _rows_by_group(rows: torch.Tensor, ends: torch.Tensor) -> Sequence[torch.Tensor]:
    """Split rows by group at `ends`, which are read on the host."""
    end_rows: list[int] = ends.tolist()
    parts: Sequence[torch.Tensor] = torch.split(
        rows, [b - a for a, b in zip([0, *end_rows], end_rows, strict=False)]
    )
    return parts
