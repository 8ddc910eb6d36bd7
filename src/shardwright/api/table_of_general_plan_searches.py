"""Table of the searches of general plans: joint, exact, mixed, scenarios; imported when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.api.request_to_problem import SearchMethod
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.registry import load_target
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import GeneralAnswer, Unsearched
from shardwright.search.search_request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralSearch:
    """A search of general plans: the names of its functions and the arguments that it takes.

    Args:
        plan: ``module:attribute`` of the function that answers a request; it takes `progress`, and
            the keyword arguments in `takes`.
        takes: of ``engine``, ``time_limit_s``, ``tolerance`` and ``stops``, those that mean
            something to the search.
        unsearched: ``module:attribute`` of the function that finds the options that the search of
            an answer left at one value; "" where the search has no options.
        bound_check: ``module:attribute`` of the function that proves the lower bound of a stored
            certificate again, without the search; "" where a repeated search is the whole proof.
    """

    plan: str
    takes: frozenset[str]
    unsearched: str = ""
    bound_check: str = ""

    def answer(
        self, request: Request, *, progress: Progress | None, **arguments: object
    ) -> GeneralAnswer[Any]:
        """Run this search for a request, with those of `arguments` that this search takes."""
        accepted = {name: value for name, value in arguments.items() if name in self.takes}
        answer: GeneralAnswer[Any] = load_target(self.plan)(request, progress=progress, **accepted)
        return answer

    def unsearched_options(self, answer: GeneralAnswer[Any]) -> Unsearched | None:
        """Options that the answer's search left at one value; None if the search reports none."""
        if not self.unsearched:
            return None
        options: Unsearched | None = load_target(self.unsearched)(answer)
        return options

    def check_bound(
        self, request: Request, certificate: Certificate, *, progress: Progress | None
    ) -> None:
        """Prove the lower bound of a stored certificate again, if the search has a proof.

        Raises:
            DataError: the proof does not hold.
        """
        if self.bound_check:
            load_target(self.bound_check)(request, certificate, progress=progress)


_ANY_STOP: Final = frozenset({"engine", "time_limit_s", "tolerance", "stops"})
SEARCHES: Final[Mapping[SearchMethod, GeneralSearch]] = {
    SearchMethod.JOINT: GeneralSearch(
        plan="shardwright.api.searches.joint_layer_cut_and_schedule_search:plan_joint",
        takes=_ANY_STOP,
        unsearched="shardwright.api.searches.joint_layer_cut_and_schedule_search:unsearched_joint",
    ),
    SearchMethod.EXACT: GeneralSearch(
        plan="shardwright.api.searches.exact_search_on_few_devices:plan_exact",
        takes=frozenset({"time_limit_s", "stops"}),
    ),
    SearchMethod.MIXED: GeneralSearch(
        plan="shardwright.api.searches.mixed_search:plan_mixed",
        takes=_ANY_STOP,
        unsearched="shardwright.api.searches.mixed_search:unsearched_of_mixed",
        bound_check="shardwright.api.searches.mixed_search:check_prices",
    ),
    SearchMethod.ROBUST: GeneralSearch(
        plan="shardwright.api.searches.robust_search_over_cluster_scenarios:plan_robust",
        takes=frozenset({"engine"}),
    ),
}
