"""Prompts and answers on workers of their own: a prompt's cache goes over a link before its answer
goes on.

A prompt runs at a prefill worker, then its bytes go to a decode worker, then the request decodes
there: with vLLM from the prompt's last token on, so that the first token of the answer is one of
the decode worker; with the others the first token comes along. The answer's stream is the decode
worker's (Dynamo routes to it first, SGLang's load balancer passes on what it says), so that a token
that came along is seen once the request is let in there: who waits for a seat waits for it.

Source: https://docs.nvidia.com/dynamo/latest/backends/sglang/sglang-disaggregation.html

Both pools are simulations of their own that go on in turns, each as far as nothing that the other
one has still to do can reach it. A prompt is at a decode worker no sooner than the link's latency
behind its end, or than it would be without transfers that are still to begin; in a closed loop who
is done brings the next request the pause later. So one pass is exact.

Left out: a decode worker that fetches a cache only when it has blocks for it (vLLM), where the
transfer begins with one of its iterations.
"""

from __future__ import annotations

from dataclasses import field, replace
from heapq import heappop, heappush
from math import inf, nextafter

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.compiled import compiling, plain
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.engine import Batching
from shardwright.serving.policy.next_iteration import refusals
from shardwright.serving.policy.scheduler_state import INPUTS, OUTPUTS
from shardwright.serving.simulation.cache_transfer import Link, Transfers
from shardwright.serving.simulation.compiled_loop import (
    ENDED,
    FOLLOWING,
    IDLE,
    KNOWN,
    NEXT_BEGIN,
    NEXT_END,
    Simulation,
    begun,
    expect,
    finished,
    go_on,
)
from shardwright.serving.simulation.fleet import Fleet
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.drawn_requests import Requests, Served

_expect = plain(expect)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """What became of requests in both pools.

    Args:
        served: of a request as a whole; `worker` is the decoding one.
        prefill: of the prompts alone;
        decode: of what came behind the transfer, whose arrival is its end.
        transfer_s: (n,) seconds.
    """

    served: Served
    prefill: Served
    decode: Served
    transfer_s: FloatArray


def serve_split(
    requests: Requests,
    tables: tuple[StepTable, StepTable],
    fleets: tuple[Fleet, Fleet],
    link: Link,
    *,
    think_s: float = 0.0,
) -> Split:
    """What becomes of requests, prefilled and decoded apart.

    Args:
        tables, fleets: of prefill and of decode workers; their schedulers are told their roles
            here.
        think_s: see `Fleet`.
    """
    before = replace(
        fleets[0],
        scheduler=replace(
            fleets[0].scheduler, only_prompts=True, only_answers=False, guesses=0, lookahead=0
        ),
    )
    behind = replace(
        fleets[1], scheduler=replace(fleets[1].scheduler, only_prompts=False, only_answers=True)
    )
    prefill = begun(replace(requests, concurrency=0), tables[0], before)
    if requests.concurrency:
        prefill.run.numbers[KNOWN] = min(requests.concurrency, len(requests.inputs))
    own_first = behind.scheduler.batching is Batching.MIXED
    refused = refusals_of(prefill)
    chosen = np.flatnonzero(~refused & ((requests.outputs > 1) | own_first))
    decode = begun(those_of(requests, chosen), tables[1], behind)
    decode.run.numbers[KNOWN] = 0
    goes_on = np.zeros(len(refused), dtype=np.bool_)
    goes_on[chosen] = True
    refused[chosen] = refusals_of(decode)
    alone = (
        (link.bytes_per_sequence + link.bytes_per_token * requests.inputs)
        / link.layers
        / link.bandwidth
    )
    pools = _Pools(
        requests=requests,
        prefill=prefill,
        decode=decode,
        links=tuple(Transfers() for _ in range(before.workers)),
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
    return _split(pools, own_first=own_first)


def refusals_of(simulation: Simulation) -> BoolArray:
    """(n,) which requests never fit."""
    found = np.zeros(len(simulation.state.requests), dtype=np.bool_)
    refusals(simulation.state, found)
    return found


def those_of(requests: Requests, chosen: IntArray) -> Requests:
    """Some of the requests, which share no prefixes and whose arrivals are not known yet."""
    return Requests(
        arrival_s=np.full(len(chosen), np.nan),
        inputs=requests.inputs[chosen],
        outputs=requests.outputs[chosen],
        concurrency=0,
        block_offsets=np.zeros(len(chosen) + 1, dtype=np.int64),
        blocks=np.zeros(0, dtype=np.int64),
        block_tokens=requests.block_tokens,
    )


@dataclass(slots=True, kw_only=True)
class _Pools:
    """Both pools and the links between them, at times of their own.

    Args:
        alone: (n,) seconds of a transfer by itself.
        goes_on: (n,) to a decode worker.
        refused: (n,) by either pool.
        early: some are done with their prompt.
        came: (n,) when each is at the decode workers; `landed`: in this order.
        over: heap of transfers that have ended, when and whose, and are still to land.
        ends: heap of times at which somebody was done and has not brought the next one; of the
            first `settled` requests those that are refused are there.
        seen: ends of each pool that were taken note of.
    """

    requests: Requests
    prefill: Simulation
    decode: Simulation
    links: tuple[Transfers, ...]
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
        """Until nothing happens any more. Whoever is the first to end of all iterations and
        transfers does so in each turn.
        """
        while True:
            prompt, answer = self._soonest()
            if prompt == answer == self._next_transfer() == inf:
                return
            until = self._bring(min(answer, prompt) if self.early else answer)
            if _due(self.prefill, until):
                go_on(self.prefill, until=until)
                self._send()
                prompt, _ = self._soonest()
            # No transfer begins before the next prompt ends, so those that end before are not
            # delayed any more.
            self._land(until=nextafter(prompt, -inf))
            until = prompt + self.latency_s
            if _due(self.decode, until):
                go_on(self.decode, until=until)
                for request in self._new_ends(1):
                    heappush(self.ends, float(self.decode.run.last[request]))

    def _soonest(self) -> tuple[float, float]:
        """Times before which no prompt and no answer ends, whatever is still to come from the other
        pool.
        """
        prompt, answer = _next_end(self.prefill), _next_end(self.decode)
        more = self.prefill.run.numbers[KNOWN] < len(self.refused)
        if more and self.ends:
            prompt = min(prompt, _end_behind(self.prefill, self.ends[0] + self.think_s))
        answer = min(
            answer, _end_behind(self.decode, min(prompt, self._next_transfer()) + self.latency_s)
        )
        if more:
            prompt = min(prompt, _end_behind(self.prefill, answer + self.think_s))
        return prompt, answer

    def _next_transfer(self) -> float:
        return min(self.over[0][0] if self.over else inf, *(link.next_end for link in self.links))

    def _bring(self, bound: float) -> float:
        """Who is done up to a time before which nobody else is brings the next request; when the
        first arrives that is not known then.
        """
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
                _expect(self.prefill.run, heappop(self.ends) + self.think_s)
            else:
                return bound + self.think_s
        return inf

    def _send(self) -> None:
        """Prompts that have ended go over their worker's link, in the order of their ends."""
        run = self.prefill.run
        for request in sorted(self._new_ends(0), key=lambda one: (run.last[one], one)):
            at = float(run.last[request])
            link = self.links[run.where[request]]
            for one in link.ended(until=at):
                heappush(self.over, one)
            link.begin(at, alone=float(self.alone[request]), which=request)
            if not self.goes_on[request]:
                heappush(self.ends, at)

    def _land(self, *, until: float) -> None:
        """Requests whose transfers end up to then arrive at the decode workers, of several at once
        in their own order.
        """
        run, columns = self.decode.run, self.decode.state.requests
        for link in self.links:
            for one in link.ended(until=until):
                heappush(self.over, one)
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

    def _new_ends(self, pool: int) -> list[int]:
        run = (self.prefill, self.decode)[pool].run
        before, self.seen[pool] = self.seen[pool], int(run.numbers[ENDED])
        ended: list[int] = run.ended[before : self.seen[pool]].tolist()
        return ended


def _next_end(simulation: Simulation) -> float:
    """A time before which none of its iterations ends, but for requests that are not known yet."""
    clock = simulation.run.clock
    return min(
        float(clock[NEXT_END]),
        _end_behind(simulation, min(float(clock[NEXT_BEGIN]), _next_arrival(simulation))),
    )


def _end_behind(simulation: Simulation, begin: float) -> float:
    """A time before which nothing ends that begins at `begin`: later than that, and than what its
    worker has under way.
    """
    return nextafter(begin, inf) if simulation.run.numbers[IDLE] else inf


def _due(simulation: Simulation, until: float) -> bool:
    """Whether what happens in it as far as `go_on` goes may matter to the other pool: somebody
    arrives in vain while all are busy.
    """
    run = simulation.run
    if run.clock[NEXT_END] <= until:
        return True
    return bool(run.numbers[IDLE] and min(run.clock[NEXT_BEGIN], _next_arrival(simulation)) < until)


def _next_arrival(simulation: Simulation) -> float:
    run = simulation.run
    following = run.numbers[FOLLOWING]
    return float(run.arrival[following]) if following < run.numbers[KNOWN] else inf


def _split(pools: _Pools, *, own_first: bool) -> Split:
    """Both pools' results put together, on a clock that begins with the first arrival."""
    prefill, decode = finished(pools.prefill), finished(pools.decode)
    chosen, run = np.array(pools.landed, dtype=np.int64), pools.decode.run
    start = float(pools.prefill.run.arrival[0]) if len(pools.came) else 0.0
    first, last = prefill.first_s.copy(), prefill.last_s.copy()
    worker, preempted = prefill.worker.copy(), prefill.preempted.copy()
    last[chosen], worker[chosen] = run.last - start, decode.worker
    first[chosen] = (run.first if own_first else run.admitted) - start
    preempted[chosen] += decode.preempted
    served = of_both(
        prefill,
        decode,
        arrival=prefill.arrival_s,
        first=first,
        last=last,
        worker=worker,
        preempted=preempted,
    )
    return Split(
        served=served,
        prefill=prefill,
        decode=decode,
        transfer_s=pools.came - pools.prefill.run.last,
    )


def of_both(
    prefill: Served,
    decode: Served,
    *,
    arrival: FloatArray,
    first: FloatArray,
    last: FloatArray,
    worker: IntArray,
    preempted: IntArray,
) -> Served:
    """What became of whole requests: their times, and what both pools did; none has a first token
    that never had its last.
    """
    return Served(
        arrival_s=arrival,
        first_s=np.where(np.isnan(last), np.nan, first),
        last_s=last,
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
