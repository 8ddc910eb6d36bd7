"""Compiled simulation loop; a decode step costs the same for any number of decoding requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import allocation_free, by_reference, compiling, inner
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.serving.policy.decoding_requests_kept_as_counts import (
    COUNTED,
    SLOT_CONTEXT,
    SLOT_MEMBERS,
    SteadyDecode,
    new_steady_decode,
    remove_running,
)
from shardwright.serving.policy.plan_iteration_from_decoding_counts import (
    end_member,
    note_prompts_of_rank,
    plan_folded,
    pop_ended_members,
)
from shardwright.serving.policy.policy_interface import arrive, give_tokens, never_fits, remove_done
from shardwright.serving.policy.request_tokens_with_accepted_drafts import tokens_given
from shardwright.serving.policy.scheduler_state import (
    AHEAD,
    DONE,
    DRAFT_TOKENS,
    ENTRY,
    GENERATED,
    LEFT,
    LOOKAHEAD,
    NEXT,
    NONE,
    NUM_WAITING,
    REFUSED,
    STATUS,
    SchedulerState,
    new_state,
)
from shardwright.serving.policy.tensorrt_llm_prompt_delay import decide_delay, delays_prompts
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import collect_served_requests
from shardwright.serving.simulation.request_router import route, router_number
from shardwright.serving.simulation.worker_event_tree import (
    BEGIN,
    END,
    first_worker,
    new_time_trees,
    set_time,
    soonest_of_others,
)
from shardwright.serving.step_times.iteration_seconds import (
    NUM_COUNTS,
    NUM_PARTS,
    Columns,
    iteration_seconds,
    tabulate_steps,
)
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests

# Columns of `numbers`: requests with a known arrival, the next to arrive, routed requests,
# iterations, concurrency of a closed loop, the router, workers, ranks of each, stages, waiting
# requests in all, ended requests, and, after a run to its time limit, workers without an iteration
# under way.
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
# Columns of `clock`: now, seconds of all iterations, the integral of the queue length, the pause
# between two requests of a closed loop, the time limit, and, after a run to the limit, the times at
# which the next iteration ends and may begin.
NOW, BUSY, QUEUED, THINK, UNTIL, NEXT_END, NEXT_BEGIN, NUM_CLOCKS = range(8)
# Columns of a worker: iterations under way, the oldest one's place in `ends`, the planned slot
# (NONE = no slot), 1 if no iteration can begin, free slots, and 1 if the worker has handled an end
# since it last tried to begin.
UNDER_WAY, OLDEST, PLANNED, BLOCKED, NUM_FREE, LOOKED, NUM_WORKER_COLUMNS = range(7)


@by_reference
class RunArrays(NamedTuple):
    """Arrays of a running simulation.

    Args:
        arrival, admitted, first, last: (n,) seconds.
        where: (n,) worker of each request.
        ended: (n,) requests in the order of their ends.
        numbers, clock: columns above.
        workers: (w, NUM_WORKER_COLUMNS) columns above.
        begins: (w,) time at which the next iteration may begin.
        begun: (w,) time of the last attempt to begin.
        soonest: tournament of the workers' next times, see `worker_event_tree`.
        ends, slot_of: (w, slots) ends and slots of iterations under way, in a ring.
        free: (w, slots) free slots.
        parts: (NUM_PARTS,) seconds of each part, summed over iterations.
        of_rank, slowest: (NUM_PARTS,) seconds of one iteration.
        counts: (NUM_COUNTS,) counts of one iteration.
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
class ServingSimulation:
    """State of a serving simulation that `advance_simulation` continues.

    `chances`: acceptance of draft tokens, see `DraftAcceptance.chances`.
    """

    state: SchedulerState
    steady: SteadyDecode
    columns: Columns
    run: RunArrays
    chances: FloatArray


def serve_requests(requests: Requests, table: StepTable, fleet: Fleet) -> ServedRequests:
    """Simulate requests on a fleet of workers by the compiled loop; return their outcome.

    Decoding requests are counted; `python_simulation_loop` returns the same outcome.
    """
    simulation = new_simulation(requests, table, fleet)
    with compiling():
        advance_simulation(simulation, until=np.inf)
    return served_requests(simulation)


def new_simulation(requests: Requests, table: StepTable, fleet: Fleet) -> ServingSimulation:
    """Create a simulation in which no request has arrived."""
    scheduler, n = fleet.scheduler, len(requests.inputs)
    slots = table.stages if table.stages > 1 else 1 + scheduler.asynchronous
    state = new_state(
        requests,
        scheduler,
        ranks=fleet.workers * fleet.ranks,
        slots=slots,
        seed=fleet.acceptance.seed,
    )
    longest = int((requests.inputs + requests.outputs).max(initial=1))
    columns = tabulate_steps(table, scheduler, longest=longest)
    steady = new_steady_decode(
        state, columns.windows, longest_answer=int(requests.outputs.max(initial=1))
    )
    numbers = np.zeros(NUM_NUMBERS, dtype=np.int64)
    numbers[KNOWN] = min(n, requests.concurrency) if requests.concurrency else n
    numbers[CONCURRENCY], numbers[ROUTER] = requests.concurrency, router_number(fleet.router)
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
    run = RunArrays(
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
        soonest=new_time_trees(fleet.workers),
        ends=np.zeros((fleet.workers, slots)),
        slot_of=np.zeros((fleet.workers, slots), dtype=np.int64),
        free=np.tile(np.arange(slots, dtype=np.int64), (fleet.workers, 1)),
        parts=np.zeros(NUM_PARTS),
        of_rank=np.zeros(NUM_PARTS),
        slowest=np.zeros(NUM_PARTS),
        counts=np.zeros(NUM_COUNTS),
    )
    return ServingSimulation(
        state=state,
        steady=steady,
        columns=columns,
        run=run,
        chances=fleet.acceptance.chances(scheduler.draft_tokens),
    )


def advance_simulation(simulation: ServingSimulation, *, until: float) -> None:
    """Run all events before `until` seconds, and the iterations that end at `until`.

    Requests that arrive at `until` may still be added.
    """
    simulation.run.clock[UNTIL] = until
    run_all(
        simulation.state, simulation.steady, simulation.columns, simulation.run, simulation.chances
    )


def served_requests(simulation: ServingSimulation) -> ServedRequests:
    """Outcome of a run, in seconds from the first arrival; InfeasibleError if some wait forever."""
    run = simulation.run
    return collect_served_requests(
        simulation.state,
        arrival=run.arrival,
        admitted=run.admitted,
        first_s=run.first,
        last_s=run.last,
        where=run.where,
        iterations=int(run.numbers[ITERATIONS]),
        busy=float(run.clock[BUSY]),
        parts=run.parts,
        queued=float(run.clock[QUEUED]),
    )


@allocation_free
def run_all(
    state: SchedulerState,
    steady: SteadyDecode,
    columns: Columns,
    run: RunArrays,
    chances: FloatArray,
) -> None:
    """Run all events up to `run.clock[UNTIL]` s; at one instant: ends, then arrivals, then begins.

    At one instant iterations end first, then requests arrive, then iterations begin.
    """
    limit = run.clock[UNTIL]
    while True:
        end, begin, arrives = run.soonest[END, 1], run.soonest[BEGIN, 1], next_arrival(run)
        at = min(end, begin, arrives)
        if at == np.inf or at > limit or (at == limit and end > at):
            run.clock[NEXT_END], run.clock[NEXT_BEGIN] = (
                soonest_end(run) if run.numbers[STAGES] > 1 else end,
                begin,
            )
            run.numbers[IDLE] = idle_workers(run)
            return
        if arrives <= at and end > at:
            pass_time(run, arrives)
            admit_arrival(state, run)
            continue
        worker = first_worker(run.soonest, END if end <= at else BEGIN)
        advance_worker(state, steady, columns, run, chances, worker, at, end <= at)
        update_times(run, worker)


@inner
def advance_worker(
    state: SchedulerState,
    steady: SteadyDecode,
    columns: Columns,
    run: RunArrays,
    chances: FloatArray,
    worker: int,
    at: float,
    ends: bool,
) -> None:
    """End a worker's oldest iteration or begin its next, and continue until another event is first.

    Args:
        ends: True = an iteration ends; False = one begins.
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
def update_times(run: RunArrays, worker: int) -> None:
    """Set the times at which a worker's oldest iteration ends and its next one may begin.

    With stages a worker handles one ended iteration, then begins one, if it can: requests of two
    iterations that end together stay in separate batches.
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
def next_end(run: RunArrays, worker: int) -> float:
    """Time in seconds at which a worker handles the end of its oldest iteration; inf if none runs.

    After the iteration that it begins before.
    """
    if run.workers[worker, UNDER_WAY] == 0:
        return float(np.inf)
    begin = may_begin(run, worker)
    begun = begin if run.workers[worker, LOOKED] and begin < np.inf else run.begun[worker]
    return float(max(run.ends[worker, run.workers[worker, OLDEST]], np.nextafter(begun, np.inf)))


@inner
def soonest_end(run: RunArrays) -> float:
    """Earliest time in seconds at which a worker handles the end of an iteration; inf if none.

    If no other event comes first.
    """
    soonest = float(np.inf)
    for worker in range(run.workers.shape[0]):
        soonest = min(soonest, next_end(run, worker))
    return soonest


@inner
def idle_workers(run: RunArrays) -> int:
    """Number of workers with no iteration under way."""
    idle = 0
    for worker in range(run.workers.shape[0]):
        if run.workers[worker, UNDER_WAY] == 0:
            idle += 1
    return idle


@inner
def may_begin(run: RunArrays, worker: int) -> float:
    """Seconds at which a worker may try an iteration, arrivals aside; inf if blocked or full."""
    if run.workers[worker, BLOCKED] or run.workers[worker, UNDER_WAY] >= run.numbers[STAGES]:
        return float(np.inf)
    return float(max(run.begins[worker], run.clock[NOW]))


@inner
def next_arrival(run: RunArrays) -> float:
    """Time in seconds at which the next request arrives; inf if no arrival is known."""
    following = run.numbers[FOLLOWING]
    return float(run.arrival[following]) if following < run.numbers[KNOWN] else float(np.inf)


@inner
def pass_time(run: RunArrays, at: float) -> None:
    """Advance the clock to `at` seconds and add queue length x time to its integral."""
    run.clock[QUEUED] += (at - run.clock[NOW]) * run.numbers[QUEUE]
    run.clock[NOW] = at


@inner
def admit_arrival(state: SchedulerState, run: RunArrays) -> None:
    """Put the next arriving request in the queue of a rank, or refuse it."""
    request = run.numbers[FOLLOWING]
    run.numbers[FOLLOWING] += 1
    if never_fits(state, request):
        state.requests[request, STATUS] = REFUSED
        send_next_of_loop(run)
        return
    rank = route(state, run.numbers[ROUTER], request, run.numbers[ROUTED], run.numbers[WORKERS])
    run.numbers[ROUTED] += 1
    worker = rank // run.numbers[RANKS]
    run.where[request] = worker
    arrive(state, rank, request)
    run.numbers[QUEUE] += 1
    run.workers[worker, BLOCKED] = 0
    update_times(run, worker)


@inner
def finish_request(run: RunArrays, request: int) -> None:
    """Record the last token of a request, and the next arrival of a closed loop."""
    run.last[request] = run.clock[NOW]
    run.ended[run.numbers[ENDED]] = request
    run.numbers[ENDED] += 1
    send_next_of_loop(run)


@inner
def send_next_of_loop(run: RunArrays) -> None:
    """In a closed loop, schedule the next request's arrival after a request has ended."""
    if run.numbers[CONCURRENCY] > 0 and run.numbers[KNOWN] < run.arrival.shape[0]:
        add_arrival(run, run.clock[NOW] + run.clock[THINK])


@inner
def add_arrival(run: RunArrays, at: float) -> None:
    """Insert the arrival of the next request at `at` seconds, keeping the order of arrivals."""
    index = run.numbers[KNOWN]
    while index > run.numbers[FOLLOWING] and run.arrival[index - 1] > at:
        run.arrival[index] = run.arrival[index - 1]
        index -= 1
    run.arrival[index] = at
    run.numbers[KNOWN] += 1


@inner
def begin_iteration(
    state: SchedulerState, steady: SteadyDecode, columns: Columns, run: RunArrays, worker: int
) -> None:
    """Begin a worker's planned iteration, or plan and begin one.

    An engine that plans ahead then plans the next one.
    """
    begin_s, workers = run.clock[NOW], run.workers
    run.begun[worker], workers[worker, LOOKED] = begin_s, 0
    slot = workers[worker, PLANNED]
    if slot == NONE:
        slot = plan_worker(state, steady, run, worker, NONE)
    workers[worker, PLANNED] = NONE
    if slot == NONE:
        workers[worker, BLOCKED] = 1
        return
    seconds = worker_seconds(state, steady, columns, run, worker, slot)
    place = (workers[worker, OLDEST] + workers[worker, UNDER_WAY]) % run.ends.shape[1]
    previous_end = (
        run.ends[worker, (place - 1) % run.ends.shape[1]] if workers[worker, UNDER_WAY] > 0 else 0.0
    )
    run.ends[worker, place] = max(previous_end, begin_s + seconds)
    run.slot_of[worker, place] = slot
    workers[worker, UNDER_WAY] += 1
    run.begins[worker] = begin_s + seconds / run.numbers[STAGES]
    run.numbers[ITERATIONS] += 1
    run.clock[BUSY] += seconds
    if state.settings[AHEAD] and run.numbers[STAGES] == 1:
        workers[worker, PLANNED] = plan_worker(state, steady, run, worker, slot)


@inner
def plan_worker(
    state: SchedulerState, steady: SteadyDecode, run: RunArrays, worker: int, under_way: int
) -> int:
    """Plan a worker's next iteration, behind that in slot `under_way`; return its slot or NONE."""
    workers, ranks = run.workers, run.numbers[RANKS]
    slot = run.free[worker, workers[worker, NUM_FREE] - 1]
    planned = 0
    counted = (
        run.numbers[STAGES] == 1
        and state.settings[DRAFT_TOKENS] == 0
        and state.settings[LOOKAHEAD] == 0
    )
    if delays_prompts(state):
        for rank in range(worker * ranks, (worker + 1) * ranks):
            note_prompts_of_rank(state, steady, rank)
        decide_delay(state, worker * ranks, ranks)
    for rank in range(worker * ranks, (worker + 1) * ranks):
        num_waiting = state.ranks[rank, NUM_WAITING]
        planned += plan_folded(state, steady, rank, slot, under_way, counted)
        run.numbers[QUEUE] += state.ranks[rank, NUM_WAITING] - num_waiting
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
    state: SchedulerState,
    steady: SteadyDecode,
    columns: Columns,
    run: RunArrays,
    worker: int,
    slot: int,
) -> float:
    """Seconds of the slowest rank of a worker in `slot`; add that rank's parts to `run.parts`."""
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
def end_iteration(
    state: SchedulerState, steady: SteadyDecode, run: RunArrays, chances: FloatArray, worker: int
) -> None:
    """End a worker's oldest iteration: give its tokens and remove finished requests."""
    workers, ranks = run.workers, run.numbers[RANKS]
    slot = run.slot_of[worker, workers[worker, OLDEST]]
    workers[worker, OLDEST] = (workers[worker, OLDEST] + 1) % run.ends.shape[1]
    workers[worker, UNDER_WAY] -= 1
    for rank in range(worker * ranks, (worker + 1) * ranks):
        request = pop_ended_members(state, steady, rank, slot)
        while request != NONE:
            next_request = state.requests[request, NEXT]
            end_member(state, rank, request)
            finish_request(run, request)
            request = next_request
        give_batch_tokens(state, steady, run, chances, rank, slot)
    run.free[worker, workers[worker, NUM_FREE]] = slot
    workers[worker, NUM_FREE] += 1
    workers[worker, BLOCKED], workers[worker, LOOKED] = 0, 1


@inner
def give_batch_tokens(
    state: SchedulerState,
    steady: SteadyDecode,
    run: RunArrays,
    chances: FloatArray,
    rank: int,
    slot: int,
) -> None:
    """Give the answer tokens of all entries of a rank's batch."""
    num_done = 0
    for entry in range(state.batch_size[rank, slot]):
        request = state.batch[rank, slot, entry, ENTRY]
        given = give_tokens(
            state, rank, slot, entry, tokens_given(state, chances, rank, slot, entry)
        )
        if given == 0:
            continue
        if state.requests[request, GENERATED] == given:
            run.first[request] = run.clock[NOW]
        if state.requests[request, STATUS] != DONE:
            continue
        finish_request(run, request)
        num_done += 1
        if steady.ranks[rank, COUNTED]:
            remove_running(state, rank, request)
    if num_done and not steady.ranks[rank, COUNTED]:
        remove_done(state, rank)
    elif num_done:
        state.ranks[rank, LEFT] = 1
