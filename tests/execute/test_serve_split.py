"""Prompts and answers on workers of their own: both logs are the simulator's, logits the unsplit
model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.serve.iterations_on_workers import create_server
from shardwright.execute.serve.kv_cache_blocks import CacheBlockTables, KeyReach
from shardwright.execute.serve.padded_iteration_rows import RequestPart
from shardwright.execute.serve.serve_requests_by_scheduling_policy import (
    IterationRunner,
    ScheduledWorker,
    serve_prefill_and_decode,
)
from shardwright.execute.serve.serving_worker import CacheSize
from shardwright.runtime.serving_engines.serving_engine import Batching
from tests.execute.served import SEED, Degrees, family, plan, texts, worst
from tests.execute.test_serve_scheduled import POLICIES, Case, Log, case_of, watched
from tests.tiers import many, random_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCase:
    """Traffic, and the prefill and decode workers' policies; `turns` that a transfer takes."""

    prefill: Case
    decode: Case
    turns: int

    def on(self, serves: IterationRunner) -> tuple[ScheduledWorker, ScheduledWorker]:
        """Both workers; the first one expects the traffic."""
        return self.prefill.on(serves), ScheduledWorker(
            server=serves, state=self.decode.state, worker=1, stages=self.decode.stages
        )

    def simulated(self) -> tuple[Log, Log, int]:
        """Logs of both, and how often some request was preempted, as `serving.disaggregation` puts
        simulations together."""
        requests = self.prefill.requests
        log, prefill = watched(requests, self.prefill)
        own_first = self.decode.scheduler.batching is Batching.MIXED
        there = np.flatnonzero(~np.isnan(prefill.last_s) & ((requests.outputs > 1) | own_first))
        came = prefill.last_s[there] + requests.arrival_s[0] + self.turns
        order = np.argsort(came, kind="stable")
        if not len(order):
            return log, [], int(prefill.preempted.sum())
        chosen = there[order]
        some = replace(
            requests,
            arrival_s=came[order],
            inputs=requests.inputs[chosen],
            outputs=requests.outputs[chosen],
            block_offsets=np.zeros(len(chosen) + 1, dtype=np.int64),
        )
        more, decode = watched(some, self.decode)
        return (
            log,
            [(turn, int(chosen[one]), tokens) for turn, one, tokens in more],
            int(prefill.preempted.sum() + decode.preempted.sum()),
        )


def split_case(name: str, random: Random, *, requests: int = 8) -> SplitCase:
    case = case_of(name, random, requests=requests)
    other = case_of(name, random)
    prefill = replace(case, scheduler=replace(case.scheduler, only_prompts=True))
    decode = replace(
        case,
        scheduler=replace(other.scheduler, only_answers=True, blocks=random.randint(12, 16)),
        ranks=other.ranks,
        stages=other.stages,
    )
    return SplitCase(prefill=prefill, decode=decode, turns=random.choice((0, 1, 3)))


@dataclass(slots=True)
class CountedWorkers:
    """Two workers' block tables."""

    tables: tuple[tuple[CacheBlockTables, ...], ...]
    under_way: dict[int, int] = field(default_factory=dict)

    def iterate(self, worker: int, ranks: Sequence[Sequence[RequestPart]]) -> None:
        for tables, parts in zip(self.tables[worker], ranks, strict=True):
            for part in parts:
                tables.extend(part.request, past=part.past, end=part.end)

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        self.tables[worker][rank].release(request)
        self.under_way.pop(request, None)

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        end = self.tables[source][ranks[0]].cached[request]
        self.release(source, request, rank=ranks[0])
        self.under_way[request] = end

    def store_sent_cache(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        assert self.under_way.pop(request) - end in (0, 1)
        self.tables[worker][rank].receive(request, first=end, end=end)


def tables_of(case: Case) -> tuple[CacheBlockTables, ...]:
    size = case.scheduler
    return tuple(
        CacheBlockTables(reaches=(KeyReach(),), blocks=size.blocks, block_tokens=size.block_tokens)
        for _ in range(case.ranks)
    )


@pytest.mark.parametrize("name", POLICIES)
def test_logs_of_both_workers_are_the_simulators(name: str) -> None:
    random = random_of(f"splits of {name}")
    for _ in range(many(40)):
        case = split_case(name, random)
        workers = CountedWorkers((tables_of(case.prefill), tables_of(case.decode)))
        prefill, decode = case.on(workers)
        serve_prefill_and_decode(prefill, decode, transfer_turns=case.turns)
        log, more, _ = case.simulated()
        assert prefill.log == log
        assert decode.log == more
        assert not workers.under_way
        assert all(not one.cached for tables in workers.tables for one in tables)


@pytest.mark.parametrize(
    ("policy", "name", "degrees"),
    [
        ("mixed", "grouped queries", ({"tp": 2}, {})),
        ("in flight, all that runs", "mamba-2 beside attention", ({}, {"tp": 2})),
        pytest.param(
            "prompts first",
            "latent",
            ({"tp": 2, "ep": 2}, {"dp": 2, "ep": 2}),
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "mixed",
            "windows, sinks and experts",
            ({"tp": 2, "pp": 2}, {"dp": 2}),
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "in flight, nobody evicted",
            "sliding window",
            ({"dp": 2}, {"pp": 2}),
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "prompts first", "delta rule", ({"tp": 2}, {"dp": 2, "ep": 2}), marks=pytest.mark.proof
        ),
    ],
)
def test_answers_of_both_workers_are_the_unsplit_models(
    policy: str, name: str, degrees: tuple[Degrees, Degrees]
) -> None:
    random = random_of(f"{policy} {name} split")

    def drawn() -> SplitCase:
        case = split_case(policy, random, requests=5)
        sides = (
            replace(one, stages=each.get("pp", 1), ranks=each.get("dp", 1))
            for one, each in zip((case.prefill, case.decode), degrees, strict=True)
        )
        prefill, decode = sides
        return replace(
            case,
            prefill=prefill,
            decode=replace(decode, scheduler=replace(decode.scheduler, blocks=12)),
        )

    case = drawn()
    while policy == "mixed" and not case.simulated()[2]:
        case = drawn()
    model = family(name)
    most = max(case.prefill.scheduler.blocks, case.decode.scheduler.blocks)
    size = CacheSize(blocks=most, block_tokens=case.prefill.scheduler.block_tokens)
    prompts = texts(model, lengths=case.prefill.inputs)
    plans = [plan(model, each) for each in degrees]
    served = create_server(
        model, plans, prompts=prompts, source=seeded(model, seed=SEED), size=size, sizes=(4, 8)
    )
    prefill, decode = case.on(served)
    serve_prefill_and_decode(prefill, decode, transfer_turns=case.turns)
    assert (prefill.log, decode.log) == case.simulated()[:2]
    refused = {*prefill.refused, *decode.refused}
    served.tokens = {r: tokens for r, tokens in served.tokens.items() if r not in refused}
    lengths = {r: len(tokens) for r, tokens in served.tokens.items()}
    assert lengths == {
        r: i + o
        for r, (i, o) in enumerate(zip(case.prefill.inputs, case.prefill.outputs, strict=True))
        if r in lengths
    }
    worst(served)
    assert not served.under_way


def test_a_state_does_not_go_back() -> None:
    model = family("mamba-2")
    served = create_server(
        model,
        [plan(model, {}), plan(model, {})],
        prompts=texts(model, lengths=(5,)),
        source=seeded(model, seed=SEED),
    )
    served.iterate(0, [[RequestPart(request=0, tokens=5, past=0)]])
    served.send(0, source=0, target=1)
    with pytest.raises(StrategyError) as error:
        served.store_sent_cache(1, 0, end=4)
    assert error.value.rule == "serve.state"
