"""Runs of a simulation, as a seed says: every policy, planned ahead or not, in stages, on several
workers and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Lengths,
    Poisson,
    ServingJob,
    SharedPrefix,
    TokenRange,
)
from shardwright.runtime.serving_engines.default_rules_by_device import Estimate
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import (
    DraftAcceptance,
    Fleet,
)
from shardwright.serving.simulation.request_router import Router
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import Requests

ESTIMATE = Estimate(first=0.7, least=0.098, steps=600, retract_steps=20, clip=4096)
ADMISSIONS = {
    Batching.MIXED: (Admission.CHUNK, Admission.PROMPT),
    Batching.PREFILL_FIRST: (Admission.ESTIMATED,),
    Batching.IN_FLIGHT: (Admission.WHOLE, Admission.PROMPT),
}


def step_table(**changes: Any) -> StepTable:
    """Of a small model, with graphs and a host that is hidden."""
    whole: dict[str, Any] = {
        "tokens": np.array([0, 64, 8192]),
        "replayed": np.array([0.004, 0.005, 0.2]),
        "launched": np.array([0.006, 0.0065, 0.21]),
        "replaying": np.array([0.0, 1e-4, 1e-4]),
        "launching": np.array([0.005, 0.006, 0.006]),
        "captured": (1, 2, 4, 8, 16, 32, 64),
        "piecewise": False,
        "sequences": np.array([0, 1, 256]),
        "head": np.array([0.0, 1e-4, 4e-4]),
        "decode_start": np.array([0.0, 1e-4, 2e-4]),
        "decode_slope": np.array([1e-8, 1e-8, 9e-9]),
        "windows": np.zeros(0, dtype=np.int64),
        "window_slope": np.zeros((0, 3)),
        "prompt_tokens": np.array([0, 1024, 8192]),
        "prompt_seconds": np.array([0.0, 1e-3, 0.04]),
        "host_s": 0.001,
        "host_sequence_s": 1e-5,
        "answer_s": 0.0,
        "asynchronous": True,
    }
    return StepTable(**whole | changes)


def constant(seconds: float, **changes: Any) -> StepTable:
    """Every iteration takes as long."""
    nothing = np.zeros(2)
    two = np.array([0, 1])
    columns = {
        "head": nothing,
        "decode_start": nothing,
        "decode_slope": nothing,
        "window_slope": np.zeros((0, 2)),
        "sequences": two,
    }
    prompts = {
        "prompt_tokens": two,
        "prompt_seconds": nothing,
        "host_s": 0.0,
        "host_sequence_s": 0.0,
    }
    base = np.array([seconds, seconds])
    return step_table(
        tokens=two,
        replayed=base,
        launched=base,
        replaying=nothing,
        launching=nothing,
        captured=(),
        **columns,
        **prompts,
        **changes,
    )


def scheduler(batching: Batching = Batching.MIXED, **changes: Any) -> SchedulerSettings:
    """With plenty of everything."""
    whole: dict[str, Any] = {
        "batching": batching,
        "admission": ADMISSIONS[batching][0],
        "estimate": ESTIMATE if batching is Batching.PREFILL_FIRST else None,
        "token_budget": 2048,
        "max_sequences": 64,
        "prompt_tokens": 16384 if batching is Batching.PREFILL_FIRST else 0,
        "block_tokens": 16,
        "blocks": 10_000,
    }
    return SchedulerSettings(**whole | changes)


def lengths(inputs: tuple[int, int], outputs: tuple[int, int]) -> Lengths:
    """From and to so many tokens."""
    return Lengths(
        inputs=TokenRange(low=inputs[0], high=inputs[1]),
        outputs=TokenRange(low=outputs[0], high=outputs[1]),
    )


def random_run(seed: int) -> tuple[Requests, StepTable, Fleet]:
    """A run of up to 150 requests."""
    random = np.random.default_rng(seed)
    batching = tuple(Batching)[random.integers(3)]
    block = int(random.choice([1, 4, 16]))
    own = SchedulerSettings(
        batching=batching,
        admission=ADMISSIONS[batching][random.integers(len(ADMISSIONS[batching]))],
        estimate=ESTIMATE if batching is Batching.PREFILL_FIRST else None,
        knows_ends=bool(random.integers(2)),
        token_budget=int(random.choice([64, 200, 1000])),
        prompt_tokens=int(random.choice([0, 300])),
        max_sequences=int(random.choice([4, 16, 64])),
        block_tokens=block,
        blocks=int(random.choice([600, 2000, 20000])) // block + 2,
        chunked_prefill=bool(random.integers(3)),
        mixes_decode=bool(random.integers(2)),
        prefix_cache=bool(random.integers(2)),
        watermark=int(random.integers(3)),
        draft_tokens=int(random.choice([0, 0, 0, 2])),
        polling=int(random.choice([1, 1, 5])),
        asynchronous=bool(random.integers(2)),
    )
    count = int(random.integers(1, 150))
    loop = ClosedLoop(concurrency=int(random.integers(1, 40)), requests=count)
    stream = Poisson(per_second=float(random.choice([1, 10, 100])), requests=count)
    job = ServingJob(
        arrivals=loop if random.integers(2) else stream,
        lengths=lengths((1, int(random.integers(2, 300))), (1, int(random.integers(1, 80)))),
        prefix=SharedPrefix(groups=3, tokens=64) if random.integers(2) else None,
        seed=seed,
    )
    windows = (
        np.array([8, 50], dtype=np.int64) if random.integers(2) else np.zeros(0, dtype=np.int64)
    )
    table = step_table(
        windows=windows,
        window_slope=np.full((len(windows), 3), 2e-8),
        stages=int(random.choice([1, 1, 1, 2, 4])),
        asynchronous=bool(random.integers(2)),
        piecewise=bool(random.integers(2)),
    )
    fleet = Fleet(
        scheduler=own,
        workers=int(random.integers(1, 4)),
        ranks=int(random.integers(1, 3)),
        router=tuple(Router)[random.integers(3)],
        think_s=float(random.choice([0, 0.01])),
        acceptance=DraftAcceptance(acceptance=0.7, sampled=bool(random.integers(2)), seed=seed),
    )
    return draw_requests(job, block_tokens=block), table, fleet
