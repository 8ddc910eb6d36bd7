"""The serving loop: closed loops of each batching policy, and a long stream on many workers."""

from __future__ import annotations

import numpy as np

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    Arrivals,
    ClosedLoop,
    Lengths,
    Poisson,
    ServingJob,
    TokenRange,
)
from shardwright.runtime.serving_engines.default_rules_by_device import Estimate
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import Requests

TABLE = StepTable(
    tokens=np.array([0, 64, 8192]),
    replayed=np.array([0.004, 0.005, 0.2]),
    launched=np.array([0.006, 0.0065, 0.21]),
    replaying=np.zeros(3),
    launching=np.array([0.005, 0.006, 0.006]),
    captured=np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
    piecewise=False,
    sequences=np.array([0, 1, 256]),
    head=np.array([0.0, 1e-4, 4e-4]),
    decode_start=np.array([0.0, 1e-4, 2e-4]),
    decode_slope=np.array([1e-8, 1e-8, 9e-9]),
    windows=np.zeros(0, dtype=np.int64),
    window_slope=np.zeros((0, 3)),
    prompt_tokens=np.array([0, 1024, 8192]),
    prompt_seconds=np.array([0.0, 1e-3, 0.04]),
    host_s=0.001,
    host_sequence_s=1e-5,
    answer_s=0.0,
    asynchronous=True,
)


def scheduler(batching: Batching, sequences: int) -> SchedulerSettings:
    """With blocks for all of them."""
    first = batching is Batching.PREFILL_FIRST
    return SchedulerSettings(
        batching=batching,
        admission=Admission.ESTIMATED if first else Admission.PROMPT,
        estimate=Estimate(first=0.7, least=0.098, steps=600, retract_steps=20, clip=4096)
        if first
        else None,
        token_budget=8192,
        max_sequences=sequences,
        prompt_tokens=16384 if first else 0,
        block_tokens=16,
        blocks=100_000,
    )


def drawn(arrivals: Arrivals) -> Requests:
    """Prompts of 900 tokens and answers of 90 in the mean."""
    lengths = Lengths(inputs=TokenRange(low=800, high=1000), outputs=TokenRange(low=80, high=100))
    return draw_requests(ServingJob(arrivals=arrivals, lengths=lengths, seed=1), block_tokens=16)


class Loop:
    """10 x 1,024 requests, 1,024 in flight. The bar is 10 ms."""

    params = tuple(batching.value for batching in Batching)
    param_names = ("batching",)
    repeat = 7
    number = 1

    def setup(self, batching: str) -> None:
        """Draw the requests and compile the loop."""
        self.requests = drawn(ClosedLoop(concurrency=1024, requests=10_240))
        self.fleet = Fleet(scheduler=scheduler(Batching(batching), 1024))
        self.time_serve(batching)

    def time_serve(self, batching: str) -> None:
        """From the first arrival to the last token."""
        serve_requests(self.requests, TABLE, self.fleet)


class Stream:
    """A million requests on 64 workers. The bar is 10 s."""

    repeat = 3
    number = 1
    timeout = 300

    def setup(self) -> None:
        """Draw the requests and compile the loop."""
        self.fleet = Fleet(scheduler=scheduler(Batching.MIXED, 256), workers=64)
        self.requests = drawn(Poisson(per_second=400.0, requests=1000))
        self.time_serve()
        self.requests = drawn(Poisson(per_second=400.0, requests=1_000_000))

    def time_serve(self) -> None:
        """From the first arrival to the last token."""
        serve_requests(self.requests, TABLE, self.fleet)

    def track_iterations(self) -> int:
        """Of all workers."""
        return serve_requests(self.requests, TABLE, self.fleet).iterations
