"""The structure that a grid cuts blocks by."""

from __future__ import annotations

from shardwright.program.block.grid_operator_cuts import Structure


def structure_of(*, sp: bool, gather: bool, tp: int) -> Structure:
    """The structure of a grid: experts have their own mesh unless tokens are copied over tp."""
    return Structure(sequence_parallel=sp, gather=gather, routed=sp or tp == 1)
