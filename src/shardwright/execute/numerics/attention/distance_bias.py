"""Learned biases of attention's scores by distance: which row of a table a query and a key have,
and what it adds.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import torch

from shardwright.model.ir.operator import Mask


def biases(table: torch.Tensor, distance: torch.Tensor, *, mask: Mask, reach: int) -> torch.Tensor:
    """What scores get: (heads, queries, keys) of a table of (rows, heads).

    Args:
        distance: (queries, keys), the query's position less the key's.
        reach: see `rows_of`.
    """
    return table[rows_of(distance, mask=mask, rows=table.shape[0], reach=reach)].permute(2, 0, 1)


def rows_of(distance: torch.Tensor, *, mask: Mask, rows: int, reach: int) -> torch.Tensor:
    """The row of each distance. Queries that see both sides have half of the `rows` for keys behind
    them, the others for later ones.

    Half of the rows of a side are of one distance each, from 0 on. With n rows a side of which e
    are such, distance d beyond has row

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
        return _beyond(rows, reach).to(distance.device)[distance.clamp(0, reach)]
    side = rows // 2
    return _beyond(side, reach).to(distance.device)[distance.abs().clamp(max=reach)] + side * (
        distance < 0
    )


@lru_cache(maxsize=64)
def _beyond(rows: int, reach: int) -> torch.Tensor:
    """(reach + 1,) the row of each distance on one side. In 32 bits on the host, as published
    tables were made: floors are the same.
    """
    each = rows // 2
    far = torch.arange(each, reach + 1)
    shared = torch.log(far.float() / each) / log(reach / each) * (rows - each)
    return torch.cat([torch.arange(each), (each + shared.long()).clamp(max=rows - 1)])
