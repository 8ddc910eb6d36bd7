"""Search over a mixed cluster: each pool alone, then pipelines over all of them; the best simulated plan, and a bound."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from shardwright.errors import InfeasibleError, OutOfTimeError
from shardwright.program.problem import Problem, under
from shardwright.runtime.runtime import Options
from shardwright.search.answer import Answer
from shardwright.search.certificate import Certificate, assert_sound, claim
from shardwright.search.engine.protocol import Engine
from shardwright.search.engine.serial import Serial
from shardwright.search.exact.find import universal_seconds
from shardwright.search.frames import Closed, MixedPart, PoolAlone
from shardwright.search.grid.find import find, problem_text
from shardwright.search.grid.kernels import load_kernels
from shardwright.search.grid.modules import searched_options
from shardwright.search.grid.space import standard_space, with_options
from shardwright.search.mixed.bound import Closing, lower_bound
from shardwright.search.mixed.incumbents import WORTH, Composing, Standing, look_at_one_shape, simulate_best
from shardwright.search.mixed.market import Market
from shardwright.search.mixed.place import MixedPlan, moved
from shardwright.search.mixed.polish import polish
from shardwright.search.mixed.pools import Pool, alone, pools_of
from shardwright.search.mixed.recompute import MOST_STAGES
from shardwright.search.mixed.tables import MICROBATCHES, require_searched
from shardwright.search.mixed.terms import Ground
from shardwright.search.request import SEARCH_MEMORY
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid.expand import plan_of
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid

Progress = Callable[[str, int, int], None]
ALONE_LOOKS = 2000
"""Looks at the clock in the search of one pool's grids, ten seconds and more: what it has shown by then does not depend on the machine."""
TOLERANCE = 0.03
"""Gap that is good enough."""
ROUNDS = ((8, 12), (16, 24), (24, 48), (48, 96))
"""Limits at which compositions are looked for in a round at most, and simulations, as long as the gap is wider."""
PROVED = (0, 3)
"""Rounds after which the best is polished and the bound made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAnswer:
    """The best plan of a mixed space and its certificate.

    Args:
        mixed: the plan as replicas of shapes; None where a grid of one pool alone is best. simulation: as a plan file holds it.
    """

    plan: Plan
    mixed: MixedPlan | None
    step_time_s: float
    certificate: Certificate
    search_time_s: float = field(default=0.0, compare=False)
    simulation: Simulation | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """What was asked, what was found, and whether it is proven best, in a few lines."""
        return f"{self.simulation or ''}\n{claim(optimal=False, lower_bound_s=self.certificate.lower_bound_s)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A pool with its best grid, if any fits.

    Args:
        step_time_s: of it, where its devices lie in the cluster; inf = it does not fit there, or there is none.
    """

    pool: Pool
    answer: Answer | None
    step_time_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneSearch:
    """A pool whose grids are to be searched. Args: stop: see `find_mixed`. memory: bytes for members."""

    pool: Pool
    stop: int | None
    memory: int


def find_mixed(
    problem: Problem,
    *,
    tolerance: float = TOLERANCE,
    alone_stops: tuple[int, ...] | None = None,
    memory: int = SEARCH_MEMORY,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> MixedAnswer:
    """The best plan found on a mixed cluster, with a bound of its whole space.

    Args:
        problem: its devices have the memory that plans may fill. tolerance: gap that is good enough. alone_stops: at which look at the
            clock the search of each pool's grids was stopped (see `search.limit.limit_of`). memory: bytes for the members of all pools'
            grids. engine: where pools are searched, one after another without; the answer is the same.

    Raises:
        UsageError: the model or the runtime is not searched on mixed clusters. InfeasibleError: nothing fits.
    """
    require_searched(problem)
    begun = time.monotonic()
    standing, pools = Standing(problem=problem), pools_of(problem.cluster)
    singles = _each_alone(standing, pools, engine or Serial(), stops=alone_stops, memory=memory, progress=progress)
    rows = _option_rows(singles)
    markets = tuple(Market.of(Ground.of(under(problem, options))) for options in rows)
    mixed_lower, closings = _narrowed(standing, dict(zip(rows, markets, strict=True)), tolerance=tolerance, progress=progress)
    assert standing.best is not None
    best_s = standing.best_s
    lower = min([mixed_lower, best_s, *(one.answer.certificate.lower_bound_s for one in singles if one.answer is not None)])
    universal = 1.0 - universal_seconds(problem) / best_s
    assert_sound(best_s=best_s, lower_bound_s=lower, universal_gap=universal)
    space = space_text(pools, rows)
    part = MixedPart(
        shapes=sum(len(market.shapes) for market in markets),
        alone=tuple(_told(one) for one in singles),
        closed=tuple(
            Closed(options=options, duals=tuple(closing.closed.values())) for options, closing in zip(rows, closings, strict=True)
        ),
        tests=sum(closing.tests for closing in closings),
        lower_bound_s=mixed_lower,
        tolerance=tolerance,
    )
    certificate = Certificate(
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
        mixed=part,
    )
    spent = time.monotonic() - begun
    return MixedAnswer(plan=standing.best, mixed=standing.mixed, step_time_s=best_s, certificate=certificate, search_time_s=spent)


def _narrowed(
    standing: Standing, markets: dict[Options, Market], *, tolerance: float, progress: Progress | None
) -> tuple[float, tuple[Closing, ...]]:
    """The bound of all markets, after as many rounds of compositions and simulations as bring the best within `tolerance` of it."""
    _say(progress, "find when compositions can end", 0, len(ROUNDS))
    for options, market in markets.items():
        look_at_one_shape(standing, market, options)
    composing = [Composing.of(market, options, standing.best_s * WORTH) for options, market in markets.items()]
    found: tuple[float, tuple[Closing, ...]] = 0.0, ()
    proved_s = inf
    for number, (limits, most) in enumerate(ROUNDS):
        _say(progress, f"compose and simulate; best {standing.best_s:.4g} s, no plan before {found[0]:.4g} s", number, len(ROUNDS))
        for one in composing:
            one.look(standing, most=limits)
        simulate_best(standing, markets, most=most)
        if number in PROVED:
            polish(standing, {options: market.ground for options, market in markets.items()})
            if standing.best_s >= proved_s:
                continue
            _say(progress, f"prove that nothing is faster; best {standing.best_s:.4g} s", number, len(ROUNDS))
            found, proved_s = lower_bound(tuple(markets.values()), standing.best_s, tolerance=tolerance), standing.best_s
            if found[0] >= standing.best_s * (1 - tolerance) * (1 - 1e-12):
                break
    if standing.best is None:
        raise InfeasibleError("no plan fits in memory on any pool or on all together", hint="more or larger devices, or a smaller model")
    return found


def _say(progress: Progress | None, text: str, done: int, total: int) -> None:
    if progress is not None:
        progress(text, done, total)


def _each_alone(
    standing: Standing, pools: tuple[Pool, ...], engine: Engine, *, stops: tuple[int, ...] | None, memory: int, progress: Progress | None
) -> list[Alone]:
    """The best grid of each pool's devices, simulated where they lie in the cluster."""
    problem = standing.problem
    tasks = [
        AloneSearch(pool=pool, stop=stops[number] if stops else None, memory=memory // len(pools)) for number, pool in enumerate(pools)
    ]
    # Processes that are forked share what is loaded.
    load_kernels()
    _say(progress, "plan each kind of device alone", 0, len(pools))
    found = engine.map(
        pool_alone, tasks, shared=problem, done=lambda count: _say(progress, "plan each kind of device alone", count, len(pools))
    )
    singles = []
    for pool, answer in zip(pools, found, strict=True):
        if answer is None:
            singles.append(Alone(pool=pool, answer=None))
            continue
        plan = moved(plan_of(answer.grid, model=problem.model, global_batch=problem.job.global_batch), problem, pool)
        singles.append(Alone(pool=pool, answer=answer, step_time_s=standing.attempt(plan, None)))
    return singles


def pool_alone(problem: Problem, task: AloneSearch) -> Answer | None:
    """The best grid of one pool's devices; None where none fits."""
    own = replace(problem, cluster=alone(problem.cluster, task.pool))
    facts = grid_facts(problem.model, devices=task.pool.devices, global_batch=problem.job.global_batch, seq_len=problem.job.sequence_length)
    space = with_options(standard_space(own, facts), searched_options(own))
    capacity = own.cluster.node.accelerator.memory_bytes
    try:
        return find(own, space, facts, capacity=capacity, top=1, most_looks=ALONE_LOOKS, stop_at=task.stop, memory=task.memory)
    except (InfeasibleError, OutOfTimeError):
        return None


def _option_rows(singles: list[Alone]) -> tuple[Options, ...]:
    """The options of each pool's best grid; the runtime as it is where no grid fits."""
    rows = [one.answer.grid.options for one in singles if one.answer is not None]
    return tuple(dict.fromkeys(rows)) or ((),)


def _told(one: Alone) -> PoolAlone:
    answer = one.answer
    return PoolAlone(
        name=one.pool.name,
        devices=one.pool.devices,
        strategy=print_grid(answer.grid) if answer else "",
        step_time_s=one.step_time_s if isfinite(one.step_time_s) else None,
        lower_bound_s=answer.certificate.lower_bound_s if answer else None,
        stopped_at=answer.certificate.stopped_at if answer else 0,
    )


def space_text(pools: tuple[Pool, ...], rows: tuple[Options, ...]) -> str:
    """The space in words and values."""
    options = ", ".join(" ".join(f"{name}={value}" for name, value in row) or "as it is" for row in rows)
    return (
        f"mixed: {' + '.join(f'{pool.devices} {pool.name}' for pool in pools)}; any number of replicas of any pipelines of at most two "
        f"runs of like stages, {MOST_STAGES} stages in all, a stage on one pool with tp inside a node and sp; mbs "
        f"{{{', '.join(map(str, MICROBATCHES))}}}, any cut of the layers, each stage recomputes any number of its first layers in full and "
        f"of the next ones selectively, 1F1B, zero1 over all replicas, any shares of the batch, any idle devices; options of the runtime "
        f"{{{options}}}; and every grid of the standard space of each pool alone"
    )
