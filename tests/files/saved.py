"""Stored files of small problems, of every kind that the project writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shardwright.api.general import stored_general
from shardwright.api.grids import plan
from shardwright.api.joint import plan_joint
from shardwright.api.simulations import simulation
from shardwright.files.stored import document_of, plan_document, simulation_document
from shardwright.search.request import Request

REQUEST = Request(
    model="llama-3.2-1b", cluster="h100-sxm:16", seq_len=2048, global_batch=32, top=2, runtime="megatron-core-0.12", precision="bf16"
)
ONE = tuple((axis, (value,)) for axis, value in (("mbs", "1"), ("cp", "1"), ("recompute", "none"), ("zero", "1"), ("vpp", "1")))
NARROW = replace(REQUEST, pins=(("tp", ("1", "2")), *ONE))
SMALL = Request(
    model="llama-3.2-1b", cluster="h100-sxm:4", seq_len=2048, global_batch=8, pins=(("tp", ("1",)), ("pp", ("2", "4")), ("mbs", ("1",)))
)
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


def joint_plan(request: Request = SMALL, *, space: str = "joint", limit: float = float("inf")) -> dict[str, Any]:
    return document_of(stored_general(plan_joint(replace(request, space=space), time_limit_s=limit)))


def simulated(strategy: str, request: Request = REQUEST) -> dict[str, Any]:
    return simulation_document(simulation(request, strategy=strategy))


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "grid": grid_plan,
    "joint": joint_plan,
    "grid simulation": lambda: simulated("tp2 sp pp2 dp4 mbs1 zero1"),
    "general simulation": lambda: simulated(UNEVEN),
}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every leaf but null."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from paths(item, (*path, key))
        elif item is not None:
            yield (*path, key)
