"""The places of a stage's operators on one device, from the cells that lowering uses."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.errors import StrategyError
from shardwright.execute.device_state.gathered_positions import is_gathered
from shardwright.execute.transport.torch_device import OperatorShare, RoutedTokens
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.operator_constants import Settings
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.operator_placement import is_routed
from shardwright.program.block.plan_structure import CellStructure
from shardwright.program.layout.device_cells import (
    Cell,
    StageCells,
    covered_runs,
    cut_dims,
    indices,
    interval,
    reference_runs,
)
from shardwright.program.layout.tensor_layout import (
    Box,
    Indices,
    count,
    intersection,
    joined_intervals,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOfStage:
    """One device of a stage.

    Args:
        cells: of the stage.
        device: counted from the stage's first;
        base: of the stage.
        length: positions of the block's sequence, or of the slice of it that is at work;
        start: of the slice;
        whole: positions of the sequence.
        memory_length: of its memory sequence.
        earlier: (start, length) of the slices before.
    """

    cells: StageCells
    device: int
    base: int
    length: int
    memory_length: int
    settings: Settings
    start: int = 0
    whole: int = 0
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def structure(self) -> CellStructure:
        """The device as lowering sees it."""
        return CellStructure(stage=self.cells, device=self.device, length=self.length)


@lru_cache(maxsize=65536)
def operator_share(site: DeviceOfStage, operator: Operator) -> OperatorShare | None:
    """The device's share of `operator`; None if it has none. Token exchange runs also where tokens
    are only held.
    """
    moves = operator.kind is OperatorKind.PERMUTE and is_routed(operator)
    cell = site.structure.cell(operator.klass)
    if cell is None and not (
        moves and site.device in site.cells.cells.get(OperatorClass.ROUTER, {})
    ):
        return None
    cuts = cut_dims(cell, operator) if cell is not None else {}
    heads, kv_heads = _heads(operator, cell) if cell is not None else ((0, 0), (0, 0))
    samples, positions = _home(site) if moves else _tokens(site, cell)
    ring = site.structure.members(operator, Dim.SEQUENCE) if cell is not None else ()
    key_length = (
        site.memory_length if operator.attention is not None and operator.attention.cross else 0
    )
    return OperatorShare(
        operator=operator,
        device=site.device + site.base,
        samples=samples,
        positions=positions,
        length=site.whole or site.length,
        reads=tuple(interval(e, operator, cuts) for e in operator.reads),
        writes=tuple(interval(e, operator, cuts) for e in operator.writes),
        parameters={
            p.name: tuple((interval(e, operator, cuts),) for e in p.extents)
            for p in operator.parameters
        },
        settings=site.settings.of_block(operator.name),
        memory_positions=(
            indices(cell.way(Dim.SEQUENCE), site.memory_length) if cell is not None else ()
        ),
        memory_length=site.memory_length,
        heads=heads,
        kv_heads=kv_heads,
        experts=_experts(operator, cell) if cell is not None else (0, 0),
        groups=_groups(site, operator) if cell is not None else {},
        ring_positions={
            d + site.base: _keys(site, site.cells.cells[operator.klass][d], key_length)
            for d in ring
            if len(ring) > 1
        },
        key_positions=_looked_on(site, operator, cell) if cell is not None else (),
        routing=_routing(site, operator) if moves else {},
    )


def _tokens(site: DeviceOfStage, cell: Cell | None) -> tuple[Indices, Indices]:
    """Samples and positions (of the whole sequence) of a cell."""
    if cell is None:
        return (), ()
    return indices(cell.way(Dim.BATCH), site.cells.samples), _shifted(
        indices(cell.way(Dim.SEQUENCE), site.length), site.start
    )


def _shifted(taken: Indices, by: int) -> Indices:
    return tuple((a + by, b + by) for a, b in taken)


def _keys(site: DeviceOfStage, cell: Cell, memory_length: int) -> Indices:
    """Positions of a device's own keys: of its memory, or of its slice and those before."""
    way = cell.way(Dim.SEQUENCE)
    if memory_length:
        return indices(way, memory_length)
    slices = (*site.earlier, (site.start, site.length))
    return joined_intervals(
        i for start, length in slices for i in _shifted(indices(way, length), start)
    )


def _looked_on(site: DeviceOfStage, operator: Operator, cell: Cell) -> Indices:
    """Positions that the operator looks around in, where they are not its own: those of earlier
    slices, or all that there are.
    """
    cross = operator.attention is not None and operator.attention.cross
    if is_gathered(site.cells, operator, length=site.length, memory_length=site.memory_length):
        return ((0, site.memory_length),) if cross else ((0, site.start + site.length),)
    return _keys(site, cell, 0) if site.earlier and not cross else ()


def _home(site: DeviceOfStage) -> tuple[Indices, Indices]:
    return _tokens(site, site.cells.cells.get(OperatorClass.ROUTER, {}).get(site.device))


def _routing(site: DeviceOfStage, operator: Operator) -> dict[int, RoutedTokens]:
    """Every device whose tokens or experts those of this one meet, directly or through others."""
    routers, experts = (
        site.cells.cells.get(OperatorClass.ROUTER, {}),
        site.cells.cells.get(OperatorClass.EXPERTS, {}),
    )
    home = {d: _tokens(site, cell) for d, cell in routers.items()}
    serves = {d: _tokens(site, cell) for d, cell in experts.items()}
    reached, frontier = {site.device}, [site.device]
    while frontier:
        one = frontier.pop()
        for d in sorted({*home, *serves} - reached):
            if _meet(home.get(one), serves.get(d)) or _meet(serves.get(one), home.get(d)):
                reached.add(d)
                frontier.append(d)
    seen: set[object] = set()
    result = {}
    for d in sorted(reached):
        cell = experts.get(d)
        width = (
            tuple((x, w) for x, w in cut_dims(cell, operator).items() if x is not Dim.EXPERTS)
            if cell is not None
            else ()
        )
        inner = cell.way(Dim.FFN, Dim.WIDTH) if cell is not None else ()
        held = _experts(operator, cell) if cell is not None else (0, 0)
        mark = (serves.get(d), held, width, inner)
        result[d + site.base] = RoutedTokens(
            home=home.get(d, ()),
            serves=serves.get(d, ()),
            experts=held,
            copy=mark in seen or cell is None,
        )
        seen.add(mark)
    return result if len(result) > 1 else {}


def _meet(one: Box | None, other: Box | None) -> bool:
    return bool(one) and bool(other) and intersection(one or (), other or ()) is not None


def _heads(operator: Operator, cell: Cell) -> tuple[tuple[int, int], tuple[int, int]]:
    if operator.attention is None and operator.scan is None:
        return (0, 0), (0, 0)
    heads = (
        operator.attention.heads
        if operator.attention is not None
        else operator.scan.heads
        if operator.scan is not None
        else 1
    )
    fewer = operator.attention.kv_heads if operator.attention is not None else heads
    way = cut_dims(cell, operator).get(Dim.HEADS, ())
    reference = reference_runs(operator, Dim.HEADS)
    return covered_runs(way, heads, reference), covered_runs(way, fewer, reference)


def _experts(operator: Operator, cell: Cell) -> tuple[int, int]:
    if operator.experts is None:
        return (0, 0)
    return covered_runs(
        cut_dims(cell, operator).get(Dim.EXPERTS, ()),
        operator.experts.experts,
        operator.experts.experts,
    )


def _inside(site: DeviceOfStage, operator: Operator) -> dict[str, Dim]:
    """The dim that the members of each kind of group split: keys are passed round or gathered, a
    norm's width may lie in heads.
    """
    if operator.kind is OperatorKind.NORM:
        wide = any(p.extents[0].dim is Dim.HEADS for p in operator.parameters)
        return {"hidden": Dim.HEADS if wide else Dim.HIDDEN}
    if operator.attention is not None:
        return {"gather" if site.structure.gather else "ring": Dim.SEQUENCE}
    return {"vocab": Dim.VOCAB} if operator.kind is OperatorKind.LOSS else {}


def _groups(site: DeviceOfStage, operator: Operator) -> dict[str, tuple[int, ...]]:
    """Groups of more than one device for communication inside an operator; none where everybody is
    brought all positions.

    Raises:
        StrategyError: members do not see the same group, or lack a part of what is cut: trees whose
            branches cut different dims (rule ``execute.group``).
    """
    if is_gathered(site.cells, operator, length=site.length, memory_length=site.memory_length):
        return {}
    found = {}
    for name, dim in _inside(site, operator).items():
        group = site.structure.members(operator, dim)
        alike = all(
            replace(site, device=d).structure.members(operator, dim) == group for d in group
        )
        if not alike or not _whole(site, operator, dim, group or (site.device,)):
            raise StrategyError(
                f"{operator.name} is cut by {dim.value} into parts whose devices do not match one"
                " to one",
                hint="cut every part of that dim in the same way, into as many copies",
                rule="execute.group",
            )
        if len(group) > 1:
            found[name] = tuple(d + site.base for d in group)
    return found


def _whole(site: DeviceOfStage, operator: Operator, dim: Dim, group: tuple[int, ...]) -> bool:
    """The members of a group have all of a dim between them."""
    if dim is Dim.SEQUENCE:
        return True  # else all positions are brought
    cells = site.cells.cells[operator.klass]
    extents = [e for e in operator.reads if e.dim is dim]
    return all(
        count(joined_intervals(interval(e, operator, cut_dims(cells[d], operator)) for d in group))
        == e.size
        for e in extents
    )
