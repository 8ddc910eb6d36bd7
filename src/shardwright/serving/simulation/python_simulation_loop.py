"""Serving simulation in plain Python, request by request: the reference of the compiled loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.errors import InfeasibleError
from shardwright.serving.policy.policy_interface import (
    arrive,
    give_tokens,
    never_fits,
    plan_iteration,
    remove_done,
)
from shardwright.serving.policy.request_tokens_with_accepted_drafts import tokens_given
from shardwright.serving.policy.scheduler_state import (
    CACHED,
    DONE,
    ENTRY,
    GENERATED,
    MOST_BLOCKS,
    NUM_WAITING,
    PREEMPTED,
    REFUSED,
    STATUS,
    SchedulerState,
    new_state,
)
from shardwright.serving.policy.tensorrt_llm_prompt_delay import update_prompt_delay
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.request_router import route, router_number
from shardwright.serving.step_times.iteration_seconds import (
    NUM_COUNTS,
    NUM_PARTS,
    Columns,
    iteration_seconds,
    tabulate_steps,
)
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests

Timing: TypeAlias = Callable[[SchedulerState, int, int], float]
"""Seconds of the iteration that is planned in a rank's slot."""

Watcher: TypeAlias = Callable[[float, SchedulerState, int, int], None]
"""Callback at the begin of each iteration of each rank: time, state, rank and slot."""


def serve_requests_in_python(
    requests: Requests,
    table: StepTable,
    fleet: Fleet,
    *,
    timing: Timing | None = None,
    watcher: Watcher | None = None,
) -> ServedRequests:
    """Simulate requests on a fleet in plain Python, iteration by iteration; return their outcome.

    At one instant iterations end first, then requests arrive, then iterations begin. A worker with
    pipeline stages begins the next one a stage's share of the last one's seconds later, and ends
    them in their order; an engine that plans ahead fills an iteration when the one before it
    begins.

    Args:
        timing: seconds of an iteration, in place of the table's.
        watcher: called for each iteration of each rank.
    """
    run = _Run(requests=requests, table=table, fleet=fleet, timing=timing, watcher=watcher)
    while run.advance():
        pass
    return run.served()


_NOBODY = np.zeros(2, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class _Worker:
    """State of a worker's iterations.

    Args:
        under_way: (end, slot) of iterations under way, the oldest first.
        slots: free slots.
        planned: a slot planned in advance; -1 = none.
        begins: time at which the next iteration may begin.
        begun: time of the last attempt to begin.
        looked: an end was handled since that attempt.
        blocked: no iteration could begin, and another event has to come first.
    """

    under_way: deque[tuple[float, int]] = field(default_factory=deque)
    slots: list[int]
    planned: int = -1
    begins: float = 0.0
    begun: float = -np.inf
    looked: bool = False
    blocked: bool = True


@dataclass(slots=True, kw_only=True)
class _Run:
    """State of a simulation run."""

    requests: Requests
    table: StepTable
    fleet: Fleet
    timing: Timing | None
    watcher: Watcher | None
    state: SchedulerState = field(init=False)
    columns: Columns = field(init=False)
    workers: list[_Worker] = field(init=False)
    arrival: FloatArray = field(init=False)
    admitted: FloatArray = field(init=False)
    first: FloatArray = field(init=False)
    last: FloatArray = field(init=False)
    where: IntArray = field(init=False)
    chances: FloatArray = field(init=False)
    known: int = field(init=False)
    nowhere: IntArray = field(init=False)
    following: int = 0
    routed: int = 0
    now: float = 0.0
    iterations: int = 0
    busy: float = 0.0
    queued: float = 0.0
    parts: FloatArray = field(default_factory=lambda: np.zeros(NUM_PARTS))

    def __post_init__(self) -> None:
        scheduler, n = self.fleet.scheduler, len(self.requests.inputs)
        slots = self.table.stages if self.table.stages > 1 else 1 + scheduler.asynchronous
        self.state = new_state(
            self.requests,
            scheduler,
            ranks=self.fleet.workers * self.fleet.ranks,
            slots=slots,
            seed=self.fleet.acceptance.seed,
        )
        longest = int((self.requests.inputs + self.requests.outputs).max(initial=1))
        self.columns = tabulate_steps(self.table, scheduler, longest=longest)
        self.nowhere = np.zeros(len(self.columns.windows), dtype=np.int64)
        self.workers = [_Worker(slots=list(range(slots))) for _ in range(self.fleet.workers)]
        self.arrival = self.requests.arrival_s.copy()
        self.admitted, self.first, self.last = np.full((3, n), np.nan)
        self.where = np.full(n, -1, dtype=np.int64)
        self.known = min(n, self.requests.concurrency) if self.requests.concurrency else n
        self.chances = self.fleet.acceptance.chances(scheduler.draft_tokens)

    def advance(self) -> bool:
        """Run the next event; False if no event is left."""
        end = min((self._next_end(w) for w in self.workers), default=np.inf)
        begin = min(
            (max(w.begins, self.now) for w in self.workers if self._may_begin(w)), default=np.inf
        )
        arrives = self.arrival[self.following] if self.following < self.known else np.inf
        at = min(end, begin, arrives)
        if at == np.inf:
            return False
        self._pass_time(float(at))
        if end <= at:
            self._end_iteration(
                next(i for i, w in enumerate(self.workers) if self._next_end(w) == end)
            )
        elif arrives <= at:
            self._admit_arrival()
        else:
            self._begin_iteration(
                next(
                    i
                    for i, w in enumerate(self.workers)
                    if self._may_begin(w) and max(w.begins, self.now) == at
                )
            )
        return True

    def _may_begin(self, worker: _Worker) -> bool:
        """True if a worker is not blocked and has fewer iterations under way than stages."""
        return not worker.blocked and len(worker.under_way) < max(1, self.table.stages)

    def _next_end(self, worker: _Worker) -> float:
        """Seconds at which a worker handles its oldest iteration's end; inf if none or not next.

        Infinity if no iteration runs, or if it may begin another one first (pipeline stages).
        """
        if not worker.under_way or (worker.looked and self._may_begin(worker)):
            return float(np.inf)
        return float(max(worker.under_way[0][0], np.nextafter(worker.begun, np.inf)))

    def _pass_time(self, at: float) -> None:
        """Advance the clock to `at` seconds and add to the integral of the queue length."""
        self.queued += (at - self.now) * int(self.state.ranks[:, NUM_WAITING].sum())
        self.now = at

    def _admit_arrival(self) -> None:
        """Put the next arriving request in the queue of a rank, or refuse it."""
        request = self.following
        self.following += 1
        if never_fits(self.state, request):
            self.state.requests[request, STATUS] = REFUSED
            self._schedule_next_of_loop()
            return
        rank = route(
            self.state, router_number(self.fleet.router), request, self.routed, self.fleet.workers
        )
        self.routed += 1
        self.where[request] = rank // self.fleet.ranks
        arrive(self.state, rank, request)
        self.workers[rank // self.fleet.ranks].blocked = False

    def _schedule_next_of_loop(self) -> None:
        """In a closed loop, schedule the next request's arrival after a request has ended."""
        if self.requests.concurrency and self.known < len(self.arrival):
            self.known += 1
            self.arrival[self.known - 1] = self.now + self.fleet.think_s
            # Requests are numbered in the order of their arrival: a later one may arrive after this
            # one.
            self.arrival[self.following : self.known].sort()

    def _begin_iteration(self, index: int) -> None:
        """Begin the planned iteration of worker `index`, or plan and begin one."""
        worker = self.workers[index]
        worker.begun, worker.looked = self.now, False
        slot = worker.planned if worker.planned >= 0 else self._plan_iteration(index)
        worker.planned = -1
        if slot < 0:
            worker.blocked = True
            return
        seconds = self._iteration_seconds(index, slot)
        previous_end = worker.under_way[-1][0] if worker.under_way else 0.0
        worker.under_way.append((max(previous_end, self.now + seconds), slot))
        worker.begins = self.now + seconds / max(1, self.table.stages)
        self.iterations += 1
        self.busy += seconds
        if self.fleet.scheduler.asynchronous and self.table.stages == 1:
            worker.planned = self._plan_iteration(index)

    def _plan_iteration(self, index: int) -> int:
        """Plan the next iteration of the ranks of worker `index`; return its slot, -1 = no work."""
        worker = self.workers[index]
        slot = worker.slots.pop()
        num_planned = 0
        update_prompt_delay(self.state, index * self.fleet.ranks, self.fleet.ranks)
        for rank in range(index * self.fleet.ranks, (index + 1) * self.fleet.ranks):
            num_planned += plan_iteration(self.state, rank, slot)
            self._record_admissions(rank, slot)
        if num_planned:
            return slot
        worker.slots.append(slot)
        return -1

    def _record_admissions(self, rank: int, slot: int) -> None:
        """Record the admission times of the requests that are in their first iteration."""
        for entry in range(self.state.batch_size[rank, slot]):
            request = self.state.batch[rank, slot, entry, ENTRY]
            if np.isnan(self.admitted[request]):
                self.admitted[request] = self.now

    def _iteration_seconds(self, index: int, slot: int) -> float:
        """Seconds of the slowest rank of worker `index`; add that rank's parts to `self.parts`."""
        slowest, slowest_parts = -1.0, self.parts
        for rank in range(index * self.fleet.ranks, (index + 1) * self.fleet.ranks):
            if self.watcher is not None:
                self.watcher(self.now, self.state, rank, slot)
            parts = np.zeros(NUM_PARTS)
            if not self.state.batch_size[rank, slot]:
                continue
            if self.timing is not None:
                seconds = self.timing(self.state, rank, slot)
            else:
                seconds = iteration_seconds(
                    self.state,
                    self.columns,
                    rank,
                    slot,
                    _NOBODY,
                    self.nowhere,
                    np.zeros(NUM_COUNTS),
                    parts,
                )
            if seconds > slowest:
                slowest, slowest_parts = seconds, parts
        self.parts = self.parts + slowest_parts
        return slowest

    def _end_iteration(self, index: int) -> None:
        """End a worker's oldest iteration: give its tokens and remove finished requests."""
        worker = self.workers[index]
        _, slot = worker.under_way.popleft()
        for rank in range(index * self.fleet.ranks, (index + 1) * self.fleet.ranks):
            num_done = 0
            for entry in range(self.state.batch_size[rank, slot]):
                num_done += self._give_entry_tokens(rank, slot, entry)
            if num_done:
                remove_done(self.state, rank)
        worker.slots.append(slot)
        worker.blocked, worker.looked = False, True

    def _give_entry_tokens(self, rank: int, slot: int, entry: int) -> bool:
        """Give the answer tokens of one batch entry; True if its request has ended."""
        request = self.state.batch[rank, slot, entry, ENTRY]
        given = give_tokens(
            self.state, rank, slot, entry, tokens_given(self.state, self.chances, rank, slot, entry)
        )
        if not given:
            return False
        if self.state.requests[request, GENERATED] == given:
            self.first[request] = self.now
        if self.state.requests[request, STATUS] != DONE:
            return False
        self.last[request] = self.now
        self._schedule_next_of_loop()
        return True

    def served(self) -> ServedRequests:
        """Outcome, in seconds from the first arrival; InfeasibleError if some wait for ever."""
        return collect_served_requests(
            self.state,
            arrival=self.arrival,
            admitted=self.admitted,
            first_s=self.first,
            last_s=self.last,
            where=self.where,
            iterations=self.iterations,
            busy=self.busy,
            parts=self.parts,
            queued=self.queued,
        )


def collect_served_requests(
    state: SchedulerState,
    *,
    arrival: FloatArray,
    admitted: FloatArray,
    first_s: FloatArray,
    last_s: FloatArray,
    where: IntArray,
    iterations: int,
    busy: float,
    parts: FloatArray,
    queued: float,
) -> ServedRequests:
    """Outcome of a run, in seconds from the first arrival; InfeasibleError if some wait for ever.

    Args:
        queued: integral over time of the number of waiting requests.
    """
    if (state.requests[:, STATUS] < DONE).any():
        num_left = int((state.requests[:, STATUS] < DONE).sum())
        raise InfeasibleError(
            f"{num_left:,} requests wait for ever: the scheduler never admits the first of them",
            hint="a higher memory fraction, fewer tokens an iteration, or shorter requests",
        )
    start = float(arrival[0]) if len(arrival) else 0.0
    seconds = float(np.nanmax(last_s, initial=start)) - start if len(arrival) else 0.0
    waited = (admitted - arrival)[state.requests[:, STATUS] == DONE]
    return ServedRequests(
        arrival_s=arrival - start,
        first_s=first_s - start,
        last_s=last_s - start,
        worker=where,
        preempted=state.requests[:, PREEMPTED].copy(),
        cached=state.requests[:, CACHED].copy(),
        iterations=iterations,
        busy_s=busy,
        peak_blocks=int(state.ranks[:, MOST_BLOCKS].max()),
        by_part=parts,
        waiting_s=float(waited.mean()) if len(waited) else 0.0,
        queue=queued / seconds if seconds else 0.0,
    )


__all__ = ["Timing", "Watcher", "collect_served_requests", "serve_requests_in_python"]
