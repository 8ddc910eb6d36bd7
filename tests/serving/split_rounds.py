"""Both pools of a split run again and again with the arrivals that came out, until they are those
that went in: the plain form.

What happens before an arrival that is wrong is right, so each round settles at least what comes
within the shortest request.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import compiling
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.simulation.compiled_simulation_loop import (
    advance_simulation,
    new_simulation,
    served_requests,
)
from shardwright.serving.simulation.disaggregated_serving import (
    DisaggregatedRun,
    combined_result,
    select_requests,
)
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.kv_cache_transfer import CacheLink
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests


def split_in_rounds(
    requests: Requests,
    tables: tuple[StepTable, StepTable],
    fleets: tuple[Fleet, Fleet],
    link: CacheLink,
    *,
    think_s: float = 0.0,
) -> tuple[DisaggregatedRun, int]:
    """`serve_split`'s result, and the rounds that it took."""
    before = replace(
        fleets[0],
        scheduler=replace(
            fleets[0].scheduler, only_prompts=True, only_answers=False, draft_tokens=0, lookahead=0
        ),
    )
    behind = replace(
        fleets[1], scheduler=replace(fleets[1].scheduler, only_prompts=False, only_answers=True)
    )
    arrival, loop = requests.arrival_s.copy(), requests.concurrency
    for rounds in range(1, 10_000):
        split, ended = _once(requests, arrival, tables, (before, behind), link)
        if not loop or loop >= len(arrival):
            return split, rounds
        more = np.sort(ended)[: len(arrival) - loop] + think_s
        again = np.sort(np.concatenate([requests.arrival_s[:loop], more]))
        if np.array_equal(again, arrival):
            return split, rounds
        arrival = again
    raise AssertionError("arrivals of a closed loop did not settle")


def _once(
    requests: Requests,
    arrival: FloatArray,
    tables: tuple[StepTable, StepTable],
    fleets: tuple[Fleet, Fleet],
    link: CacheLink,
) -> tuple[DisaggregatedRun, FloatArray]:
    """All of them with arrivals that are given, and when each is done; one that is refused is when
    it arrives."""
    first, last, _, prefill = _all(
        replace(requests, arrival_s=arrival, concurrency=0), tables[0], fleets[0]
    )
    there = ~np.isnan(last)
    alone = (
        (link.bytes_per_sequence + link.bytes_per_token * requests.inputs)
        / link.layers
        / link.bandwidth
    )
    came = np.full(len(arrival), np.nan)
    came[there] = shared_ends(last[there], alone[there], prefill.worker[there]) + link.latency_s
    transfer = came - last
    own_first = fleets[1].scheduler.batching is Batching.MIXED
    which = np.flatnonzero(there & ((requests.outputs > 1) | own_first))
    chosen = which[np.argsort(came[which], kind="stable")]
    some = replace(select_requests(requests, chosen), arrival_s=came[chosen])
    answer, done, admitted, decode = _all(some, tables[1], fleets[1])
    worker, preempted = prefill.worker.copy(), prefill.preempted.copy()
    first[chosen], last[chosen], worker[chosen] = (
        answer if own_first else admitted,
        done,
        decode.worker,
    )
    preempted[chosen] += decode.preempted
    start = arrival[0] if len(arrival) else 0.0
    times = {"arrival": arrival - start, "first_s": first - start, "last_s": last - start}
    served = combined_result(prefill, decode, worker=worker, preempted=preempted, **times)
    return DisaggregatedRun(
        served=served, prefill=prefill, decode=decode, transfer_s=transfer
    ), np.where(np.isnan(last), arrival, last)


def _all(
    requests: Requests, table: StepTable, fleet: Fleet
) -> tuple[FloatArray, FloatArray, FloatArray, ServedRequests]:
    """Seconds of first and last tokens and of who was let in, on the clock of the arrivals."""
    simulation = new_simulation(requests, table, fleet)
    with compiling():
        advance_simulation(simulation, until=np.inf)
    run = simulation.run
    return run.first.copy(), run.last.copy(), run.admitted.copy(), served_requests(simulation)


def shared_ends(begins: FloatArray, alone: FloatArray, link: IntArray) -> FloatArray:
    """Ends of transfers that would take `alone` seconds by themselves, where those of one link that
    are under way share it equally.

    A link's own clock runs at one over the transfers under way; on it each takes what it takes
    alone (processor sharing).
    """
    result = np.zeros(len(begins))
    for number in np.unique(link):
        of_link = np.flatnonzero(link == number)
        under_way: list[tuple[float, int]] = []
        now, own = 0.0, 0.0
        for i in [*of_link[np.argsort(begins[of_link], kind="stable")], -1]:
            then = float(begins[i]) if i >= 0 else np.inf
            while (
                under_way
                and (at := max(now, now + (under_way[0][0] - own) * len(under_way))) <= then
            ):
                now = at
                own, ended = heappop(under_way)
                result[ended] = at
            if i < 0:
                break
            now, own = then, own + (then - now) / len(under_way) if under_way else own
            heappush(under_way, (own + float(alone[i]), int(i)))
    return result
