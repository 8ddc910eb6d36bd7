"""A worker: the stages of a plan, its devices with their parameters and caches, and one iteration
on each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.device_parameters import ParameterStore, Source
from shardwright.execute.device_state.layer_state import BlockRun
from shardwright.execute.device_state.operator_shares import Site, place_of
from shardwright.execute.interpreter.device_actions import Turn
from shardwright.execute.interpreter.device_walk import DeviceWork, Walker
from shardwright.execute.interpreter.stage_nodes import Node
from shardwright.execute.serve.cache_blocks import BlockTables, Reach, reaches
from shardwright.execute.serve.cached_latent_attention import forward_in
from shardwright.execute.serve.cached_operators import Absorb, ServedLayer
from shardwright.execute.serve.device_cache import DeviceCache
from shardwright.execute.serve.iteration_batch import Rows
from shardwright.execute.serve.served_model import require_served
from shardwright.execute.training.training_step import forward_work
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Of each rank with a cache of its own: `blocks` of `block_tokens` positions, for every reach
    of the model's cores.
    """

    blocks: int = 64
    block_tokens: int = 4


@dataclass(slots=True)
class ServingWorker:
    """A replica of the model on devices from `base` on.

    Args:
        plan: one lane of whole blocks, whose samples are cut over ranks with attention of their
            own; its numbers of samples are not read.
        ranks: of those.
        tables: of each rank.
        stores, caches: of the devices of this process.
    """

    model: Model
    plan: Plan
    base: int
    ranks: int
    absorb: Absorb
    tables: tuple[BlockTables, ...]
    rank_of: Mapping[int, int]
    stores: dict[int, ParameterStore]
    caches: dict[int, DeviceCache]
    works: dict[int, DeviceWork]

    def work(self, rows: int) -> DeviceWork:
        """Its stages for iterations of as many rows."""
        if rows not in self.works:
            self.works[rows] = _work(self.model, self.plan, base=self.base, rows=rows)
        return self.works[rows]

    @property
    def devices(self) -> tuple[int, ...]:
        """Of all stages, in all processes."""
        return tuple(self.rank_of)

    def tellers(self, rows: int) -> dict[int, int]:
        """For every row, the lowest device that has its logits."""
        work, found = self.work(rows), dict[int, int]()
        for stage in work.stages[0]:
            for operator, share in _shares(stage, work):
                if operator.kind is OperatorKind.LOSS:
                    for low, high in share.samples:
                        for row in range(low, high):
                            found[row] = min(found.get(row, share.device), share.device)
        return found

    def release(self, rank: int, request: int) -> None:
        """A request's blocks and states are given back."""
        self.drop(rank, self.tables[rank].release(request), request=request)

    def extend(self, rank: int, request: int, *, past: int, end: int) -> None:
        """Room for positions of a request; see `BlockTables.extend`."""
        self.drop(rank, self.tables[rank].extend(request, past=past, end=end))

    def land(self, rank: int, request: int, *, end: int) -> None:
        """Blocks for a request that came with `end` cached positions from another worker."""
        self.drop(rank, self.tables[rank].receive(request, first=end, end=end))
        for device, cache in self.caches.items():
            if self.rank_of[device] == rank:
                cache.land(request, end=end)

    def drop(
        self, rank: int, blocks: dict[Reach, list[int]], *, request: int | None = None
    ) -> None:
        """Tell the devices of a rank in this process."""
        for device, cache in self.caches.items():
            if self.rank_of[device] == rank:
                cache.drop(blocks, request=request)


def serving_worker(
    model: Model,
    plan: Plan,
    *,
    base: int,
    source: Source,
    settings: Settings,
    size: CacheSize,
    absorb: Absorb,
    here: frozenset[int] | None = None,
) -> ServingWorker:
    """A worker with an empty cache.

    Args:
        source: of parameters.
        here: devices of this process; None = all.

    Raises:
        StrategyError: as `require_served`; the plan has more than one lane, or cuts inside blocks,
            or positions (rule ``serve.plan``); others of `plan_stages`.
    """
    require_served(model)
    ranks, rank_of = _ranks(_work(model, plan, base=base, rows=ROWS))
    tables = tuple(
        BlockTables(reaches=reaches(model), blocks=size.blocks, block_tokens=size.block_tokens)
        for _ in range(ranks)
    )
    own = [d for d in rank_of if here is None or d in here]
    return ServingWorker(
        model=model,
        plan=plan,
        base=base,
        ranks=ranks,
        absorb=absorb,
        tables=tables,
        rank_of=rank_of,
        stores={d: ParameterStore(model=model, source=source, settings=settings) for d in own},
        caches={d: DeviceCache(tables=tables[rank_of[d]]) for d in own},
        works={},
    )


ROWS = 5040
"""Rows that any small number of ranks divides, for the question who has which."""


def _work(model: Model, plan: Plan, *, base: int, rows: int) -> DeviceWork:
    if len(plan.lanes) != 1:
        raise StrategyError(
            f"a worker is one lane, not {len(plan.lanes)}",
            hint="give each replica a worker",
            rule="serve.plan",
        )
    (lane,) = plan.lanes
    stages = tuple(replace(stage, base=stage.base + base, keeps=()) for stage in lane.stages)
    work = forward_work(
        model,
        replace(
            plan,
            devices=plan.devices + base,
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


def _ranks(work: DeviceWork) -> tuple[int, dict[int, int]]:
    """(ranks with a cache of their own, that of every device)."""
    found: dict[int, tuple[int, int]] = {}
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
                if found.setdefault(share.device, rows) != rows:
                    raise StrategyError(
                        f"device {share.device} has rows {found[share.device]} of one operator and"
                        f" {rows} of {operator.name}",
                        hint="cut rows of attention, embedding and head alike",
                        rule="serve.plan",
                    )
    runs = sorted(set(found.values()))
    if [low for low, _ in runs] != [0, *(high for _, high in runs[:-1])] or len(
        {high - low for low, high in runs}
    ) > 1:
        raise StrategyError(
            "ranks have unequal rows", hint="cut rows by b into equal parts", rule="serve.plan"
        )
    every = sorted({device for stage in work.stages[0] for device in stage.devices})
    return len(runs), {
        device: runs.index(found[device]) if device in found else 0 for device in every
    }


def _shares(stage: StageParts, work: DeviceWork) -> Iterator[tuple[Operator, OperatorShare]]:
    for segment in stage.segments:
        for device in segment.cells.devices:
            for operator in segment.block.operators:
                share = place_of(site_of(segment, stage, device + stage.base, work), operator)
                if share is not None:
                    yield operator, share


def site_of(segment: Segment, stage: StageParts, device: int, work: DeviceWork) -> Site:
    """A device of a stage, for rows of one position."""
    place, length = device - stage.base, work.lengths[TEXT]
    return Site(
        cells=segment.cells,
        device=place,
        base=stage.base,
        length=length,
        memory_length=0,
        settings=Settings(),
    )


class ServingWalker(Walker):
    """A device in an iteration: a walker of forward chunks whose operators keep what lives in its
    cache.
    """

    def __init__(self, device: int, worker: ServingWorker, rows: Rows, ids: torch.Tensor) -> None:
        nothing = torch.zeros_like(ids)
        super().__init__(
            device, worker.work(rows.count), {TEXT: ids, "labels": nothing}, worker.stores[device]
        )
        self.cache, self.rows, self.absorb = worker.caches[device], rows, worker.absorb
        self.logits: list[tuple[int, torch.Tensor]] = []

    def _run(self, node: Node, place: Turn) -> BlockRun:
        run = super()._run(node, place)
        layer = ServedLayer(
            run=run.run,
            number=run.layer,
            rows=self.rows,
            cache=self.cache,
            absorb=self.absorb,
            logits=self.logits,
        )
        return replace(run, forward_of=lambda operator: forward_in(layer, node.block, operator))


def iteration_task(
    device: int, worker: ServingWorker, rows: Rows, ids: torch.Tensor
) -> Task[list[tuple[int, torch.Tensor]]]:
    """One iteration on a device: its stages one after another. Answer: logits that it has, (first
    row, (rows, vocabulary)).

    Args:
        ids: tokens of all rows, (rows, 1).
    """
    walker = ServingWalker(device, worker, rows, ids)
    for chunk, stage in enumerate(walker.work.stages[0]):
        if device in stage.devices:
            yield from walker.forward(0, chunk, 0, 0)
    return walker.logits
