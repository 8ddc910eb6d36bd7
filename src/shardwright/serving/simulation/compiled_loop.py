"""The simulation, compiled: iterations of requests that only decode take the time of one, however
many they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import allocation_free, by_reference, compiling, inner
from shardwright.lazy_dataclass import dataclass
from shardwright.serving.policy.decode_only_iterations import (
    ON,
    SLOT_CONTEXT,
    SLOT_MEMBERS,
    Steady,
    new_steady,
    take_off,
)
from shardwright.serving.policy.draft_tokens import tokens_given
from shardwright.serving.policy.folded_iterations import (
    end_member,
    ending,
    note_folded,
    plan_folded,
)
from shardwright.serving.policy.next_iteration import arrive, give, leave, never_fits
from shardwright.serving.policy.prompt_delay import settle, waits
from shardwright.serving.policy.scheduler_state import (
    AHEAD,
    DONE,
    ENTRY,
    GENERATED,
    GUESSES,
    LEFT,
    LOOKAHEAD,
    NEXT,
    NONE,
    NUM_WAITING,
    REFUSED,
    STATUS,
    State,
    new_state,
)
from shardwright.serving.simulation.fleet import Fleet
from shardwright.serving.simulation.next_worker import (
    BEGIN,
    END,
    first_worker,
    new_soonest,
    set_time,
    soonest_of_others,
)
from shardwright.serving.simulation.python_loop import served_of
from shardwright.serving.simulation.request_router import num_of_router, route
from shardwright.serving.step_times.iteration_seconds import (
    NUM_COUNTS,
    NUM_PARTS,
    Columns,
    columns_of,
    iteration_seconds,
)
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.drawn_requests import Requests, Served

# Columns of `numbers`: requests whose arrival is known, the next to arrive, requests that were
# routed, iterations, concurrency of a closed loop, the router, workers, ranks of each, stages,
# waiting requests in all, those that have ended, and, once it has run as far as it may, workers
# with nothing under way.
(
    KNOWN,
    FOLLOWING,
    ROUTED,
    ITERATIONS,
    CONCURRENCY,
    ROUTER,
    WORKERS,
    RANKS,
    STAGES,
    QUEUE,
    ENDED,
    IDLE,
    NUM_NUMBERS,
) = range(13)
# Of `clock`: now, seconds of all iterations, the integral of the queue, the pause between two
# requests of a closed loop, the time up to which it runs, and, once it has, when the next iteration
# ends and the next one may begin.
NOW, BUSY, QUEUED, THINK, UNTIL, NEXT_END, NEXT_BEGIN, NUM_CLOCKS = range(8)
# Of a worker: iterations under way, the oldest one's place in `ends`, the slot that is planned
# (NONE = none), whether it cannot begin, how many slots are free, and whether it has looked at an
# end since it last tried to begin.
UNDER_WAY, OLDEST, PLANNED, BLOCKED, NUM_FREE, LOOKED, NUM_WORKER_COLUMNS = range(7)


@by_reference
class Run(NamedTuple):
    """Times of a run.

    Args:
        arrival, admitted, first, last: (n,) seconds.
        where: (n,) worker.
        ended: (n,) requests in the order of their ends.
        numbers, clock: see above.
        workers: (w, NUM_WORKER_COLUMNS).
        begins: (w,) when the next iteration may begin;
        begun: (w,) when it last tried to.
        soonest: see `soonest`.
        ends, slot_of: (w, slots) of iterations under way, in a circle.
        free: (w, slots) slots.
        parts: (NUM_PARTS,) sums;
        of_rank, slowest: (NUM_PARTS,) of one iteration.
        counts: (NUM_COUNTS,).
    """

    arrival: FloatArray
    admitted: FloatArray
    first: FloatArray
    last: FloatArray
    where: IntArray
    ended: IntArray
    numbers: IntArray
    clock: FloatArray
    workers: IntArray
    begins: FloatArray
    begun: FloatArray
    soonest: FloatArray
    ends: FloatArray
    slot_of: IntArray
    free: IntArray
    parts: FloatArray
    of_rank: FloatArray
    slowest: FloatArray
    counts: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A run that goes on as far as `go_on` says. `chances`: of guesses."""

    state: State
    steady: Steady
    columns: Columns
    run: Run
    chances: FloatArray


def serve(requests: Requests, table: StepTable, fleet: Fleet) -> Served:
    """What becomes of requests: `unfolded.serve_unfolded`'s result, compiled and with decoding
    requests counted.
    """
    simulation = begun(requests, table, fleet)
    with compiling():
        go_on(simulation, until=np.inf)
    return finished(simulation)


def begun(requests: Requests, table: StepTable, fleet: Fleet) -> Simulation:
    """Nothing has arrived yet."""
    scheduler, n = fleet.scheduler, len(requests.inputs)
    slots = table.stages if table.stages > 1 else 1 + scheduler.asynchronous
    state = new_state(
        requests,
        scheduler,
        ranks=fleet.workers * fleet.ranks,
        slots=slots,
        seed=fleet.guessing.seed,
    )
    longest = int((requests.inputs + requests.outputs).max(initial=1))
    columns = columns_of(table, scheduler, longest=longest)
    steady = new_steady(state, columns.windows, longest_answer=int(requests.outputs.max(initial=1)))
    numbers = np.zeros(NUM_NUMBERS, dtype=np.int64)
    numbers[KNOWN] = min(n, requests.concurrency) if requests.concurrency else n
    numbers[CONCURRENCY], numbers[ROUTER] = requests.concurrency, num_of_router(fleet.router)
    numbers[WORKERS], numbers[RANKS], numbers[STAGES] = (
        fleet.workers,
        fleet.ranks,
        max(1, table.stages),
    )
    numbers[IDLE] = fleet.workers
    workers = np.zeros((fleet.workers, NUM_WORKER_COLUMNS), dtype=np.int64)
    workers[:, PLANNED], workers[:, BLOCKED], workers[:, NUM_FREE] = NONE, 1, slots
    clock = np.zeros(NUM_CLOCKS)
    clock[THINK], clock[NEXT_END], clock[NEXT_BEGIN] = fleet.think_s, np.inf, np.inf
    run = Run(
        arrival=requests.arrival_s.copy(),
        admitted=np.full(n, np.nan),
        first=np.full(n, np.nan),
        last=np.full(n, np.nan),
        where=np.full(n, NONE, dtype=np.int64),
        ended=np.full(n, NONE, dtype=np.int64),
        numbers=numbers,
        clock=clock,
        workers=workers,
        begins=np.zeros(fleet.workers),
        begun=np.full(fleet.workers, -np.inf),
        soonest=new_soonest(fleet.workers),
        ends=np.zeros((fleet.workers, slots)),
        slot_of=np.zeros((fleet.workers, slots), dtype=np.int64),
        free=np.tile(np.arange(slots, dtype=np.int64), (fleet.workers, 1)),
        parts=np.zeros(NUM_PARTS),
        of_rank=np.zeros(NUM_PARTS),
        slowest=np.zeros(NUM_PARTS),
        counts=np.zeros(NUM_COUNTS),
    )
    return Simulation(
        state=state,
        steady=steady,
        columns=columns,
        run=run,
        chances=fleet.guessing.chances(scheduler.guesses),
    )


def go_on(simulation: Simulation, *, until: float) -> None:
    """All that happens before `until`, and the iterations that end then: who arrives then may still
    become known.
    """
    simulation.run.clock[UNTIL] = until
    run_all(
        simulation.state, simulation.steady, simulation.columns, simulation.run, simulation.chances
    )


def finished(simulation: Simulation) -> Served:
    """What became of the requests. Raises InfeasibleError if some wait for ever."""
    run = simulation.run
    return served_of(
        simulation.state,
        arrival=run.arrival,
        admitted=run.admitted,
        first=run.first,
        last=run.last,
        where=run.where,
        iterations=int(run.numbers[ITERATIONS]),
        busy=float(run.clock[BUSY]),
        parts=run.parts,
        queued=float(run.clock[QUEUED]),
    )


@allocation_free
def run_all(state: State, steady: Steady, columns: Columns, run: Run, chances: FloatArray) -> None:
    """Events as far as `go_on` says: iterations end, requests arrive, iterations begin, in this
    order at one instant.
    """
    limit = run.clock[UNTIL]
    while True:
        end, begin, comes = run.soonest[END, 1], run.soonest[BEGIN, 1], next_arrival(run)
        at = min(end, begin, comes)
        if at == np.inf or at > limit or (at == limit and end > at):
            run.clock[NEXT_END], run.clock[NEXT_BEGIN] = (
                soonest_end(run) if run.numbers[STAGES] > 1 else end,
                begin,
            )
            run.numbers[IDLE] = idle_workers(run)
            return
        if comes <= at and end > at:
            pass_time(run, comes)
            come(state, run)
            continue
        worker = first_worker(run.soonest, END if end <= at else BEGIN)
        proceed(state, steady, columns, run, chances, worker, at, end <= at)
        note_times(run, worker)


@inner
def proceed(
    state: State,
    steady: Steady,
    columns: Columns,
    run: Run,
    chances: FloatArray,
    worker: int,
    at: float,
    ends: bool,
) -> None:
    """A worker's oldest iteration `ends`, or its next one begins; it goes on by itself until
    something happens elsewhere.
    """
    until = min(run.clock[UNTIL], soonest_of_others(run.soonest, worker))
    pass_time(run, at)
    if ends:
        end_iteration(state, steady, run, chances, worker)
        if min(until, next_arrival(run)) <= at or run.begins[worker] > at:
            return
    begin_iteration(state, steady, columns, run, worker)
    while run.workers[worker, UNDER_WAY] > 0 and run.numbers[STAGES] == 1:
        end = run.ends[worker, run.workers[worker, OLDEST]]
        if min(until, next_arrival(run)) <= end:
            return
        pass_time(run, end)
        end_iteration(state, steady, run, chances, worker)
        if next_arrival(run) <= end:
            return
        begin_iteration(state, steady, columns, run, worker)


@inner
def note_times(run: Run, worker: int) -> None:
    """When the worker's oldest iteration ends and when it may begin the next one.

    With stages it looks at one iteration that ended, then begins one, if it can: requests of two
    that end together stay apart.
    """
    begin = may_begin(run, worker)
    set_time(
        run.soonest,
        END,
        worker,
        np.inf if run.workers[worker, LOOKED] and begin < np.inf else next_end(run, worker),
    )
    set_time(run.soonest, BEGIN, worker, begin)


@inner
def next_end(run: Run, worker: int) -> float:
    """When a worker looks at the end of its oldest iteration: behind what it begins before."""
    if run.workers[worker, UNDER_WAY] == 0:
        return float(np.inf)
    begin = may_begin(run, worker)
    begun = begin if run.workers[worker, LOOKED] and begin < np.inf else run.begun[worker]
    return float(max(run.ends[worker, run.workers[worker, OLDEST]], np.nextafter(begun, np.inf)))


@inner
def soonest_end(run: Run) -> float:
    """When the first of all workers looks at the end of an iteration, if nothing else happens."""
    soonest = float(np.inf)
    for worker in range(run.workers.shape[0]):
        soonest = min(soonest, next_end(run, worker))
    return soonest


@inner
def idle_workers(run: Run) -> int:
    """Workers with nothing under way."""
    idle = 0
    for worker in range(run.workers.shape[0]):
        if run.workers[worker, UNDER_WAY] == 0:
            idle += 1
    return idle


@inner
def may_begin(run: Run, worker: int) -> float:
    """When a worker may begin its next iteration."""
    if run.workers[worker, BLOCKED] or run.workers[worker, UNDER_WAY] >= run.numbers[STAGES]:
        return float(np.inf)
    return float(max(run.begins[worker], run.clock[NOW]))


@inner
def next_arrival(run: Run) -> float:
    """When the next request arrives."""
    following = run.numbers[FOLLOWING]
    return float(run.arrival[following]) if following < run.numbers[KNOWN] else float(np.inf)


@inner
def pass_time(run: Run, at: float) -> None:
    """The clock goes on."""
    run.clock[QUEUED] += (at - run.clock[NOW]) * run.numbers[QUEUE]
    run.clock[NOW] = at


@inner
def come(state: State, run: Run) -> None:
    """The next request arrives at a rank, or is refused."""
    request = run.numbers[FOLLOWING]
    run.numbers[FOLLOWING] += 1
    if never_fits(state, request):
        state.requests[request, STATUS] = REFUSED
        next_of_loop(run)
        return
    rank = route(state, run.numbers[ROUTER], request, run.numbers[ROUTED], run.numbers[WORKERS])
    run.numbers[ROUTED] += 1
    worker = rank // run.numbers[RANKS]
    run.where[request] = worker
    arrive(state, rank, request)
    run.numbers[QUEUE] += 1
    run.workers[worker, BLOCKED] = 0
    note_times(run, worker)


@inner
def finish(run: Run, request: int) -> None:
    """A request has its last token."""
    run.last[request] = run.clock[NOW]
    run.ended[run.numbers[ENDED]] = request
    run.numbers[ENDED] += 1
    next_of_loop(run)


@inner
def next_of_loop(run: Run) -> None:
    """Somebody is done: in a closed loop the next one sends its request."""
    if run.numbers[CONCURRENCY] > 0 and run.numbers[KNOWN] < run.arrival.shape[0]:
        expect(run, run.clock[NOW] + run.clock[THINK])


@inner
def expect(run: Run, at: float) -> None:
    """One more request is known to arrive, behind those that come before: requests are counted in
    the order of their arrival.
    """
    place = run.numbers[KNOWN]
    while place > run.numbers[FOLLOWING] and run.arrival[place - 1] > at:
        run.arrival[place] = run.arrival[place - 1]
        place -= 1
    run.arrival[place] = at
    run.numbers[KNOWN] += 1


@inner
def begin_iteration(state: State, steady: Steady, columns: Columns, run: Run, worker: int) -> None:
    """A worker begins what is planned, or what it plans now;
    one that plans ahead plans the next.
    """
    now, workers = run.clock[NOW], run.workers
    run.begun[worker], workers[worker, LOOKED] = now, 0
    slot = workers[worker, PLANNED]
    if slot == NONE:
        slot = plan_worker(state, steady, run, worker, NONE)
    workers[worker, PLANNED] = NONE
    if slot == NONE:
        workers[worker, BLOCKED] = 1
        return
    seconds = worker_seconds(state, steady, columns, run, worker, slot)
    place = (workers[worker, OLDEST] + workers[worker, UNDER_WAY]) % run.ends.shape[1]
    before = (
        run.ends[worker, (place - 1) % run.ends.shape[1]] if workers[worker, UNDER_WAY] > 0 else 0.0
    )
    run.ends[worker, place] = max(before, now + seconds)
    run.slot_of[worker, place] = slot
    workers[worker, UNDER_WAY] += 1
    run.begins[worker] = now + seconds / run.numbers[STAGES]
    run.numbers[ITERATIONS] += 1
    run.clock[BUSY] += seconds
    if state.settings[AHEAD] and run.numbers[STAGES] == 1:
        workers[worker, PLANNED] = plan_worker(state, steady, run, worker, slot)


@inner
def plan_worker(state: State, steady: Steady, run: Run, worker: int, under_way: int) -> int:
    """A slot with what the worker's ranks do next; NONE = nothing."""
    workers, ranks = run.workers, run.numbers[RANKS]
    slot = run.free[worker, workers[worker, NUM_FREE] - 1]
    planned = 0
    counted = (
        run.numbers[STAGES] == 1 and state.settings[GUESSES] == 0 and state.settings[LOOKAHEAD] == 0
    )
    if waits(state):
        for rank in range(worker * ranks, (worker + 1) * ranks):
            note_folded(state, steady, rank)
        settle(state, worker * ranks, ranks)
    for rank in range(worker * ranks, (worker + 1) * ranks):
        before = state.ranks[rank, NUM_WAITING]
        planned += plan_folded(state, steady, rank, slot, under_way, counted)
        run.numbers[QUEUE] += state.ranks[rank, NUM_WAITING] - before
        for entry in range(state.batch_size[rank, slot]):
            request = state.batch[rank, slot, entry, ENTRY]
            if np.isnan(run.admitted[request]):
                run.admitted[request] = run.clock[NOW]
    if planned == 0:
        return NONE
    workers[worker, NUM_FREE] -= 1
    return int(slot)


@inner
def worker_seconds(
    state: State, steady: Steady, columns: Columns, run: Run, worker: int, slot: int
) -> float:
    """Of its slowest rank."""
    slowest, ranks = -1.0, run.numbers[RANKS]
    for rank in range(worker * ranks, (worker + 1) * ranks):
        if state.batch_size[rank, slot] + steady.slots[rank, slot, SLOT_MEMBERS] == 0:
            continue
        decoding = steady.slots[rank, slot, SLOT_MEMBERS : SLOT_CONTEXT + 1]
        seconds = iteration_seconds(
            state,
            columns,
            rank,
            slot,
            decoding,
            steady.slot_seen[rank, slot],
            run.counts,
            run.of_rank,
        )
        if seconds > slowest:
            slowest = seconds
            for part in range(NUM_PARTS):
                run.slowest[part] = run.of_rank[part]
    for part in range(NUM_PARTS):
        run.parts[part] += run.slowest[part]
    return float(slowest)


@inner
def end_iteration(state: State, steady: Steady, run: Run, chances: FloatArray, worker: int) -> None:
    """A worker's oldest iteration has run: tokens are given, and requests that are done leave."""
    workers, ranks = run.workers, run.numbers[RANKS]
    slot = run.slot_of[worker, workers[worker, OLDEST]]
    workers[worker, OLDEST] = (workers[worker, OLDEST] + 1) % run.ends.shape[1]
    workers[worker, UNDER_WAY] -= 1
    for rank in range(worker * ranks, (worker + 1) * ranks):
        request = ending(state, steady, rank, slot)
        while request != NONE:
            after = state.requests[request, NEXT]
            end_member(state, rank, request)
            finish(run, request)
            request = after
        give_all(state, steady, run, chances, rank, slot)
    run.free[worker, workers[worker, NUM_FREE]] = slot
    workers[worker, NUM_FREE] += 1
    workers[worker, BLOCKED], workers[worker, LOOKED] = 0, 1


@inner
def give_all(
    state: State, steady: Steady, run: Run, chances: FloatArray, rank: int, slot: int
) -> None:
    """Tokens of the entries of a rank's batch."""
    gone = 0
    for entry in range(state.batch_size[rank, slot]):
        request = state.batch[rank, slot, entry, ENTRY]
        got = give(state, rank, slot, entry, tokens_given(state, chances, rank, slot, entry))
        if got == 0:
            continue
        if state.requests[request, GENERATED] == got:
            run.first[request] = run.clock[NOW]
        if state.requests[request, STATUS] != DONE:
            continue
        finish(run, request)
        gone += 1
        if steady.ranks[rank, ON]:
            take_off(state, rank, request)
    if gone and not steady.ranks[rank, ON]:
        leave(state, rank)
    elif gone:
        state.ranks[rank, LEFT] = 1
