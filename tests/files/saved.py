"""Stored files of small problems, of every kind that the project writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from shardwright.api.searches.exact_search_on_few_devices import plan_exact
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.api.searches.robust_search_over_cluster_scenarios import plan_robust
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import (
    document_of,
    plan_document,
    simulation_document,
)
from shardwright.search.search_request import Request
from tests.tiers import in_proof, many

REQUEST = Request(
    model="llama-3.2-1b",
    cluster="h100-sxm:16",
    seq_len=2048,
    global_batch=32,
    top=2,
    runtime="megatron-core-0.12",
    precision="bf16",
)
ONE = tuple(
    (axis, (value,))
    for axis, value in (
        ("mbs", "1"),
        ("cp", "1"),
        ("recompute", "none"),
        ("zero", "1"),
        ("vpp", "1"),
    )
)
NARROW = replace(REQUEST, pins=(("tp", ("1", "2")), *ONE))
SMALL = Request(
    model="llama-3.2-1b",
    cluster="h100-sxm:4",
    seq_len=2048,
    global_batch=8,
    pins=(("tp", ("1",)), ("pp", ("2", "4")), ("mbs", ("1",))),
)

TINY = replace(SMALL, model="examples/tiny.json", seq_len=64)
"""A search of a few layers, which takes a quarter of the time; proofs take `SMALL`."""
UNEVEN = """plan uneven devices 8
lane main samples 32 in 8
  stages embed+7 on 0
    all = b2 t2
    stream = b2 s2
  stages 9+head on 4
    all = t4
    stream = s4
order 1f1b(main)
"""


def grid_plan(request: Request = NARROW, *, limit: float = float("inf")) -> dict[str, Any]:
    return plan_document(plan(request, time_limit_s=limit))


def joint_plan(
    request: Request = SMALL, *, space: str = "joint", limit: float = float("inf")
) -> dict[str, Any]:
    return document_of(
        stored_general(plan_joint(replace(request, space=space), time_limit_s=limit))
    )


def simulated(strategy: str, request: Request = REQUEST) -> dict[str, Any]:
    return simulation_document(simulation(request, strategy=strategy))


def general_plan(request: Request) -> dict[str, Any]:
    """What is written of a mixed, an exact or a robust search."""
    search = (
        plan_robust if request.scenarios else plan_exact if request.space == "exact" else plan_mixed
    )
    return document_of(stored_general(search(request)))


MIXED = Request(
    model="examples/tiny.json",
    cluster="a100-sxm-40gb:2+v100-sxm-16gb:2",
    seq_len=64,
    global_batch=8,
    top=2,
)
PRICED = replace(
    MIXED,
    cluster=f"a100-sxm-40gb:{many(1, 2)}/2usd+v100-sxm-16gb:{many(1, 2)}/1usd",
    objective="pareto",
    top=0,
)
EXACT = replace(MIXED, cluster="a100-sxm-40gb:2", global_batch=2, space="exact", top=0)
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "grid": grid_plan,
    "joint": lambda: joint_plan(SMALL if in_proof() else TINY),
    "grid simulation": lambda: simulated("tp2 sp pp2 dp4 mbs1 zero1"),
    "general simulation": lambda: simulated(UNEVEN),
    "mixed": lambda: general_plan(MIXED),
    "of a front": lambda: general_plan(PRICED),
    "exact": lambda: general_plan(EXACT),
}


@cache
def text_of_kind(kind: str) -> str:
    """The text of a file of a kind."""
    return to_text(KINDS[kind]())


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every leaf but null."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from paths(item, (*path, key))
        elif item is not None:
            yield (*path, key)
