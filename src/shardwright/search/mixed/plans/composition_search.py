"""Find compositions at step-time limits just above the bound, frame by frame, and queue them for
simulation.
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
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines, Values
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks, TaskInputs
from shardwright.search.mixed.plans.replica_counts import compositions, exact_microbatches
from shardwright.search.mixed.plans.simulated_plans import (
    Lanes,
    MixedCandidate,
    Standing,
    candidate,
)
from shardwright.search.mixed.stages.frame_terms import first_frames, replica_edges
from shardwright.search.mixed_certificate import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameQuery:
    """A frame, and the step-time limit that plans of it are to be composed for.

    Args:
        pipelines_index: place of the frame's pipelines in `TaskInputs.pipeline_sets`.
        options: of the runtime, under which the pipelines are priced.
        turn: number of the frame, which decides between equal limits.
        step: share of the limit by which the next is later where prices close this one.
        left: limits that are still to be tried.
        values: what is known of its shapes.
        latest_s: a limit at which the frame is given up if prices close it there too; 0 = none.
    """

    pipelines_index: int
    options: Options
    turn: int
    frame: Frame
    limit_s: float
    step: float
    left: int
    values: Values
    latest_s: float = 0.0

    @property
    def rank(self) -> tuple[float, int]:
        """The smallest limit first."""
        return self.limit_s, self.turn


class FrameAnswer(NamedTuple):
    """A frame's shape values at a limit, and compositions; None = no plan meets the limit. shut:
    nor does one meet `latest_s`.
    """

    values: Values
    found: list[tuple[Lanes, MixedCandidate | None]] | None
    shut: bool = False


def compose_frame(inputs: TaskInputs, query: FrameQuery) -> FrameAnswer:
    """Compositions of a frame that end by its limit; none where prices close the frame by then."""
    pipelines = inputs.pipeline_sets[query.pipelines_index]
    dual, values = pipelines.priced(query.frame, query.limit_s, start=query.values)
    if dual.samples < pipelines.batch:
        shut = (
            query.latest_s > 0
            and pipelines.priced(query.frame, query.latest_s)[0].samples < pipelines.batch
        )
        return FrameAnswer(values, None, shut=shut)
    pools = pipelines.stage_costs.table.pools
    dual, values = pipelines.priced(query.frame, query.limit_s, start=values, thorough=True)
    effort = pipelines.effort
    lanes, node = max(effort.lanes_on_two_pools, len(pools)), max(pool.node for pool in pools)
    found = [
        exact_microbatches(one, pipelines)
        for grain in dict.fromkeys((node, 1))
        for one in compositions(
            pipelines,
            dual,
            values,
            replicas=query.frame.replicas,
            lanes=lanes,
            grain=grain,
            most=effort.compositions_per_frame,
        )
    ]
    distinct: dict[tuple[tuple[int, int, int], ...], Lanes] = {}
    for one in found:
        distinct.setdefault(tuple(sorted(one)), one)
    return FrameAnswer(
        values,
        [
            (one, candidate(pipelines, one, query.limit_s, query.options))
            for one in distinct.values()
            if one
        ],
    )


@dataclass(slots=True)
class Composing:
    """Frames of a set of pipelines that plans are still to be composed of.

    Args:
        waiting: a heap. A frame that prices close at a limit waits for one that is later by its
            step, twice as far each time; one that they do not waits for the next level.
        left: limits that are still tried in this round.
        under_way: queries without an answer yet.
        share: divisor on the limits of a round.
        undivided: the frame that the waiting ones are parts of, at the first limit at which prices
            no longer close it; None = they close it at every limit.
    """

    pipelines: PricedPipelines
    options: Options
    waiting: list[tuple[tuple[float, int], FrameQuery]]
    undivided: FrameQuery | None = None
    left: int = 0
    under_way: int = 0
    share: int = 1

    def next(self, standing: Standing) -> FrameQuery | None:
        """The query of the smallest limit, taken from the heap; None = none can be asked now."""
        effort = self.pipelines.effort
        if (
            self.under_way >= min(self.left, effort.limits_at_once)
            or not self.waiting
            or self.waiting[0][0][0] >= standing.best_s * effort.latest_limit_ratio
        ):
            return None
        self.under_way += 1
        return heappop(self.waiting)[1]

    def take(self, standing: Standing, query: FrameQuery, answer: FrameAnswer) -> None:
        """Let compositions wait for their simulation, and the frame for another limit."""
        self.under_way -= 1
        effort = self.pipelines.effort
        known = replace(query, values=answer.values, latest_s=0.0)
        if answer.shut:
            return
        if answer.found is None:
            self._wait(
                replace(
                    known,
                    limit_s=query.limit_s * (1 + query.step),
                    step=min(2 * query.step, effort.largest_limit_rise),
                )
            )
            return
        self.left -= 1
        for lanes, one in answer.found:
            standing.wait(lanes, one, self.options)
        if query.left > 1:
            self._wait(
                replace(known, limit_s=query.limit_s * (1 + effort.limit_rise), left=query.left - 1)
            )

    def _wait(self, query: FrameQuery) -> None:
        heappush(self.waiting, (query.rank, query))


def composing_in_turn(
    standing: Standing, tasks: SearchTasks, pipeline_sets: Sequence[tuple[Options, PricedPipelines]]
) -> Iterator[tuple[bool, list[Composing]]]:
    """Frames to compose plans of, in two groups: (False, frames in which no lane shards), and
    (True, the others). Each frame begins at the first limit at which prices no longer close it.

    A group's first limits are found when the group is asked for: plans of the first group can be
    simulated before work on the second begins.
    """
    most = min(standing.best_s * tasks.effort.latest_limit_ratio, LONGEST_STEP_S)
    # Where no plan is known that a limit could be too late for, frames that memory closes would
    # wait for one later limit after another.
    latest_s = most if standing.best is None else 0.0
    for sharded in (False, True):
        asked = [
            (
                options,
                FirstLimitQuery(pipelines_index=tasks.place(pipelines), frame=frame, most=most),
            )
            for options, pipelines in pipeline_sets
            for frame in whole_frames(pipelines)
            if frame.sharded == sharded
        ]
        if asked:
            firsts = tasks.map(_first_limit_of, [first for _, first in asked])
            yield (
                sharded,
                [
                    _composing_from(tasks, options, first, *found, latest_s=latest_s)
                    for (options, first), found in zip(asked, firsts, strict=True)
                ],
            )


def composing_of(
    standing: Standing, tasks: SearchTasks, pipeline_sets: Sequence[tuple[Options, PricedPipelines]]
) -> list[Composing]:
    """All frames of `composing_in_turn`, one set of pipelines after another."""
    groups = composing_in_turn(standing, tasks, pipeline_sets)
    return in_task_order(tasks, [one for _, group in groups for one in group])


def in_task_order(tasks: SearchTasks, composing: Sequence[Composing]) -> list[Composing]:
    """Frames in the order in which `tasks` has their sets of pipelines."""
    return sorted(composing, key=lambda one: tasks.place(one.pipelines))


def compose_by_limits(
    standing: Standing, tasks: SearchTasks, composing: Sequence[Composing], *, most: int
) -> None:
    """Compose plans at up to `most` limits of each set of pipelines, the smallest limits first, and
    queue them for simulation.
    """
    few = tasks.effort.shapes_with_all_limits
    for one in composing:
        shapes = max(len(one.pipelines.shapes), few)
        one.left = max(most * few // shapes // one.share, 1)
    begun = deque[tuple[Composing, FrameQuery]]()

    def ask() -> FrameQuery | None:
        for one in sorted(composing, key=lambda one: one.under_way):
            if (query := one.next(standing)) is not None:
                begun.append((one, query))
                return query
        return None

    more = sum(one.left for one in composing)
    for answer in tasks.flow(
        compose_frame,
        lambda: None if standing.ends() else ask(),
        size=tasks.effort.limits_at_once * len(composing),
        more=more,
    ):
        one, query = begun.popleft()
        one.take(standing, query, answer)


def compose_undivided(
    standing: Standing,
    tasks: SearchTasks,
    composing: Sequence[Composing],
    *,
    rise: float,
    latest_s: float,
) -> None:
    """Compose plans of every undivided frame, at one limit each, and queue them for simulation.

    This costs as much as one limit of a small part of the frame, and finds plans a few percent from
    the best: the search has a plan early, and later limits end at its step time.

    Args:
        rise: share of a frame's first open limit by which the limit lies above it.
        latest_s: seconds; a limit from there on is not tried.
    """
    early = deque[tuple[Composing, FrameQuery]]()
    for one in composing:
        if one.undivided is not None:
            query = replace(one.undivided, limit_s=one.undivided.limit_s * (1 + rise))
            if query.limit_s < latest_s:
                early.append((one, query))
    begun = deque[tuple[Composing, FrameQuery]]()

    def ask() -> FrameQuery | None:
        if standing.ends() or not early:
            return None
        begun.append(early.popleft())
        return begun[-1][1]

    for answer in tasks.flow(compose_frame, ask, size=tasks.effort.limits_at_once, more=len(early)):
        one, query = begun.popleft()
        for lanes, plan in answer.found or ():
            standing.wait(lanes, plan, query.options)
        if answer.shut:
            # Prices that close the whole frame at the latest limit close each of its parts.
            one.undivided = None
            one.waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLimitQuery:
    """A frame whose first open limit is asked for.

    Args:
        pipelines_index: place of its pipelines in `TaskInputs.pipeline_sets`.
        most: seconds, the latest limit.
    """

    pipelines_index: int
    frame: Frame
    most: float


def _first_limit_of(inputs: TaskInputs, asked: FirstLimitQuery) -> tuple[float, Values | None]:
    pipelines = inputs.pipeline_sets[asked.pipelines_index]
    return first_limit(pipelines, asked.frame, most=asked.most)


def _composing_from(
    tasks: SearchTasks,
    options: Options,
    asked: FirstLimitQuery,
    limit_s: float,
    values: Values | None,
    *,
    latest_s: float,
) -> Composing:
    pipelines, waiting, undivided = tasks.inputs.pipeline_sets[asked.pipelines_index], [], None
    if values is not None:
        undivided = FrameQuery(
            pipelines_index=asked.pipelines_index,
            options=options,
            turn=0,
            frame=asked.frame,
            limit_s=limit_s,
            step=tasks.effort.limit_rise,
            left=tasks.effort.limits_per_frame,
            values=values,
            latest_s=latest_s,
        )
        parts = enumerate(composed_frames(asked.frame))
        queries = [replace(undivided, turn=turn, frame=frame) for turn, frame in parts]
        waiting = [(query.rank, query) for query in queries]
    share = (
        tasks.effort.sharding_share
        if asked.frame.sharded and not first_frames(pipelines.stage_costs)[0].sharded
        else 1
    )
    return Composing(
        pipelines=pipelines, options=options, waiting=waiting, undivided=undivided, share=share
    )


def composed_frames(whole: Frame) -> list[Frame]:
    """Frames that compositions are asked of:
    replicas from one power of two to the next, in halves.
    """
    most = whole.replicas[1]
    edges = [*(edge for edge in replica_edges(most) if edge <= most), most + 1]
    return [replace(whole, replicas=(low, high - 1)) for low, high in pairwise(edges)]


def whole_frames(pipelines: PricedPipelines) -> tuple[Frame, ...]:
    """The frames of plans that are composed: of some of the pools those alone in which no lane
    shards, unless all do. Plans of one lane come from `single_shape_plans`.
    """
    frames = tuple(frame for frame in first_frames(pipelines.stage_costs) if not frame.alone)
    return frames if pipelines.is_whole else frames[:1]


def whole_frame(pipelines: PricedPipelines, *, sharded: bool = False, alone: bool = False) -> Frame:
    """The frame of any number of replicas."""
    stage_costs = pipelines.stage_costs
    return Frame(
        replicas=(1, stage_costs.most_replicas),
        tp=stage_costs.least_tp,
        nodes=(0.0, stage_costs.nodes),
        sharded=sharded,
        alone=alone,
    )


def first_limit(
    pipelines: PricedPipelines, frame: Frame, *, most: float
) -> tuple[float, Values | None]:
    """The limit, to a percent, at which prices no longer close a frame, and what is known of its
    shapes there.

    Args:
        most: where they close it there too, it is inf and nothing is known.
    """
    dual, values = pipelines.priced(frame, most)
    if dual.samples < pipelines.batch:
        return inf, None
    low, high = 0.0, most
    while high - low > pipelines.effort.first_limit_precision * high:
        # From above by halves, then by the middle.
        middle = (low + high) / 2 if low else high / 2
        dual, found = pipelines.priced(frame, middle, start=values)
        if dual.samples >= pipelines.batch:
            high, values = middle, found
        else:
            low = middle
    return high, values
