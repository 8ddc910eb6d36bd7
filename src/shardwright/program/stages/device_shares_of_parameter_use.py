"""Elements of a parameter that each device holds at one use, and the tokens it sums over."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.layout.device_cuts_in_placement_tree import CellRow, StageCells, row_of
from shardwright.program.layout.device_parts_of_dims import (
    covered_runs_of_cells,
    dims_present,
    intervals,
    reference_runs,
)
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    PARTS,
    DevicesByPart,
    DeviceTokens,
    projection,
    tokens,
)
from shardwright.program.layout.tensor_layout import Box
from shardwright.program.stages.gradient_sum_groups import GradientShare


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterUse:
    """A use of a parameter by an operator of a stage.

    Its lane, run and first layer as the number `turn` among the parameter's uses, its stage
    `offset` devices after the base.

    Args:
        backward: the operator has a backward there.
    """

    turn: int
    offset: int
    cells: StageCells
    operator: Operator
    parameter: Parameter
    backward: bool

    @property
    def devices(self) -> DeviceList:
        """Devices that run the operator that uses the parameter, counted from the base."""
        return row_of(self.cells.cells.get(self.operator.klass, {})).shifted(self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseShares:
    """The shares of one use of a parameter, by parts of tokens and of other dims.

    Once each, not once a device.

    Args:
        tokens, rest: devices by their tokens, and by their parts of the other dims.
        needs, parts: for each part of the other dims, the elements of the parameter, and the part
            of every dim that could be cut.
    """

    tokens: DeviceTokens
    rest: DevicesByPart
    needs: tuple[Box, ...]
    parts: tuple[Box, ...]


def shares_by_part(use: ParameterUse, length: int) -> UseShares:
    """Shares of one use of a parameter: devices by tokens and other dims, elements of each part."""
    operator, stage = use.operator, use.cells
    extents = tuple(sorted(use.parameter.extents, key=lambda e: e.dim.value))
    rest = projection(stage, operator.klass, PARTS)
    return UseShares(
        tokens=tokens(stage, operator.klass, length),
        rest=rest,
        needs=_needs(rest.cells, operator, extents),
        parts=_cut_cells(rest.cells, operator),
    )


@lru_cache(maxsize=1024)
def _needs(cells: CellRow, operator: Operator, extents: tuple[Extent, ...]) -> tuple[Box, ...]:
    """Elements of a parameter that a device needs under each of several cells."""
    return tuple(
        zip(*[zip(intervals(cells, operator, extent)) for extent in extents], strict=True)
    ) or ((),) * len(cells)


def device_shares(use: ParameterUse, name: Hashable, length: int) -> list[GradientShare]:
    """Each device's share in one use of a parameter, unless empty: elements and gradient terms."""
    use_shares = shares_by_part(use, length)
    empty = [any(a >= b for ((a, b),) in need) for need in use_shares.needs]
    devices, numbers = (
        use_shares.tokens.devices.tolist(),
        (*use_shares.tokens.number.tolist(), use_shares.rest.number.tolist()),
    )
    samples, positions = use_shares.tokens.parts
    return [
        GradientShare(
            device=device + use.offset,
            need=use_shares.needs[part],
            work=((name, (samples[b], positions[s], *use_shares.parts[part])),),
        )
        for device, b, s, part in zip(devices, *numbers, strict=True)
        if samples[b] and positions[s] and not empty[part]
    ]


@lru_cache(maxsize=1024)
def _cut_cells(cells: CellRow, operator: Operator) -> tuple[Box, ...]:
    """The part of every dim that could be cut, under each of several cells.

    In runs of the operator's finest extent.
    """
    dims = sorted(dims_present(operator) - {Dim.BATCH, Dim.SEQUENCE}, key=lambda d: d.value)
    runs_by_dim = [
        zip(covered_runs_of_cells(cells, operator, dim, reference_runs(operator, dim)))
        for dim in dims
    ]
    return tuple(zip(*runs_by_dim, strict=True)) or ((),) * len(cells)
