"""How tight the bounds of a search are, and how many members it simulates."""

from __future__ import annotations

import random

import numpy as np

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.cost.bounds.longest_path import path_seconds
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid

LLAMA = Request(model="llama-3.1-405b", cluster="h100-sxm:16384", seq_len=8192, global_batch=2048)
GPT3 = Request(
    model="gpt3-175b",
    cluster="a100-sxm-80gb:4096",
    seq_len=2048,
    global_batch=1536,
    space="exhaustive",
)
SAMPLE = 300


class _Bounds:
    """Medians of (S - B) / S over a random sample of the feasible members, in percent."""

    request = LLAMA
    timeout = 600
    unit = "percent"

    def measure(self) -> dict[str, float]:
        """Bound the space and simulate the sample once for all three."""
        problem = problem_of(self.request)
        facts = facts_of(problem)
        space = space_of(self.request, problem, facts)
        capacity = smallest_memory_bytes(problem.cluster)
        bounded = bound_space(problem, space, facts, capacity=capacity)
        loose_b0, loose_b1 = [], []
        for place in random.Random(0).sample(
            np.flatnonzero(np.isfinite(bounded.seconds)).tolist(), SAMPLE
        ):
            grid, priced = member_grid(bounded.members, place), bounded.prepared.priced(place)
            seconds = simulate_grid(problem, grid).step_time_s
            loose_b0.append(1 - bounded.seconds[place] / seconds)
            loose_b1.append(
                1 - path_seconds(problem, grid, step_costs(problem, grid, priced)) / seconds
            )
        answer = find(problem, space, facts, capacity=capacity, top=4)
        return {
            "b0": 100 * float(np.median(loose_b0)),
            "b1": 100 * float(np.median(loose_b1)),
            "s": float(answer.certificate.simulated),
        }

    def track_b0(self, found: dict[str, float]) -> float:
        """Bar: 5."""
        return found["b0"]

    def track_b1(self, found: dict[str, float]) -> float:
        """Bar: 1."""
        return found["b1"]

    def track_simulated(self, found: dict[str, float]) -> float:
        """Full simulations of a search for the best four; bar: 100."""
        return found["s"]


class BoundsOfLlama405B(_Bounds):
    """Llama 3.1 405B on 16,384 H100, standard space."""

    def setup_cache(self) -> dict[str, float]:
        """Of this problem: asv keeps one cache a function, so each class has its own."""
        return self.measure()


class BoundsOfGpt3(_Bounds):
    """GPT-3 175B on 4,096 A100, exhaustive space."""

    request = GPT3

    def setup_cache(self) -> dict[str, float]:
        """Of this problem."""
        return self.measure()
