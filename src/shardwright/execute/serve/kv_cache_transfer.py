"""Transfer of a request's cache and states between workers with different parallel degrees.

The layouts on both sides determine the messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    operator_share,
)
from shardwright.execute.redistribution.run_layout_transition import redistribute
from shardwright.execute.serve.cached_latent_attention import latent_operators
from shardwright.execute.serve.device_kv_cache import CacheKey
from shardwright.execute.serve.kv_cache_blocks import CacheBlockTables, KeyReach, key_reach
from shardwright.execute.serve.serving_worker import ServingWorker, site_of
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.layout.tensor_layout import Holding, Interval, Layout
from shardwright.program.stages.stage_segments import Segment, StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor of a request that an operator keeps between iterations.

    It lies in cache blocks, or is a state.

    Args:
        operator: the operator that keeps it.
        number: number of the tensor among those that the operator keeps.
        reads: number of the operator's input extent whose elements a device keeps; -1 = all
            elements.
        reach: key reach of the blocks that hold it; None = a state.
        last: rows of a state (last inputs of a convolution); 0 = one row for each head.
        per_head: elements of a state for each head.
    """

    operator: Operator
    number: int
    reads: int
    reach: KeyReach | None = None
    last: int = 0
    per_head: int = 0


@lru_cache(maxsize=256)
def kept_tensors(block: Block) -> tuple[KeptTensor, ...]:
    """Tensors (keys, values, latents, states) that a block caches between iterations.

    `model.decode_state` counts their elements.
    """
    tensors: list[KeptTensor] = []
    latent = latent_operators(block)
    for operator in block.operators:
        if latent is not None and operator.name in (latent.up, latent.rotary):
            assert latent.core.attention is not None
            tensors.append(
                KeptTensor(
                    operator=operator, number=0, reads=-1, reach=key_reach(latent.core.attention)
                )
            )
        elif operator.attention is not None and latent is None:
            reach = key_reach(operator.attention)
            tensors += [
                KeptTensor(operator=operator, number=i, reads=i + 1, reach=reach) for i in range(2)
            ]
        elif operator.kind is OperatorKind.CONV:
            taps = operator.parameters[0].extents[1].size
            tensors += [
                KeptTensor(operator=operator, number=i, reads=i, last=taps - 1)
                for i in range(len(operator.writes))
            ]
        elif operator.scan is not None:
            tensors.append(
                KeptTensor(
                    operator=operator,
                    number=0,
                    reads=0,
                    per_head=operator.scan.head_dim * operator.scan.state,
                )
            )
    return tuple(tensors)


def has_states(model: Model) -> bool:
    """True if the model has recurrent or convolution states, which belong to a whole sequence."""
    return any(tensor.reach is None for block in model.blocks for tensor in kept_tensors(block))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRank:
    """A serving worker, and the rank of the worker that has the request."""

    worker: ServingWorker
    rank: int

    @property
    def tables(self) -> CacheBlockTables:
        """The block tables of the rank."""
        return self.worker.tables[self.rank]


def transfer_task(
    device: int, source: WorkerRank, target: WorkerRank, *, request: int, end: int
) -> Task[None]:
    """Move a request's cache and states to another worker's `arrived`: one device's part.

    All devices of both workers run it; `end`: number of cached positions.

    The tensors wait in the target's caches until the request has blocks there
    (`DeviceCache.store_arrived`). Of a window, only the positions that later queries read move.
    """
    moves = zip(_layers(source.worker), _layers(target.worker), strict=True)
    for (stage, segment, layer), (other_stage, other_segment, _) in moves:
        for tensor in kept_tensors(segment.block):
            cache_key = CacheKey(
                run=segment.run, layer=layer, operator=tensor.operator.name, number=tensor.number
            )
            low, high = _positions(source, target, tensor, request, end)
            if high > low:
                source_layout = _tensor_layout(source, stage, segment, tensor, rows=high - low)
                target_layout = _tensor_layout(
                    target, other_stage, other_segment, tensor, rows=high - low
                )
                yield from _move_rows(
                    device,
                    source,
                    target,
                    (source_layout, target_layout),
                    tensor,
                    cache_key,
                    request=request,
                    rows=(low, high),
                )


def _layers(worker: ServingWorker) -> Iterator[tuple[StageParts, Segment, int]]:
    """Iterate over (stage, segment, layer number) of the worker's layers, in model order."""
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
    return iter(sorted(listed, key=lambda place: (place[1].run, place[2])))


def _positions(
    source: WorkerRank, target: WorkerRank, tensor: KeptTensor, request: int, end: int
) -> Interval:
    """[first, end) of the cached positions, or state rows, that a later query needs."""
    if tensor.reach is None:
        return 0, min(end, tensor.last) if tensor.last else 1
    first = source.tables.held[tensor.reach, request].first * source.tables.block_tokens
    size = target.tables.block_tokens
    # The target may compute the last position once more.
    return max(first, tensor.reach.first(end - 1) // size * size), end


def _tensor_layout(
    side: WorkerRank, stage: StageParts, segment: Segment, tensor: KeptTensor, *, rows: int
) -> Layout:
    """Layout of a cached tensor by device of one worker rank: all rows, the device's elements."""
    holdings = []
    for place in segment.cells.devices:
        device = place + stage.base
        share = operator_share(
            site_of(segment, stage, device, side.worker.work(side.worker.ranks)), tensor.operator
        )
        if share is not None and side.worker.rank_of[device] == side.rank:
            if tensor.reads < 0:
                elements = (0, _shared_width(tensor, segment.block))
            elif tensor.per_head:
                elements = (share.heads[0] * tensor.per_head, share.heads[1] * tensor.per_head)
            else:
                elements = share.reads[tensor.reads]
            holdings.append(Holding(device=device, box=(((0, 1),), ((0, rows),), (elements,))))
    return tuple(sorted(holdings))


def _shared_width(tensor: KeptTensor, block: Block) -> int:
    """Elements of a latent, or of the rotary part of the keys, which all heads share."""
    if tensor.operator.kind is not OperatorKind.ROTARY:
        return tensor.operator.reads[0].size
    down = next(o for o in block.operators if o.name == tensor.operator.inputs[2])
    return down.writes[1].size


def _move_rows(
    device: int,
    source: WorkerRank,
    target: WorkerRank,
    layouts: tuple[Layout, Layout],
    tensor: KeptTensor,
    cache_key: CacheKey,
    *,
    request: int,
    rows: Interval,
) -> Task[None]:
    """Redistribute positions of a cached tensor between workers; keep those received."""
    source_layout, target_layout = layouts
    sends, receives = (any(h.device == device for h in layout) for layout in layouts)
    if not sends and not receives:
        return
    local_tensors = (
        (_read_rows(source, device, tensor, cache_key, request=request, rows=rows),)
        if sends
        else ()
    )
    store = (target if receives else source).worker.stores[device]
    key = ("moved", *cache_key, request)
    moved = yield from redistribute(
        local_tensors,
        source_layout,
        target_layout,
        device=device,
        key=key,
        dtype=store.precision.compute,
        on=store.on,
        across=True,
    )
    if receives:
        received = (
            moved[0] if tensor.reach is not None or tensor.last else _state_of(tensor, moved[0])
        )
        target.worker.caches[device].arrived.setdefault(request, []).append(
            (tensor.reach, cache_key, rows[0], received)
        )


def _read_rows(
    side: WorkerRank,
    device: int,
    tensor: KeptTensor,
    cache_key: CacheKey,
    *,
    request: int,
    rows: Interval,
) -> torch.Tensor:
    """Read positions, or state rows, of a cached tensor from a device's cache."""
    cache = side.worker.caches[device]
    if tensor.reach is None:
        state = cache.states[request, cache_key]
        return state if tensor.last else state.reshape(1, 1, -1)
    return cache.get(tensor.reach, cache_key, request=request, end=rows[1])[
        :, rows[0] - cache.first(tensor.reach, request) :
    ]


def _state_of(tensor: KeptTensor, elements: torch.Tensor) -> torch.Tensor:
    """Reshape the elements of a scan's state to the shape that the scan operator reads."""
    scan = tensor.operator.scan
    assert scan is not None
    inner = (scan.state, scan.head_dim) if scan.delta else (scan.head_dim, scan.state)
    return elements.reshape(1, -1, *(inner if scan.head_dim > 1 or scan.delta else (scan.state,)))
