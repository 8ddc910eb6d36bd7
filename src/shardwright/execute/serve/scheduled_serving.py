"""A server that does what a scheduling policy says: the same functions on the same arrays as the
simulator's loop.

Time is counted in turns: an iteration takes one on each stage of the worker, and the next one
begins a turn later. A request that arrives at turn n is there when the iteration that begins then
is planned, as in a simulation whose iterations take as many seconds as there are stages. A worker
with nothing to do waits for the next arrival. An iteration is computed where it begins; its tokens
are given where it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from shardwright.errors import StrategyError
from shardwright.execute.serve.iteration_batch import Part
from shardwright.lazy_dataclass import dataclass
from shardwright.serving.policy.next_iteration import (
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


class Serves(Protocol):
    """A runner of iterations: a `Server`, or one that only counts blocks."""

    def iterate(self, worker: int, ranks: Sequence[Sequence[Part]]) -> None:
        """One iteration of a worker: parts of each of its ranks."""
        ...

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        """A request leaves a worker."""
        ...

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        """Send a request's cache and states from one worker to another, where they wait."""
        ...

    def land(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        """Store what was sent in the worker's blocks, up to position `end`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """An iteration that waits for its turn, or is under way.

    Args:
        slot: of the state.
        ranks: parts of each, in the order of the slot.
        evicted: (rank, request) of who lost blocks for it.
    """

    slot: int
    ranks: tuple[tuple[Part, ...], ...]
    evicted: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Scheduled:
    """One worker of a server under a policy.

    Args:
        state: of all requests, by their numbers in the server; has a rank for each of the worker's,
            and a slot for each stage (two for one where iterations are planned ahead).
        stages: of the worker's pipeline.
        log: (turn, request, tokens) of each part, in the order of the batch.
        refused: requests that can never fit.
        rank_of: requests go to ranks in turn.
        coming: (turn, request), never falling.
        lost: requests that lost their blocks since the last iteration was planned.
        slots: free ones.
        under_way: (turn of its end, iteration).
        begins: turn of the next one, at least.
        blocked: nothing could be planned, and something has to happen first.
        sent: requests that come with a cache and have not landed.
    """

    server: Serves
    state: SchedulerState
    worker: int = 0
    stages: int = 1
    log: list[tuple[int, int, int]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    rank_of: dict[int, int] = field(default_factory=dict)
    coming: deque[tuple[int, int]] = field(default_factory=deque)
    lost: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    under_way: deque[tuple[int, _Planned]] = field(default_factory=deque)
    planned: _Planned | None = None
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
        """A request comes at a turn; the rank that it goes to, None if it can never fit."""
        if never_fits(self.state, request):
            self.state.requests[request, STATUS] = REFUSED
            self.refused.append(request)
            return None
        rank = self.rank_of[request] = len(self.rank_of) % len(self.state.ranks)
        self.coming.append((turn, request))
        return rank

    def end(self, now: int) -> list[int]:
        """Iterations that end now give their tokens; requests that are done, whose blocks are still
        there.
        """
        done: list[int] = []
        while self.under_way and self.under_way[0][0] <= now:
            _, planned = self.under_way.popleft()
            for rank, parts in enumerate(planned.ranks):
                before = len(done)
                for entry, part in enumerate(parts):
                    if (
                        give_tokens(self.state, rank, planned.slot, entry, 1)
                        and self.state.requests[part.request, STATUS] == DONE
                    ):
                        done.append(part.request)
                if len(done) > before:
                    remove_done(self.state, rank)
            self.slots.append(planned.slot)
            self.blocked = False
        return done

    def begin(self, now: int) -> None:
        """Queue the requests that arrive at `now`, and begin the next iteration if there is one and
        it may begin.
        """
        while self.coming and self.coming[0][0] <= now:
            _, request = self.coming.popleft()
            arrive(self.state, self.rank_of[request], request)
            if self.state.settings[ONLY_ANSWERS]:
                self.sent.add(request)
            self.blocked = False
        if self.blocked or now < self.begins or len(self.under_way) >= self.stages:
            return
        chosen, self.planned = self.planned or self._plan(), None
        self.blocked = chosen is None
        if chosen is not None:
            self.planned = self._plan() if self.state.settings[AHEAD] and self.stages == 1 else None
            self._run(now, chosen)
            self.under_way.append((now + self.stages, chosen))
            self.begins = now + 1

    def next_turn(self) -> int | None:
        """When something happens next; None = nothing is left to do."""
        turns = [self.coming[0][0]] if self.coming else []
        turns += [self.under_way[0][0]] if self.under_way else []
        turns += [self.begins] if not self.blocked and len(self.under_way) < self.stages else []
        return min(turns, default=None)

    def release(self, requests: Sequence[int]) -> None:
        """Free the blocks of finished requests."""
        for request in requests:
            self.server.release(self.worker, request, rank=self.rank_of[request])

    def _plan(self) -> _Planned | None:
        """The next iteration of all ranks; None = there is nothing to do."""
        slot, before = self.slots.pop(), self.state.requests[:, PREEMPTED].copy()
        ranks = range(self.state.ranks.shape[0])
        num_planned = sum([plan_iteration(self.state, rank, slot) for rank in ranks])
        self.lost += (self.state.requests[:, PREEMPTED] > before).nonzero()[0].tolist()
        if not num_planned:
            self.slots.append(slot)
            return None
        evicted, self.lost = tuple((self.rank_of[request], request) for request in self.lost), []
        return _Planned(
            slot=slot, ranks=tuple(self._parts(rank, slot) for rank in ranks), evicted=evicted
        )

    def _parts(self, rank: int, slot: int) -> tuple[Part, ...]:
        entries = self.state.batch[rank, slot, : self.state.batch_size[rank, slot]].tolist()
        return tuple(
            Part(request=entry[ENTRY], tokens=entry[TOKENS], past=entry[BEFORE])
            for entry in entries
        )

    def _run(self, now: int, planned: _Planned) -> None:
        for rank, request in planned.evicted:
            self.sent.discard(request)
            self.server.release(self.worker, request, rank=rank)
        for rank, parts in enumerate(planned.ranks):
            for part in parts:
                if part.request in self.sent:
                    self.sent.remove(part.request)
                    if part.past:
                        self.server.land(self.worker, part.request, end=part.past, rank=rank)
                    else:
                        self.server.release(self.worker, part.request, rank=rank)
        self.server.iterate(self.worker, planned.ranks)
        self.log += [(now, part.request, part.tokens) for parts in planned.ranks for part in parts]


def run(worker: Scheduled) -> None:
    """Serve what is expected until nothing is left to do."""
    now: int | None = 0
    while now is not None:
        worker.release(worker.end(now))
        worker.begin(now)
        now = worker.next_turn()


def run_split(prefill: Scheduled, decode: Scheduled, *, turns: int) -> None:
    """Serve what the prefill worker expects: its state is of prompts alone, that of the other
    worker of answers alone.

    What lives of a request goes over when its first token is there, and is expected at the decode
    worker `turns` turns later; of several at once the lowest number first. A request of one token
    does not go, unless the decode worker computes the first token itself (once more).
    """
    now: int | None = 0
    while now is not None:
        for request in sorted(prefill.end(now)):
            source = prefill.rank_of[request]
            goes = (
                decode.state.settings[ONLY_ANSWERS] == COMPUTES_FIRST
                or decode.state.requests[request, OUTPUTS] > 1
            )
            target = decode.expect(now + turns, request) if goes else None
            if target is None:
                prefill.release([request])
            else:
                prefill.server.send(
                    request, source=prefill.worker, target=decode.worker, ranks=(source, target)
                )
        decode.release(decode.end(now))
        prefill.begin(now)
        decode.begin(now)
        now = min(
            (turn for turn in (prefill.next_turn(), decode.next_turn()) if turn is not None),
            default=None,
        )
