"""Convert answers of the joint, exact, mixed and scenario searches to the records of a plan file,
and such a record back to an answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from shardwright.api.exact import plan_exact
from shardwright.api.joint import plan_joint
from shardwright.api.mixed import check_prices, plan_mixed
from shardwright.api.problems import Progress
from shardwright.api.robust import RobustAnswer, plan_robust
from shardwright.api.simulations import verified_strategy
from shardwright.files.leaves import require_same
from shardwright.files.stored import StoredPlan, document_of, stored_plan
from shardwright.search.certificate import Certificate, JointPart, stops_of
from shardwright.search.engine.protocol import Engine
from shardwright.search.exact.find import ExactAnswer
from shardwright.search.joint.find import JointAnswer
from shardwright.search.mixed.find_fastest import MixedAnswer
from shardwright.search.simulation import Verified

GeneralAnswer = JointAnswer | ExactAnswer | MixedAnswer | RobustAnswer


def stored_general(answer: GeneralAnswer) -> StoredPlan:
    """Record of an answer for a plan file."""
    assert answer.simulation is not None
    return stored_plan(
        answer.simulation,
        certificate_of(answer) if isinstance(answer, JointAnswer) else answer.certificate,
    )


def certificate_of(answer: JointAnswer) -> Certificate:
    """The joint search's certificate in the form common to all spaces."""
    joint = answer.certificate
    return Certificate(
        space=joint.space,
        digest=joint.digest,
        enumerated=joint.enumerated,
        illegal=0,
        duplicates=0,
        infeasible=joint.infeasible,
        bounded_b0=joint.bounded,
        bounded_b1=joint.scored,
        simulated=joint.simulated,
        best_s=joint.best_s,
        lower_bound_s=joint.lower_bound_s,
        gap=joint.gap,
        optimal=joint.gap == 0,
        universal_gap=joint.universal_gap,
        stopped_at=joint.stopped_at,
        joint=JointPart(
            pipelines=joint.pipelines,
            complete=joint.complete,
            tolerance=joint.tolerance,
            grids=joint.grids,
            grid_lower_s=joint.grid_lower_s if isfinite(joint.grid_lower_s) else None,
            grid_stopped_at=answer.grid.certificate.stopped_at if answer.grid else 0,
            fixed=joint.fixed,
        ),
    )


def check_general(
    stored: StoredPlan, *, engine: Engine | None = None, progress: Progress | None = None
) -> Verified:
    """Verify a stored answer: its plan as `simulations.verify` does, and every field of its file by
    repeating the search, stopped where the stored one was.

    Args:
        engine: runs the search; the answer is the same.

    Raises:
        StrategyError, InfeasibleError: as `verified_strategy`.
        DataError: a field differs.
    """
    claim, joint = stored.certificate, stored.certificate.joint
    _, verified = verified_strategy(stored.simulation)
    repeated: GeneralAnswer
    if claim.scenarios is not None:
        repeated = plan_robust(stored.request, engine=engine, progress=progress)
    elif claim.mixed is not None:
        check_prices(stored.request, claim, progress=progress)
        repeated = plan_mixed(
            stored.request,
            tolerance=claim.mixed.tolerance,
            stops=stops_of(claim),
            engine=engine,
            progress=progress,
        )
    elif joint is None:
        repeated = plan_exact(stored.request, stop_at=claim.stopped_at, progress=progress)
    else:
        looks = joint.grid_stopped_at, claim.stopped_at
        repeated = plan_joint(
            stored.request,
            tolerance=joint.tolerance,
            stop_at=looks,
            engine=engine,
            progress=progress,
        )
    return replace(
        verified, leaves=require_same(document_of(stored), document_of(stored_general(repeated)))
    )
