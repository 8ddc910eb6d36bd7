"""The places of a stage's operators on one device, from the cells that lowering uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardwright.execute.place import Place, Settings
from shardwright.model.operator import Operator, OperatorClass
from shardwright.model.tensor import Dim
from shardwright.program.cell_structure import CellStructure
from shardwright.program.cells import Cell, StageCells, cut_dims, image, indices, interval, reference_runs
from shardwright.program.placing import is_routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One device of a stage.

    Args:
        cells: of the stage. device: counted from the stage's first; base: of the stage. length: positions of the block's sequence.
        memory_length: of its memory sequence.
    """

    cells: StageCells
    device: int
    base: int
    length: int
    memory_length: int
    settings: Settings

    @property
    def structure(self) -> CellStructure:
        """The device as lowering sees it."""
        return CellStructure(stage=self.cells, device=self.device, length=self.length)


@lru_cache(maxsize=65536)
def place_of(site: Site, operator: Operator) -> Place | None:
    """Where `operator` runs on the device; None if it does not."""
    cell = site.structure.cell(operator.klass)
    if cell is None:
        return None
    cuts = cut_dims(cell, operator)
    heads, kv_heads = _heads(operator, cell)
    return Place(
        operator=operator,
        device=site.device + site.base,
        samples=indices(cell.way(Dim.BATCH), site.cells.samples),
        positions=indices(cell.way(Dim.SEQUENCE), site.length),
        length=site.length,
        reads=tuple(interval(e, operator, cuts) for e in operator.reads),
        writes=tuple(interval(e, operator, cuts) for e in operator.writes),
        parameters={p.name: tuple((interval(e, operator, cuts),) for e in p.extents) for p in operator.parameters},
        settings=site.settings,
        memory_positions=indices(cell.way(Dim.SEQUENCE), site.memory_length),
        memory_length=site.memory_length,
        heads=heads,
        kv_heads=kv_heads,
        experts=_experts(operator, cell),
        groups=_groups(site, operator),
    )


def _heads(operator: Operator, cell: Cell) -> tuple[tuple[int, int], tuple[int, int]]:
    if operator.attention is None and operator.scan is None:
        return (0, 0), (0, 0)
    count = operator.attention.heads if operator.attention is not None else operator.scan.heads if operator.scan is not None else 1
    fewer = operator.attention.kv_heads if operator.attention is not None else count
    way = cut_dims(cell, operator).get(Dim.HEADS, ())
    reference = reference_runs(operator, Dim.HEADS)
    return image(way, count, reference), image(way, fewer, reference)


def _experts(operator: Operator, cell: Cell) -> tuple[int, int]:
    if operator.experts is None:
        return (0, 0)
    return image(cut_dims(cell, operator).get(Dim.EXPERTS, ()), operator.experts.experts, operator.experts.experts)


_INSIDE = {"vocab": Dim.VOCAB, "hidden": Dim.HIDDEN, "ring": Dim.SEQUENCE}


def _groups(site: Site, operator: Operator) -> dict[str, tuple[int, ...]]:
    """Groups of more than one device for communication inside an operator."""
    found = {name: site.structure.members(operator, dim) for name, dim in _INSIDE.items()}
    if is_routed(operator):
        cells = site.cells.cells
        if OperatorClass.ROUTER in cells and site.device in cells[OperatorClass.ROUTER]:
            across, inside = site.structure.expert_groups()
            found |= {"experts": across, "expert_ffn": inside}
    return {name: tuple(d + site.base for d in group) for name, group in found.items() if len(group) > 1}
