"""A server that does what a scheduling policy says: the same functions on the same arrays as the simulator's loop.

Time is counted in turns: an iteration takes one on each stage of the worker, and the next one begins a turn later. A request that arrives
at turn n is there when the iteration that begins then is planned, as in a simulation whose iterations take as many seconds as there are
stages. A worker with nothing to do waits for the next arrival. An iteration is computed where it begins; its tokens are given where it
ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shardwright.errors import StrategyError
from shardwright.execute.serve.batches import Part
from shardwright.serving.policy.iteration import arrive, give, leave, never_fits, plan
from shardwright.serving.policy.state import AHEAD, BEFORE, DONE, ENTRY, GUESSES, PREEMPTED, PREFIX_CACHE, REFUSED, STATUS, TOKENS, State


class Serves(Protocol):
    """What runs iterations: a `Server`, or who only counts blocks."""

    def iterate(self, worker: int, ranks: Sequence[Sequence[Part]]) -> None:
        """One iteration of a worker: parts of each of its ranks."""
        ...

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        """A request leaves a worker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """An iteration that waits for its turn: its slot of the state, parts of each rank, and who lost its blocks for it, with its rank."""

    slot: int
    ranks: tuple[tuple[Part, ...], ...]
    evicted: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Scheduled:
    """One worker of a server under a policy.

    Args:
        state: of all requests, by their numbers in the server; has a rank for each of the worker's, and a slot for each stage (two for
            one where iterations are planned ahead). arrivals: turn at which each request comes, never falling; they go to ranks in turn.
        stages: of the worker's pipeline. log: (turn, request, tokens) of each part, in the order of the batch.
        refused: requests that can never fit. lost: requests that lost their blocks since the last iteration was planned.
    """

    server: Serves
    state: State
    arrivals: Sequence[int]
    worker: int = 0
    stages: int = 1
    log: list[tuple[int, int, int]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    rank_of: dict[int, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    following: int = 0
    routed: int = 0

    def __post_init__(self) -> None:
        settings = self.state.settings
        for name, column in (("guesses", GUESSES), ("prefix cache", PREFIX_CACHE)):
            if settings[column]:
                raise StrategyError(f"a {name} cannot be served yet", hint="serve without it, or simulate", rule="serve.policy")

    def run(self) -> None:
        """Serve until nothing is left to do."""
        slots, begins, blocked = list(range(self.state.batch_size.shape[1])), 0, False
        under_way: deque[tuple[int, _Planned]] = deque()
        planned: _Planned | None = None
        now = 0
        while True:
            while under_way and under_way[0][0] <= now:
                _, done = under_way.popleft()
                self._end(done)
                slots.append(done.slot)
                blocked = False
            if self._arrive(now):
                blocked = False
            if not blocked and now >= begins and len(under_way) < self.stages:
                chosen, planned = planned or self._plan(slots), None
                blocked = chosen is None
                if chosen is not None:
                    planned = self._plan(slots) if self.state.settings[AHEAD] and self.stages == 1 else None
                    self._begin(now, chosen)
                    under_way.append((now + self.stages, chosen))
                    begins = now + 1
            coming = [self.arrivals[self.following]] if self.following < len(self.arrivals) else []
            coming += [under_way[0][0]] if under_way else []
            coming += [begins] if not blocked and len(under_way) < self.stages else []
            if not coming:
                return
            now = min(coming)

    def _arrive(self, now: int) -> bool:
        """Requests that come now wait; whether there is any."""
        before = self.routed
        while self.following < len(self.arrivals) and self.arrivals[self.following] <= now:
            request = self.following
            self.following += 1
            if never_fits(self.state, request):
                self.state.requests[request, STATUS] = REFUSED
                self.refused.append(request)
                continue
            self.rank_of[request] = self.routed % self.state.ranks.shape[0]
            self.routed += 1
            arrive(self.state, self.rank_of[request], request)
        return self.routed > before

    def _plan(self, slots: list[int]) -> _Planned | None:
        """The next iteration of all ranks; None = there is nothing to do."""
        slot, before = slots.pop(), self.state.requests[:, PREEMPTED].copy()
        ranks = range(self.state.ranks.shape[0])
        num_planned = sum([plan(self.state, rank, slot) for rank in ranks])
        self.lost += (self.state.requests[:, PREEMPTED] > before).nonzero()[0].tolist()
        if not num_planned:
            slots.append(slot)
            return None
        evicted, self.lost = tuple((self.rank_of[request], request) for request in self.lost), []
        return _Planned(slot=slot, ranks=tuple(self._parts(rank, slot) for rank in ranks), evicted=evicted)

    def _parts(self, rank: int, slot: int) -> tuple[Part, ...]:
        entries = self.state.batch[rank, slot, : self.state.batch_size[rank, slot]].tolist()
        return tuple(Part(request=entry[ENTRY], tokens=entry[TOKENS], past=entry[BEFORE]) for entry in entries)

    def _begin(self, now: int, planned: _Planned) -> None:
        for rank, request in planned.evicted:
            self.server.release(self.worker, request, rank=rank)
        self.server.iterate(self.worker, planned.ranks)
        self.log += [(now, part.request, part.tokens) for parts in planned.ranks for part in parts]

    def _end(self, planned: _Planned) -> None:
        for rank, parts in enumerate(planned.ranks):
            done = []
            for entry, part in enumerate(parts):
                if give(self.state, rank, planned.slot, entry, 1) and self.state.requests[part.request, STATUS] == DONE:
                    done.append(part.request)
            if done:
                leave(self.state, rank)
            for request in done:
                self.server.release(self.worker, request, rank=rank)
