"""Each device's share of a stage's operators: rows, parameters, heads, experts and groups."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.errors import StrategyError
from shardwright.execute.device_state.decide_operator_inputs_to_gather import is_gathered
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import (
    OperatorShare,
    RoutedTokens,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.layout.device_cuts_in_placement_tree import Cell, StageCells
from shardwright.program.layout.device_parts_of_dims import cut_dims, interval, reference_runs
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import covered_runs, indices
from shardwright.program.layout.tensor_layout import (
    Box,
    Indices,
    count,
    intersection,
    joined_intervals,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOfStage:
    """One device of a stage, with the lengths of its sequences and the current slice.

    Args:
        cells: parts of the stage's operators, by device.
        device: number of the device in the stage.
        base: number of the stage's first device.
        length: positions of the block's sequence, or of the current slice.
        start: first position of the slice.
        whole: positions of the whole sequence; 0 if it is not sliced.
        memory_length: positions of its memory sequence.
        earlier: (start, length) of earlier slices.
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
        """Tensor-parallel cells and process groups of the device in its stage."""
        return CellStructure(stage=self.cells, device=self.device, length=self.length)


@lru_cache(maxsize=65536)
def operator_share(site: DeviceOfStage, operator: Operator) -> OperatorShare | None:
    """A device's rows, parameters, heads, experts and groups of `operator`; None if it has none.

    A device that only holds tokens has a share of the operators that exchange tokens.
    """
    exchanges_tokens = operator.kind is OperatorKind.PERMUTE and is_routed(operator)
    cell = site.structure.cell(operator.klass)
    if cell is None and not (
        exchanges_tokens and site.device in site.cells.cells.get(OperatorClass.ROUTER, {})
    ):
        return None
    cuts = cut_dims(cell, operator) if cell is not None else {}
    heads, kv_heads = _head_ranges(operator, cell) if cell is not None else ((0, 0), (0, 0))
    samples, positions = _router_tokens(site) if exchanges_tokens else _tokens(site, cell)
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
        experts=_expert_range(operator, cell) if cell is not None else (0, 0),
        groups=_process_groups(site, operator) if cell is not None else {},
        ring_positions={
            d + site.base: _key_positions(site, site.cells.cells[operator.klass][d], key_length)
            for d in ring
            if len(ring) > 1
        },
        key_positions=_key_positions_unlike_queries(site, operator, cell)
        if cell is not None
        else (),
        routing=_routing(site, operator) if exchanges_tokens else {},
    )


def _tokens(site: DeviceOfStage, cell: Cell | None) -> tuple[Indices, Indices]:
    """(sample intervals, position intervals in the whole sequence) of a cell; empty without one."""
    if cell is None:
        return (), ()
    return indices(cell.way(Dim.BATCH), site.cells.samples), _shifted(
        indices(cell.way(Dim.SEQUENCE), site.length), site.start
    )


def _shifted(ranges: Indices, by: int) -> Indices:
    """The intervals, each moved by `by` positions."""
    return tuple((a + by, b + by) for a, b in ranges)


def _key_positions(site: DeviceOfStage, cell: Cell, memory_length: int) -> Indices:
    """Positions of a cell's keys: in its memory, or (`memory_length` 0) in all slices so far."""
    cut = cell.way(Dim.SEQUENCE)
    if memory_length:
        return indices(cut, memory_length)
    slices = (*site.earlier, (site.start, site.length))
    return joined_intervals(
        i for start, length in slices for i in _shifted(indices(cut, length), start)
    )


def _key_positions_unlike_queries(site: DeviceOfStage, operator: Operator, cell: Cell) -> Indices:
    """Positions of an operator's keys; () where they are those of its queries."""
    cross = operator.attention is not None and operator.attention.cross
    if is_gathered(site.cells, operator, length=site.length, memory_length=site.memory_length):
        return ((0, site.memory_length),) if cross else ((0, site.start + site.length),)
    return _key_positions(site, cell, 0) if site.earlier and not cross else ()


def _router_tokens(site: DeviceOfStage) -> tuple[Indices, Indices]:
    """Samples and positions of the tokens that the device's router holds."""
    return _tokens(site, site.cells.cells.get(OperatorClass.ROUTER, {}).get(site.device))


def _routing(site: DeviceOfStage, operator: Operator) -> dict[int, RoutedTokens]:
    """By device that token exchanges reach, in any number of hops: tokens, experts; {} if alone."""
    routers, experts = (
        site.cells.cells.get(OperatorClass.ROUTER, {}),
        site.cells.cells.get(OperatorClass.EXPERTS, {}),
    )
    held_tokens = {d: _tokens(site, cell) for d, cell in routers.items()}
    expert_tokens = {d: _tokens(site, cell) for d, cell in experts.items()}
    reached, frontier = {site.device}, [site.device]
    while frontier:
        current = frontier.pop()
        for d in sorted({*held_tokens, *expert_tokens} - reached):
            if _overlaps(held_tokens.get(current), expert_tokens.get(d)) or _overlaps(
                expert_tokens.get(current), held_tokens.get(d)
            ):
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
        cut_width = cell.way(Dim.FFN, Dim.WIDTH) if cell is not None else ()
        expert_range = _expert_range(operator, cell) if cell is not None else (0, 0)
        duplicate_key = (expert_tokens.get(d), expert_range, width, cut_width)
        result[d + site.base] = RoutedTokens(
            held_tokens=held_tokens.get(d, ()),
            expert_tokens=expert_tokens.get(d, ()),
            experts=expert_range,
            copy=duplicate_key in seen or cell is None,
        )
        seen.add(duplicate_key)
    return result if len(result) > 1 else {}


def _overlaps(first: Box | None, second: Box | None) -> bool:
    """True if two boxes of tokens overlap; False if one is None or empty."""
    return bool(first) and bool(second) and intersection(first or (), second or ()) is not None


def _head_ranges(operator: Operator, cell: Cell) -> tuple[tuple[int, int], tuple[int, int]]:
    """(range of query heads, of key heads) of a cell; recurrences: the same; others: (0, 0)s."""
    if operator.attention is None and operator.scan is None:
        return (0, 0), (0, 0)
    heads = (
        operator.attention.heads
        if operator.attention is not None
        else operator.scan.heads
        if operator.scan is not None
        else 1
    )
    kv_heads = operator.attention.kv_heads if operator.attention is not None else heads
    cut = cut_dims(cell, operator).get(Dim.HEADS, ())
    reference = reference_runs(operator, Dim.HEADS)
    return covered_runs(cut, heads, reference), covered_runs(cut, kv_heads, reference)


def _expert_range(operator: Operator, cell: Cell) -> tuple[int, int]:
    """[first, end) of the experts of a device's cell; (0, 0) for operators without experts."""
    if operator.experts is None:
        return (0, 0)
    return covered_runs(
        cut_dims(cell, operator).get(Dim.EXPERTS, ()),
        operator.experts.experts,
        operator.experts.experts,
    )


def _group_dims(site: DeviceOfStage, operator: Operator) -> dict[str, Dim]:
    """Names of an operator's process groups (hidden, gather, ring, vocab) -> dim they divide."""
    if operator.kind is OperatorKind.NORM:
        spans_heads = any(p.extents[0].dim is Dim.HEADS for p in operator.parameters)
        return {"hidden": Dim.HEADS if spans_heads else Dim.HIDDEN}
    if operator.attention is not None:
        return {"gather" if site.structure.gather else "ring": Dim.SEQUENCE}
    return {"vocab": Dim.VOCAB} if operator.kind is OperatorKind.LOSS else {}


def _process_groups(site: DeviceOfStage, operator: Operator) -> dict[str, tuple[int, ...]]:
    """By name, devices of each process group (of two or more); {} if all positions are gathered.

    Raises:
        StrategyError: members have different groups, or together lack a part of the dim that is
        cut: trees whose branches cut different dims (rule ``execute.group``).
    """
    if is_gathered(site.cells, operator, length=site.length, memory_length=site.memory_length):
        return {}
    groups = {}
    for name, dim in _group_dims(site, operator).items():
        group = site.structure.members(operator, dim)
        same_group = all(
            replace(site, device=d).structure.members(operator, dim) == group for d in group
        )
        if not same_group or not _covers_dim(site, operator, dim, group or (site.device,)):
            raise StrategyError(
                f"{operator.name} is cut by {dim.value} into parts whose devices do not match one"
                " to one",
                hint="cut every part of that dim in the same way, into as many copies",
                rule="execute.group",
            )
        if len(group) > 1:
            groups[name] = tuple(d + site.base for d in group)
    return groups


def _covers_dim(site: DeviceOfStage, operator: Operator, dim: Dim, group: tuple[int, ...]) -> bool:
    """True if a group's members together have all of a dim; always True for positions."""
    if dim is Dim.SEQUENCE:
        return True  # else all positions are gathered
    cells = site.cells.cells[operator.klass]
    extents = [e for e in operator.reads if e.dim is dim]
    return all(
        count(joined_intervals(interval(e, operator, cut_dims(cells[d], operator)) for d in group))
        == e.size
        for e in extents
    )
