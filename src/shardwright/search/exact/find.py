"""Exact search for small problems on uniform or mixed clusters: cut, device sets, trees,
microbatches and order together.

Best first over shapes (plans but for their order): all stages are priced once; a closed-form bound
of every shape; then, in the order of these bounds, the longest path of every order that fits in
memory; then the simulated step of those that may still win.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, field, replace
from functools import lru_cache, partial
from math import inf, prod

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.longest_path import jitter_among
from shardwright.errors import InfeasibleError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.certificate import Certificate, assert_sound, claim
from shardwright.search.exact.find_lanes import search_lanes
from shardwright.search.exact.options import StageOption, chain_blocks, together
from shardwright.search.exact.orders import num_orders, pipeline_orders
from shardwright.search.exact.shapes import Messages, plan_of_stages, shape_tasks
from shardwright.search.exact.space import ExactSpace, Partition, partitions, stage_trees
from shardwright.search.exact.stage_prices import NEVER, StageChoices, StagePrices, shape_bounds
from shardwright.search.exact.state import Best, Counts
from shardwright.search.exact.walk import Progress, best_first, run_orders
from shardwright.search.grid.find import problem_text
from shardwright.search.limit import Limit, limit_of
from shardwright.search.simulation import Simulation
from shardwright.search.standing import standing
from shardwright.search.universal import universal_seconds
from shardwright.simulator.plan_simulation import fits_hosts
from shardwright.strategy.plan.plan import Plan
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer:
    """The best plan of an `ExactSpace`, its simulated seconds, and why no other is better;
    simulation: as a plan file holds it.

    waited: the limit cut in before there was a plan (`search.limit.Limit`).
    """

    plan: Plan
    step_time_s: float
    certificate: Certificate
    search_time_s: float = field(default=0.0, compare=False)
    simulation: Simulation | None = field(default=None, compare=False)
    waited: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """What was asked, what was found, and whether it is proven best, in a few lines."""
        c = self.certificate
        proof = claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s)
        return f"{self.simulation or ''}\n{proof}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A partition with its choices.

    Args:
        bounds: seconds that no order of each of its shapes is below (flat; inf: none fits in
            memory).
        jitter: of the devices that work.
    """

    partition: Partition
    choices: tuple[StageChoices, ...]
    bounds: FloatArray
    jitter: float

    def options(self, shape: int) -> tuple[StageOption, ...]:
        """The stages of one shape."""
        places = np.unravel_index(shape, tuple(len(c.options) for c in self.choices))
        return together(tuple(c.options[int(i)] for c, i in zip(self.choices, places, strict=True)))

    def rooms(self, shape: int) -> tuple[int, ...]:
        """Microbatches in flight that each stage of a shape has room for."""
        return tuple(option.room for option in self.options(shape))


def find_exact(
    problem: Problem,
    space: ExactSpace,
    *,
    time_limit_s: float = float("inf"),
    stop_at: int | None = None,
    prices: StagePrices | None = None,
    progress: Progress | None = None,
) -> ExactAnswer:
    """The plan of `space` with the least simulated step (tier S) that fits in memory.

    Past `time_limit_s` (and at least one simulated plan) the best so far, with the least bound of
    what is left; members that nobody looked at count as bounded then.

    Args:
        stop_at: see `search.limit.limit_of`.
        prices: stages already priced for this problem and space.

    Raises:
        OutOfTimeError: long past the limit there is no plan yet. InfeasibleError: no member fits in
        memory. StrategyError: the model is no chain, or shares weights between blocks.
    """
    begun, limit = time.monotonic(), limit_of(time_limit_s, stop_at=stop_at)
    counts, best = Counts(), Best()
    messages: Messages = {}
    prices = prices or StagePrices(problem=problem, space=space)
    ranked, unpriced = _priced(problem, space, prices, counts, limit, progress)
    lower = universal_seconds(problem) if unpriced else inf
    queue = [
        (number, shape)
        for number, priced in enumerate(ranked)
        for shape in range(len(priced.bounds))
    ]
    bounds = np.concatenate([np.zeros(0), *(priced.bounds for priced in ranked)])

    def look(at: int) -> None:
        number, shape = queue[at]
        _refine(problem, space, ranked[number], shape, best=best, counts=counts, messages=messages)

    left, lower = best_first(
        bounds, look, best=best, floor=lower, limit=limit, words="run orders", progress=progress
    )
    for at in left:
        priced = ranked[queue[at][0]]
        live, fitting = _fitting(
            len(priced.choices), priced.partition.microbatches, priced.rooms(int(queue[at][1]))
        )
        counts.infeasible += live - len(fitting)
        counts.bounded_b0 += len(fitting)
    if space.lanes > 1:
        floor = universal_seconds(problem)
        lower = min(
            lower,
            search_lanes(
                problem,
                space,
                best=best,
                counts=counts,
                floor=floor,
                limit=limit,
                progress=progress,
            ),
        )
    if best.plan is None:
        raise InfeasibleError(
            f"none of {counts.enumerated} plans fits in memory",
            hint="more or larger devices, a smaller model, or fewer samples a microbatch",
        )
    found = _answer(problem, space, best.plan, best.seconds, counts, min(lower, best.seconds))
    certificate = replace(found.certificate, stopped_at=limit.stopped_at)
    return replace(
        found, search_time_s=time.monotonic() - begun, waited=limit.waited, certificate=certificate
    )


def _priced(
    problem: Problem,
    space: ExactSpace,
    prices: StagePrices,
    counts: Counts,
    limit: Limit,
    progress: Progress | None,
) -> tuple[list[_Priced], bool]:
    """Every partition with bounds of its shapes; members that are illegal or duplicates are
    counted. And whether time ran out.
    """
    result: list[_Priced] = []
    late = False
    whole = list(partitions(problem, space, blocks=chain_blocks(problem)))
    for turn, partition in enumerate(whole):
        if progress is not None:
            progress(
                standing("price stages", best_s=inf, lower_s=0.0, limit=limit), turn, len(whole)
            )
        orders = num_orders(len(partition.ends), partition.microbatches)
        late = late or limit.ends(found=any((p.bounds < inf).any() for p in result))
        if late:
            members = (
                prod(sum(1 for _ in stage_trees(devices, space)) for devices in partition.devices)
                * orders
            )
            counts.enumerated += members
            counts.bounded_b0 += members
            continue
        choices = prices.choices(partition)
        trees, legal, unlike = (
            prod(c.trees for c in choices),
            prod(c.legal for c in choices),
            prod(len(c.options) for c in choices),
        )
        live = len(pipeline_orders(len(partition.ends), partition.microbatches)[0])
        counts.enumerated += trees * orders
        counts.illegal += (trees - legal) * orders + unlike * (orders - live)
        counts.duplicates += (legal - unlike) * orders
        factor, bounds = (
            jitter_among(problem, partition.working),
            shape_bounds(choices, partition.microbatches).ravel(),
        )
        seconds = np.where(bounds < NEVER, bounds / PICOSECONDS_PER_SECOND * factor, inf)
        result.append(_Priced(partition=partition, choices=choices, bounds=seconds, jitter=factor))
    return result, late


@lru_cache(maxsize=4096)
def _fitting(stages: int, microbatches: int, rooms: tuple[int, ...]) -> tuple[int, IntArray]:
    """Orders that do not deadlock, and those of them that hold no more microbatches in flight than
    there is room for.
    """
    orders, peaks = pipeline_orders(stages, microbatches)
    return len(orders), orders[(peaks <= np.array(rooms)).all(axis=1)]


def _refine(
    problem: Problem,
    space: ExactSpace,
    priced: _Priced,
    shape: int,
    *,
    best: Best,
    counts: Counts,
    messages: Messages,
) -> None:
    """Paths of all orders of a shape, then the steps of those whose path is below the best."""
    options, microbatches = priced.options(shape), priced.partition.microbatches
    live, orders = _fitting(len(options), microbatches, tuple(o.room for o in options))
    counts.infeasible += live - len(orders)
    tasks = shape_tasks(
        problem, options, microbatches=microbatches, shards=space.shards, messages=messages
    )

    def plan_of(order: IntArray) -> Plan:
        return plan_of_stages(
            problem, options, microbatches=microbatches, order=order, shards=space.shards
        )

    run_orders(
        tasks,
        orders,
        jitter=priced.jitter,
        best=best,
        counts=counts,
        plan_of=plan_of,
        fits=partial(fits_hosts, problem),
    )


def _answer(
    problem: Problem, space: ExactSpace, plan: Plan, seconds: float, counts: Counts, lower: float
) -> ExactAnswer:
    universal = 1.0 - universal_seconds(problem) / seconds
    assert_sound(best_s=seconds, lower_bound_s=lower, universal_gap=universal)
    certificate = Certificate(
        space=space.text(),
        digest=hashlib.sha256(f"{space!r}\n{problem_text(problem)}".encode()).hexdigest(),
        **asdict(counts),
        best_s=seconds,
        lower_bound_s=lower,
        gap=(seconds - lower) / seconds,
        optimal=lower >= seconds,
        universal_gap=universal,
    )
    return ExactAnswer(plan=plan, step_time_s=seconds, certificate=certificate)
