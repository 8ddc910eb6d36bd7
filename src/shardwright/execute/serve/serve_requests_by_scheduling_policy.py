"""Serving under a scheduling policy, with the simulator's own functions and arrays.

Time is counted in turns: an iteration takes one on each stage of the worker, and the next one
begins a turn later. A request that arrives at turn n is in the queue when the iteration that begins
at turn n is planned, as in a simulation whose iterations take as many seconds as there are stages.
An idle worker waits for the next arrival. An iteration is computed at its first turn; its tokens
are delivered at its last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from shardwright.errors import StrategyError
from shardwright.execute.serve.padded_iteration_rows import RequestPart
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.serving.policy.policy_interface import (
    arrive,
    give_tokens,
    never_fits,
    plan_iteration,
    remove_done,
)
from shardwright.serving.policy.scheduler_state import (
    AHEAD,
    BEFORE,
    COMPUTES_FIRST,
    DONE,
    DRAFT_TOKENS,
    ENTRY,
    ONLY_ANSWERS,
    OUTPUTS,
    PREEMPTED,
    PREFIX_CACHE,
    REFUSED,
    STATUS,
    TOKENS,
    SchedulerState,
)


class IterationRunner(Protocol):
    """Runner of serving iterations: a `Server`, or a runner that only counts blocks."""

    def iterate(self, worker: int, ranks: Sequence[Sequence[RequestPart]]) -> None:
        """Run one iteration of a worker, with the request parts of each of its ranks."""
        ...

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        """Remove a finished or evicted request from a worker, and free its cache blocks."""
        ...

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        """Send a request's cache and states to another worker, to be stored in blocks later."""
        ...

    def store_sent_cache(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        """Move a request's sent cache into the worker's blocks, up to position `end`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedIteration:
    """An iteration that is planned or running.

    Args:
        slot: the state's slot of the iteration.
        ranks: request parts of each rank, in the order of the slot.
        evicted: (rank, request) of the requests that lost blocks for it.
    """

    slot: int
    ranks: tuple[tuple[RequestPart, ...], ...]
    evicted: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class ScheduledWorker:
    """One worker of a server, whose iterations a scheduling policy plans.

    Args:
        state: scheduler state of all requests, by their numbers in the server, with a rank for each
            rank of the worker and a slot for each stage (two slots for one stage where iterations
            are planned ahead).
        stages: number of stages of the worker's pipeline.
        log: (turn, request, tokens) of each part, in the order of the batch.
        refused: requests that can never fit in the cache.
        rank_of: the rank of each request; ranks take requests in turn.
        future_arrivals: (turn, request) of future arrivals, in ascending order.
        newly_evicted: requests that lost their blocks since the last iteration was planned.
        slots: free slots.
        under_way: (end turn, iteration) of running iterations.
        begins: earliest turn of the next iteration.
        blocked: no iteration could be planned; an arrival or an end must come first.
        sent: requests whose cache was sent and is not stored in blocks yet.
    """

    server: IterationRunner
    state: SchedulerState
    worker: int = 0
    stages: int = 1
    log: list[tuple[int, int, int]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    rank_of: dict[int, int] = field(default_factory=dict)
    future_arrivals: deque[tuple[int, int]] = field(default_factory=deque)
    newly_evicted: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    under_way: deque[tuple[int, _PlannedIteration]] = field(default_factory=deque)
    planned: _PlannedIteration | None = None
    begins: int = 0
    blocked: bool = True
    sent: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = self.state.settings
        for name, column in (
            ("deployment with draft tokens", DRAFT_TOKENS),
            ("prefix cache", PREFIX_CACHE),
        ):
            if settings[column]:
                raise StrategyError(
                    f"a {name} cannot be served yet",
                    hint="serve without it, or simulate",
                    rule="serve.policy",
                )
        self.slots = list(range(self.state.batch_size.shape[1]))

    def expect(self, turn: int, request: int) -> int | None:
        """Register a request's arrival turn: its rank, or None if the cache can never hold it."""
        if never_fits(self.state, request):
            self.state.requests[request, STATUS] = REFUSED
            self.refused.append(request)
            return None
        rank = self.rank_of[request] = len(self.rank_of) % len(self.state.ranks)
        self.future_arrivals.append((turn, request))
        return rank

    def finish_iterations(self, now: int) -> list[int]:
        """Give requests the tokens of iterations that end by turn `now`; return the requests done.

        Blocks of these requests are not freed yet.
        """
        done: list[int] = []
        while self.under_way and self.under_way[0][0] <= now:
            _, planned = self.under_way.popleft()
            for rank, parts in enumerate(planned.ranks):
                done_before = len(done)
                for entry, part in enumerate(parts):
                    if (
                        give_tokens(self.state, rank, planned.slot, entry, 1)
                        and self.state.requests[part.request, STATUS] == DONE
                    ):
                        done.append(part.request)
                if len(done) > done_before:
                    remove_done(self.state, rank)
            self.slots.append(planned.slot)
            self.blocked = False
        return done

    def begin_iteration(self, now: int) -> None:
        """Queue requests that arrive by turn `now`, and start the next iteration if one is due."""
        while self.future_arrivals and self.future_arrivals[0][0] <= now:
            _, request = self.future_arrivals.popleft()
            arrive(self.state, self.rank_of[request], request)
            if self.state.settings[ONLY_ANSWERS]:
                self.sent.add(request)
            self.blocked = False
        if self.blocked or now < self.begins or len(self.under_way) >= self.stages:
            return
        iteration, self.planned = self.planned or self._plan(), None
        self.blocked = iteration is None
        if iteration is not None:
            self.planned = self._plan() if self.state.settings[AHEAD] and self.stages == 1 else None
            self._run(now, iteration)
            self.under_way.append((now + self.stages, iteration))
            self.begins = now + 1

    def next_turn(self) -> int | None:
        """Next turn with an arrival, or an iteration's end or start; None if nothing is left."""
        turns = [self.future_arrivals[0][0]] if self.future_arrivals else []
        turns += [self.under_way[0][0]] if self.under_way else []
        turns += [self.begins] if not self.blocked and len(self.under_way) < self.stages else []
        return min(turns, default=None)

    def release(self, requests: Sequence[int]) -> None:
        """Free the blocks of finished requests."""
        for request in requests:
            self.server.release(self.worker, request, rank=self.rank_of[request])

    def _plan(self) -> _PlannedIteration | None:
        """Let the scheduling policy form each rank's next batch; None if no request can run."""
        slot, preempted_before = self.slots.pop(), self.state.requests[:, PREEMPTED].copy()
        ranks = range(self.state.ranks.shape[0])
        num_planned = sum([plan_iteration(self.state, rank, slot) for rank in ranks])
        self.newly_evicted += (
            (self.state.requests[:, PREEMPTED] > preempted_before).nonzero()[0].tolist()
        )
        if not num_planned:
            self.slots.append(slot)
            return None
        evicted, self.newly_evicted = (
            tuple((self.rank_of[request], request) for request in self.newly_evicted),
            [],
        )
        return _PlannedIteration(
            slot=slot, ranks=tuple(self._parts(rank, slot) for rank in ranks), evicted=evicted
        )

    def _parts(self, rank: int, slot: int) -> tuple[RequestPart, ...]:
        """(request, tokens, cached positions) of each entry of a rank's batch."""
        entries = self.state.batch[rank, slot, : self.state.batch_size[rank, slot]].tolist()
        return tuple(
            RequestPart(request=entry[ENTRY], tokens=entry[TOKENS], past=entry[BEFORE])
            for entry in entries
        )

    def _run(self, now: int, planned: _PlannedIteration) -> None:
        """Free evicted requests, move sent caches into blocks, run the iteration and log it."""
        for rank, request in planned.evicted:
            self.sent.discard(request)
            self.server.release(self.worker, request, rank=rank)
        for rank, parts in enumerate(planned.ranks):
            for part in parts:
                if part.request in self.sent:
                    self.sent.remove(part.request)
                    if part.past:
                        self.server.store_sent_cache(
                            self.worker, part.request, end=part.past, rank=rank
                        )
                    else:
                        self.server.release(self.worker, part.request, rank=rank)
        self.server.iterate(self.worker, planned.ranks)
        self.log += [(now, part.request, part.tokens) for parts in planned.ranks for part in parts]


def serve_requests(worker: ScheduledWorker) -> None:
    """Run the worker's iterations, turn after turn, until no expected request is left."""
    now: int | None = 0
    while now is not None:
        worker.release(worker.finish_iterations(now))
        worker.begin_iteration(now)
        now = worker.next_turn()


def serve_prefill_and_decode(
    prefill: ScheduledWorker, decode: ScheduledWorker, *, transfer_turns: int
) -> None:
    """Serve all requests: prefill, a cache transfer of `transfer_turns` turns, then decode.

    A request's cache is sent when its first token is there, and the request arrives at the decode
    worker `transfer_turns` turns later; several requests at once go in the order of their numbers.
    A request of one token is not sent, unless the decode worker computes the first token itself
    (once more).
    """
    now: int | None = 0
    while now is not None:
        for request in sorted(prefill.finish_iterations(now)):
            source = prefill.rank_of[request]
            is_sent = (
                decode.state.settings[ONLY_ANSWERS] == COMPUTES_FIRST
                or decode.state.requests[request, OUTPUTS] > 1
            )
            target = decode.expect(now + transfer_turns, request) if is_sent else None
            if target is None:
                prefill.release([request])
            else:
                prefill.server.send(
                    request, source=prefill.worker, target=decode.worker, ranks=(source, target)
                )
        decode.release(decode.finish_iterations(now))
        prefill.begin_iteration(now)
        decode.begin_iteration(now)
        now = min(
            (turn for turn in (prefill.next_turn(), decode.next_turn()) if turn is not None),
            default=None,
        )
