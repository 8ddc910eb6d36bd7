"""Records of general plans (joint, exact, mixed, several scenarios) in plan files, and the check of
a record by the same search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright.api.general_searches import SEARCHES
from shardwright.api.request_to_problem import Method
from shardwright.api.simulate_strategy import verified_strategy
from shardwright.files.compare_documents import require_same
from shardwright.files.stored_documents import StoredPlan, document_of, stored_plan
from shardwright.progress import Progress
from shardwright.search.certificate import Certificate, stops_of
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.simulated_strategy import Verified


def method_of(certificate: Certificate) -> Method:
    """The search that a certificate of a general plan comes from."""
    if certificate.scenarios is not None:
        return Method.ROBUST
    if certificate.mixed is not None:
        return Method.MIXED
    return Method.EXACT if certificate.joint is None else Method.JOINT


def stored_general(answer: GeneralAnswer[Any]) -> StoredPlan:
    """The record of an answer in a plan file."""
    assert answer.simulation is not None
    return stored_plan(answer.simulation, answer.certificate)


def check_general(
    stored: StoredPlan, *, engine: Engine | None = None, progress: Progress | None = None
) -> Verified:
    """Verify a stored answer: its plan as `simulations.verify` does, and every leaf of its file by
    the same search, stopped where the stored one was.

    Args:
        engine: where it searches; the answer is the same.

    Raises:
        StrategyError, InfeasibleError: as `verified_strategy`. DataError: a leaf differs.
    """
    certificate = stored.certificate
    method, part = method_of(certificate), certificate.joint or certificate.mixed
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
