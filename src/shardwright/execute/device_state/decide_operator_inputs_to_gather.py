"""Operators that read other positions, and inputs gathered because no device group fits."""

from __future__ import annotations

from functools import lru_cache

from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices
from shardwright.program.layout.tensor_layout import count, joined_intervals


def reads_other_positions(operator: Operator, number: int) -> bool:
    """True if an output depends on other positions of the operator's input extent `number`.

    Such extents are keys, values, inputs of a convolution or a recurrence, and image tokens. They
    are counted over all inputs.
    """
    if operator.kind in (OperatorKind.CONV, OperatorKind.SCAN):
        return True
    return number == 1 if operator.merges else operator.attention is not None and number in (1, 2)


@lru_cache(maxsize=65536)
def is_gathered(cells: StageCells, operator: Operator, *, length: int, memory_length: int) -> bool:
    """True if every device gathers all positions of the operator's keys, values or scan inputs.

    This is so where positions of a convolution, a recurrence or an image merge are cut. It is so
    for attention where the devices of the parts do not match one to one (trees whose branches cut
    different dims), so that no group could pass keys around or gather them.

    Args:
        length: positions of the block's sequence, or of the current slice.
        memory_length: positions of the block's memory.
    """
    cells_by_device = cells.cells.get(operator.klass, {})
    if operator.merges or operator.kind in (OperatorKind.CONV, OperatorKind.SCAN):
        boxes = [
            token_box(cell, samples=cells.samples, length=length)
            for cell in cells_by_device.values()
        ]
        return any(
            positions != ((0, length),) for samples, positions in boxes if samples and positions
        )
    if operator.attention is None:
        return False
    keys = memory_length if operator.attention.cross else length
    groups = {
        d: CellStructure(stage=cells, device=d, length=length).members(operator, Dim.SEQUENCE)
        or (d,)
        for d in cells_by_device
    }
    if any(groups[d] != group for group in groups.values() for d in group):
        return True
    return any(
        count(
            joined_intervals(
                i for d in group for i in indices(cells_by_device[d].way(Dim.SEQUENCE), keys)
            )
        )
        != keys
        for group in groups.values()
    )
