"""Serving worker: a plan's stages with parameters and caches, and one iteration on each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.operator_tokens_parameters_and_groups_on_device import (
    DeviceOfStage,
    operator_share,
)
from shardwright.execute.device_state.saved_layer_state import BlockRun
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore, Source
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.iterate_device_passes_in_order import Turn
from shardwright.execute.interpreter.prepared_step import PreparedStep
from shardwright.execute.interpreter.stage_layers import StageNode
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.serve.cached_latent_attention import cached_operator_of_block
from shardwright.execute.serve.cached_operators import LatentReads, ServedLayer
from shardwright.execute.serve.device_kv_cache import DeviceCache
from shardwright.execute.serve.kv_cache_blocks import CacheBlockTables, KeyReach, key_reaches
from shardwright.execute.serve.padded_iteration_rows import IterationRows
from shardwright.execute.serve.remove_prediction_modules_and_check_model import require_served
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_forward
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Number and size of the cache blocks of each rank, for every key reach of the model."""

    blocks: int = 64
    block_tokens: int = 4


@dataclass(slots=True)
class ServingWorker:
    """One replica of the model that serves requests, on devices from `base` on.

    Args:
        plan: one lane of whole blocks, whose samples are cut over ranks with data-parallel
            attention; its numbers of samples are not read.
        ranks: number of ranks with data-parallel attention.
        tables: block tables of each rank.
        stores, caches: parameters and caches of this process's devices.
    """

    model: Model
    plan: Plan
    base: int
    ranks: int
    absorb: LatentReads
    tables: tuple[CacheBlockTables, ...]
    rank_of: Mapping[int, int]
    stores: dict[int, ParameterStore]
    caches: dict[int, DeviceCache]
    works: dict[int, PreparedStep]

    def work(self, rows: int) -> PreparedStep:
        """Stages prepared for iterations of `rows` token rows (kept for each number of rows)."""
        if rows not in self.works:
            self.works[rows] = _prepared_work(
                self.model, self.plan, first_device=self.base, rows=rows
            )
        return self.works[rows]

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices of all stages, in all processes."""
        return tuple(self.rank_of)

    def devices_with_logits(self, rows: int) -> dict[int, int]:
        """Row number -> lowest device that computes the row's logits."""
        work, device_by_row = self.work(rows), dict[int, int]()
        for stage in work.stages[0]:
            for operator, share in _shares(stage, work):
                if operator.kind is OperatorKind.LOSS:
                    for low, high in share.samples:
                        for row in range(low, high):
                            device_by_row[row] = min(
                                device_by_row.get(row, share.device), share.device
                            )
        return device_by_row

    def release(self, rank: int, request: int) -> None:
        """Free a request's cache blocks on a rank, and drop its recurrent states."""
        self.drop(rank, self.tables[rank].release(request), request=request)

    def extend(self, rank: int, request: int, *, past: int, end: int) -> None:
        """Reserve cache blocks on a rank for a request's positions `past` to `end`.

        See `CacheBlockTables.extend`.
        """
        self.drop(rank, self.tables[rank].extend(request, past=past, end=end))

    def store_sent_cache(self, rank: int, request: int, *, end: int) -> None:
        """Reserve blocks for a request's received cache of `end` positions, and fill them."""
        self.drop(rank, self.tables[rank].receive(request, first=end, end=end))
        for device, cache in self.caches.items():
            if self.rank_of[device] == rank:
                cache.store_arrived(request, end=end)

    def drop(
        self, rank: int, blocks: dict[KeyReach, list[int]], *, request: int | None = None
    ) -> None:
        """Fill freed blocks with NaN, and drop a request's states, on local devices of a rank."""
        for device, cache in self.caches.items():
            if self.rank_of[device] == rank:
                cache.drop(blocks, request=request)


def create_worker(
    model: Model,
    plan: Plan,
    *,
    first_device: int,
    source: Source,
    settings: Settings,
    size: CacheSize,
    absorb: LatentReads,
    here: frozenset[int] | None = None,
) -> ServingWorker:
    """Create a worker with an empty cache for a plan of one lane.

    Args:
        source: source of parameters.
        here: devices of this process; None = all devices.

    Raises:
        StrategyError: as `require_served`; the plan has more than one lane, or cuts inside blocks,
            or positions (rule ``serve.plan``); others of `plan_stages`.
    """
    require_served(model)
    ranks, rank_of = _ranks(_prepared_work(model, plan, first_device=first_device, rows=ROWS))
    tables = tuple(
        CacheBlockTables(
            reaches=key_reaches(model), blocks=size.blocks, block_tokens=size.block_tokens
        )
        for _ in range(ranks)
    )
    local_devices = [d for d in rank_of if here is None or d in here]
    return ServingWorker(
        model=model,
        plan=plan,
        base=first_device,
        ranks=ranks,
        absorb=absorb,
        tables=tables,
        rank_of=rank_of,
        stores={
            d: ParameterStore(model=model, source=source, settings=settings) for d in local_devices
        },
        caches={d: DeviceCache(tables=tables[rank_of[d]]) for d in local_devices},
        works={},
    )


ROWS = 5040
"""Number of rows used to find each device's rows; divisible by any small number of ranks."""


def _prepared_work(model: Model, plan: Plan, *, first_device: int, rows: int) -> PreparedStep:
    """Prepare the plan's only lane for `rows` one-token samples, from device `first_device` on."""
    if len(plan.lanes) != 1:
        raise StrategyError(
            f"a worker is one lane, not {len(plan.lanes)}",
            hint="give each replica a worker",
            rule="serve.plan",
        )
    (lane,) = plan.lanes
    stages = tuple(
        replace(stage, base=stage.base + first_device, keeps=()) for stage in lane.stages
    )
    work = prepare_forward(
        model,
        replace(
            plan,
            devices=plan.devices + first_device,
            lanes=(replace(lane, samples=rows, microbatches=1, slices=(), stages=stages),),
        ),
    )
    for segment in (s for stage in work.stages[0] for s in stage.segments):
        if segment.operator:
            raise StrategyError(
                f"a stage ends inside {segment.block.name}",
                hint="cut stages between blocks",
                rule="serve.plan",
                path=segment.operator,
            )
    return work


def _ranks(work: PreparedStep) -> tuple[int, dict[int, int]]:
    """(number of data-parallel ranks with own caches, device -> rank), from the devices' rows."""
    rows_by_device: dict[int, tuple[int, int]] = {}
    for stage in work.stages[0]:
        for operator, share in _shares(stage, work):
            if operator.kind in (
                OperatorKind.ATTENTION,
                OperatorKind.SCAN,
                OperatorKind.CONV,
                OperatorKind.LOSS,
                OperatorKind.EMBEDDING,
            ):
                if share.positions != ((0, 1),) or len(share.samples) != 1:
                    raise StrategyError(
                        f"{operator.name} has no whole rows on device {share.device}",
                        hint="cut rows by b alone",
                        rule="serve.plan",
                    )
                (rows,) = share.samples
                if rows_by_device.setdefault(share.device, rows) != rows:
                    raise StrategyError(
                        f"device {share.device} has rows {rows_by_device[share.device]} of one"
                        f" operator and {rows} of {operator.name}",
                        hint="cut rows of attention, embedding and head alike",
                        rule="serve.plan",
                    )
    runs = sorted(set(rows_by_device.values()))
    if [low for low, _ in runs] != [0, *(high for _, high in runs[:-1])] or len(
        {high - low for low, high in runs}
    ) > 1:
        raise StrategyError(
            "ranks have unequal rows", hint="cut rows by b into equal parts", rule="serve.plan"
        )
    devices = sorted({device for stage in work.stages[0] for device in stage.devices})
    return len(runs), {
        device: runs.index(rows_by_device[device]) if device in rows_by_device else 0
        for device in devices
    }


def _shares(stage: StageParts, work: PreparedStep) -> Iterator[tuple[Operator, OperatorShare]]:
    """Iterate over (operator, share of it) for each device of a stage."""
    for segment in stage.segments:
        for device in segment.cells.devices:
            for operator in segment.block.operators:
                share = operator_share(site_of(segment, stage, device + stage.base, work), operator)
                if share is not None:
                    yield operator, share


def site_of(segment: Segment, stage: StageParts, device: int, work: PreparedStep) -> DeviceOfStage:
    """Place of a device in a stage's segment, for samples of one position and default settings."""
    place, length = device - stage.base, work.lengths[TEXT]
    return DeviceOfStage(
        cells=segment.cells,
        device=place,
        base=stage.base,
        length=length,
        memory_length=0,
        settings=Settings(),
    )


class ServingWalker(Walker):
    """Walker of a serving iteration, whose operators keep keys, values and states in a cache."""

    def __init__(
        self, device: int, worker: ServingWorker, rows: IterationRows, ids: torch.Tensor
    ) -> None:
        nothing = torch.zeros_like(ids)
        super().__init__(
            device, worker.work(rows.count), {TEXT: ids, "labels": nothing}, worker.stores[device]
        )
        self.cache, self.rows, self.absorb = worker.caches[device], rows, worker.absorb
        self.logits: list[tuple[int, torch.Tensor]] = []

    def _block_run(self, node: StageNode, place: Turn) -> BlockRun:
        """The computation of one layer, with operators that read and write the cache."""
        run = super()._block_run(node, place)
        layer = ServedLayer(
            run=run.run,
            number=run.layer,
            rows=self.rows,
            cache=self.cache,
            absorb=self.absorb,
            logits=self.logits,
        )
        return replace(
            run, forward_of=lambda operator: cached_operator_of_block(layer, node.block, operator)
        )


def iteration_task(
    device: int, worker: ServingWorker, rows: IterationRows, ids: torch.Tensor
) -> Task[list[tuple[int, torch.Tensor]]]:
    """Run one iteration on a device, stage by stage: its logits, (first row, (rows, vocabulary)).

    Args:
        ids: tokens of all rows, (rows, 1).
    """
    walker = ServingWalker(device, worker, rows, ids)
    for chunk, stage in enumerate(walker.work.stages[0]):
        if device in stage.devices:
            yield from walker.forward(0, chunk, 0, 0)
    return walker.logits
