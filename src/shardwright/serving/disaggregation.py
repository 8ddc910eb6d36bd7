"""Prompts and answers on workers of their own: a prompt's cache goes over a link before its answer goes on.

A prompt runs at a prefill worker, then its bytes go to a decode worker, then the request decodes there: with vLLM from the prompt's last
token on, so that the first token of the answer is one of the decode worker; with the others the first token comes along. A prefill worker's
link is shared: transfers under way at once each have an equal part of its bandwidth. In a closed loop who is done at the decode workers
brings the next one to the prefill workers, so the three are run again and again with the arrivals that came out, until they are those that
went in. What happens before an arrival that is wrong is right, so each time at least as many are as come within the shortest request.

Left out: a decode worker that fetches a cache only when it has blocks for it (vLLM), where the transfer begins with one of its iterations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.runtime.engines.engine import Batching
from shardwright.serving.fleet import Fleet
from shardwright.serving.loop import serve
from shardwright.serving.requests import Requests, Served
from shardwright.serving.step_table import StepTable

MAX_ROUNDS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between prefill and decode workers.

    Args:
        bandwidth: bytes a second out of a prefill worker. latency_s: of a transfer. bytes_per_token, bytes_per_sequence: of the cache.
        layers: parts that a prompt's cache goes in: each goes when it is computed, so only the last is waited for; 1 = the whole behind the
            prompt.
    """

    bandwidth: float
    latency_s: float
    bytes_per_token: float
    bytes_per_sequence: float = 0.0
    layers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """What became of requests in both pools.

    Args:
        served: of a request as a whole; `worker` is the decoding one. prefill: of the prompts alone; decode: of what came behind the
            transfer, whose arrival is its end. transfer_s: (n,) seconds. rounds: that it took.
    """

    served: Served
    prefill: Served
    decode: Served
    transfer_s: FloatArray
    rounds: int


def serve_split(
    requests: Requests, tables: tuple[StepTable, StepTable], fleets: tuple[Fleet, Fleet], link: Link, *, think_s: float = 0.0
) -> Split:
    """What becomes of requests, prefilled and decoded apart.

    Args:
        tables, fleets: of prefill and of decode workers; their schedulers are told their roles here. think_s: see `Fleet`.
    """
    before = replace(fleets[0], scheduler=replace(fleets[0].scheduler, only_prompts=True, only_answers=False, guesses=0, lookahead=0))
    behind = replace(fleets[1], scheduler=replace(fleets[1].scheduler, only_prompts=False, only_answers=True))
    arrival, loop = requests.arrival_s.copy(), requests.concurrency
    for rounds in range(1, MAX_ROUNDS + 1):
        split = _once(requests, arrival, tables, (before, behind), link, rounds)
        if not loop or loop >= len(arrival):
            return split
        ended = np.sort(np.where(np.isnan(split.served.last_s), arrival, split.served.last_s + arrival[0]))
        again = arrival.copy()
        again[loop:] = ended[: len(arrival) - loop] + think_s
        if np.array_equal(again, arrival):
            return split
        arrival = again
    raise AssertionError("arrivals of a closed loop did not settle")


def _once(
    requests: Requests, arrival: FloatArray, tables: tuple[StepTable, StepTable], fleets: tuple[Fleet, Fleet], link: Link, rounds: int
) -> Split:
    """All of them with arrivals that are given."""
    prefill = serve(replace(requests, arrival_s=arrival, concurrency=0), tables[0], fleets[0])
    there = ~np.isnan(prefill.last_s)
    ready = prefill.last_s[there]
    total = link.bytes_per_sequence + link.bytes_per_token * requests.inputs[there]
    transfer = shared_seconds(ready, total / link.layers / link.bandwidth, prefill.worker[there]) + link.latency_s
    own_first = fleets[1].scheduler.batching is Batching.MIXED
    more = (requests.outputs[there] > 1) | own_first
    which = np.flatnonzero(there)[more]
    order = np.argsort(ready[more] + transfer[more], kind="stable")
    chosen = which[order]
    came = (ready[more] + transfer[more])[order]
    decode = serve(_those(requests, chosen, came), tables[1], fleets[1])
    first, last, worker = prefill.first_s.copy(), prefill.last_s.copy(), prefill.worker.copy()
    preempted = prefill.preempted.copy()
    start = came[0] if len(came) else 0.0
    last[chosen], worker[chosen] = decode.last_s + start, decode.worker
    first[chosen] = decode.first_s + start if own_first else came
    preempted[chosen] += decode.preempted
    seconds = np.full(len(there), np.nan)
    seconds[there] = transfer
    served = Served(
        arrival_s=prefill.arrival_s,
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
    return Split(served=served, prefill=prefill, decode=decode, transfer_s=seconds, rounds=rounds)


def _those(requests: Requests, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], came: FloatArray) -> Requests:
    """Some of the requests, with arrivals of their own and no prefixes to share."""
    return Requests(
        arrival_s=came,
        inputs=requests.inputs[chosen],
        outputs=requests.outputs[chosen],
        concurrency=0,
        block_offsets=np.zeros(len(chosen) + 1, dtype=np.int64),
        blocks=np.zeros(0, dtype=np.int64),
        block_tokens=requests.block_tokens,
    )


def shared_seconds(begins: FloatArray, alone: FloatArray, link: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    """Seconds of transfers that would take `alone` seconds by themselves, where those of one link that are under way share it equally.

    A link's own clock runs at one over the transfers under way; on it each takes what it takes alone (processor sharing).

    Args:
        begins, alone: (n,) seconds. link: (n,) which one.
    """
    result = np.zeros(len(begins))
    for number in np.unique(link):
        of_link = np.flatnonzero(link == number)
        of_link = of_link[np.argsort(begins[of_link], kind="stable")]
        under_way: list[tuple[float, int]] = []
        now, own = 0.0, 0.0
        for i in of_link:
            now, own = _until(float(begins[i]), now, own, under_way, result, begins)
            heappush(under_way, (own + float(alone[i]), int(i)))
        _until(np.inf, now, own, under_way, result, begins)
    return result


def _until(
    then: float, now: float, own: float, under_way: list[tuple[float, int]], result: FloatArray, begins: FloatArray
) -> tuple[float, float]:
    """The link's clock `own` goes on from `now` to `then`; what ends before has its seconds."""
    while under_way:
        end, i = under_way[0]
        at = now + (end - own) * len(under_way)
        if at > then:
            return then, own + (then - now) / len(under_way)
        heappop(under_way)
        now, own = at, end
        result[i] = at - begins[i]
    return then, own
