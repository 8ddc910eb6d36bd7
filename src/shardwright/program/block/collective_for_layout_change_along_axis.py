"""The collective that turns one layout of a tensor along an axis into another.

A layout along an axis is a dim letter (sharded on it), REPLICATE (whole), or PARTIAL (a sum still
to be made). The collective of the cotangent is found by the same table from the cotangents'
layouts, so forward and backward are adjoint.
"""

from __future__ import annotations

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.tensor_dims import Dim

PARTIAL = "+"
WHOLE = Dim.REPLICATE.value


def transition(source: str, wanted: str) -> Collective | None:
    """The collective over one axis that turns layout `source` into `wanted`; None if unnecessary.

    None if a local slice suffices or nothing changes.

    Source: DESIGN section 2 (transitions); the exact patterns of Xu et al. 2021 (GSPMD), section 3.
    """
    if source == wanted or (source == WHOLE and wanted != PARTIAL):
        return None
    if source == PARTIAL:
        return Collective.ALL_REDUCE if wanted == WHOLE else Collective.REDUCE_SCATTER
    if wanted == WHOLE:
        return Collective.ALL_GATHER
    return Collective.ALL_TO_ALL
