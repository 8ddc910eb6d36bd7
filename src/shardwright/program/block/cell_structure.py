"""How the operators of a block are cut on one device of a general plan's stage: sizes are numbers,
moves name devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.hardware.graph import regular
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent, Parameter
from shardwright.program.block.placement import Change
from shardwright.program.block.shared_keys import backs
from shardwright.program.block.sizes import Size
from shardwright.program.layout.cells import (
    Cell,
    StageCells,
    cut_dims,
    image,
    indices,
    interval,
    token_box,
)
from shardwright.program.layout.layout import Box, Holding, Layout, count, intersection
from shardwright.program.layout.projection import TOKENS, projection
from shardwright.program.layout.replica import replica
from shardwright.program.layout.stage_layouts import (
    made_layout,
    stream_operator,
    wanted_layout,
)
from shardwright.program.same import Same
from shardwright.program.transition.steps import StepKind
from shardwright.program.transition.transition import Transition, transition
from shardwright.strategy.plan.split import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStructure:
    """One device of a stage (a `Placing`).

    Args:
        stage: the cells of all its devices.
        device: counted from the stage's first.
        length: positions of the main sequence.
        island: devices a node, for the choice of senders.
    """

    stage: StageCells
    device: int
    length: int
    island: int = 0

    def cell(self, klass: OperatorClass) -> Cell | None:
        """The device's cell in a class's tree; None if the class does not run here."""
        return self.stage.cells.get(klass, {}).get(self.device)

    @property
    def sequence_parallel(self) -> bool:
        """The stream holds fewer tokens than the products work on."""
        return (
            0
            < self._count(OperatorClass.STREAM, self.length)
            < self._count(OperatorClass.MLP, self.length)
        )

    @property
    def gather(self) -> bool:
        """The core's keys are gathered."""
        return self.stage.exchange is Exchange.GATHER

    @property
    def routed(self) -> bool:
        """The device's experts serve tokens of other devices, or it has whole ones (or none):
        nobody shares tokens and experts with it.
        """
        if self.cell(OperatorClass.EXPERTS) is None:
            return True
        if self._count(OperatorClass.EXPERTS, self.length) > self._count(
            OperatorClass.ROUTER, self.length
        ):
            return True
        return len(_coset(self)) == 1

    def _count(self, klass: OperatorClass, length: int) -> int:
        return _tokens_of(self.stage, self.device, klass, length)

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """See `Placing.tokens`."""
        return Size(times=self._count(klass, length))

    def part(self, extent: Extent, operator: Operator) -> Size:
        """See `Placing.part`."""
        cell = self.cell(operator.klass)
        if cell is None:
            return Size(times=0)
        low, high = interval(extent, operator, cut_dims(cell, operator))
        return Size(times=high - low)

    def _experts(self, operator: Operator) -> int:
        """Local experts."""
        assert operator.experts is not None
        cell = self.cell(OperatorClass.EXPERTS)
        way = cut_dims(cell, operator).get(Dim.EXPERTS) if cell is not None else None
        if way is None:
            return operator.experts.experts
        low, high = image(way, operator.experts.experts, operator.experts.experts)
        return high - low

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed copies on the device: topk of each token that its experts serve, by its share of
        the experts (rounded up).
        """
        assert operator.experts is not None
        region = self._count(OperatorClass.EXPERTS, length)
        return Size(
            times=-(
                -region
                * operator.experts.topk
                * self._experts(operator)
                // operator.experts.experts
            )
        )

    def served_tokens(self, length: int) -> Size:
        """See `Placing.served_tokens`."""
        return self.tokens(OperatorClass.EXPERTS, length)

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """See `Placing.sent_copies`: tokens go to experts in equal shares, what stays on the device
        is not sent.
        """
        assert operator.experts is not None
        group, all_experts = self.expert_groups()[0], operator.experts.experts
        others = [replace(self, device=d) for d in group if d != self.device]
        if not others:
            return Size(times=0)
        given = self._count(OperatorClass.ROUTER, length) * sum(
            other.held_experts(operator) for other in others
        )
        gotten = self.held_experts(operator) * sum(other.router_tokens(length) for other in others)
        busiest = max(given, gotten) * operator.experts.topk
        return Size(times=-(-busiest * len(group) // (all_experts * len(others))))

    def held_experts(self, operator: Operator) -> int:
        """Local experts; 0 on a device without any."""
        return self._experts(operator) if self.cell(OperatorClass.EXPERTS) is not None else 0

    def router_tokens(self, length: int) -> int:
        """Tokens that the device routes."""
        return self._count(OperatorClass.ROUTER, length)

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """The routed copies of all devices that share its experts:
        all that these experts work on.
        """
        return (
            self.dispatched(operator, length)
            if self.cell(OperatorClass.EXPERTS) is not None
            else Size(times=0)
        )

    def coset_tokens(self, length: int) -> Size:
        """See `Placing.coset_tokens`."""
        return Size(times=sum(replace(self, device=d).router_tokens(length) for d in self.coset()))

    def coset(self) -> tuple[int, ...]:
        """See `Placing.coset`: those with experts for its tokens,
        and those that only route them.
        """
        across, inside = self.expert_groups()
        return tuple(sorted({*across, *inside, *_coset(self), self.device}))

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """See `Placing.gathered_tokens`."""
        return Size(times=sum(self._parts(operator, lengths)))

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """Its own part first, then those of the devices before it in the ring; the last hop's is
        that of the device behind.
        """
        parts = self._parts(operator, lengths)
        if len(set(parts)) == 1:
            return (Size(times=parts[0]),)
        index = self.members(operator, Dim.SEQUENCE).index(self.device)
        return tuple(Size(times=parts[(index - hop) % len(parts)]) for hop in range(len(parts)))

    def _parts(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens of each device of the core's group."""
        group = self.members(operator, Dim.SEQUENCE) or (self.device,)
        return tuple(
            sum(replace(self, device=d)._count(operator.klass, n) for n in lengths) for d in group
        )

    def own_region(self) -> Box:
        """Tokens that the device's experts serve, or else that it routes or makes."""
        classes = (OperatorClass.EXPERTS, OperatorClass.ROUTER, OperatorClass.STREAM)
        cell = next((c for klass in classes if (c := self.cell(klass)) is not None), None)
        return self.region(cell) if cell is not None else ((), ())

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Devices with other experts for the same tokens (or that only own such tokens), and with
        other parts of the same experts.
        """
        experts = self.stage.cells.get(OperatorClass.EXPERTS, {})
        mine = self.own_region()
        coset = _coset(self)
        alone = [
            d
            for d, c in self.stage.cells.get(OperatorClass.ROUTER, {}).items()
            if d not in experts and _covers(mine, self.region(c))
        ]
        own = experts.get(self.device)
        if own is None:
            return tuple(sorted({*coset, *alone, self.device})), ()
        held, inner = own.way(Dim.EXPERTS), own.way(Dim.FFN, Dim.WIDTH)
        across = [d for d in coset if experts[d].way(Dim.FFN, Dim.WIDTH) == inner]
        inside = [d for d in coset if experts[d].way(Dim.EXPERTS) == held]
        return tuple(sorted({*across, *alone})), (
            tuple(sorted(inside)) if len(inside) > 1 else (self.device,)
        )

    def region(self, cell: Cell) -> Box:
        """Tokens of a cell."""
        return token_box(cell, samples=self.stage.samples, length=self.length)

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """One device for each part of `dim` of `operator` that is the device's own in everything
        else; () if it is whole.

        The j-th copies of all parts belong together, so that all members see one group.
        """
        cells = self.stage.cells.get(operator.klass, {})
        mine = cells.get(self.device)
        if mine is None:
            return ()

        def split(cell: Cell) -> tuple[object, object]:
            cuts = cut_dims(cell, operator)
            batch, sequence, part = cell.way(Dim.BATCH), cell.way(Dim.SEQUENCE), cuts.pop(dim, ())
            along = dim is Dim.SEQUENCE
            return (
                batch,
                () if along else sequence,
                tuple(cuts.items()),
            ), (sequence if along else part)

        same, own = split(mine)
        copies: dict[object, list[int]] = {}
        for device, cell in sorted(cells.items()):
            tokens, part = split(cell)
            if tokens == same:
                copies.setdefault(part, []).append(device)
        index = copies[own].index(self.device)
        return (
            tuple(sorted(found[index % len(found)] for found in copies.values()))
            if len(copies) > 1
            else (self.device,)
        )

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """The cells say it themselves."""
        return ()

    def runs(self, operator: Operator) -> bool:
        """See `Placing.runs`."""
        return self.cell(operator.klass) is not None

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[Change, ...]:
        """What the tensor goes through for this device: the steps of `transition` that it takes
        part in.
        """
        extents = source.writes if source is not None else target.reads
        maker = source if source is not None else stream_operator(extents)
        if (
            maker.klass is target.klass is OperatorClass.STREAM
            and maker.kind is not OperatorKind.NORM
        ):
            return ()
        result: list[Change] = []
        for extent in dict.fromkeys(extents):
            repeats = extents.count(extent)
            made, wanted = (
                made_layout(self.stage, maker, extent, length),
                wanted_layout(self.stage, target, extent, length),
            )
            ways = [
                (made, wanted, True),
                *(
                    (b.source, b.wanted, False)
                    for b in backs(self.stage, maker, target, extent, length)
                ),
            ]
            for source_layout, wanted_part, forward in ways:
                between = id(source_layout), id(wanted_part)
                found = _steps(Same(source_layout), Same(wanted_part), self.device, self.island)
                result += _changes(
                    found, self.device, element * repeats, forward=forward, between=between
                )
        return _merged(result)


def on_replica(
    cells: StageCells, device: int, *, length: int, island: int = 0
) -> tuple[CellStructure, int]:
    """A device of a stage among those that may share samples, and what its number is counted from
    there; see `replica`.
    """
    near = replica(cells, device, max(island, 1))
    return (
        CellStructure(stage=near.cells, device=device - near.first, length=length, island=island),
        near.first,
    )


@lru_cache(maxsize=16384)
def _steps(
    source: Same[Layout], wanted: Same[Layout], device: int, island: int
) -> Transition | None:
    """The transition of what a device exchanges with others; None if it has what it needs and
    nobody asks.
    """
    near = component(device, source.value, wanted.value)
    return (
        None
        if near is None
        else transition(*near, islands=regular((island,))[0] if island else None)
    )


_KINDS = {kind: Collective(kind.value) for kind in StepKind if kind is not StepKind.REDUCE} | {
    StepKind.REDUCE: Collective.BROADCAST
}
"""Collectives as they are priced: a reduction to one member costs what its transpose does."""


@lru_cache(maxsize=16384)
def _tokens_of(stage: StageCells, device: int, klass: OperatorClass, length: int) -> int:
    """Tokens that a device works on in operators of a class."""
    cell = stage.cells.get(klass, {}).get(device)
    if cell is None:
        return 0
    return count(indices(cell.way(Dim.BATCH), stage.samples)) * count(
        indices(cell.way(Dim.SEQUENCE), length)
    )


@lru_cache(maxsize=4096)
def _coset(one: CellStructure) -> tuple[int, ...]:
    """Devices whose experts serve the tokens that the device's own serve (or that it routes), or
    some of them.
    """
    tokens = projection(one.stage, OperatorClass.EXPERTS, TOKENS)
    mine = one.own_region()
    served = [
        _covers(region, mine) or _covers(mine, region) for region in map(one.region, tokens.cells)
    ]
    return tuple(
        d
        for d, number in zip(tokens.devices.tolist(), tokens.number.tolist(), strict=True)
        if served[number]
    )


def _covers(one: Box, other: Box) -> bool:
    return intersection(one, other) == other


def component(device: int, source: Layout, wanted: Layout) -> tuple[Layout, Layout] | None:
    """The holdings that exchange something with `device`, directly or through others; None if it
    neither needs nor gives anything.
    """
    if source == wanted:
        return None
    held: dict[int, list[Holding]] = {}
    for h in source:
        held.setdefault(h.device, []).append(h)
    needs: dict[int, list[Holding]] = {}
    for w in wanted:
        if not _satisfied(w, held.get(w.device, [])):
            needs.setdefault(w.device, []).append(w)
    if not needs:
        return None
    offers = _by_samples(source)
    lacking = _by_samples(tuple(w for ws in needs.values() for w in ws))
    reached, frontier = {device}, [device]
    while frontier:
        found = {
            d
            for box in {w.box for one in frontier for w in needs.get(one, ())}
            for d in _meeting(box, offers)
        }
        found |= {
            d
            for box in {h.box for one in frontier for h in held.get(one, ())}
            for d in _meeting(box, lacking)
        }
        frontier = sorted(found - reached)
        reached |= found
    if len(reached) == 1:
        return None
    return tuple(h for h in source if h.device in reached), tuple(
        w for w in wanted if w.device in reached
    )


def _by_samples(layout: Layout) -> dict[Box, dict[Box, list[int]]]:
    """Devices by the samples of their boxes, and by the whole box: most pairs of devices differ in
    samples already.
    """
    result: dict[Box, dict[Box, list[int]]] = {}
    for h in layout:
        result.setdefault(h.box[:1], {}).setdefault(h.box, []).append(h.device)
    return result


def _meeting(box: Box, layout: dict[Box, dict[Box, list[int]]]) -> Iterator[int]:
    """Devices whose boxes have an element of `box`."""
    for samples, boxes in layout.items():
        if intersection(samples, box[:1]):
            for other, devices in boxes.items():
                if intersection(other, box):
                    yield from devices


def _satisfied(wanted: Holding, held: list[Holding]) -> bool:
    return any(
        h.part is None and (h.box == wanted.box or intersection(h.box, wanted.box) == wanted.box)
        for h in held
    )


def _merged(changes: list[Change]) -> tuple[Change, ...]:
    """Extents of one tensor that take the same step go together."""
    together: dict[object, Change] = {}
    for change in changes:
        key = (change.axis, change.forward, change.backward, change.group, _step(change))
        first = together.get(key)
        together[key] = (
            change
            if first is None
            else replace(
                first,
                forward_volume=first.forward_volume + change.forward_volume,
                backward_volume=first.backward_volume + change.backward_volume,
            )
        )
    return tuple(together.values())


def _step(change: Change) -> int:
    """Which step of its extent's way a change is."""
    assert isinstance(change.between, tuple)
    number: int = change.between[1]
    return number


def _changes(
    found: Transition | None, device: int, element: int, *, forward: bool, between: tuple[int, int]
) -> list[Change]:
    """The steps in which `device` takes part, each as a change of one direction."""
    result: list[Change] = []
    for number, step in enumerate(found.steps if found is not None else ()):
        pairs = zip(step.groups, step.elements, strict=True)
        group, elements = next(((g, size) for g, size in pairs if device in g), ((), 0))
        volume, kind = elements * element, _KINDS[step.kind]
        if step.kind is StepKind.SEND:
            sent = sum(n for a, _, n in step.sends if a == device)
            received = sum(n for _, b, n in step.sends if b == device)
            group = tuple(sorted({d for a, b, _ in step.sends if device in (a, b) for d in (a, b)}))
            volume = max(sent, received) * element
        if len(group) < 2 or not volume:
            continue
        sizes = (Size(times=volume),)
        result.append(
            Change(
                axis="ulysses" if kind is Collective.ALL_TO_ALL else "tp",
                forward=kind if forward else None,
                backward=None if forward else kind,
                forward_volume=sizes if forward else (),
                backward_volume=() if forward else sizes,
                group=group,
                between=(between, number),
            )
        )
    return result
