"""Compose plans with a low cost rate: whole replicas of a few shapes on whole nodes.

Step-time limits range from the fastest to the cheapest plan.
"""

from __future__ import annotations

from dataclasses import field
from math import inf, isfinite

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.dollars_or_joules_per_second_bound import (
    ValuesCache,
    floor_of,
    with_rates,
)
from shardwright.search.mixed.pipelines.pool_cost_rates import PricePerSecond
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
)
from shardwright.search.mixed.pipelines.replica_integer_program import whole_replicas
from shardwright.search.mixed.pipelines.resource_dual_prices import Prices
from shardwright.search.mixed.plans.compose_at_time_limits import split_by_replicas
from shardwright.search.mixed.plans.compose_pipeline_replicas import (
    Composition,
    candidate_shapes,
    exact_microbatches,
    most_replicas,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, devices_of
from shardwright.search.mixed.plans.plan_search_state import MixedCandidate, SearchState
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.subspaces_and_stage_costs import root_subspaces
from shardwright.search.mixed_cluster_certificate import Floor
from shardwright.simulator.predict_plan import step_spending
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedPlan:
    """A simulated plan with the seconds and the dollars or joules of its step.

    Args:
        mixed: its replicas of shapes; None = a grid of one pool.
        grid: the grid in words, if it is one.
    """

    seconds: float
    value: float
    plan: Plan
    mixed: MixedPlan | None
    grid: str


@dataclass(slots=True)
class PlanRecord:
    """Simulated plans within the budget, with their times and values.

    Args:
        budget: dollars an hour; inf = no limit.
        grid: words of the grid that is simulated next; empty = no grid.
    """

    state: SearchState
    price_per_second: PricePerSecond
    budget: float = inf
    effort: Effort = USUAL
    grid: str = ""
    points: list[ValuedPlan] = field(default_factory=list)

    def add(self, plan: Plan, mixed: MixedPlan | None, simulation: SimulatedPlan) -> None:
        """Keep a simulated plan if it is within the budget."""
        spending = step_spending(self.state.problem, simulation)
        if (spending.usd_per_hour or 0.0) <= self.budget * (1 + 1e-12):
            value, grid = (
                self.price_per_second.step_value(spending),
                "" if mixed is not None else self.grid,
            )
            self.points.append(
                ValuedPlan(
                    seconds=simulation.step_time_s, value=value, plan=plan, mixed=mixed, grid=grid
                )
            )

    def ends(self) -> bool:
        """Check the clock; True = the search for plans ends.

        Raises as `search_time_limit.Limit.ends`.
        """
        return self.state.limit.ends(found=bool(self.points))

    def least(self, *, limit_s: float = inf) -> float:
        """Least value of a plan whose step takes at most `limit_s` seconds; inf = no plan."""
        return min((point.value for point in self.points if point.seconds <= limit_s), default=inf)

    def cheapest(self) -> ValuedPlan | None:
        """The plan with the least value, the fastest of several; None = no plan."""
        return min(self.points, key=lambda point: (point.value, point.seconds), default=None)

    def fastest(self) -> ValuedPlan | None:
        """The plan with the shortest step, the cheapest of several; None = no plan."""
        return min(self.points, key=lambda point: (point.seconds, point.value), default=None)

    def front(self) -> tuple[ValuedPlan, ...]:
        """Pareto front of time and value, the fastest plan first."""
        found: list[ValuedPlan] = []
        for point in sorted(self.points, key=lambda point: (point.seconds, point.value)):
            if not found or point.value < found[-1].value:
                found.append(point)
        return tuple(found)


def compose_low_cost(
    record: PlanRecord,
    pipeline_sets: dict[Options, PricedPipelines],
    limit_s: float,
    *,
    values_cache: dict[Options, ValuesCache],
    timed: bool = False,
) -> None:
    """Compose and simulate plans of low cost rate by about a limit; `timed` = also faster plans.

    Args:
        values_cache: shape values of subspaces, kept from limit to limit.
        timed: also compose plans that are as cheap as others but faster.
    """
    for options, whole in [
        (options, whole)
        for options, pipelines in pipeline_sets.items()
        for whole in root_subspaces(pipelines.stage_costs)
    ]:
        pipelines = pipeline_sets[options]
        floors = []
        for subspace in split_by_replicas(whole):
            if record.ends():
                return
            floors.append(
                floor_of(
                    pipelines, record.price_per_second, subspace, limit_s, values_cache[options]
                )
            )
        for floor in sorted((one for one in floors if one.rate is not None), key=_floor_rate)[
            : pipelines.effort.cost_subspaces
        ]:
            if timed or _floor_rate(floor) * limit_s < record.least(limit_s=limit_s):
                _compose_cheapest(
                    record, pipelines, floor, values_cache[options][floor.frame], options
                )
    _simulate_cheapest(record, pipeline_sets)


def _floor_rate(floor: Floor) -> float:
    """Rate of a floor; inf = no plan."""
    return inf if floor.rate is None else floor.rate


def _compose_cheapest(
    record: PlanRecord,
    pipelines: PricedPipelines,
    floor: Floor,
    values: ShapeMicrobatches,
    options: Options,
) -> None:
    """Queue the cheapest compositions of a subspace by its limit for simulation."""
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
    chosen = candidate_shapes(pipelines, values, ranked, pipelines.effort.program_shapes)
    if not len(chosen):
        return
    node = max(pool.node for pool in pipelines.stage_costs.table.pools)
    for lanes in (1, max(2, len(pipelines.stage_costs.table.pools))):
        for grain in dict.fromkeys((node, 1)):
            found = _cheapest_composition(
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
                record.state.cut_and_queue(pipelines, lanes_of, floor.limit_s, options)


def _cheapest_composition(
    record: PlanRecord,
    pipelines: PricedPipelines,
    values: ShapeMicrobatches,
    shape_indices: IntArray,
    *,
    replicas: tuple[int, int],
    lanes: int,
    grain: int,
) -> Composition | None:
    """Cheapest replicas of at most `lanes` shapes that complete the batch in the budget; or None.

    None = the integer program finds no solution.

    Args:
        grain: replicas of each shape are a multiple of this.
    """
    price_per_second, shapes, pools = (
        record.price_per_second,
        pipelines.shapes,
        pipelines.stage_costs.table.pools,
    )
    use, worth = shapes.use[shape_indices], pipelines.samples(values)[shape_indices]
    devices, n, (low, high) = (
        np.array([pool.devices for pool in pools], dtype=np.float64),
        len(shape_indices),
        replicas,
    )
    most = most_replicas(pipelines, shape_indices, devices, worth, max_replicas=high, grain=grain)
    if not most.any():
        return None
    num_pools, packs = len(pools), devices / price_per_second.sizes
    taken = price_per_second.rates * price_per_second.sizes
    rents = taken * (SECONDS_PER_HOUR if price_per_second.unit == "usd" else 0.0)
    # Columns: replicas, nodes of each pool.
    rows = np.zeros((num_pools + 3, n + num_pools))
    rows[:num_pools, :n], rows[:num_pools, n:] = (
        grain * use.T,
        -np.diag(price_per_second.sizes.astype(np.float64)),
    )
    rows[num_pools, :n], rows[num_pools + 1, :n], rows[num_pools + 2, n:] = (
        grain,
        grain * worth / pipelines.batch,
        rents,
    )
    lower = np.concatenate([np.full(num_pools, -np.inf), [low, 1.0, 0.0]])
    upper = np.concatenate([np.zeros(num_pools), [high, np.inf, record.budget]])
    costs = np.concatenate([np.zeros(n), taken / taken.max()])
    least = -(-shapes.least[shape_indices] // grain)
    solution = whole_replicas(
        costs,
        rows,
        (lower, upper),
        min_replicas=least,
        max_replicas=most,
        max_others=np.floor(packs),
        max_shapes=lanes,
        max_tree_nodes=pipelines.effort.program_nodes,
    )
    if solution is None:
        return None
    replica_counts = grain * solution
    used = np.flatnonzero(replica_counts)
    enough = worth @ replica_counts >= pipelines.batch and (use.T @ replica_counts <= devices).all()
    return (
        Composition(
            shapes=shape_indices[used],
            replicas=replica_counts[used],
            microbatches=values.microbatches[shape_indices[used]],
        )
        if enough
        else None
    )


def _simulate_cheapest(record: PlanRecord, pipeline_sets: dict[Options, PricedPipelines]) -> None:
    """Simulate cheapest waiting plans that no known plan beats in time and value; drop others."""
    state = record.state
    some: list[tuple[float, float, int, MixedCandidate]] = []
    for one in state.waiting:
        table = pipeline_sets[one.options].stage_costs.table
        some.append(
            (
                one.seconds * record.price_per_second.rate(devices_of(table, one.plan)),
                one.seconds,
                len(some),
                one,
            )
        )
    state.waiting = []
    tried = 0
    for value, seconds, _, one in sorted(some, key=lambda one: one[:3]):
        if (
            tried == record.effort.cost_simulations
            or value >= record.least(limit_s=seconds)
            or record.ends()
        ):
            state.looked_at += 1
            state.bounded += 1
            continue
        tried += 1
        state.simulate_candidate(pipeline_sets, one)


def limits_between(first_s: float, last_s: float, *, rise: float) -> tuple[float, ...]:
    """Step-time limits in seconds from `last_s` down to `first_s`, at most `rise` times apart."""
    if not (isfinite(first_s) and isfinite(last_s)) or last_s <= first_s:
        return (first_s,) if isfinite(first_s) else ()
    count = int(np.ceil(np.log(last_s / first_s) / np.log(rise)))
    return tuple(
        float(first_s * (last_s / first_s) ** (step / count)) for step in range(count, -1, -1)
    )
