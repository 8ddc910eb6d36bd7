"""The certificate of a search over mixed clusters, whatever it was asked for."""

from __future__ import annotations

import hashlib

from shardwright.search.certificate import Certificate, assert_sound
from shardwright.search.grid.find_best_grid import problem_text
from shardwright.search.mixed.plans.simulated_plans import Standing
from shardwright.search.mixed_certificate import MixedPart
from shardwright.search.universal_bound import universal_seconds


def certified(
    standing: Standing,
    part: MixedPart,
    space: str,
    *,
    best_s: float,
    shown_s: float,
    stopped_at: int,
) -> Certificate:
    """The certificate: counts of the plans that were examined, and the bound of all parts of the
    space, at least the bound that holds for every plan.

    Args:
        best_s: seconds of the answer.
        shown_s: that no plan of the space is faster than, as far as it was shown.
        stopped_at: as of `Certificate`.
    """
    problem, whatever_s = standing.problem, universal_seconds(standing.problem)
    lower_s = min(max(shown_s, whatever_s), best_s)
    universal = 1.0 - whatever_s / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower_s, universal_gap=universal)
    return Certificate(
        space=space,
        digest=hashlib.sha256(f"{space}\n{problem_text(problem)}".encode()).hexdigest(),
        enumerated=standing.looked_at,
        illegal=0,
        duplicates=0,
        infeasible=standing.infeasible,
        bounded_b0=0,
        bounded_b1=standing.bounded,
        simulated=standing.simulated,
        best_s=best_s,
        lower_bound_s=lower_s,
        gap=(best_s - lower_s) / best_s,
        optimal=lower_s >= best_s,
        universal_gap=universal,
        stopped_at=stopped_at,
        mixed=part,
    )
