"""A tiny server: iterations of unlike parts on workers, their logits, tokens and caches. Who runs
when is the schedule's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.serve.cache_transfer import Side, has_states, transfer_task
from shardwright.execute.serve.cached_operators import Absorb
from shardwright.execute.serve.iteration_batch import Part, Rows, rows_of
from shardwright.execute.serve.worker import (
    CacheSize,
    ServingWorker,
    iteration_task,
    serving_worker,
)
from shardwright.execute.transport.in_process import run
from shardwright.execute.transport.requests import Post, Take, Task
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings
from shardwright.strategy.plan.plan import Plan

Drive = Callable[[Mapping[int, Task[object]]], Mapping[int, object]]
"""Runs tasks of the devices of this process beside those of the others."""


@dataclass(slots=True)
class Server:
    """Workers of one model, and what they have served.

    Args:
        workers: on devices of their own.
        tokens: of each request, its prompt first; a greedy request grows.
        given: those whose answers are in `tokens` from the start.
        sizes: see `rows_of`.
        drive: the transport.
        logits: of each request, by position, each time that it was computed, as the lowest device
            of this process has them.
        under_way: requests that were sent, with their cached positions.
    """

    workers: tuple[ServingWorker, ...]
    tokens: dict[int, list[int]]
    given: frozenset[int]
    sizes: tuple[int, ...]
    drive: Drive
    logits: dict[int, dict[int, list[torch.Tensor]]] = field(default_factory=dict)
    under_way: dict[int, int] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[int, ...]:
        """Of all workers, in this process."""
        return tuple(d for worker in self.workers for d in worker.stores)

    def iterate(self, worker: int, ranks: Sequence[Sequence[Part]]) -> None:
        """One iteration of a worker: parts of each of its ranks. Requests whose tokens are all
        cached behind it have another one then.
        """
        chosen = self.workers[worker]
        self._check(chosen, ranks)
        for rank, parts in enumerate(ranks):
            for part in parts:
                chosen.extend(rank, part.request, past=part.past, end=part.end)
        rows = rows_of(ranks, sizes=self.sizes)
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
        tellers = chosen.tellers(rows.count) if growing else {}
        tasks: dict[int, Task[object]] = {}
        everybody = tuple(d for other in self.workers for d in other.devices)
        for device in self.devices:
            tasks[device] = _told(
                device, chosen, rows, ids, {row: tellers[row] for row in growing}, everybody
            )
        found = self.drive(tasks)
        self._keep(rows, found)

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        """A request leaves a worker: it is done, or evicted and will be computed anew."""
        self.under_way.pop(request, None)
        self.workers[worker].release(rank, request)

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        """Send a request's cache and states from one worker (and rank of it) to another, where they
        wait until they land.
        """
        gives, gets = (
            Side(worker=self.workers[w], rank=r)
            for w, r in zip((source, target), ranks, strict=True)
        )
        end = gives.tables.cached[request]
        both = set(gives.worker.stores) | set(gets.worker.stores)
        self.drive(
            {d: transfer_task(d, gives, gets, request=request, end=end) for d in sorted(both)}
        )
        self.release(source, request, rank=ranks[0])
        self.under_way[request] = end

    def land(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        """Store a request's sent cache in blocks of the worker, up to position `end`.

        Raises:
            StrategyError: more was sent, and the model has states, which cannot go back (rule
            ``serve.state``).
        """
        sent = self.under_way.pop(request)
        if end < sent and has_states(self.workers[worker].model):
            raise StrategyError(
                f"request {request} goes on at {end} with the state behind {sent} tokens",
                hint=(
                    "a decode worker that computes a prompt's last token itself (vLLM) cannot be"
                    " executed for models with states"
                ),
                rule="serve.state",
            )
        self.workers[worker].land(rank, request, end=end)

    def _check(self, worker: ServingWorker, ranks: Sequence[Sequence[Part]]) -> None:
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

    def _keep(self, rows: Rows, found: Mapping[int, object]) -> None:
        """Logits by request and position; tokens of greedy requests."""
        seen: set[int] = set()
        for outcome in (found[device] for device in sorted(found)):
            assert isinstance(outcome, IterationOutcome)
            for first, logits in outcome.logits:
                for row, part in rows.parts:
                    if row not in seen and first <= row < first + len(logits):
                        seen.add(row)
                        for i in range(part.tokens):
                            known = self.logits.setdefault(part.request, {}).setdefault(
                                part.past + i, []
                            )
                            known.append(logits[row - first + i])
        told = next(iter(found.values()))
        assert isinstance(told, IterationOutcome)
        for row, part in rows.parts:
            last = row + part.tokens - 1
            if last in told.tokens:
                self.tokens[part.request].append(told.tokens[last])


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationOutcome:
    """One device's results of an iteration: logits, (first row, (rows, vocabulary)); the next token
    of every growing row.
    """

    logits: tuple[tuple[int, torch.Tensor], ...]
    tokens: dict[int, int]


def _told(
    device: int,
    worker: ServingWorker,
    rows: Rows,
    ids: torch.Tensor,
    tellers: Mapping[int, int],
    everybody: tuple[int, ...],
) -> Task[object]:
    """An iteration on a device of any worker: those of `worker` run it, and tell all others what
    comes next.

    Args:
        tellers: for each growing row, the device that says its next token: the most likely one,
            ties to the lower number.
    """
    logits = (
        (yield from iteration_task(device, worker, rows, ids)) if device in worker.stores else []
    )
    tokens: dict[int, int] = {}
    for row, teller in tellers.items():
        if device != teller:
            continue
        own = next(
            found[row - first] for first, found in logits if first <= row < first + len(found)
        )
        tokens[row] = int(own.argmax())
        for other in everybody:
            if other != device:
                yield Post(to=other, tensor=torch.tensor([tokens[row]]), key=("next", row))
    for row, teller in tellers.items():
        if device != teller:
            told = yield Take(source=teller, shape=(1,), key=("next", row), dtype=torch.int64)
            assert isinstance(told, torch.Tensor)
            tokens[row] = int(told)
    return IterationOutcome(logits=tuple(logits), tokens=tokens)


def server(
    model: Model,
    plans: Sequence[Plan],
    *,
    prompts: Mapping[int, Sequence[int]],
    answers: Mapping[int, Sequence[int]] | None = None,
    source: Source,
    settings: Settings | None = None,
    size: CacheSize | None = None,
    absorb: Absorb = Absorb.DECODE,
    sizes: Sequence[int] = (),
    drive: Drive | None = None,
    here: frozenset[int] | None = None,
) -> Server:
    """A server with empty caches: a worker for each plan, on devices one behind another.

    Args:
        prompts: tokens by request.
        answers: what follows them where that is given; other requests are greedy.
        source: of parameters.
        size: of each worker's cache.
        absorb: of latent attention.
        sizes: see `rows_of`.
        drive: None = all devices are virtual ones in this process.
        here: devices of this process; None = all.

    Raises:
        StrategyError: as `serving_worker`.
    """
    given = answers or {}
    workers: list[ServingWorker] = []
    base = 0
    for plan in plans:
        workers.append(
            serving_worker(
                model,
                plan,
                base=base,
                source=source,
                settings=settings or model.settings,
                size=size or CacheSize(),
                absorb=absorb,
                here=here,
            )
        )
        base += plan.devices
    return Server(
        workers=tuple(workers),
        tokens={request: [*prompt, *given.get(request, ())] for request, prompt in prompts.items()},
        given=frozenset(given),
        sizes=tuple(sizes),
        drive=drive or run,
    )
