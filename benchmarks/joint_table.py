"""The table of docs/joint.md: the joint plan against the best equal grid and the best grid with
first and last stages, simulated.

Run: ``python -m benchmarks.joint_table [case ...]``. Prints markdown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.errors import InfeasibleError, StrategyError, UsageError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.program.training_problem import Problem
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.joint.find_joint import FOUND_ORDERS, NAMED_ORDERS, JointDetail, find_joint
from shardwright.search.joint.joint_plan_to_general_plan import joint_plan_text
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model on a cluster. `tolerance`: of the joint search. No clock ends it: all but the seconds
    is the same on every machine."""

    name: str
    request: Request
    tolerance: float = 0.0


def _request(model: str, cluster: str, *, seq_len: int, batch: int, **pins: int) -> Request:
    chosen = tuple((axis, (str(value),)) for axis, value in pins.items())
    return Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=batch, pins=chosen)


CASES = (
    Case(
        name="Llama-3.1 405B, PP16",
        request=_request("llama-3.1-405b", "h100-sxm:16384", seq_len=8192, batch=2048, pp=16),
    ),
    Case(
        name="DeepSeek-V3, PP16",
        request=_request("deepseek-v3", "h100-sxm:2048", seq_len=4096, batch=15360, pp=16),
    ),
    Case(
        name="Jamba-1.5 Large, PP8",
        request=_request("jamba-1.5-large", "h100-sxm:512", seq_len=8192, batch=512, pp=8),
    ),
    Case(
        name="Gemma-3 27B, PP8",
        request=_request("gemma-3-27b-text", "h100-sxm:64", seq_len=8192, batch=128, pp=8),
    ),
    Case(
        name="80 layers (Llama-3.1 70B), 1,024 devices",
        request=_request("llama-3.1-70b", "h100-sxm:1024", seq_len=8192, batch=1024),
    ),
)


def _space(problem: Problem, request: Request) -> Space:
    """The grids under the options of the runtime as it is, which joint plans have: `api.plan_joint`
    takes them so."""
    return replace(space_of(request, problem, facts_of(problem)), options=())


def _grid(problem: Problem, request: Request) -> Answer | None:
    facts = facts_of(problem)
    try:
        return find(
            problem,
            _space(problem, request),
            facts,
            capacity=smallest_memory_bytes(problem.cluster),
            top=1,
        )
    except (InfeasibleError, StrategyError, UsageError):
        return None


def best_with_ends(problem: Problem, request: Request) -> Answer | None:
    """The best grid with Megatron's first and last stage: every pair near the mean that leaves the
    others equal."""
    pins = dict(request.pins)
    if "pp" not in pins:
        return None
    ranks, layers = int(pins["pp"][0]), num_layers(problem.model)
    mean, best = -(-layers // ranks), None
    for first in range(max(mean - 4, 0), mean + 2):
        for last in range(max(mean - 6, 0), mean + 2):
            others = ranks - (first > 0) - (last > 0)
            if (
                (first or last)
                and (layers - first - last) % others == 0
                and abs((layers - first - last) // others - mean) <= 2
            ):
                ends = tuple(
                    (name, (str(value),))
                    for name, value in (("first", first), ("last", last))
                    if value
                )
                answer = _grid(problem, replace(request, pins=(*request.pins, *ends)))
                if answer and (best is None or answer.certificate.best_s < best.certificate.best_s):
                    best = answer
    return best


def _rows(case: Case) -> Iterator[str]:
    """A row with named orders and one with found ones."""
    problem = problem_of(case.request)
    facts, capacity = facts_of(problem), smallest_memory_bytes(problem.cluster)
    space = _space(problem, case.request)
    find_joint(problem, space, facts, capacity=capacity, tolerance=0.5)  # loads compiled kernels
    ends = best_with_ends(problem, case.request)
    for orders in (NAMED_ORDERS, FOUND_ORDERS):
        begun = time.process_time()
        joint = find_joint(
            problem, space, facts, capacity=capacity, orders=orders, tolerance=case.tolerance
        )
        yield _row(case, joint, ends, orders, spent_s=time.process_time() - begun)


def _row(
    case: Case,
    joint: GeneralAnswer[JointDetail],
    ends: Answer | None,
    orders: str,
    *,
    spent_s: float,
) -> str:
    equal, best, c = joint.detail.grid, joint.detail.best, joint.certificate
    assert c.joint is not None
    text = joint_plan_text(best.plan) if best else "the grid of (a)"
    grids = [_cell(equal), _cell(ends)] if orders == NAMED_ORDERS else ["", ""]
    cells = [
        case.name,
        orders,
        *grids,
        f"{c.best_s:.4f} s: {text}",
        _gain(equal, c.best_s),
        _gain(ends, c.best_s),
    ]
    cells += [
        f"{_most(equal, c.lower_bound_s)} / {_most(ends, c.lower_bound_s)}",
        f"{c.lower_bound_s:.4f} s ({c.gap:.2%})",
    ]
    cells += [
        f"{c.universal_gap:.1%}",
        (
            f"{c.joint.pipelines} pipelines, {c.enumerated:.3g} members, {c.bounded_b1} scored,"
            f" {c.simulated} simulated"
        ),
    ]
    return "| " + " | ".join([*cells, f"{spent_s:.1f} s"]) + " |"


def _cell(answer: Answer | None) -> str:
    return f"{answer.certificate.best_s:.4f} s: {print_grid(answer.grid)}" if answer else "-"


def _gain(answer: Answer | None, best_s: float) -> str:
    return f"{answer.certificate.best_s / best_s - 1:.2%}" if answer else "-"


def _most(answer: Answer | None, lower_s: float) -> str:
    """The most that any member of the space can be faster, proven."""
    return f"{answer.certificate.best_s / lower_s - 1:.2%}" if answer else "-"


HEAD = (
    *(
        "case",
        "orders",
        "(a) equal grid",
        "(b) first/last",
        "joint plan",
        "over (a)",
        "over (b)",
        "proven most over (a) / (b)",
    ),
    *("lower bound (gap)", "universal gap", "certificate", "processor"),
)


def main(names: list[str]) -> None:
    """Print the table of the cases whose name contains one of `names` (all if none)."""
    sys.stdout.write("| " + " | ".join(HEAD) + " |\n")
    sys.stdout.write("|" + " --- |" * len(HEAD) + "\n")
    for case in CASES:
        if not names or any(name.lower() in case.name.lower() for name in names):
            for row in _rows(case):
                sys.stdout.write(row + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
