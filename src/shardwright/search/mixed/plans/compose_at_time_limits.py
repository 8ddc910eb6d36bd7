"""Compose plans at step-time limits just above the bound, one subspace after another.

The composed plans are queued for simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from typing import NamedTuple

from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
)
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks, TaskInputs
from shardwright.search.mixed.plans.compose_pipeline_replicas import (
    compositions,
    exact_microbatches,
)
from shardwright.search.mixed.plans.plan_search_state import (
    Lanes,
    MixedCandidate,
    SearchState,
    make_candidate,
)
from shardwright.search.mixed.stages.subspaces_and_stage_costs import replica_edges, root_subspaces
from shardwright.search.mixed_cluster_certificate import Subspace


@dataclass(frozen=True, slots=True, kw_only=True)
class SubspaceQuery:
    """A task: compose plans of a subspace that end by a step-time limit.

    Args:
        pipelines_index: index of the subspace's pipelines in `TaskInputs.pipeline_sets`.
        options: runtime options under which the pipelines are priced.
        turn: number of the subspace, which decides between equal limits.
        step: relative rise of the next limit, if prices close the subspace at this one.
        left: number of limits still to try.
        values: shape values of the subspace at an earlier limit.
        latest_s: limit at which the subspace is dropped if prices close it there too; 0 = none.
    """

    pipelines_index: int
    options: Options
    turn: int
    subspace: Subspace
    limit_s: float
    step: float
    left: int
    values: ShapeMicrobatches
    latest_s: float = 0.0

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key (limit in seconds, turn): the smallest limit first."""
        return self.limit_s, self.turn


class SubspaceAnswer(NamedTuple):
    """Result of a `SubspaceQuery`: shape values at the limit, and compositions.

    found: None = no plan ends by the limit. shut: True = no plan ends by `latest_s` either.
    """

    values: ShapeMicrobatches
    found: list[tuple[Lanes, MixedCandidate | None]] | None
    shut: bool = False


def compose_subspace(inputs: TaskInputs, query: SubspaceQuery) -> SubspaceAnswer:
    """Compose plans of a subspace by its limit; in the answer None = prices allow no plan."""
    pipelines = inputs.pipeline_sets[query.pipelines_index]
    dual, values = pipelines.priced(query.subspace, query.limit_s, start=query.values)
    if dual.samples < pipelines.batch:
        shut = (
            query.latest_s > 0
            and pipelines.priced(query.subspace, query.latest_s)[0].samples < pipelines.batch
        )
        return SubspaceAnswer(values, None, shut=shut)
    pools = pipelines.stage_costs.table.pools
    dual, values = pipelines.priced(query.subspace, query.limit_s, start=values, thorough=True)
    effort = pipelines.effort
    lanes, node = max(effort.lanes_on_two_pools, len(pools)), max(pool.node for pool in pools)
    found = [
        exact_microbatches(composition, pipelines)
        for grain in dict.fromkeys((node, 1))
        for composition in compositions(
            pipelines,
            dual,
            values,
            replicas=query.subspace.replicas,
            lanes=lanes,
            grain=grain,
            max_compositions=effort.compositions_per_subspace,
        )
    ]
    distinct: dict[tuple[tuple[int, int, int], ...], Lanes] = {}
    for composition in found:
        distinct.setdefault(tuple(sorted(composition)), composition)
    return SubspaceAnswer(
        values,
        [
            (composition, make_candidate(pipelines, composition, query.limit_s, query.options))
            for composition in distinct.values()
            if composition
        ],
    )


@dataclass(slots=True)
class CompositionQueue:
    """Subspaces of one set of pipelines from which plans are still to be composed.

    Args:
        waiting: heap of queries. A subspace that prices close waits for a later limit, twice as far
            each time; an open one waits for the next limit.
        left: number of limits still to try in this round.
        under_way: number of queries without an answer yet.
        share: divisor on the limits of a round.
        undivided: the subspace whose parts are waiting, at the first limit at which prices do not
            close it; None = they close it at every limit.
    """

    pipelines: PricedPipelines
    options: Options
    waiting: list[tuple[tuple[float, int], SubspaceQuery]]
    undivided: SubspaceQuery | None = None
    left: int = 0
    under_way: int = 0
    share: int = 1

    def take_query(self, state: SearchState) -> SubspaceQuery | None:
        """Take the query with the smallest limit from the heap; None = no query can start now."""
        effort = self.pipelines.effort
        if (
            self.under_way >= min(self.left, effort.limits_at_once)
            or not self.waiting
            or self.waiting[0][0][0] >= state.best_s * effort.latest_limit_ratio
        ):
            return None
        self.under_way += 1
        return heappop(self.waiting)[1]

    def add_answer(self, state: SearchState, query: SubspaceQuery, answer: SubspaceAnswer) -> None:
        """Queue an answer's compositions for simulation, and its subspace for the next limit."""
        self.under_way -= 1
        effort = self.pipelines.effort
        next_query = replace(query, values=answer.values, latest_s=0.0)
        if answer.shut:
            return
        if answer.found is None:
            self._push(
                replace(
                    next_query,
                    limit_s=query.limit_s * (1 + query.step),
                    step=min(2 * query.step, effort.largest_limit_rise),
                )
            )
            return
        self.left -= 1
        for lanes, candidate in answer.found:
            state.queue_candidate(lanes, candidate, self.options)
        if query.left > 1:
            self._push(
                replace(
                    next_query, limit_s=query.limit_s * (1 + effort.limit_rise), left=query.left - 1
                )
            )

    def _push(self, query: SubspaceQuery) -> None:
        """Push a query onto the heap."""
        heappush(self.waiting, (query.rank, query))


def queues_by_sharding(
    state: SearchState, tasks: SearchTasks, pipeline_sets: Sequence[tuple[Options, PricedPipelines]]
) -> Iterator[tuple[bool, list[CompositionQueue]]]:
    """Yield composition queues: (False, subspaces without sharding lanes), then (True, the others).

    Each subspace begins at the first limit at which prices do not close it. A group's first limits
    are found when the group is requested: plans of the first group can be simulated before work on
    the second begins.
    """
    most = min(state.best_s * tasks.effort.latest_limit_ratio, LONGEST_STEP_S)
    # Where no plan is known that a limit could be too late for, subspaces that memory closes would
    # wait for one later limit after another.
    latest_s = most if state.best is None else 0.0
    for sharded in (False, True):
        queries = [
            (
                options,
                FirstLimitQuery(
                    pipelines_index=tasks.index_of(pipelines), subspace=subspace, most=most
                ),
            )
            for options, pipelines in pipeline_sets
            for subspace in composable_subspaces(pipelines)
            if subspace.sharded == sharded
        ]
        if queries:
            firsts = tasks.map(_run_first_limit_query, [first for _, first in queries])
            yield (
                sharded,
                [
                    _queue_from_limit(tasks, options, first, *found, latest_s=latest_s)
                    for (options, first), found in zip(queries, firsts, strict=True)
                ],
            )


def all_queues(
    state: SearchState, tasks: SearchTasks, pipeline_sets: Sequence[tuple[Options, PricedPipelines]]
) -> list[CompositionQueue]:
    """Composition queues of all subspaces, one set of pipelines after another."""
    groups = queues_by_sharding(state, tasks, pipeline_sets)
    return in_task_order(tasks, [queue for _, group in groups for queue in group])


def in_task_order(tasks: SearchTasks, queues: Sequence[CompositionQueue]) -> list[CompositionQueue]:
    """Sort composition queues by the index of their pipelines in `tasks`."""
    return sorted(queues, key=lambda queue: tasks.index_of(queue.pipelines))


def compose_by_limits(
    state: SearchState, tasks: SearchTasks, queues: Sequence[CompositionQueue], *, max_limits: int
) -> None:
    """Compose plans at up to `max_limits` step-time limits of each queue, least first; queue them.

    The plans are queued for simulation.
    """
    full_shapes = tasks.effort.shapes_with_all_limits
    for queue in queues:
        shapes = max(len(queue.pipelines.shapes), full_shapes)
        queue.left = max(max_limits * full_shapes // shapes // queue.share, 1)
    begun = deque[tuple[CompositionQueue, SubspaceQuery]]()

    def next_query() -> SubspaceQuery | None:
        """The next query of the queue with the fewest queries under way; None = no query."""
        for queue in sorted(queues, key=lambda queue: queue.under_way):
            if (query := queue.take_query(state)) is not None:
                begun.append((queue, query))
                return query
        return None

    more = sum(queue.left for queue in queues)
    for answer in tasks.flow(
        compose_subspace,
        lambda: None if state.ends() else next_query(),
        size=tasks.effort.limits_at_once * len(queues),
        more=more,
    ):
        queue, query = begun.popleft()
        queue.add_answer(state, query, answer)


def compose_undivided(
    state: SearchState,
    tasks: SearchTasks,
    queues: Sequence[CompositionQueue],
    *,
    rise: float,
    latest_s: float,
) -> None:
    """Compose plans of every undivided subspace at one limit, and queue them for simulation.

    This costs as much as one limit of a small part of the subspace, and finds plans a few percent
    from the best: the search has a plan early, and later limits end at its step time.

    Args:
        rise: relative rise of the limit above a subspace's first open limit.
        latest_s: seconds; limits from there on are not tried.
    """
    early = deque[tuple[CompositionQueue, SubspaceQuery]]()
    for queue in queues:
        if queue.undivided is not None:
            query = replace(queue.undivided, limit_s=queue.undivided.limit_s * (1 + rise))
            if query.limit_s < latest_s:
                early.append((queue, query))
    begun = deque[tuple[CompositionQueue, SubspaceQuery]]()

    def ask() -> SubspaceQuery | None:
        """The query of the next undivided subspace; None = no query is left."""
        if state.ends() or not early:
            return None
        begun.append(early.popleft())
        return begun[-1][1]

    for answer in tasks.flow(
        compose_subspace, ask, size=tasks.effort.limits_at_once, more=len(early)
    ):
        queue, query = begun.popleft()
        for lanes, plan in answer.found or ():
            state.queue_candidate(lanes, plan, query.options)
        if answer.shut:
            # Prices that close the whole subspace at the latest limit close each of its parts.
            queue.undivided = None
            queue.waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLimitQuery:
    """A task: find the smallest step-time limit that dual prices do not rule out for a subspace.

    Args:
        pipelines_index: index of its pipelines in `TaskInputs.pipeline_sets`.
        most: seconds, the latest limit.
    """

    pipelines_index: int
    subspace: Subspace
    most: float


def _run_first_limit_query(
    inputs: TaskInputs, query: FirstLimitQuery
) -> tuple[float, ShapeMicrobatches | None]:
    """Run a first-limit task: first open limit in seconds, shape values; (inf, None) = none."""
    pipelines = inputs.pipeline_sets[query.pipelines_index]
    return first_limit(pipelines, query.subspace, latest_limit_s=query.most)


def _queue_from_limit(
    tasks: SearchTasks,
    options: Options,
    first_query: FirstLimitQuery,
    limit_s: float,
    values: ShapeMicrobatches | None,
    *,
    latest_s: float,
) -> CompositionQueue:
    """Create a composition queue that begins at a subspace's first open limit."""
    pipelines, waiting, undivided = (
        tasks.inputs.pipeline_sets[first_query.pipelines_index],
        [],
        None,
    )
    if values is not None:
        undivided = SubspaceQuery(
            pipelines_index=first_query.pipelines_index,
            options=options,
            turn=0,
            subspace=first_query.subspace,
            limit_s=limit_s,
            step=tasks.effort.limit_rise,
            left=tasks.effort.limits_per_subspace,
            values=values,
            latest_s=latest_s,
        )
        parts = enumerate(split_by_replicas(first_query.subspace))
        queries = [replace(undivided, turn=turn, subspace=subspace) for turn, subspace in parts]
        waiting = [(query.rank, query) for query in queries]
    share = (
        tasks.effort.sharding_share
        if first_query.subspace.sharded and not root_subspaces(pipelines.stage_costs)[0].sharded
        else 1
    )
    return CompositionQueue(
        pipelines=pipelines, options=options, waiting=waiting, undivided=undivided, share=share
    )


def split_by_replicas(subspace: Subspace) -> list[Subspace]:
    """Split a subspace into ranges of replicas, from each split edge to the next."""
    most = subspace.replicas[1]
    edges = [*(edge for edge in replica_edges(most) if edge <= most), most + 1]
    return [replace(subspace, replicas=(low, high - 1)) for low, high in pairwise(edges)]


def composable_subspaces(pipelines: PricedPipelines) -> tuple[Subspace, ...]:
    """The root subspaces to compose from: several lanes; only the first for some of the pools.

    For pipelines on some of the pools, only the first one: plans in which no lane shards, unless
    all do. Plans of one lane come from `plans_of_equal_replicas`.
    """
    subspaces = tuple(
        subspace for subspace in root_subspaces(pipelines.stage_costs) if not subspace.alone
    )
    return subspaces if pipelines.is_whole else subspaces[:1]


def first_limit(
    pipelines: PricedPipelines, subspace: Subspace, *, latest_limit_s: float
) -> tuple[float, ShapeMicrobatches | None]:
    """Smallest step-time limit in s that prices leave open, and shape values; (inf, None) = none.

    Found to `Effort.first_limit_precision`, by halving from above and then by bisection.

    Args:
        latest_limit_s: latest limit; (inf, None) where prices rule it out too.
    """
    dual, values = pipelines.priced(subspace, latest_limit_s)
    if dual.samples < pipelines.batch:
        return inf, None
    low, high = 0.0, latest_limit_s
    while high - low > pipelines.effort.first_limit_precision * high:
        # From above by halves, then by the middle.
        middle = (low + high) / 2 if low else high / 2
        dual, middle_values = pipelines.priced(subspace, middle, start=values)
        if dual.samples >= pipelines.batch:
            high, values = middle, middle_values
        else:
            low = middle
    return high, values
