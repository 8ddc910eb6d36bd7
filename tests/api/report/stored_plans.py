"""Stored plans and simulations of many kinds, for tests of a report's contents."""

from __future__ import annotations

from functools import cache
from typing import Final

from shardwright.api.report.simulate_stored_plan import SimulatedStep, simulate_stored
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.files.plan_and_simulation_file_contents import (
    StoredSimulation,
    stored_answer,
    stored_simulation,
)
from shardwright.search.search_request import Request


def request_of(model: str, cluster: str, *, seq_len: int = 2048, batch: int = 16) -> Request:
    """A small request."""
    return Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=batch)


SIMULATED: Final = {
    "one device": ("llama-3.2-1b", "h100-sxm:1", "tp1 dp1 mbs1 zero0 recompute=none"),
    "no pipeline": ("llama-3.1-8b", "h100-sxm:8", "tp2 sp dp4 mbs1 zero1 recompute=none"),
    "does not fit": ("llama-3.1-70b", "h100-sxm:8", "tp8 sp dp1 mbs1 zero1 recompute=none"),
    "recompute": ("llama-3.1-8b", "h100-sxm:8", "pp4 dp2 mbs1 zero1 recompute=full"),
    "offload": ("llama-3.1-8b", "h100-sxm:8", "tp4 sp dp2 mbs1 zero1 recompute=none offload=100"),
    "no cost known": ("llama-3.1-8b", "mi300x:8", "tp4 sp dp2 mbs1 zero1 recompute=none"),
}
"""Model, cluster and strategy of simulations."""
SEARCHED: Final = ("grid", "joint", "mixed")
KINDS: Final = (*SIMULATED, *SEARCHED)


@cache
def stored(kind: str) -> StoredSimulation:
    """The contents of a file of a kind."""
    if kind in SIMULATED:
        model, cluster, strategy = SIMULATED[kind]
        return stored_simulation(simulation(request_of(model, cluster), strategy=strategy))
    if kind == "grid":
        return stored_answer(plan(request_of("llama-3.1-8b", "h100-sxm:8")))
    if kind == "joint":
        request = Request(
            model="llama-3.2-1b", cluster="l40s:2", seq_len=1024, global_batch=4, space="joint"
        )
        return stored_general(plan_joint(request))
    return stored_general(plan_mixed(request_of("llama-3.2-1b", "h100-sxm:1+a100-sxm-80gb:1")))


@cache
def simulated(kind: str) -> SimulatedStep:
    """The stored plan of a kind, simulated."""
    return simulate_stored(stored(kind))
