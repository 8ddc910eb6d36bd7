"""Searches of general plans (joint, exact, mixed, several scenarios): their table, the record of
an answer in a plan file, and the check of such a record by the same search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from shardwright.api.exact import plan_exact
from shardwright.api.joint import plan_joint, unsearched_of_joint
from shardwright.api.mixed import check_prices, plan_mixed, unsearched_of_mixed
from shardwright.api.problems import Method
from shardwright.api.robust import plan_robust
from shardwright.api.simulations import verified_strategy
from shardwright.files.leaves import require_same
from shardwright.files.stored import StoredPlan, document_of, stored_plan
from shardwright.lazy_dataclass import dataclass
from shardwright.progress import Progress
from shardwright.search.answer import GeneralAnswer, Unsearched
from shardwright.search.certificate import Certificate, stops_of
from shardwright.search.engine.protocol import Engine
from shardwright.search.request import Request
from shardwright.search.simulation import Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralSearch:
    """A search of general plans.

    Args:
        plan: the answer to a request; takes `progress`, and the keyword arguments in `takes`.
        takes: of ``engine``, ``time_limit_s``, ``tolerance`` and ``stops``, those that mean
            something to the search.
        unsearched: the options that the search of an answer left at one value; None where it
            searches no options.
    """

    plan: Callable[..., GeneralAnswer[Any]]
    takes: frozenset[str]
    unsearched: Callable[[GeneralAnswer[Any]], Unsearched] | None = None

    def answer(
        self, request: Request, *, progress: Progress | None, **given: object
    ) -> GeneralAnswer[Any]:
        """The answer to a request, with those of the `given` arguments that the search takes."""
        taken = {name: value for name, value in given.items() if name in self.takes}
        return self.plan(request, progress=progress, **taken)


_ANY_STOP: Final = frozenset({"engine", "time_limit_s", "tolerance", "stops"})
SEARCHES: Final[Mapping[Method, GeneralSearch]] = {
    Method.JOINT: GeneralSearch(plan=plan_joint, takes=_ANY_STOP, unsearched=unsearched_of_joint),
    Method.EXACT: GeneralSearch(plan=plan_exact, takes=frozenset({"time_limit_s", "stops"})),
    Method.MIXED: GeneralSearch(plan=plan_mixed, takes=_ANY_STOP, unsearched=unsearched_of_mixed),
    Method.ROBUST: GeneralSearch(plan=plan_robust, takes=frozenset({"engine"})),
}


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
    if method is Method.MIXED:
        check_prices(stored.request, certificate, progress=progress)
    again = SEARCHES[method].answer(
        stored.request,
        progress=progress,
        engine=engine,
        stops=stops_of(certificate),
        tolerance=part.tolerance if part is not None else 0.0,
    )
    return replace(
        verified, leaves=require_same(document_of(stored), document_of(stored_general(again)))
    )
