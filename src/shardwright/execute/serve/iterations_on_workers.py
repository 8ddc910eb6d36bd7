"""Server of tiny models: runs iterations on workers and keeps their logits, tokens and caches.

A schedule decides which requests run in which iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.serve.cached_operators import LatentReads
from shardwright.execute.serve.kv_cache_transfer import WorkerRank, has_states, transfer_task
from shardwright.execute.serve.padded_iteration_rows import IterationRows, RequestPart, padded_rows
from shardwright.execute.serve.serving_worker import (
    CacheSize,
    ServingWorker,
    create_worker,
    iteration_task,
)
from shardwright.execute.transport.communication_requests import Post, Take, Task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.strategy.plan.plan import Plan

TaskRunner = Callable[[Mapping[int, Task[object]]], Mapping[int, object]]
"""Runs the tasks of this process's devices together with those of the other processes."""


@dataclass(slots=True)
class Server:
    """Workers of one model, with the tokens and logits of all served requests.

    Args:
        workers: each on its own devices.
        tokens: tokens of each request, its prompt first; greedy decoding appends to them.
        given: requests whose answers are in `tokens` from the start.
        sizes: see `padded_rows`.
        run_tasks: runs tasks on the transport.
        logits: for each request and position, the logits each time that they were computed, from
            the lowest device of this process that has them.
        under_way: number of cached positions of requests that were sent and are not stored yet.
    """

    workers: tuple[ServingWorker, ...]
    tokens: dict[int, list[int]]
    given: frozenset[int]
    sizes: tuple[int, ...]
    run_tasks: TaskRunner
    logits: dict[int, dict[int, list[torch.Tensor]]] = field(default_factory=dict)
    under_way: dict[int, int] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[int, ...]:
        """All workers' devices that run in this process."""
        return tuple(d for worker in self.workers for d in worker.stores)

    def iterate(self, worker: int, ranks: Sequence[Sequence[RequestPart]]) -> None:
        """Run an iteration on each rank's parts; greedy requests, once all cached, get a token.

        A greedy request whose tokens are all cached after it gets one more token.
        """
        worker_object = self.workers[worker]
        self._require_known_tokens(worker_object, ranks)
        for rank, parts in enumerate(ranks):
            for part in parts:
                worker_object.extend(rank, part.request, past=part.past, end=part.end)
        rows = padded_rows(ranks, sizes=self.sizes)
        ids = torch.zeros((rows.count, 1), dtype=torch.int64)
        for row, part in rows.parts:
            ids[row : row + part.tokens, 0] = torch.tensor(
                self.tokens[part.request][part.past : part.end]
            )
        growing = tuple(
            row + part.tokens - 1
            for row, part in rows.parts
            if part.request not in self.given and part.end == len(self.tokens[part.request])
        )
        choosers = worker_object.devices_with_logits(rows.count) if growing else {}
        tasks: dict[int, Task[object]] = {}
        all_devices = tuple(d for each_worker in self.workers for d in each_worker.devices)
        for device in self.devices:
            tasks[device] = _run_and_share_tokens(
                device,
                worker_object,
                rows,
                ids,
                {row: choosers[row] for row in growing},
                all_devices,
            )
        outcomes = self.run_tasks(tasks)
        self._store_outcomes(rows, outcomes)

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        """Remove a finished or evicted request from a worker, and free its cache blocks."""
        self.under_way.pop(request, None)
        self.workers[worker].release(rank, request)

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        """Send a request's cache to another worker and free it here; stored in blocks later."""
        sender, receiver = (
            WorkerRank(worker=self.workers[w], rank=r)
            for w, r in zip((source, target), ranks, strict=True)
        )
        end = sender.tables.cached[request]
        both = set(sender.worker.stores) | set(receiver.worker.stores)
        self.run_tasks(
            {d: transfer_task(d, sender, receiver, request=request, end=end) for d in sorted(both)}
        )
        self.release(source, request, rank=ranks[0])
        self.under_way[request] = end

    def store_sent_cache(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        """Move a request's sent cache into the worker's blocks, up to position `end`.

        Raises:
            StrategyError: more positions were sent, and the model has states, which cannot go back
            (rule ``serve.state``).
        """
        sent = self.under_way.pop(request)
        if end < sent and has_states(self.workers[worker].model):
            raise StrategyError(
                f"request {request} continues at {end} with the state after {sent} tokens",
                hint=(
                    "a decode worker that computes a prompt's last token itself (vLLM) cannot be"
                    " executed for models with states"
                ),
                rule="serve.state",
            )
        self.workers[worker].store_sent_cache(rank, request, end=end)

    def _require_known_tokens(
        self, worker: ServingWorker, ranks: Sequence[Sequence[RequestPart]]
    ) -> None:
        """Raise StrategyError for a wrong number of ranks, or tokens not generated yet."""
        if len(ranks) != worker.ranks:
            raise StrategyError(
                f"parts of {len(ranks)} ranks for a worker of {worker.ranks}",
                hint="one list a rank",
                rule="serve.ranks",
            )
        for part in (part for parts in ranks for part in parts):
            if part.end > len(self.tokens[part.request]):
                raise StrategyError(
                    f"request {part.request} has {len(self.tokens[part.request])} tokens, not"
                    f" {part.end}",
                    hint="a token is known once the one before it has run",
                    rule="serve.tokens",
                )

    def _store_outcomes(self, rows: IterationRows, outcomes: Mapping[int, object]) -> None:
        """Store an iteration's logits by request and position, and greedy requests' tokens."""
        seen: set[int] = set()
        for outcome in (outcomes[device] for device in sorted(outcomes)):
            assert isinstance(outcome, IterationOutcome)
            for first, logits in outcome.logits:
                for row, part in rows.parts:
                    if row not in seen and first <= row < first + len(logits):
                        seen.add(row)
                        for i in range(part.tokens):
                            computed = self.logits.setdefault(part.request, {}).setdefault(
                                part.past + i, []
                            )
                            computed.append(logits[row - first + i])
        any_outcome = next(iter(outcomes.values()))
        assert isinstance(any_outcome, IterationOutcome)
        for row, part in rows.parts:
            last = row + part.tokens - 1
            if last in any_outcome.tokens:
                self.tokens[part.request].append(any_outcome.tokens[last])


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationOutcome:
    """One device's results of an iteration: logits of rows, and next tokens of greedy rows.

    `logits`: (first row, (rows, vocabulary)); `tokens`: the next token of every greedy row.
    """

    logits: tuple[tuple[int, torch.Tensor], ...]
    tokens: dict[int, int]


def _run_and_share_tokens(
    device: int,
    worker: ServingWorker,
    rows: IterationRows,
    ids: torch.Tensor,
    choosers: Mapping[int, int],
    all_devices: tuple[int, ...],
) -> Task[object]:
    """Run a device's iteration: IterationOutcome of its logits and of all greedy rows' next tokens.

    Devices of `worker` run the iteration; all devices learn the tokens.

    Args:
        choosers: for each greedy row, the device that chooses its next token: the most likely one,
            ties to the lower number.
    """
    logits = (
        (yield from iteration_task(device, worker, rows, ids)) if device in worker.stores else []
    )
    tokens: dict[int, int] = {}
    for row, chooser in choosers.items():
        if device != chooser:
            continue
        row_logits = next(
            rows_logits[row - first]
            for first, rows_logits in logits
            if first <= row < first + len(rows_logits)
        )
        tokens[row] = int(row_logits.argmax())
        for peer in all_devices:
            if peer != device:
                yield Post(to=peer, tensor=torch.tensor([tokens[row]]), key=("next", row))
    for row, chooser in choosers.items():
        if device != chooser:
            received = yield Take(source=chooser, shape=(1,), key=("next", row), dtype=torch.int64)
            assert isinstance(received, torch.Tensor)
            tokens[row] = int(received)
    return IterationOutcome(logits=tuple(logits), tokens=tokens)


def create_server(
    model: Model,
    plans: Sequence[Plan],
    *,
    prompts: Mapping[int, Sequence[int]],
    answers: Mapping[int, Sequence[int]] | None = None,
    source: Source,
    settings: Settings | None = None,
    size: CacheSize | None = None,
    absorb: LatentReads = LatentReads.DECODE,
    sizes: Sequence[int] = (),
    run_tasks: TaskRunner | None = None,
    local_devices: frozenset[int] | None = None,
) -> Server:
    """Create a server with empty caches and a worker a plan; requests without `answers` are greedy.

    Args:
        prompts: tokens by request.
        answers: tokens that follow the prompt, by request; other requests are decoded greedily.
        source: source of parameters.
        size: size of each worker's cache.
        absorb: tokens that use the absorbed form of latent attention.
        sizes: see `padded_rows`.
        run_tasks: runs tasks on the transport; None = all devices are virtual devices of this
            process.
        local_devices: devices of this process; None = all devices.

    Raises:
        StrategyError: as `create_worker`.
    """
    fixed_answers = answers or {}
    workers: list[ServingWorker] = []
    base = 0
    for plan in plans:
        workers.append(
            create_worker(
                model,
                plan,
                first_device=base,
                source=source,
                settings=settings or model.settings,
                size=size or CacheSize(),
                absorb=absorb,
                here=local_devices,
            )
        )
        base += plan.devices
    return Server(
        workers=tuple(workers),
        tokens={
            request: [*prompt, *fixed_answers.get(request, ())]
            for request, prompt in prompts.items()
        },
        given=frozenset(fixed_answers),
        sizes=tuple(sizes),
        run_tasks=run_tasks or run_in_process,
    )
