"""Store general plans (joint, exact, mixed, scenarios) in plan files, and verify a stored plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright.api.request_to_problem import SearchMethod
from shardwright.api.simulate_strategy_and_verify_stored import verified_strategy
from shardwright.api.table_of_general_plan_searches import SEARCHES
from shardwright.files.compare_documents import require_same
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, document_of, stored_plan
from shardwright.progress_callback import Progress
from shardwright.search.optimality_certificate import Certificate, stops_of
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.simulated_strategy import Verified


def method_of_certificate(certificate: Certificate) -> SearchMethod:
    """Search method (joint, exact, mixed or robust) that made a general plan's certificate."""
    if certificate.scenarios is not None:
        return SearchMethod.ROBUST
    if certificate.mixed is not None:
        return SearchMethod.MIXED
    return SearchMethod.EXACT if certificate.joint is None else SearchMethod.JOINT


def stored_general(answer: GeneralAnswer[Any]) -> StoredPlan:
    """Make the content of a plan file from the simulation and certificate of an answer."""
    assert answer.simulation is not None
    return stored_plan(answer.simulation, answer.certificate)


def check_general(
    stored: StoredPlan, *, engine: Engine | None = None, progress: Progress | None = None
) -> Verified:
    """Verify a stored general plan: its rules, its certificate, and every field by a new search.

    The search stops where the stored search stopped.

    Args:
        engine: engine that runs the search; the answer is the same.

    Raises:
        StrategyError, InfeasibleError: as `verified_strategy`. DataError: a leaf differs.
    """
    certificate = stored.certificate
    method, part = method_of_certificate(certificate), certificate.joint or certificate.mixed
    _, verified = verified_strategy(stored.simulation)
    search = SEARCHES[method]
    search.check_bound(stored.request, certificate, progress=progress)
    again = search.answer(
        stored.request,
        progress=progress,
        engine=engine,
        stops=stops_of(certificate),
        tolerance=part.tolerance if part is not None else 0.0,
    )
    return replace(
        verified, leaves=require_same(document_of(stored), document_of(stored_general(again)))
    )
