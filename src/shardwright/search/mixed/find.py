"""Search over a mixed cluster: each pool alone, then pipelines over all of them; the best simulated plan, and a bound."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from shardwright.errors import InfeasibleError, OutOfTimeError
from shardwright.program.problem import Problem, under
from shardwright.runtime.options import ordered
from shardwright.runtime.runtime import Options
from shardwright.search.answer import Answer
from shardwright.search.certificate import Certificate, assert_sound, claim
from shardwright.search.exact.find import universal_seconds
from shardwright.search.frames import GIVEN_UP, Closed, MixedPart, PoolAlone, Stops, worth_of
from shardwright.search.grid.find import find, problem_text
from shardwright.search.grid.modules import searched_options
from shardwright.search.grid.space import restricted, standard_space, with_options
from shardwright.search.limit import Limit, limit_of, out_of_time
from shardwright.search.mixed.bound import FRAMES, Closing, lower_bound
from shardwright.search.mixed.choices import Choices
from shardwright.search.mixed.incumbents import Standing, look
from shardwright.search.mixed.market import Market
from shardwright.search.mixed.place import MixedPlan, moved, pipelines_text
from shardwright.search.mixed.polish import polish
from shardwright.search.mixed.pools import Pool, alone, pools_of
from shardwright.search.mixed.runners import runners_of
from shardwright.search.mixed.tables import MICROBATCHES, require_searched
from shardwright.search.mixed.terms import MOST_STAGES, Ground
from shardwright.search.request import SEARCH_MEMORY
from shardwright.search.simulation import Simulation
from shardwright.search.standing import standing as standing_text
from shardwright.strategy.grid.expand import plan_of
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid

Progress = Callable[[str, int, int], None]
ALONE_S = 10.0
"""Seconds for the grids of one pool."""
ALONE, COMPOSED = 0.5, 0.6
"""Shares of a time limit that the grids of all pools have together, and that the look for plans has of what they leave; the rest is the
proof's."""
TOLERANCE = 0.02
"""Gap that is good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAnswer:
    """The best plan of a mixed space and its certificate.

    Args:
        mixed: the plan as replicas of shapes; None where a grid of one pool alone is best. waited: the limit cut in before there was a
            plan (`search.limit.Limit`). simulation: as a plan file holds it.
    """

    plan: Plan
    mixed: MixedPlan | None
    step_time_s: float
    certificate: Certificate
    waited: bool = field(default=False, compare=False)
    search_time_s: float = field(default=0.0, compare=False)
    simulation: Simulation | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """What was asked, what was found, and whether it is proven best, in a few lines."""
        return f"{self.simulation or ''}\n{claim(optimal=False, lower_bound_s=self.certificate.lower_bound_s)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """A pool's best grid: seconds inf = none fits; its bound, inf = nothing of the space fits; `stopped_at` as in `frames.PoolAlone`."""

    pool: Pool
    answer: Answer | None
    step_time_s: float
    lower_bound_s: float
    stopped_at: int = 0


def find_mixed(
    problem: Problem,
    *,
    choices: Choices | None = None,
    top: int = 0,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    progress: Progress | None = None,
) -> MixedAnswer:
    """The best plan found on a mixed cluster, with a bound of its whole space.

    Args:
        problem: its devices have the memory that plans may fill. choices: what is pinned; None = nothing. top: next best compositions that
            are told. tolerance: gap that is good enough. time_limit_s: past it the best so far stands with what is proven by then.
        stops: at which looks at the clock a search was stopped, to repeat it (see `search.limit.limit_of`).

    Raises:
        UsageError: the model or the runtime is not searched on mixed clusters, or nothing has what is pinned.
        InfeasibleError: nothing fits. OutOfTimeError: long past the limit there is no plan yet.
    """
    require_searched(problem)
    begun = time.monotonic()

    def left_s() -> float:
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    choices, pools = choices or Choices(), pools_of(problem.cluster)
    standing = Standing(problem=problem)
    singles = []
    for number, pool in enumerate(pools):
        _say(progress, f"plan {pool.devices:,} x {pool.name} alone", number, len(pools))
        seconds, stop = min(ALONE_S, ALONE * time_limit_s / len(pools)), stops.alone[number] if stops else None
        singles.append(_pool_alone(problem, pool, standing, choices=choices, seconds=seconds, stop=stop, memory=memory))
    rows = _option_rows(singles, choices)
    markets = tuple(Market.of(Ground.of(under(problem, options), choices)) for options in rows)
    standing.limit = limit_of(COMPOSED * left_s(), stop_at=stops.composed if stops else None)
    _compose(standing, rows, markets, progress)
    proof = limit_of(left_s(), stop_at=stops.proven if stops else None)
    mixed_lower, closings = lower_bound(
        markets,
        standing.best_s,
        tolerance=tolerance,
        clock=proof,
        progress=lambda s: _say(progress, f"prove that nothing ends before {s:.4g} s", 0, 1),
    )
    part = _part(standing, singles, rows, closings, top=top, lower_s=mixed_lower, tolerance=tolerance)
    assert standing.best is not None
    return MixedAnswer(
        plan=standing.best,
        mixed=standing.mixed,
        step_time_s=standing.best_s,
        certificate=_certificate(problem, standing, part, singles, space_text(pools, rows, choices), proof),
        waited=standing.limit.waited,
        search_time_s=time.monotonic() - begun,
    )


def _part(
    standing: Standing,
    singles: list[_Alone],
    rows: tuple[Options, ...],
    closings: tuple[Closing, ...],
    *,
    top: int,
    lower_s: float,
    tolerance: float,
) -> MixedPart:
    """What was found of each pool alone and of other compositions, and what closes the frames."""
    closed = tuple(Closed(options=options, duals=tuple(c.closed.values())) for options, c in zip(rows, closings, strict=True))
    grounds = {options: closing.market.ground for options, closing in zip(rows, closings, strict=True)}
    worth, best = worth_of(closed, [one.pool.node for one in singles]), standing.mixed
    return MixedPart(
        shapes=sum(len(closing.market.shapes) for closing in closings),
        alone=tuple(_told(one, worth_s) for one, worth_s in zip(singles, worth, strict=True)),
        closed=closed,
        tests=sum(closing.tests for closing in closings),
        lower_bound_s=lower_s,
        tolerance=tolerance,
        pipelines=pipelines_text(closings[0].market.ground.table, best) if best is not None else "",
        runners=runners_of(standing, grounds, top=top),
        composed_stopped_at=standing.limit.stopped_at,
    )


def _compose(standing: Standing, rows: tuple[Options, ...], markets: tuple[Market, ...], progress: Progress | None) -> None:
    """Look for plans of several pipelines, under each set of options, and polish the best.

    Raises:
        InfeasibleError: nothing fits. OutOfTimeError: long past the limit there is no plan yet.
    """
    for number, (options, market) in enumerate(zip(rows, markets, strict=True)):
        _say(progress, standing_text("compose pipelines", best_s=standing.best_s, lower_s=0.0, limit=standing.limit), number, len(markets))
        if not standing.ends() and not Closing(market=market, clock=standing.limit).close(standing.best_s, most=FRAMES):
            look(standing, market, options)
    _say(progress, standing_text("polish the best", best_s=standing.best_s, lower_s=0.0, limit=standing.limit), 0, 1)
    polish(standing, {options: market.ground for options, market in zip(rows, markets, strict=True)})
    if standing.best is None and standing.limit.stopped_at:
        raise out_of_time()
    if standing.best is None:
        raise InfeasibleError("no plan fits in memory on any pool or on all together", hint="more or larger devices, or a smaller model")


def _certificate(problem: Problem, standing: Standing, part: MixedPart, singles: list[_Alone], space: str, proof: Limit) -> Certificate:
    """Everything that was looked at, and the bound of all parts of the space: at least that of any plan whatever."""
    best_s, whatever_s = standing.best_s, universal_seconds(problem)
    parts = [part.lower_bound_s, best_s, *(one.lower_bound_s for one in singles)]
    lower = max(min(parts), min(whatever_s, best_s))
    universal = 1.0 - whatever_s / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower, universal_gap=universal)
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
        lower_bound_s=lower,
        gap=(best_s - lower) / best_s,
        optimal=lower >= best_s,
        universal_gap=universal,
        stopped_at=proof.stopped_at,
        mixed=part,
    )


def _say(progress: Progress | None, text: str, done: int, total: int) -> None:
    if progress is not None:
        progress(text, done, total)


def _pool_alone(
    problem: Problem, pool: Pool, standing: Standing, *, choices: Choices, seconds: float, stop: int | None, memory: int
) -> _Alone:
    """The best grid of one pool's devices, simulated where they lie in the cluster; `stop`: see `search.limit.limit_of`."""
    own = replace(problem, cluster=alone(problem.cluster, pool))
    job = problem.job
    facts = grid_facts(problem.model, devices=pool.devices, global_batch=job.global_batch, seq_len=job.sequence_length)
    given = restricted(standard_space(own, facts), pins=dict(choices.pins), excludes=dict(choices.excludes))
    space = with_options(given, searched_options(own))
    capacity = own.cluster.node.accelerator.memory_bytes
    try:
        if stop == GIVEN_UP:
            raise out_of_time()
        answer = find(own, space, facts, capacity=capacity, top=1, time_limit_s=seconds, stop_at=stop, memory=memory)
    except InfeasibleError:
        return _Alone(pool=pool, answer=None, step_time_s=inf, lower_bound_s=inf)
    except OutOfTimeError:
        return _Alone(pool=pool, answer=None, step_time_s=inf, lower_bound_s=universal_seconds(own), stopped_at=GIVEN_UP)
    plan = moved(plan_of(answer.grid, model=problem.model, global_batch=job.global_batch), problem, pool)
    standing.looked_at += 1
    lower, stopped_at = answer.certificate.lower_bound_s, answer.certificate.stopped_at
    return _Alone(pool=pool, answer=answer, step_time_s=standing.attempt(plan, None), lower_bound_s=lower, stopped_at=stopped_at)


def _option_rows(singles: list[_Alone], choices: Choices) -> tuple[Options, ...]:
    """The options of each pool's best grid; what is pinned, and else the runtime as it is, where no grid fits."""
    rows = [one.answer.grid.options for one in singles if one.answer is not None]
    return tuple(dict.fromkeys(rows)) or (ordered(choices.options),)


def _told(one: _Alone, worth_s: float | None) -> PoolAlone:
    return PoolAlone(
        name=one.pool.name,
        devices=one.pool.devices,
        strategy=print_grid(one.answer.grid) if one.answer else "",
        step_time_s=one.step_time_s if isfinite(one.step_time_s) else None,
        lower_bound_s=one.lower_bound_s if isfinite(one.lower_bound_s) else None,
        stopped_at=one.stopped_at,
        worth_s=worth_s,
    )


def space_text(pools: tuple[Pool, ...], rows: tuple[Options, ...], choices: Choices) -> str:
    """The space in words and values."""
    pinned = f"; {choices.text()}" if choices.text() else ""
    options = ", ".join(" ".join(f"{name}={value}" for name, value in row) or "as it is" for row in rows)
    sizes = ", ".join(map(str, choices.sizes(MICROBATCHES)))
    return (
        f"mixed: {' + '.join(f'{pool.devices} {pool.name}' for pool in pools)}; any number of replicas of any pipelines of at most two "
        f"runs of like stages, {MOST_STAGES} stages in all, a stage on one pool with tp inside a node and sp; mbs {{{sizes}}}, any cut of "
        f"the layers, each stage recomputes any number of its first layers in full and of the next ones selectively, 1F1B, zero1 over all "
        f"replicas, any shares of the batch, any idle devices; options of the runtime {{{options}}}; and every grid of the standard space "
        f"of each pool alone{pinned}"
    )
