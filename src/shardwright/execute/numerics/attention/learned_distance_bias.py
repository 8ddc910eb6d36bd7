"""Learned biases of attention scores by the distance of query and key (T5)."""

from __future__ import annotations

from functools import lru_cache
from math import log

import torch

from shardwright.model.ir.operator import Mask


def distance_biases(
    table: torch.Tensor, distance: torch.Tensor, *, mask: Mask, reach: int
) -> torch.Tensor:
    """Biases of attention scores, (heads, queries, keys), from a table of (rows, heads).

    Args:
        distance: (queries, keys), the query's position minus the key's.
        reach: see `bias_rows`.
    """
    return table[bias_rows(distance, mask=mask, rows=table.shape[0], reach=reach)].permute(2, 0, 1)


def bias_rows(distance: torch.Tensor, *, mask: Mask, rows: int, reach: int) -> torch.Tensor:
    """The bias table's row for each distance: one row per small distance, then logarithmic ranges.

    With a mask that sees both sides, half of the `rows` are for earlier keys, the others for later
    ones.

    Half of the rows of a side have one distance each, from 0 on. With n rows a side, of which e
    have one distance, a larger distance d has row

        e + floor((n - e) ln(d / e) / ln(reach / e)), at most n - 1.

    Worked: of 32 causal rows and a reach of 128, distances 15, 16, 32 and 200 have rows 15, 16, 21
    and 31.

    Args:
        reach: distance from which on all keys of a side share the last row.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1: 32 rows, of ranges that grow in
    logarithms up to an offset of 128. That half of a side's rows are of one distance each, and the
    sides' order, are those of the class in Transformers.
    """
    if mask is Mask.CAUSAL:
        return _rows_of_one_side(rows, reach).to(distance.device)[distance.clamp(0, reach)]
    rows_per_side = rows // 2
    return _rows_of_one_side(rows_per_side, reach).to(distance.device)[
        distance.abs().clamp(max=reach)
    ] + rows_per_side * (distance < 0)


@lru_cache(maxsize=64)
def _rows_of_one_side(rows: int, reach: int) -> torch.Tensor:
    """(reach + 1,) bias-table rows of distances 0 to reach: one each at first, then logarithmic.

    In 32 bits on the host, as published tables were made, so that floors are the same.
    """
    single_rows = rows // 2
    distances = torch.arange(single_rows, reach + 1)
    shared_rows = (
        torch.log(distances.float() / single_rows) / log(reach / single_rows) * (rows - single_rows)
    )
    return torch.cat(
        [torch.arange(single_rows), (single_rows + shared_rows.long()).clamp(max=rows - 1)]
    )
