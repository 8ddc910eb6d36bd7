"""The cut of a block's operators on one device of a general plan's stage.

Sizes are numbers, and moves name devices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.block.communication.layout_changes_of_transition_on_one_device import (
    changes_of_transition,
    merge_same_steps,
    transition_near_device,
)
from shardwright.program.block.grid_or_plan_cut_protocol import LayoutChange
from shardwright.program.block.routes_that_return_shared_key_gradients import cotangent_routes
from shardwright.program.block.symbolic_sizes import Size
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import Cell, StageCells
from shardwright.program.layout.device_parts_of_dims import cut_dims, interval, token_box
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import covered_runs, indices
from shardwright.program.layout.group_devices_by_parts_of_dims import TOKENS, projection
from shardwright.program.layout.operator_tensor_layouts import (
    made_layout,
    stream_operator,
    wanted_layout,
)
from shardwright.program.layout.stage_devices_that_share_samples import replica
from shardwright.program.layout.tensor_layout import Box, count, intersection
from shardwright.strategy.plan.operator_split_tree import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStructure:
    """One device of a general plan's stage, as lowering sees the cut of operators (a `Placing`).

    Args:
        stage: the cells of all devices of the stage.
        device: number of the device, counted from the stage's first.
        length: positions of the main sequence.
        island: devices a node, for the choice of senders.
    """

    stage: StageCells
    device: int
    length: int
    island: int = 0

    def cell(self, klass: OperatorClass) -> Cell | None:
        """The device's cell in a class's tree; None if the device runs no operator of the class."""
        return self.stage.cells.get(klass, {}).get(self.device)

    @property
    def sequence_parallel(self) -> bool:
        """True if the device holds fewer tokens of the residual stream than its GEMMs work on."""
        return (
            0
            < self._token_count(OperatorClass.STREAM, self.length)
            < self._token_count(OperatorClass.MLP, self.length)
        )

    @property
    def gather(self) -> bool:
        """True if the attention group gathers keys instead of passing them round a ring."""
        return self.stage.exchange is Exchange.GATHER

    @property
    def routed(self) -> bool:
        """True if the device has no experts, serves others' tokens, or alone serves its own tokens.

        That is so where the device's experts serve tokens of other devices, and where no other
        device shares both tokens and experts with it.
        """
        if self.cell(OperatorClass.EXPERTS) is None:
            return True
        if self._token_count(OperatorClass.EXPERTS, self.length) > self._token_count(
            OperatorClass.ROUTER, self.length
        ):
            return True
        return len(_devices_of_same_tokens(self)) == 1

    def _token_count(self, klass: OperatorClass, length: int) -> int:
        """Tokens of a microbatch that the device has in operators of a class; 0 if it runs none."""
        return _tokens_of(self.stage, self.device, klass, length)

    def tokens(self, klass: OperatorClass, length: int) -> Size:
        """Tokens of a microbatch on the device in operators of `klass`; see `Placing.tokens`."""
        return Size(times=self._token_count(klass, length))

    def part(self, extent: Extent, operator: Operator) -> Size:
        """Elements of one extent that the device holds; 0 if the device runs no such operator."""
        cell = self.cell(operator.klass)
        if cell is None:
            return Size(times=0)
        low, high = interval(extent, operator, cut_dims(cell, operator))
        return Size(times=high - low)

    def _experts(self, operator: Operator) -> int:
        """Number of experts on the device; all experts where none are cut."""
        assert operator.experts is not None
        cell = self.cell(OperatorClass.EXPERTS)
        way = cut_dims(cell, operator).get(Dim.EXPERTS) if cell is not None else None
        if way is None:
            return operator.experts.experts
        low, high = covered_runs(way, operator.experts.experts, operator.experts.experts)
        return high - low

    def dispatched(self, operator: Operator, length: int) -> Size:
        """Routed copies that the device's experts work on: topk a token times its share of experts.

        topk of each token that its experts serve, times its share of the experts (rounded up).
        """
        assert operator.experts is not None
        region = self._token_count(OperatorClass.EXPERTS, length)
        return Size(
            times=-(
                -region
                * operator.experts.topk
                * self._experts(operator)
                // operator.experts.experts
            )
        )

    def served_tokens(self, length: int) -> Size:
        """Tokens of this and other devices that the device's experts serve.

        See `Placing.served_tokens`.
        """
        return self.tokens(OperatorClass.EXPERTS, length)

    def sent_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies in the device's full all-to-all buffer: the larger of sent and received.

        See `Placing.sent_copies`.

        Tokens go to experts in equal shares; copies that stay on the device are not sent.
        """
        assert operator.experts is not None
        group, all_experts = self.expert_groups()[0], operator.experts.experts
        peers = [replace(self, device=d) for d in group if d != self.device]
        if not peers:
            return Size(times=0)
        sent_rows = self._token_count(OperatorClass.ROUTER, length) * sum(
            peer.held_experts(operator) for peer in peers
        )
        received_rows = self.held_experts(operator) * sum(
            peer.router_tokens(length) for peer in peers
        )
        busiest = max(sent_rows, received_rows) * operator.experts.topk
        return Size(times=-(-busiest * len(group) // (all_experts * len(peers))))

    def held_experts(self, operator: Operator) -> int:
        """Number of local experts; 0 on a device without any."""
        return self._experts(operator) if self.cell(OperatorClass.EXPERTS) is not None else 0

    def router_tokens(self, length: int) -> int:
        """Number of tokens of a microbatch that the device routes."""
        return self._token_count(OperatorClass.ROUTER, length)

    def gathered_copies(self, operator: Operator, length: int) -> Size:
        """Routed copies that the device's experts work on; 0 on a device without experts.

        Gathered from all devices that share those experts.
        """
        return (
            self.dispatched(operator, length)
            if self.cell(OperatorClass.EXPERTS) is not None
            else Size(times=0)
        )

    def coset_tokens(self, length: int) -> Size:
        """Tokens that all devices that share experts with this device route together.

        See `Placing.coset_tokens`.
        """
        return Size(times=sum(replace(self, device=d).router_tokens(length) for d in self.coset()))

    def coset(self) -> tuple[int, ...]:
        """Devices, this one included, with experts for its tokens, or that only route those tokens.

        See `Placing.coset`.
        """
        across, inside = self.expert_groups()
        return tuple(sorted({*across, *inside, *_devices_of_same_tokens(self), self.device}))

    def gathered_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> Size:
        """Tokens whose keys the attention core's group holds together, summed over `lengths`.

        See `Placing.gathered_tokens`.
        """
        return Size(times=sum(self._tokens_by_group_device(operator, lengths)))

    def passed_tokens(self, operator: Operator, lengths: tuple[int, ...]) -> tuple[Size, ...]:
        """Tokens whose keys pass the device on each hop of the ring; one entry if all are equal.

        Its own part first, then those of the devices before it.

        The last hop carries the part of the device behind it. One entry where all parts are equal.
        """
        parts = self._tokens_by_group_device(operator, lengths)
        if len(set(parts)) == 1:
            return (Size(times=parts[0]),)
        index = self.members(operator, Dim.SEQUENCE).index(self.device)
        return tuple(Size(times=parts[(index - hop) % len(parts)]) for hop in range(len(parts)))

    def _tokens_by_group_device(
        self, operator: Operator, lengths: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Tokens of each device of the attention core's group, summed over the given lengths."""
        group = self.members(operator, Dim.SEQUENCE) or (self.device,)
        return tuple(
            sum(replace(self, device=d)._token_count(operator.klass, n) for n in lengths)
            for d in group
        )

    def own_region(self) -> Box:
        """Samples and positions that the device's experts serve; without experts, that it routes.

        Of a device without experts, those that it routes or makes.
        """
        classes = (OperatorClass.EXPERTS, OperatorClass.ROUTER, OperatorClass.STREAM)
        cell = next((c for klass in classes if (c := self.cell(klass)) is not None), None)
        return self.region(cell) if cell is not None else ((), ())

    def expert_groups(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(devices with other experts for the same tokens, devices with parts of its experts).

        The first include devices that only hold such tokens.
        """
        experts = self.stage.cells.get(OperatorClass.EXPERTS, {})
        own_tokens = self.own_region()
        coset = _devices_of_same_tokens(self)
        without_experts = [
            d
            for d, c in self.stage.cells.get(OperatorClass.ROUTER, {}).items()
            if d not in experts and _covers(own_tokens, self.region(c))
        ]
        own_cell = experts.get(self.device)
        if own_cell is None:
            return tuple(sorted({*coset, *without_experts, self.device})), ()
        own_experts, own_share = own_cell.way(Dim.EXPERTS), own_cell.way(Dim.FFN, Dim.WIDTH)
        across = [d for d in coset if experts[d].way(Dim.FFN, Dim.WIDTH) == own_share]
        inside = [d for d in coset if experts[d].way(Dim.EXPERTS) == own_experts]
        return tuple(sorted({*across, *without_experts})), (
            tuple(sorted(inside)) if len(inside) > 1 else (self.device,)
        )

    def region(self, cell: Cell) -> Box:
        """Samples and positions that a cell covers, as a box."""
        return token_box(cell, samples=self.stage.samples, length=self.length)

    def members(self, operator: Operator, dim: Dim) -> tuple[int, ...]:
        """One device for each part of `dim` of `operator`, equal to this one in all other cuts.

        (this device,) if the dim is not cut; () if the device runs no such operator.

        The j-th copies of all parts belong together, so that all members see one group.
        """
        cells = self.stage.cells.get(operator.klass, {})
        own_cell = cells.get(self.device)
        if own_cell is None:
            return ()

        def rest_and_part(cell: Cell) -> tuple[object, object]:
            cuts = cut_dims(cell, operator)
            batch, sequence, part = cell.way(Dim.BATCH), cell.way(Dim.SEQUENCE), cuts.pop(dim, ())
            along = dim is Dim.SEQUENCE
            return (
                batch,
                () if along else sequence,
                tuple(cuts.items()),
            ), (sequence if along else part)

        own_rest, own_part = rest_and_part(own_cell)
        devices_of_part: dict[object, list[int]] = {}
        for device, cell in sorted(cells.items()):
            tokens, part = rest_and_part(cell)
            if tokens == own_rest:
                devices_of_part.setdefault(part, []).append(device)
        index = devices_of_part[own_part].index(self.device)
        return (
            tuple(sorted(devices[index % len(devices)] for devices in devices_of_part.values()))
            if len(devices_of_part) > 1
            else (self.device,)
        )

    def summed_along(self, operator: Operator, parameter: Parameter) -> tuple[str, ...]:
        """Always empty: the cells themselves state which devices add up a gradient.

        See `Placing.summed_along`.
        """
        return ()

    def runs(self, operator: Operator) -> bool:
        """True if the device runs `operator`."""
        return self.cell(operator.klass) is not None

    def changes(
        self,
        source: Operator | None,
        target: Operator,
        *,
        length: int,
        element: int,
        memory_length: int = 0,
    ) -> tuple[LayoutChange, ...]:
        """Collectives of this device, forward and backward, of the tensor between two operators.

        The steps of `transition` that involve it.
        """
        extents = source.writes if source is not None else target.reads
        maker = source if source is not None else stream_operator(extents)
        if (
            maker.klass is target.klass is OperatorClass.STREAM
            and maker.kind is not OperatorKind.NORM
        ):
            return ()
        changes: list[LayoutChange] = []
        for extent in dict.fromkeys(extents):
            repeats = extents.count(extent)
            made, wanted = (
                made_layout(self.stage, maker, extent, length),
                wanted_layout(self.stage, target, extent, length),
            )
            routes = [
                (made, wanted, True),
                *(
                    (b.source, b.wanted, False)
                    for b in cotangent_routes(self.stage, maker, target, extent, length)
                ),
            ]
            for source_layout, wanted_part, forward in routes:
                between = id(source_layout), id(wanted_part)
                steps = transition_near_device(
                    Same(source_layout), Same(wanted_part), self.device, self.island
                )
                changes += changes_of_transition(
                    steps, self.device, element * repeats, forward=forward, between=between
                )
        return merge_same_steps(changes)


def on_replica(
    cells: StageCells, device: int, *, length: int, island: int = 0
) -> tuple[CellStructure, int]:
    """(structure of a device among its replica's devices, number of the replica's first device).

    Devices that may share samples with it; see `replica`.
    """
    near = replica(cells, device, max(island, 1))
    return (
        CellStructure(stage=near.cells, device=device - near.first, length=length, island=island),
        near.first,
    )


@lru_cache(maxsize=16384)
def _tokens_of(stage: StageCells, device: int, klass: OperatorClass, length: int) -> int:
    """Tokens of a microbatch that a device has in operators of a class; 0 if it runs none."""
    cell = stage.cells.get(klass, {}).get(device)
    if cell is None:
        return 0
    return count(indices(cell.way(Dim.BATCH), stage.samples)) * count(
        indices(cell.way(Dim.SEQUENCE), length)
    )


@lru_cache(maxsize=4096)
def _devices_of_same_tokens(structure: CellStructure) -> tuple[int, ...]:
    """Devices whose experts serve this device's tokens, itself included if it has experts.

    Or that it routes, where it has no experts.
    """
    tokens = projection(structure.stage, OperatorClass.EXPERTS, TOKENS)
    own_tokens = structure.own_region()
    served = [
        _covers(region, own_tokens) or _covers(own_tokens, region)
        for region in map(structure.region, tokens.cells)
    ]
    return tuple(
        d
        for d, number in zip(tokens.devices.tolist(), tokens.number.tolist(), strict=True)
        if served[number]
    )


def _covers(outer: Box, inner: Box) -> bool:
    """True if box `outer` contains box `inner`."""
    return intersection(outer, inner) == inner
