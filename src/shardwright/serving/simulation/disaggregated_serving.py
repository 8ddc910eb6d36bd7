"""Disaggregated serving: prefill workers, decode workers and KV cache transfers between them.

A prompt runs at a prefill worker, then its cache goes to a decode worker, then the request decodes
there: with vLLM from the prompt's last token on, so that the first token of the answer comes from
the decode worker; with other engines the first token comes with the cache. The answer's stream is
the decode worker's (Dynamo routes to it first, SGLang's load balancer forwards its stream), so that
a token that came with the cache is seen once the request is admitted there.

Source: https://docs.nvidia.com/dynamo/latest/backends/sglang/sglang-disaggregation.html

Both pools are simulations that advance in turns, each up to the first time at which the other could
still affect it. A prompt is at a decode worker no sooner than the link's latency after its end, or
than it would be without transfers that are still to begin; in a closed loop a finished request
brings the next one after the pause. So one pass is exact.

Left out: a decode worker that fetches a cache only when it has blocks for it (vLLM), where the
transfer begins with one of its iterations.
"""

from __future__ import annotations

from dataclasses import field, replace
from heapq import heappop, heappush
from math import inf, nextafter

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.kernel_compilation import compiling, python_form
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.policy.policy_interface import find_refusals
from shardwright.serving.policy.scheduler_state import INPUTS, OUTPUTS
from shardwright.serving.simulation.compiled_simulation_loop import (
    ENDED,
    FOLLOWING,
    IDLE,
    KNOWN,
    NEXT_BEGIN,
    NEXT_END,
    ServingSimulation,
    add_arrival,
    advance_simulation,
    new_simulation,
    served_requests,
)
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.kv_cache_transfer import CacheLink, CacheTransfers
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests

_add_arrival = python_form(add_arrival)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisaggregatedRun:
    """Outcome of requests in the prefill and the decode pool.

    Args:
        served: outcome of whole requests; `worker` is the decode worker.
        prefill: outcome of the prompts alone.
        decode: outcome after the transfer, whose end is the arrival.
        transfer_s: (n,) seconds of each transfer.
    """

    served: ServedRequests
    prefill: ServedRequests
    decode: ServedRequests
    transfer_s: FloatArray


def serve_disaggregated(
    requests: Requests,
    tables: tuple[StepTable, StepTable],
    fleets: tuple[Fleet, Fleet],
    link: CacheLink,
    *,
    think_s: float = 0.0,
) -> DisaggregatedRun:
    """Simulate requests on separate workers; `tables` and `fleets` are (prefill, decode).

    Args:
        tables, fleets: those of prefill and of decode workers; the schedulers' roles are set here.
        think_s: see `Fleet`.
    """
    prefill_fleet = replace(
        fleets[0],
        scheduler=replace(
            fleets[0].scheduler, only_prompts=True, only_answers=False, draft_tokens=0, lookahead=0
        ),
    )
    decode_fleet = replace(
        fleets[1], scheduler=replace(fleets[1].scheduler, only_prompts=False, only_answers=True)
    )
    prefill = new_simulation(replace(requests, concurrency=0), tables[0], prefill_fleet)
    if requests.concurrency:
        prefill.run.numbers[KNOWN] = min(requests.concurrency, len(requests.inputs))
    decodes_first = decode_fleet.scheduler.batching is Batching.MIXED
    refused = find_refused_requests(prefill)
    decoded = np.flatnonzero(~refused & ((requests.outputs > 1) | decodes_first))
    decode = new_simulation(select_requests(requests, decoded), tables[1], decode_fleet)
    decode.run.numbers[KNOWN] = 0
    goes_on = np.zeros(len(refused), dtype=np.bool_)
    goes_on[decoded] = True
    refused[decoded] = find_refused_requests(decode)
    alone = (
        (link.bytes_per_sequence + link.bytes_per_token * requests.inputs)
        / link.layers
        / link.bandwidth
    )
    pools = _TwoPools(
        requests=requests,
        prefill=prefill,
        decode=decode,
        links=tuple(CacheTransfers() for _ in range(prefill_fleet.workers)),
        alone=alone,
        latency_s=link.latency_s,
        think_s=think_s,
        goes_on=goes_on,
        refused=refused,
        early=bool((~goes_on & ~refused).any()),
        came=np.full(len(refused), np.nan),
    )
    with compiling():
        pools.run()
    return _combine_pools(pools, decodes_first=decodes_first)


def find_refused_requests(simulation: ServingSimulation) -> BoolArray:
    """(n,) True for requests of a simulation that are refused, as they never fit in the cache."""
    refused = np.zeros(len(simulation.state.requests), dtype=np.bool_)
    find_refusals(simulation.state, refused)
    return refused


def select_requests(requests: Requests, indices: IntArray) -> Requests:
    """Requests at `indices`, without shared prefixes or concurrency, and with nan as arrivals."""
    return Requests(
        arrival_s=np.full(len(indices), np.nan),
        inputs=requests.inputs[indices],
        outputs=requests.outputs[indices],
        concurrency=0,
        block_offsets=np.zeros(len(indices) + 1, dtype=np.int64),
        blocks=np.zeros(0, dtype=np.int64),
        block_tokens=requests.block_tokens,
    )


@dataclass(slots=True, kw_only=True)
class _TwoPools:
    """A prefill and a decode simulation and the links between them, each at a time of its own.

    Args:
        alone: (n,) seconds of a transfer without others.
        goes_on: (n,) the request continues at a decode worker.
        refused: (n,) refused by either pool.
        early: some requests are done with their prompt.
        came: (n,) time of arrival at the decode workers.
        over: heap of (time, request) of transfers that have ended and are still to be delivered.
        landed: requests in the order of arrival at the decode workers.
        ends: heap of end times of requests after which the next one has not been scheduled; of the
            first `settled` requests the refused ones are included.
        seen: number of ends of each pool that were read.
    """

    requests: Requests
    prefill: ServingSimulation
    decode: ServingSimulation
    links: tuple[CacheTransfers, ...]
    alone: FloatArray
    latency_s: float
    think_s: float
    goes_on: BoolArray
    refused: BoolArray
    early: bool
    came: FloatArray
    over: list[tuple[float, int]] = field(default_factory=list)
    landed: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    settled: int = 0
    seen: list[int] = field(default_factory=lambda: [0, 0])

    def run(self) -> None:
        """Advance both pools in turns until no event is left.

        In each turn the earliest end of all iterations and transfers is passed.
        """
        while True:
            prompt, answer = self._earliest_ends()
            if prompt == answer == self._next_transfer() == inf:
                return
            until = self._schedule_next_arrivals(min(answer, prompt) if self.early else answer)
            if _may_affect_other_pool(self.prefill, until):
                advance_simulation(self.prefill, until=until)
                self._start_transfers()
                prompt, _ = self._earliest_ends()
            # No transfer begins before the next prompt ends, so transfers that end before are not
            # delayed any more.
            self._deliver(until=nextafter(prompt, -inf))
            until = prompt + self.latency_s
            if _may_affect_other_pool(self.decode, until):
                advance_simulation(self.decode, until=until)
                for request in self._newly_ended(1):
                    heappush(self.ends, float(self.decode.run.last[request]))

    def _earliest_ends(self) -> tuple[float, float]:
        """Lower bounds in seconds on the next end of a prompt, and on that of an answer."""
        prompt, answer = _next_end(self.prefill), _next_end(self.decode)
        more_to_come = self.prefill.run.numbers[KNOWN] < len(self.refused)
        if more_to_come and self.ends:
            prompt = min(prompt, _earliest_end_after(self.prefill, self.ends[0] + self.think_s))
        answer = min(
            answer,
            _earliest_end_after(self.decode, min(prompt, self._next_transfer()) + self.latency_s),
        )
        if more_to_come:
            prompt = min(prompt, _earliest_end_after(self.prefill, answer + self.think_s))
        return prompt, answer

    def _next_transfer(self) -> float:
        """Earliest time in seconds at which a cache transfer ends; inf without transfers."""
        return min(self.over[0][0] if self.over else inf, *(link.next_end for link in self.links))

    def _schedule_next_arrivals(self, bound: float) -> float:
        """Add closed-loop arrivals after ends up to `bound` s; return a lower bound of the next."""
        numbers, arrival = self.prefill.run.numbers, self.prefill.run.arrival
        while numbers[KNOWN] < len(arrival):
            end = self.ends[0] if self.ends else inf
            if (
                self.settled < numbers[KNOWN]
                and arrival[self.settled] <= min(bound, end) + self.think_s
            ):
                if self.refused[self.settled]:
                    heappush(self.ends, float(arrival[self.settled]))
                self.settled += 1
            elif end <= bound:
                _add_arrival(self.prefill.run, heappop(self.ends) + self.think_s)
            else:
                return bound + self.think_s
        return inf

    def _start_transfers(self) -> None:
        """Start the cache transfers of newly ended prompts, in the order of their ends."""
        run = self.prefill.run
        for request in sorted(
            self._newly_ended(0), key=lambda transfer: (run.last[transfer], transfer)
        ):
            at = float(run.last[request])
            link = self.links[run.where[request]]
            for transfer in link.pop_ended(until=at):
                heappush(self.over, transfer)
            link.begin(at, alone=float(self.alone[request]), transfer=request)
            if not self.goes_on[request]:
                heappush(self.ends, at)

    def _deliver(self, *, until: float) -> None:
        """Deliver requests whose transfers end by `until` seconds to the decode workers.

        Ties are in the order of the requests.
        """
        run, columns = self.decode.run, self.decode.state.requests
        for link in self.links:
            for transfer in link.pop_ended(until=until):
                heappush(self.over, transfer)
        ended: list[tuple[float, int]] = []
        while self.over and self.over[0][0] <= until:
            end, request = heappop(self.over)
            ended.append((end + self.latency_s, request))
        for at, request in sorted(ended):
            self.came[request] = at
            if not self.goes_on[request]:
                continue
            place = len(self.landed)
            columns[place, INPUTS], columns[place, OUTPUTS] = (
                self.requests.inputs[request],
                self.requests.outputs[request],
            )
            run.arrival[place] = at
            run.numbers[KNOWN] += 1
            self.landed.append(request)

    def _newly_ended(self, pool: int) -> list[int]:
        """Pool-own indices of requests ended in pool 0 (prefill) or 1 (decode) since last call."""
        run = (self.prefill, self.decode)[pool].run
        num_seen, self.seen[pool] = self.seen[pool], int(run.numbers[ENDED])
        ended: list[int] = run.ended[num_seen : self.seen[pool]].tolist()
        return ended


def _next_end(simulation: ServingSimulation) -> float:
    """Time in seconds before which no iteration of the simulation ends, without new requests."""
    clock = simulation.run.clock
    return min(
        float(clock[NEXT_END]),
        _earliest_end_after(simulation, min(float(clock[NEXT_BEGIN]), _next_arrival(simulation))),
    )


def _earliest_end_after(simulation: ServingSimulation, begin: float) -> float:
    """Lower bound (s) on ends of iterations begun at `begin`: next float; inf if none is idle."""
    return nextafter(begin, inf) if simulation.run.numbers[IDLE] else inf


def _may_affect_other_pool(simulation: ServingSimulation, until: float) -> bool:
    """True if the pool may end an iteration by `until` s, or an idle worker begin one before."""
    run = simulation.run
    if run.clock[NEXT_END] <= until:
        return True
    return bool(run.numbers[IDLE] and min(run.clock[NEXT_BEGIN], _next_arrival(simulation)) < until)


def _next_arrival(simulation: ServingSimulation) -> float:
    """Time in seconds of the next known arrival in a pool; inf if there is none."""
    run = simulation.run
    following = run.numbers[FOLLOWING]
    return float(run.arrival[following]) if following < run.numbers[KNOWN] else inf


def _combine_pools(pools: _TwoPools, *, decodes_first: bool) -> DisaggregatedRun:
    """Combine both pools, in seconds from the first arrival; first tokens are the decode pool's."""
    prefill, decode = served_requests(pools.prefill), served_requests(pools.decode)
    decoded, run = np.array(pools.landed, dtype=np.int64), pools.decode.run
    start = float(pools.prefill.run.arrival[0]) if len(pools.came) else 0.0
    first_s, last_s = prefill.first_s.copy(), prefill.last_s.copy()
    worker, preempted = prefill.worker.copy(), prefill.preempted.copy()
    last_s[decoded], worker[decoded] = run.last - start, decode.worker
    first_s[decoded] = (run.first if decodes_first else run.admitted) - start
    preempted[decoded] += decode.preempted
    served = combined_result(
        prefill,
        decode,
        arrival=prefill.arrival_s,
        first_s=first_s,
        last_s=last_s,
        worker=worker,
        preempted=preempted,
    )
    return DisaggregatedRun(
        served=served,
        prefill=prefill,
        decode=decode,
        transfer_s=pools.came - pools.prefill.run.last,
    )


def combined_result(
    prefill: ServedRequests,
    decode: ServedRequests,
    *,
    arrival: FloatArray,
    first_s: FloatArray,
    last_s: FloatArray,
    worker: IntArray,
    preempted: IntArray,
) -> ServedRequests:
    """Outcome of whole requests: iterations and busy seconds of both pools, queue of prefill.

    A request without a last token has no first token.
    """
    return ServedRequests(
        arrival_s=arrival,
        first_s=np.where(np.isnan(last_s), np.nan, first_s),
        last_s=last_s,
        worker=worker,
        preempted=preempted,
        cached=prefill.cached,
        iterations=prefill.iterations + decode.iterations,
        busy_s=prefill.busy_s + decode.busy_s,
        peak_blocks=max(prefill.peak_blocks, decode.peak_blocks),
        by_part=prefill.by_part + decode.by_part,
        waiting_s=prefill.waiting_s,
        queue=prefill.queue,
    )
