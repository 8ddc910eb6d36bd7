"""Python calls of `plan`, of a search among options and modules, and of one simulation on a new
mesh, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.searches.grid_search import plan
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.find_best_grid import find
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid

ASKED = Request(
    model="llama-3.1-405b",
    cluster="h100-sxm:16384",
    seq_len=8192,
    global_batch=2048,
    pins=(("tp_overlap", ("userbuffers",)),),
)
"""One value of each option, as in the question that was counted before."""
EXPERTS = with_defaults(
    Request(model="deepseek-v3", cluster="h100-sxm:2048", seq_len=4096, global_batch=15360)
)
QWEN = Request(model="qwen3-235b-a22b", cluster="h100-sxm:512", seq_len=4096, global_batch=1024)
SMALLER = Request(model="deepseek-v3", cluster="h100-sxm:1024", seq_len=4096, global_batch=7680)
ASKED_BEFORE = {"experts": (EXPERTS, EXPERTS), "qwen": (QWEN, QWEN), "larger": (SMALLER, EXPERTS)}
"""What is asked first in the process, and what then: both are counted."""
STRADDLED = {
    "domains": Request(
        model="deepseek-v3", cluster="gb200-nvl72:144", seq_len=4096, global_batch=3072
    ),
    "nodes": Request(
        model="llama-2-13b", cluster="aws-p3.16xlarge:48", seq_len=4096, global_batch=512
    ),
}
"""Two NVLink domains of 72, and 48 nodes of 8 on a slow network: groups and pipelines of many
members straddle them."""
UNLIKE = {
    name: Request(
        model=model, cluster="a100-sxm-40gb:128+v100-sxm-16gb:384", seq_len=2048, global_batch=1024
    )
    for name, model in (("unlike", "llama-2-13b"), ("unlike small", "qwen2.5-0.5b"))
}
"""Two kinds of devices."""
MESH = "tp8 sp pp16 vpp8 dp128 mbs1 zero1 schedule=interleaved-1f1b"


def calls_of(run: Callable[[], object]) -> int:
    """Calls of Python functions while `run` runs."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def search_of(request: Request) -> Callable[[], object]:
    """The search of a request's space alone."""
    asked = with_defaults(request)
    problem = problem_of(asked)
    facts = facts_of(problem)
    return partial(
        find,
        problem,
        space_of(asked, problem, facts),
        facts,
        capacity=capacity_of(asked, problem),
        top=4,
    )


def main(what: str) -> None:
    """Kernels and imports are there: they are no part of a search. Prints the calls of each
    question."""
    load_kernels()
    if what == "plan":
        counted = [calls_of(lambda: plan(ASKED))]
    elif what in ASKED_BEFORE:
        counted = [calls_of(search_of(asked)) for asked in ASKED_BEFORE[what]]
    elif what in STRADDLED:
        counted = [calls_of(search_of(STRADDLED[what]))]
    elif what in UNLIKE:
        mixed = problem_of(with_defaults(UNLIKE[what]))
        counted = [calls_of(lambda: find_mixed(mixed))]
    else:
        problem = problem_of(ASKED)
        simulate_grid(problem, parse_grid("tp2 sp pp4 dp2048 mbs1 zero1 schedule=1f1b"))
        counted = [calls_of(lambda: simulate_grid(problem, parse_grid(MESH)))]
    sys.stdout.write(" ".join(map(str, counted)))


if __name__ == "__main__":
    main(sys.argv[1])
