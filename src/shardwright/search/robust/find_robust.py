"""Search for one plan over several states of a cluster: the best plans of each, tried in all.

A threshold search (Fagin, Lotem and Naor 2003, Optimal aggregation algorithms for middleware,
section 4): every state ranks the plans of the space by their seconds in the state. A plan outside
the k best of every state takes, in each state, at least the seconds of that state's k-th plan. So
the mean of its slow tail is at least the tail mean of these seconds, since the mean never falls
when some seconds rise. k grows until that bound is at least the tail mean of the best plan tried.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from math import inf
from typing import Any, Final

from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.search.certificate_part_of_cluster_states import (
    ScenarioOutcome,
    ScenariosPart,
    Tried,
    judged_by,
    tail_mean,
)
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.optimality_certificate import Certificate, Counts, assert_sound
from shardwright.search.parallel.engine_protocol import Engine, rounds
from shardwright.search.robust.best_plans_in_one_state import (
    Contender,
    Ranking,
    RankTask,
    StateQuestion,
    ranked,
    seconds_in,
)
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.universal_time_bound import universal_seconds

RANKED: Final = (4, 16, 64, 256)
"""Numbers of plans that each state ranks in turn, while a plan outside the rankings may be
better."""
OF_FURTHER: Final = 4
"""Number of plans that the further search of a state with slow nodes adds."""
AT_ONCE: Final = 8
"""Number of plans that are simulated in every state at once, for any number of workers."""


@dataclass(slots=True)
class _Pool:
    """Plans with their simulated seconds in every state, in the order in which they were found.

    Args:
        top: number of next best plans to report; plans that may be among them are simulated.
        ruled_out: number of plans that were not simulated.
    """

    questions: tuple[StateQuestion, ...]
    level: float
    engine: Engine
    top: int
    steps_s: dict[Contender, tuple[float, ...]] = field(default_factory=dict)
    ruled_out: int = 0

    def tail_s(self, seconds: Sequence[float]) -> float:
        """Mean seconds of the slow tail over all states, given the seconds in each."""
        return tail_mean(seconds, [question.share for question in self.questions], level=self.level)

    def best_first(self) -> list[Contender]:
        """Simulated plans by ascending mean seconds of the slow tail."""
        return sorted(self.steps_s, key=lambda plan: self.tail_s(self.steps_s[plan]))

    def consider(self, least_s: Mapping[Contender, Sequence[float]]) -> None:
        """Simulate plans in every state, the least tail bound first, if they may be among the best.

        Args:
            least_s: lower bound in seconds of each plan in each state.
        """
        bound_s = {
            contender: self.tail_s(seconds)
            for contender, seconds in least_s.items()
            if contender not in self.steps_s
        }
        states = range(len(self.questions))
        self.ruled_out = 0
        for batch in rounds(sorted(bound_s, key=bound_s.__getitem__), size=AT_ONCE):
            tails_s = sorted(map(self.tail_s, self.steps_s.values()))
            worst_s = tails_s[self.top] if len(tails_s) > self.top else inf
            promising = [contender for contender in batch if bound_s[contender] < worst_s]
            self.ruled_out += len(batch) - len(promising)
            seconds = self.engine.map(
                seconds_in,
                [(number, contender) for contender in promising for number in states],
                shared=self.questions,
            )
            self.steps_s |= {
                contender: tuple(seconds[place * len(states) : (place + 1) * len(states)])
                for place, contender in enumerate(promising)
            }


def find_robust(
    questions: tuple[StateQuestion, ...],
    *,
    level: float,
    engine: Engine,
    top: int = 0,
    progress: Progress | None = None,
) -> GeneralAnswer[tuple[float, ...]]:
    """Find the plan with the least mean of its slow tail over all states (`tail_mean`).

    The answer's detail is the plan's seconds in each state.

    Args:
        level: level of the tail.
        engine: engine for searches and simulations; the answer is the same.
        top: number of next best plans to report.

    Raises:
        InfeasibleError: no plan fits in some state.
    """
    begun = time.monotonic()
    # Forked processes share the loaded kernels.
    load_kernels()
    pool = _Pool(questions=questions, level=level, engine=engine, top=top)
    further_rankings = [
        ranking
        for ranking in engine.map(ranked, _further_tasks(questions), shared=questions)
        if ranking is not None
    ]
    # A plan outside all rankings takes at least `beyond_s` in each state, and the mean of the slow
    # tail never falls when some seconds rise, so it is no better than the tail of these.
    rankings, count, best_s = list[Ranking](), 0, inf
    for count in RANKED:
        if progress is not None:
            progress(
                f"the {count} best of each scenario in all of them",
                RANKED.index(count),
                len(RANKED),
            )
        rankings = _rank_in_every_state(questions, engine, count, rankings)
        pool.consider(_lower_bounds(rankings, further_rankings))
        best_s = pool.tail_s(pool.steps_s[pool.best_first()[0]])
        if pool.tail_s([ranking.beyond_s for ranking in rankings]) >= best_s or not any(
            ranking.more for ranking in rankings
        ):
            break
    if best_s == inf:
        raise InfeasibleError(
            "no plan that was tried fits in every scenario",
            hint="fewer scenarios, or more or larger devices",
        )
    best = pool.best_first()[0]
    return GeneralAnswer(
        strategy=best.strategy,
        certificate=_certificate(pool, rankings, count),
        detail=pool.steps_s[best],
        search_time_s=time.monotonic() - begun,
    )


def _lower_bounds(
    rankings: Sequence[Ranking], further: Sequence[Ranking]
) -> dict[Contender, list[float]]:
    """Lower bound in seconds of every ranked plan in each state; 0 where no bound holds.

    It is the plan's own seconds if known, else the bound of all plans of the state. Plans of
    `further` searches belong to no state's space, and plans of mixed clusters only to the space of
    their own state (runtime options differ), so their bound is 0 until they are simulated. The best
    plan of each state has bound 0 too, so that it is simulated in all states: answers report it.
    """
    least_s = {
        plan: [ranking.certificate.lower_bound_s for ranking in rankings]
        for ranking in rankings
        for plan in ranking.plans
    }
    for state, ranking in enumerate(rankings):
        for plan, seconds in zip(ranking.plans, ranking.steps_s, strict=True):
            least_s[plan][state] = seconds
    unbounded = [
        *further,
        *(ranking for ranking in rankings if ranking.certificate.mixed is not None),
    ]
    without_bound = [
        *(plan for ranking in unbounded for plan in ranking.plans),
        *(ranking.plans[0] for ranking in rankings),
    ]
    return least_s | {plan: [0.0] * len(rankings) for plan in without_bound}


def _further_tasks(questions: Sequence[StateQuestion]) -> list[RankTask]:
    """Tasks that rank the further plans of each state that has a further search."""
    return [
        RankTask(number=number, top=OF_FURTHER, further=True)
        for number, question in enumerate(questions)
        if question.further is not None
    ]


def _rank_in_every_state(
    questions: tuple[StateQuestion, ...], engine: Engine, count: int, previous: list[Ranking]
) -> list[Ranking]:
    """Rankings of the `count` best plans of every state.

    States that share a space are searched once, and complete rankings are reused.
    """
    searched_state = [
        next(
            number
            for number, candidate in enumerate(questions)
            if candidate.bounding == question.bounding
        )
        for question in questions
    ]
    tasks = [
        RankTask(number=number, top=count)
        for number in sorted(set(searched_state))
        if not previous or previous[number].more
    ]
    new_rankings = dict(
        zip(
            [task.number for task in tasks],
            engine.map(ranked, tasks, shared=questions),
            strict=True,
        )
    )
    rankings = [
        new_rankings[number] if number in new_rankings else previous[number]
        for number in searched_state
    ]
    return [question for question in rankings if question is not None]


def _certificate(pool: _Pool, rankings: Sequence[Ranking], count: int) -> Certificate:
    """The certificate of the best plan over all states: tail bound, outcomes, next best plans."""
    questions, order = pool.questions, pool.best_first()
    best_s = pool.tail_s(pool.steps_s[order[0]])
    lower_s = min(pool.tail_s([plan.beyond_s for plan in rankings]), best_s)
    universal_s = pool.tail_s([universal_seconds(plan.problem) for plan in questions])
    universal = 1.0 - universal_s / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower_s, universal_gap=universal)
    columns = [
        [seconds[state] for seconds in pool.steps_s.values()] for state in range(len(questions))
    ]
    fastest = [list(pool.steps_s)[column.index(min(column))] for column in columns]
    part = ScenariosPart(
        level=pool.level,
        outcomes=tuple(
            ScenarioOutcome(
                name=plan.state.name,
                share=plan.share,
                step_time_s=pool.steps_s[order[0]][state],
                best_s=pool.steps_s[fastest[state]][state],
                strategy=fastest[state].text,
                lower_bound_s=min(
                    rankings[state].certificate.lower_bound_s, pool.steps_s[fastest[state]][state]
                ),
            )
            for state, plan in enumerate(questions)
        ),
        ranked=count,
        tried=len(order),
        ruled_out=pool.ruled_out,
        next_best=tuple(
            Tried(
                strategy=plan.text,
                tail_s=pool.tail_s(pool.steps_s[plan]),
                steps_s=pool.steps_s[plan],
            )
            for plan in order[1 : pool.top + 1]
            if pool.tail_s(pool.steps_s[plan]) < inf
        ),
    )
    # States that share a space were searched once.
    certificates = [plan.certificate for plan in {id(plan): plan for plan in rankings}.values()]
    return _merged_certificate(
        questions, certificates, part, best_s=best_s, lower_s=lower_s, universal=universal
    )


def _merged_certificate(
    questions: Sequence[StateQuestion],
    certificates: Sequence[Certificate],
    part: ScenariosPart,
    *,
    best_s: float,
    lower_s: float,
    universal: float,
) -> Certificate:
    """Merge the certificates of all states: sums of their counts, and a digest of the states."""
    spaces = list(dict.fromkeys(item.space for item in certificates))
    space = f"{judged_by(part.level)}; in each scenario: {' / '.join(spaces)}"
    states = [repr((item.state, item.share)) for item in questions]
    fates = [f.name for f in fields(Counts)]
    counts: dict[str, Any] = {
        name: sum(getattr(item, name) for item in certificates) for name in fates
    }
    reasons: Counter[str] = Counter()
    for item in certificates:
        reasons.update(dict(item.infeasible_by_reason))
    return Certificate(
        space=space,
        digest=hashlib.sha256(
            "\n".join([space, *states, *(item.digest for item in certificates)]).encode()
        ).hexdigest(),
        **counts,
        best_s=best_s,
        lower_bound_s=lower_s,
        gap=(best_s - lower_s) / best_s,
        optimal=lower_s >= best_s,
        universal_gap=universal,
        infeasible_by_reason=tuple(reasons.items()),
        scenarios=part,
    )
