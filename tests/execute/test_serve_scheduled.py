"""A server under a policy does what the simulator says: the same requests and tokens in the same
iterations, on blocks that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    serve_requests,
)
from shardwright.execute.serve.serving_worker import CacheSize
from shardwright.runtime.serving_engines.default_rules_by_device import Estimate
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching, Eviction
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.policy.scheduler_state import (
    DONE,
    ENTRY,
    LIFE,
    PREEMPTED,
    REFUSED,
    STATUS,
    TOKENS,
    SchedulerState,
    new_state,
)
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests
from tests.execute.served import SEED, Degrees, family, plan, texts, worst
from tests.tiers import many, random_of

Log = list[tuple[int, int, int]]
POLICIES: dict[str, SchedulerSettings] = {
    "mixed": SchedulerSettings(
        batching=Batching.MIXED, token_budget=7, max_sequences=4, block_tokens=2, blocks=14
    ),
    "mixed, whole prompts": SchedulerSettings(
        batching=Batching.MIXED,
        admission=Admission.PROMPT,
        token_budget=20,
        max_sequences=4,
        block_tokens=2,
        blocks=14,
        chunked_prefill=False,
    ),
    "prompts first": SchedulerSettings(
        batching=Batching.PREFILL_FIRST,
        admission=Admission.ESTIMATED,
        eviction=Eviction.RETRACT,
        estimate=Estimate(
            first=0.5, least=0.1, steps=20, retract_steps=2, clip=4096, kept_tokens=0
        ),
        token_budget=8,
        max_sequences=4,
        block_tokens=2,
        blocks=16,
    ),
    "in flight, all that runs": SchedulerSettings(
        batching=Batching.IN_FLIGHT, token_budget=7, max_sequences=4, block_tokens=2, blocks=14
    ),
    "in flight, nobody evicted": SchedulerSettings(
        batching=Batching.IN_FLIGHT,
        admission=Admission.WHOLE,
        token_budget=7,
        max_sequences=4,
        block_tokens=2,
        blocks=14,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Random traffic under a policy: `arrivals` in turns."""

    scheduler: SchedulerSettings
    inputs: Sequence[int]
    outputs: Sequence[int]
    arrivals: Sequence[int]
    ranks: int
    stages: int

    @property
    def requests(self) -> Requests:
        n = len(self.inputs)
        return Requests(
            arrival_s=np.array(self.arrivals, dtype=np.float64),
            inputs=np.array(self.inputs, dtype=np.int64),
            outputs=np.array(self.outputs, dtype=np.int64),
            concurrency=0,
            block_offsets=np.zeros(n + 1, dtype=np.int64),
            blocks=np.zeros(0, dtype=np.int64),
            block_tokens=0,
        )

    @property
    def state(self) -> SchedulerState:
        slots = self.stages if self.stages > 1 else 1 + self.scheduler.asynchronous
        return new_state(self.requests, self.scheduler, ranks=self.ranks, slots=slots)

    def on(self, serves: IterationRunner) -> ScheduledWorker:
        """A worker that expects it."""
        scheduled = ScheduledWorker(server=serves, state=self.state, stages=self.stages)
        for request, turn in enumerate(self.arrivals):
            scheduled.expect(turn, request)
        return scheduled

    def simulated(self) -> tuple[Log, list[int]]:
        """(what runs at each second, how often each request was preempted) of a simulation whose
        iterations take a second a stage."""
        log, served = watched(self.requests, self)
        return log, served.preempted.tolist()


def watched(requests: Requests, case: Case) -> tuple[Log, ServedRequests]:
    """A simulation of requests on the case's worker whose iterations take a second a stage, and
    what runs at each second."""
    log: Log = []

    def watch(now: float, state: SchedulerState, rank: int, slot: int) -> None:
        entries = state.batch[rank, slot, : state.batch_size[rank, slot]].tolist()
        assert all(entry[LIFE] == state.requests[entry[ENTRY], PREEMPTED] for entry in entries), (
            "who is planned lost its blocks"
        )
        log.extend((int(now), entry[ENTRY], entry[TOKENS]) for entry in entries)

    served = serve_requests_in_python(
        requests,
        replace(TABLE, stages=case.stages),
        Fleet(scheduler=case.scheduler, ranks=case.ranks),
        timing=lambda state, rank, slot: float(case.stages),
        watcher=watch,
    )
    return log, served


_NONE, _TWO = np.zeros(2), np.array([1, 2], dtype=np.int64)
TABLE = StepTable(
    tokens=_TWO,
    replayed=_NONE,
    launched=_NONE,
    replaying=_NONE,
    launching=_NONE,
    captured=np.zeros(0, dtype=np.int64),
    piecewise=False,
    sequences=_TWO,
    head=_NONE,
    decode_start=_NONE,
    decode_slope=_NONE,
    windows=np.zeros(0, dtype=np.int64),
    window_slope=np.zeros((0, 2)),
    prompt_tokens=np.array([0, 1], dtype=np.int64),
    prompt_seconds=_NONE,
    host_s=1.0,
    host_sequence_s=0.0,
    answer_s=0.0,
    asynchronous=False,
)
"""Not read: iterations have seconds by another law."""


def case_of(name: str, random: Random, *, requests: int = 8) -> Case:
    return Case(
        scheduler=replace(POLICIES[name], asynchronous=random.random() < 0.5),
        inputs=[random.randint(1, 14) for _ in range(requests)],
        outputs=[random.randint(1, 9) for _ in range(requests)],
        arrivals=sorted(random.randrange(25) for _ in range(requests)),
        ranks=random.choice((1, 1, 2)),
        stages=random.choice((1, 1, 2, 3)),
    )


@dataclass(slots=True)
class Counted:
    """Serves nothing but keeps block tables as a server does, and sees that every part goes on
    where the cache ends."""

    tables: tuple[CacheBlockTables, ...]

    def iterate(self, worker: int, ranks: Sequence[Sequence[RequestPart]]) -> None:
        for tables, parts in zip(self.tables, ranks, strict=True):
            for part in parts:
                tables.extend(part.request, past=part.past, end=part.end)

    def release(self, worker: int, request: int, *, rank: int = 0) -> None:
        self.tables[rank].release(request)

    def send(
        self, request: int, *, source: int, target: int, ranks: tuple[int, int] = (0, 0)
    ) -> None:
        raise AssertionError("one worker")

    def store_sent_cache(self, worker: int, request: int, *, end: int, rank: int = 0) -> None:
        raise AssertionError("one worker")


def counted(case: Case) -> Counted:
    size = case.scheduler
    return Counted(
        tuple(
            CacheBlockTables(
                reaches=(KeyReach(),), blocks=size.blocks, block_tokens=size.block_tokens
            )
            for _ in range(case.ranks)
        )
    )


@pytest.mark.parametrize("name", POLICIES)
def test_the_log_of_iterations_is_the_simulators_and_blocks_never_run_out(name: str) -> None:
    random, preempted = random_of(f"logs of {name}"), 0
    for _ in range(many(40)):
        case = case_of(name, random)
        tables = counted(case)
        scheduled = case.on(tables)
        serve_requests(scheduled)
        log, lost = case.simulated()
        assert scheduled.log == log
        assert scheduled.state.requests[:, PREEMPTED].tolist() == lost
        assert all(not one.cached for one in tables.tables)
        statuses = scheduled.state.requests[:, STATUS].tolist()
        assert [r for r, status in enumerate(statuses) if status == REFUSED] == scheduled.refused
        assert set(statuses) <= {DONE, REFUSED}
        preempted += sum(lost)
    assert bool(preempted) == (POLICIES[name].admission is not Admission.WHOLE), (
        "the traffic puts no pressure on the cache"
    )


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_takes_the_blocks_of_who_is_planned_already(name: str) -> None:
    random, preempted = Random(f"logs of {name}"), 0
    for _ in range(200):
        preempted += sum(case_of(name, random).simulated()[1])
    assert bool(preempted) == (POLICIES[name].admission is not Admission.WHOLE)


@pytest.mark.parametrize(
    ("policy", "name", "degrees"),
    [
        ("mixed", "grouped queries", {"tp": 2}),
        ("prompts first", "mamba-2 beside attention", {}),
        ("in flight, all that runs", "latent", {"dp": 2}),
        pytest.param(
            "mixed", "windows, sinks and experts", {"tp": 2, "ep": 2}, marks=pytest.mark.proof
        ),
        pytest.param("mixed, whole prompts", "delta rule", {"pp": 2}, marks=pytest.mark.proof),
        pytest.param("prompts first", "experts", {"dp": 2, "ep": 2}, marks=pytest.mark.proof),
        pytest.param(
            "in flight, nobody evicted",
            "mamba-2, attention and experts",
            {"tp": 2, "pp": 2},
            marks=pytest.mark.proof,
        ),
    ],
)
def test_under_a_policy_answers_are_the_unsplit_models(
    policy: str, name: str, degrees: Degrees
) -> None:
    random = random_of(f"{policy} {name}")
    stages, ranks = degrees.get("pp", 1), degrees.get("dp", 1)
    case = replace(case_of(policy, random, requests=4), ranks=ranks, stages=stages)
    while not sum(case.simulated()[1]) and case.scheduler.admission is not Admission.WHOLE:
        case = replace(case_of(policy, random, requests=4), ranks=ranks, stages=stages)
    model = family(name)
    size = CacheSize(blocks=case.scheduler.blocks, block_tokens=case.scheduler.block_tokens)
    prompts = texts(model, lengths=case.inputs)
    served = create_server(
        model,
        [plan(model, degrees)],
        prompts=prompts,
        source=seeded(model, seed=SEED),
        size=size,
        sizes=(4, 8),
    )
    scheduled = case.on(served)
    serve_requests(scheduled)
    assert scheduled.log == case.simulated()[0]
    refused = set(scheduled.refused)
    lengths = {r: len(tokens) for r, tokens in served.tokens.items() if r not in refused}
    assert lengths == {
        r: i + o
        for r, (i, o) in enumerate(zip(case.inputs, case.outputs, strict=True))
        if r not in refused
    }
    served.tokens = {r: tokens for r, tokens in served.tokens.items() if r not in refused}
    worst(served)


@pytest.mark.parametrize("change", [{"draft_tokens": 1}, {"prefix_cache": True}])
def test_what_is_not_served_yet_is_refused(change: dict[str, int]) -> None:
    case = replace(case_of("mixed", random_of("refused")), ranks=1, stages=1)
    case = replace(case, scheduler=replace(case.scheduler, **change))  # type: ignore[arg-type]
    with pytest.raises(StrategyError) as error:
        case.on(counted(case))
    assert error.value.rule == "serve.policy"
