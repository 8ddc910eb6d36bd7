"""Search for one plan over several states of a cluster: the best plans of each state, simulated in
all states until no other can be better.

A threshold search (Fagin, Lotem and Naor 2003, Optimal aggregation algorithms for middleware,
section 4): every state ranks the plans of the space by their seconds in it. What is among the k
best of no state takes, in each, at least what that state's k-th takes; so the mean of its slow tail
is no less than that of these seconds, as the mean never falls when some seconds rise. k grows until
that is no less than the best plan tried.
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
from shardwright.lazy_dataclass import dataclass
from shardwright.progress import Progress
from shardwright.search.certificate import Certificate, Counts, assert_sound
from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.search.parallel.engine_protocol import Engine, rounds
from shardwright.search.robust.plans_in_one_state import (
    Contender,
    Ranking,
    RankTask,
    StateQuestion,
    ranked,
    seconds_in,
)
from shardwright.search.scenario_certificate import (
    ScenarioOutcome,
    ScenariosPart,
    Tried,
    judged_by,
    tail_mean,
)
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.universal_bound import universal_seconds

RANKED: Final = (4, 16, 64, 256)
"""How many plans each state ranks, in turn: as long as something that is not among them may be
better."""
OF_FURTHER: Final = 4
"""Plans that a search of a state with slow nodes adds."""
AT_ONCE: Final = 8
"""Plans that are simulated in every state at once, whatever the workers."""


@dataclass(slots=True)
class _Pool:
    """Plans with their seconds in every state, in the order in which they were found.

    Args:
        top: next best plans to tell: what may be one of them is simulated.
        ruled_out: how many plans were not.
    """

    questions: tuple[StateQuestion, ...]
    level: float
    engine: Engine
    top: int
    steps_s: dict[Contender, tuple[float, ...]] = field(default_factory=dict)
    ruled_out: int = 0

    def tail_s(self, seconds: Sequence[float]) -> float:
        return tail_mean(seconds, [one.share for one in self.questions], level=self.level)

    def best_first(self) -> list[Contender]:
        return sorted(self.steps_s, key=lambda one: self.tail_s(self.steps_s[one]))

    def consider(self, least_s: Mapping[Contender, Sequence[float]]) -> None:
        """Simulate plans in every state, the most promising first, without those whose known lower
        bounds are too large already.

        Args:
            least_s: by plan, seconds that it takes in each state at least.
        """
        promised = {
            contender: self.tail_s(seconds)
            for contender, seconds in least_s.items()
            if contender not in self.steps_s
        }
        states = range(len(self.questions))
        self.ruled_out = 0
        for batch in rounds(sorted(promised, key=promised.__getitem__), size=AT_ONCE):
            known = sorted(map(self.tail_s, self.steps_s.values()))
            worst_s = known[self.top] if len(known) > self.top else inf
            promising = [contender for contender in batch if promised[contender] < worst_s]
            self.ruled_out += len(batch) - len(promising)
            seconds = self.engine.map(
                seconds_in,
                [(number, contender) for contender in promising for number in states],
                shared=self.questions,
            )
            self.steps_s |= {
                contender: tuple(seconds[at * len(states) : (at + 1) * len(states)])
                for at, contender in enumerate(promising)
            }


def find_robust(
    questions: tuple[StateQuestion, ...],
    *,
    level: float,
    engine: Engine,
    top: int = 0,
    progress: Progress | None = None,
) -> GeneralAnswer[tuple[float, ...]]:
    """The plan with the least mean of its slow tail over all states (`tail_mean`), with its seconds
    in each state.

    Args:
        level: of the tail.
        engine: where states are searched and plans simulated; the answer is the same.
        top: next best plans to tell.

    Raises:
        InfeasibleError: nothing fits in some state.
    """
    begun = time.monotonic()
    # Processes that are forked share what is loaded.
    load_kernels()
    pool = _Pool(questions=questions, level=level, engine=engine, top=top)
    further = [
        ranking
        for ranking in engine.map(ranked, _further_tasks(questions), shared=questions)
        if ranking is not None
    ]
    # A plan outside all rankings takes at least `beyond_s` in each state, and the mean of the slow
    # tail never falls when some seconds rise, so it is no better than the tail of these.
    known, count, best_s = list[Ranking](), 0, inf
    for count in RANKED:
        if progress is not None:
            progress(
                f"the {count} best of each scenario in all of them",
                RANKED.index(count),
                len(RANKED),
            )
        known = _ranked_all(questions, engine, count, known)
        pool.consider(_least(known, further))
        best_s = pool.tail_s(pool.steps_s[pool.best_first()[0]])
        if pool.tail_s([ranking.beyond_s for ranking in known]) >= best_s or not any(
            ranking.more for ranking in known
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
        certificate=_certificate(pool, known, count),
        detail=pool.steps_s[best],
        search_time_s=time.monotonic() - begun,
    )


def _least(known: Sequence[Ranking], further: Sequence[Ranking]) -> dict[Contender, list[float]]:
    """Lower bound in seconds of every ranked plan in each state: its own seconds where they are
    known, else the bound of all plans there.

    Plans of `further` searches belong to no state's space, and those of mixed clusters to their own
    state's alone (options of the runtime differ), so nothing is known of them before they are
    simulated. What is best in some state is simulated in all, whatever is known: answers tell of
    it.
    """
    least_s = {
        plan: [ranking.certificate.lower_bound_s for ranking in known]
        for ranking in known
        for plan in ranking.plans
    }
    for at, ranking in enumerate(known):
        for plan, seconds in zip(ranking.plans, ranking.steps_s, strict=True):
            least_s[plan][at] = seconds
    unknown = [*further, *(ranking for ranking in known if ranking.certificate.mixed is not None)]
    shown = [
        *(plan for ranking in unknown for plan in ranking.plans),
        *(ranking.plans[0] for ranking in known),
    ]
    return least_s | {plan: [0.0] * len(known) for plan in shown}


def _further_tasks(questions: Sequence[StateQuestion]) -> list[RankTask]:
    return [
        RankTask(number=number, top=OF_FURTHER, further=True)
        for number, one in enumerate(questions)
        if one.further is not None
    ]


def _ranked_all(
    questions: tuple[StateQuestion, ...], engine: Engine, count: int, known: list[Ranking]
) -> list[Ranking]:
    """The `count` best plans of every state; states that share a space are searched once, and
    complete rankings not again.
    """
    searched = [
        next(at for at, other in enumerate(questions) if other.bounding == one.bounding)
        for one in questions
    ]
    tasks = [
        RankTask(number=at, top=count)
        for at in sorted(set(searched))
        if not known or known[at].more
    ]
    fresh = dict(
        zip(
            [task.number for task in tasks],
            engine.map(ranked, tasks, shared=questions),
            strict=True,
        )
    )
    rankings = [fresh[at] if at in fresh else known[at] for at in searched]
    return [one for one in rankings if one is not None]


def _certificate(pool: _Pool, known: Sequence[Ranking], count: int) -> Certificate:
    questions, order = pool.questions, pool.best_first()
    best_s = pool.tail_s(pool.steps_s[order[0]])
    lower_s = min(pool.tail_s([one.beyond_s for one in known]), best_s)
    whatever_s = pool.tail_s([universal_seconds(one.problem) for one in questions])
    universal = 1.0 - whatever_s / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower_s, universal_gap=universal)
    columns = [[seconds[at] for seconds in pool.steps_s.values()] for at in range(len(questions))]
    fastest = [list(pool.steps_s)[column.index(min(column))] for column in columns]
    part = ScenariosPart(
        level=pool.level,
        outcomes=tuple(
            ScenarioOutcome(
                name=one.state.name,
                share=one.share,
                step_time_s=pool.steps_s[order[0]][at],
                best_s=pool.steps_s[fastest[at]][at],
                strategy=fastest[at].text,
                lower_bound_s=min(
                    known[at].certificate.lower_bound_s, pool.steps_s[fastest[at]][at]
                ),
            )
            for at, one in enumerate(questions)
        ),
        ranked=count,
        tried=len(order),
        ruled_out=pool.ruled_out,
        next_best=tuple(
            Tried(
                strategy=one.text, tail_s=pool.tail_s(pool.steps_s[one]), steps_s=pool.steps_s[one]
            )
            for one in order[1 : pool.top + 1]
            if pool.tail_s(pool.steps_s[one]) < inf
        ),
    )
    # States that share a space were searched once.
    searched = [one.certificate for one in {id(one): one for one in known}.values()]
    return _summed(questions, searched, part, best_s=best_s, lower_s=lower_s, universal=universal)


def _summed(
    questions: Sequence[StateQuestion],
    certificates: Sequence[Certificate],
    part: ScenariosPart,
    *,
    best_s: float,
    lower_s: float,
    universal: float,
) -> Certificate:
    """One certificate of the searches of all states, with the sums of their counts; its digest
    covers the states.
    """
    spaces = list(dict.fromkeys(one.space for one in certificates))
    space = f"{judged_by(part.level)}; in each scenario: {' / '.join(spaces)}"
    states = [repr((one.state, one.share)) for one in questions]
    fates = [f.name for f in fields(Counts)]
    counts: dict[str, Any] = {
        name: sum(getattr(one, name) for one in certificates) for name in fates
    }
    reasons: Counter[str] = Counter()
    for one in certificates:
        reasons.update(dict(one.infeasible_by_reason))
    return Certificate(
        space=space,
        digest=hashlib.sha256(
            "\n".join([space, *states, *(one.digest for one in certificates)]).encode()
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
