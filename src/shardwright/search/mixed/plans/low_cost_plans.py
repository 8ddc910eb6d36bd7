"""Plans that take little a second: whole replicas of a few shapes on whole nodes, at limits from
the fastest to the cheapest.
"""

from __future__ import annotations

from dataclasses import field
from math import inf, isfinite

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.bounds.cost_rate_bound import Known, floor_of, with_rates
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.pipelines.device_prices import Prices
from shardwright.search.mixed.pipelines.price_per_second import PricePerSecond
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines, Values
from shardwright.search.mixed.pipelines.whole_replicas import whole_replicas
from shardwright.search.mixed.plans.composition_search import composed_frames
from shardwright.search.mixed.plans.replica_counts import (
    Composition,
    choice_of_shapes,
    exact_microbatches,
    most_replicas,
)
from shardwright.search.mixed.plans.simulated_plans import MixedCandidate, Standing
from shardwright.search.mixed.plans.write_plan import MixedPlan, devices_of, general_plan
from shardwright.search.mixed.stages.frame_terms import first_frames
from shardwright.search.mixed_certificate import Floor
from shardwright.simulator.plan_simulation import SimulatedPlan
from shardwright.simulator.predict_plan import step_spending
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A simulated plan: seconds and units (dollars, joules) of its step; its replicas of shapes, or
    else its grid in words.
    """

    seconds: float
    value: float
    plan: Plan
    mixed: MixedPlan | None
    grid: str


@dataclass(slots=True)
class PlanRecord:
    """Plans that were simulated and are within the budget (dollars an hour; inf = any).

    Args:
        grid: the next plan to be noted in words, where it is a grid.
    """

    standing: Standing
    price_per_second: PricePerSecond
    budget: float = inf
    effort: Effort = USUAL
    grid: str = ""
    points: list[Point] = field(default_factory=list)

    def add(self, plan: Plan, mixed: MixedPlan | None, done: SimulatedPlan) -> None:
        """Keep a plan that was simulated."""
        spending = step_spending(self.standing.problem, done)
        if (spending.usd_per_hour or 0.0) <= self.budget * (1 + 1e-12):
            value, grid = (
                self.price_per_second.value(spending),
                "" if mixed is not None else self.grid,
            )
            self.points.append(
                Point(seconds=done.step_time_s, value=value, plan=plan, mixed=mixed, grid=grid)
            )

    def ends(self) -> bool:
        """Check the clock; True = the search for plans ends. Raises as
        `search.limit.Limit.ends`.
        """
        return self.standing.limit.ends(found=bool(self.points))

    def least(self, *, by: float = inf) -> float:
        """The least value of a plan that ends by some seconds; inf = there is none."""
        return min((point.value for point in self.points if point.seconds <= by), default=inf)

    def cheapest(self) -> Point | None:
        """The plan of the least value, of several the fastest."""
        return min(self.points, key=lambda point: (point.value, point.seconds), default=None)

    def fastest(self) -> Point | None:
        """The plan of the fewest seconds, of several the cheapest."""
        return min(self.points, key=lambda point: (point.seconds, point.value), default=None)

    def front(self) -> tuple[Point, ...]:
        """Plans that none beats in both, the fastest first."""
        found: list[Point] = []
        for point in sorted(self.points, key=lambda point: (point.seconds, point.value)):
            if not found or point.value < found[-1].value:
                found.append(point)
        return tuple(found)


def compose_low_cost(
    record: PlanRecord,
    pipeline_sets: dict[Options, PricedPipelines],
    limit_s: float,
    *,
    known: dict[Options, Known],
    timed: bool = False,
) -> None:
    """Compose and simulate plans that end by about a limit and take little a second.

    Args:
        known: values of the frames of each set of pipelines, kept from limit to limit.
        timed: plans that take as little as others and end earlier count too.
    """
    for options, whole in [
        (options, whole)
        for options, pipelines in pipeline_sets.items()
        for whole in first_frames(pipelines.stage_costs)
    ]:
        pipelines = pipeline_sets[options]
        floors = []
        for frame in composed_frames(whole):
            if record.ends():
                return
            floors.append(
                floor_of(pipelines, record.price_per_second, frame, limit_s, known[options])
            )
        for floor in sorted((one for one in floors if one.rate is not None), key=_rate)[
            : pipelines.effort.cost_frames
        ]:
            if timed or _rate(floor) * limit_s < record.least(by=limit_s):
                _compose(record, pipelines, floor, known[options][floor.frame], options)
    _simulate(record, pipeline_sets)


def _rate(floor: Floor) -> float:
    return inf if floor.rate is None else floor.rate


def _compose(
    record: PlanRecord, pipelines: PricedPipelines, floor: Floor, values: Values, options: Options
) -> None:
    """Let the cheapest compositions of a frame by its limit wait for their simulation."""
    prices = with_rates(
        Prices(devices=np.array(floor.devices), nodes=floor.nodes, replicas=floor.replicas),
        record.price_per_second,
        floor.money,
    )
    pipelines.refine_near(values, prices)
    some = np.flatnonzero(values.exact & (values.microbatches > 0))
    ranked = some[
        np.argsort((pipelines.cost(prices) - pipelines.samples(values))[some], kind="stable")
    ]
    chosen = choice_of_shapes(pipelines, values, ranked, pipelines.effort.program_shapes)
    if not len(chosen):
        return
    node = max(pool.node for pool in pipelines.stage_costs.table.pools)
    for lanes in (1, max(2, len(pipelines.stage_costs.table.pools))):
        for grain in dict.fromkeys((node, 1)):
            found = _cheapest(
                record,
                pipelines,
                values,
                chosen,
                replicas=floor.frame.replicas,
                lanes=lanes,
                grain=grain,
            )
            if found is not None:
                lanes_of = exact_microbatches(found, pipelines)
                record.standing.consider(pipelines, lanes_of, floor.limit_s, options)


def _cheapest(
    record: PlanRecord,
    pipelines: PricedPipelines,
    values: Values,
    chosen: IntArray,
    *,
    replicas: tuple[int, int],
    lanes: int,
    grain: int,
) -> Composition | None:
    """Replicas of at most `lanes` shapes, of each a multiple of `grain`, that do the batch on the
    cheapest nodes; None = none was found.
    """
    price_per_second, shapes, pools = (
        record.price_per_second,
        pipelines.shapes,
        pipelines.stage_costs.table.pools,
    )
    use, worth = shapes.use[chosen], pipelines.samples(values)[chosen]
    devices, n, (low, high) = (
        np.array([pool.devices for pool in pools], dtype=np.float64),
        len(chosen),
        replicas,
    )
    most = most_replicas(pipelines, chosen, devices, worth, high=high, grain=grain)
    if not most.any():
        return None
    k, packs = len(pools), devices / price_per_second.sizes
    taken = price_per_second.rates * price_per_second.sizes
    rents = taken * (SECONDS_PER_HOUR if price_per_second.unit == "usd" else 0.0)
    # Columns: replicas, nodes of each pool.
    rows = np.zeros((k + 3, n + k))
    rows[:k, :n], rows[:k, n:] = grain * use.T, -np.diag(price_per_second.sizes.astype(np.float64))
    rows[k, :n], rows[k + 1, :n], rows[k + 2, n:] = grain, grain * worth / pipelines.batch, rents
    lower = np.concatenate([np.full(k, -np.inf), [low, 1.0, 0.0]])
    upper = np.concatenate([np.zeros(k), [high, np.inf, record.budget]])
    costs = np.concatenate([np.zeros(n), taken / taken.max()])
    least = -(-shapes.least[chosen] // grain)
    found = whole_replicas(
        costs,
        rows,
        (lower, upper),
        least=least,
        most=most,
        others=np.floor(packs),
        shapes=lanes,
        nodes=pipelines.effort.program_nodes,
    )
    if found is None:
        return None
    many = grain * found
    used = np.flatnonzero(many)
    enough = worth @ many >= pipelines.batch and (use.T @ many <= devices).all()
    return (
        Composition(
            shapes=chosen[used], replicas=many[used], microbatches=values.microbatches[chosen[used]]
        )
        if enough
        else None
    )


def _simulate(record: PlanRecord, pipeline_sets: dict[Options, PricedPipelines]) -> None:
    """Simulate the waiting plans that may be cheaper than any that ends as early, some of the
    cheapest; the others are dropped.
    """
    standing = record.standing
    some: list[tuple[float, float, int, MixedCandidate]] = []
    for one in standing.waiting:
        table = pipeline_sets[one.options].stage_costs.table
        some.append(
            (
                one.seconds * record.price_per_second.rate(devices_of(table, one.plan)),
                one.seconds,
                len(some),
                one,
            )
        )
    standing.waiting = []
    tried = 0
    for value, seconds, _, one in sorted(some, key=lambda one: one[:3]):
        if (
            tried == record.effort.cost_simulations
            or value >= record.least(by=seconds)
            or record.ends()
        ):
            standing.looked_at += 1
            standing.bounded += 1
            continue
        tried += 1
        _attempt(record, pipeline_sets, one)


def _attempt(
    record: PlanRecord, pipeline_sets: dict[Options, PricedPipelines], one: MixedCandidate
) -> None:
    record.standing.attempt(
        general_plan(pipeline_sets[one.options].stage_costs, one.plan, options=one.options),
        one.plan,
    )


def limits_between(first: float, last: float, *, rise: float) -> tuple[float, ...]:
    """Limits from the last down to the first, each `rise` times the next."""
    if not (isfinite(first) and isfinite(last)) or last <= first:
        return (first,) if isfinite(first) else ()
    count = int(np.ceil(np.log(last / first) / np.log(rise)))
    return tuple(float(first * (last / first) ** (step / count)) for step in range(count, -1, -1))
