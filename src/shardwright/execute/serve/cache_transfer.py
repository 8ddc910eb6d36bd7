"""Transfer of a request's cache and states between workers of different degrees, by the cells'
layouts on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from shardwright.execute.device_state.operator_shares import place_of
from shardwright.execute.redistribution.redistribute import redistribute
from shardwright.execute.serve.cache_blocks import BlockTables, Reach, reach_of
from shardwright.execute.serve.cached_latent_attention import latent_operators
from shardwright.execute.serve.device_cache import Spot
from shardwright.execute.serve.worker import ServingWorker, site_of
from shardwright.execute.transport.requests import Task
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.layout.tensor_layout import Holding, Interval, Layout
from shardwright.program.stages.stage_segments import Segment, StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that an operator keeps of a request.

    Args:
        operator: of which it is;
        number: which of its tensors;
        reads: which of the operator's extents says what a device has of it.
        reach: of the blocks that it lies in; None = a state.
        last: rows of a state that are kept (inputs of a convolution); 0 = one row of each head.
        per_head: elements of a state for each head.
    """

    operator: Operator
    number: int
    reads: int
    reach: Reach | None = None
    last: int = 0
    per_head: int = 0


@lru_cache(maxsize=256)
def kept_by(block: Block) -> tuple[Kept, ...]:
    """All that the operators of a block keep, tensor by tensor (`model.living.lives_in` counts
    them).
    """
    found: list[Kept] = []
    latent = latent_operators(block)
    for operator in block.operators:
        if latent is not None and operator.name in (latent.up, latent.rotary):
            assert latent.core.attention is not None
            found.append(
                Kept(operator=operator, number=0, reads=-1, reach=reach_of(latent.core.attention))
            )
        elif operator.attention is not None and latent is None:
            reach = reach_of(operator.attention)
            found += [Kept(operator=operator, number=i, reads=i + 1, reach=reach) for i in range(2)]
        elif operator.kind is OperatorKind.CONV:
            taps = operator.parameters[0].extents[1].size
            found += [
                Kept(operator=operator, number=i, reads=i, last=taps - 1)
                for i in range(len(operator.writes))
            ]
        elif operator.scan is not None:
            found.append(
                Kept(
                    operator=operator,
                    number=0,
                    reads=0,
                    per_head=operator.scan.head_dim * operator.scan.state,
                )
            )
    return tuple(found)


def has_states(model: Model) -> bool:
    """Something that lives is of a whole sequence, not of its positions."""
    return any(kept.reach is None for block in model.blocks for kept in kept_by(block))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A worker, and the rank of it that has a request."""

    worker: ServingWorker
    rank: int

    @property
    def tables(self) -> BlockTables:
        """Of the rank."""
        return self.worker.tables[self.rank]


def transfer_task(device: int, source: Side, target: Side, *, request: int, end: int) -> Task[None]:
    """A device's part in moving what lives of a request with `end` cached positions. All devices of
    both sides run it.

    It waits in the target's caches until the request has blocks there (`DeviceCache.land`). Of a
    window what later queries see moves.
    """
    moves = zip(_layers(source.worker), _layers(target.worker), strict=True)
    for (stage, segment, layer), (other_stage, other_segment, _) in moves:
        for kept in kept_by(segment.block):
            spot = Spot(
                run=segment.run, layer=layer, operator=kept.operator.name, number=kept.number
            )
            low, high = _positions(source, target, kept, request, end)
            if high > low:
                lying = _lying(source, stage, segment, kept, rows=high - low)
                wanted = _lying(target, other_stage, other_segment, kept, rows=high - low)
                yield from _moved(
                    device,
                    source,
                    target,
                    (lying, wanted),
                    kept,
                    spot,
                    request=request,
                    rows=(low, high),
                )


def _layers(worker: ServingWorker) -> Iterator[tuple[StageParts, Segment, int]]:
    """Every layer of the model in its order, with the stage that has it."""
    places = (
        (stage, segment)
        for stage in worker.work(worker.ranks).stages[0]
        for segment in stage.segments
    )
    listed = [
        (stage, segment, layer)
        for stage, segment in places
        for layer in range(segment.first, segment.first + segment.count)
    ]
    return iter(sorted(listed, key=lambda one: (one[1].run, one[2])))


def _positions(source: Side, target: Side, kept: Kept, request: int, end: int) -> Interval:
    """Positions (or rows of a state) that move."""
    if kept.reach is None:
        return 0, min(end, kept.last) if kept.last else 1
    first = source.tables.held[kept.reach, request].first * source.tables.block_tokens
    size = target.tables.block_tokens
    # The last position may be computed once more there.
    return max(first, kept.reach.first(end - 1) // size * size), end


def _lying(side: Side, stage: StageParts, segment: Segment, kept: Kept, *, rows: int) -> Layout:
    """The layout of the tensor, as (1, rows, elements)."""
    found = []
    for place in segment.cells.devices:
        device = place + stage.base
        share = place_of(
            site_of(segment, stage, device, side.worker.work(side.worker.ranks)), kept.operator
        )
        if share is not None and side.worker.rank_of[device] == side.rank:
            if kept.reads < 0:
                elements = (0, _shared_width(kept, segment.block))
            elif kept.per_head:
                elements = (share.heads[0] * kept.per_head, share.heads[1] * kept.per_head)
            else:
                elements = share.reads[kept.reads]
            found.append(Holding(device=device, box=(((0, 1),), ((0, rows),), (elements,))))
    return tuple(sorted(found))


def _shared_width(kept: Kept, block: Block) -> int:
    """Elements of a latent, or of the turned part of the keys."""
    if kept.operator.kind is not OperatorKind.ROTARY:
        return kept.operator.reads[0].size
    down = next(o for o in block.operators if o.name == kept.operator.inputs[2])
    return down.writes[1].size


def _moved(
    device: int,
    source: Side,
    target: Side,
    layouts: tuple[Layout, Layout],
    kept: Kept,
    spot: Spot,
    *,
    request: int,
    rows: Interval,
) -> Task[None]:
    lying, wanted = layouts
    gives, gets = (any(h.device == device for h in layout) for layout in layouts)
    if not gives and not gets:
        return
    given = (_read(source, device, kept, spot, request=request, rows=rows),) if gives else ()
    store = (target if gets else source).worker.stores[device]
    key = ("moved", *spot, request)
    found = yield from redistribute(
        given,
        lying,
        wanted,
        device=device,
        key=key,
        dtype=store.precision.compute,
        on=store.on,
        across=True,
    )
    if gets:
        came = found[0] if kept.reach is not None or kept.last else _state_of(kept, found[0])
        target.worker.caches[device].arrived.setdefault(request, []).append(
            (kept.reach, spot, rows[0], came)
        )


def _read(
    side: Side, device: int, kept: Kept, spot: Spot, *, request: int, rows: Interval
) -> torch.Tensor:
    cache = side.worker.caches[device]
    if kept.reach is None:
        state = cache.states[request, spot]
        return state if kept.last else state.reshape(1, 1, -1)
    return cache.get(kept.reach, spot, request=request, end=rows[1])[
        :, rows[0] - cache.first(kept.reach, request) :
    ]


def _state_of(kept: Kept, elements: torch.Tensor) -> torch.Tensor:
    """A scan's state from its elements, in the shape that its numerics give it."""
    scan = kept.operator.scan
    assert scan is not None
    inner = (scan.state, scan.head_dim) if scan.delta else (scan.head_dim, scan.state)
    return elements.reshape(1, -1, *(inner if scan.head_dim > 1 or scan.delta else (scan.state,)))
