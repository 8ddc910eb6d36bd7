"""Certificate of a search over mixed clusters, for every kind of goal."""

from __future__ import annotations

import hashlib

from shardwright.search.grid.find_best_grid import problem_text
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed_cluster_certificate import MixedPart
from shardwright.search.optimality_certificate import Certificate, assert_sound
from shardwright.search.universal_time_bound import universal_seconds


def build_certificate(
    state: SearchState,
    part: MixedPart,
    space: str,
    *,
    best_s: float,
    shown_s: float,
    stopped_at: int,
) -> Certificate:
    """Build the certificate; its lower bound is the larger of `shown_s` and the universal bound.

    The bound is at least the one that holds for every plan.

    Args:
        best_s: seconds of the answer's step.
        shown_s: proven lower bound in seconds on every plan of the space.
        stopped_at: as of `Certificate`.
    """
    problem, universal_s = state.problem, universal_seconds(state.problem)
    lower_s = min(max(shown_s, universal_s), best_s)
    universal = 1.0 - universal_s / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower_s, universal_gap=universal)
    return Certificate(
        space=space,
        digest=hashlib.sha256(f"{space}\n{problem_text(problem)}".encode()).hexdigest(),
        enumerated=state.looked_at,
        illegal=0,
        duplicates=0,
        infeasible=state.infeasible,
        bounded_b0=0,
        bounded_b1=state.bounded,
        simulated=state.simulated,
        best_s=best_s,
        lower_bound_s=lower_s,
        gap=(best_s - lower_s) / best_s,
        optimal=lower_s >= best_s,
        universal_gap=universal,
        stopped_at=stopped_at,
        mixed=part,
    )
