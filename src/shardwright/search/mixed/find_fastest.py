"""Search over a mixed cluster: each pool alone, then pipelines over all of them; the best simulated
plan, and a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from shardwright.errors import InfeasibleError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem, under
from shardwright.progress import Progress
from shardwright.runtime.runtime import Options
from shardwright.runtime.runtime_options import in_vocabulary_order
from shardwright.search.mixed.bounds.time_bound import Closing, aimed_at, lower_bound
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.pipelines.pipeline_subsets import parts_of
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks
from shardwright.search.mixed.plans.certificate import certified
from shardwright.search.mixed.plans.composition_search import (
    Composing,
    compose_by_limits,
    compose_undivided,
    composing_in_turn,
    in_task_order,
)
from shardwright.search.mixed.plans.fewer_nodes import search_fewer_nodes
from shardwright.search.mixed.plans.local_changes import improve_best_plans
from shardwright.search.mixed.plans.next_best_plans import runners_of, simulate_behind
from shardwright.search.mixed.plans.pool_grids import Known, PoolResult, search_each_pool
from shardwright.search.mixed.plans.simulated_plans import Standing, simulate_best
from shardwright.search.mixed.plans.single_shape_plans import compose_one_shape
from shardwright.search.mixed.plans.write_plan import MixedPlan, pipelines_text
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.frame_terms import StageCosts
from shardwright.search.mixed.stages.layer_cuts import pattern_of
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.recompute_choices import MOST_STAGES
from shardwright.search.mixed.stages.sharded_lanes import PLAIN, zero_stages
from shardwright.search.mixed.stages.stage_meshes import has_experts
from shardwright.search.mixed.stages.stage_tables import MICROBATCHES, why_alone
from shardwright.search.mixed_certificate import GIVEN_UP, Closed, MixedPart, worth_of
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_limit import Limit, Stops, limit_of, out_of_time, progress_text
from shardwright.search.search_request import SEARCH_MEMORY

TOLERANCE = 0.03
"""Gap that is good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The result of a search on some nodes: the best plan, the grids of each pool, and the prices
    that close the frames under each set of options.
    """

    standing: Standing
    singles: list[PoolResult]
    pipeline_sets: dict[Options, PricedPipelines]
    closings: tuple[Closing, ...]
    lower_s: float


def find_mixed(
    problem: Problem,
    *,
    choices: Choices | None = None,
    top: int = 0,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    effort: Effort = USUAL,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """The best plan found on a mixed cluster, with a bound of its whole space: pipelines over all
    pools and grids of each, or grids alone where pipelines of the model are not searched
    (`tables.why_alone`).

    Args:
        problem: its devices have the memory that plans may fill.
        choices: what is pinned; None = nothing.
        top: next best compositions that are told.
        tolerance: gap that is good enough.
        time_limit_s: past it the best so far stands with what is proven by then.
        stops: at which checks of the clock a search was stopped, to repeat it (see
            `search.limit.limit_of`).
        memory: bytes for the members of all pools' grids.
        effort: limits on the work of the search.
        engine: where tasks are worked out, one after another without; the answer is the same.

    Raises:
        UsageError: nothing has what is pinned.
        InfeasibleError: nothing fits. OutOfTimeError: long past the limit there is no plan yet.
    """
    begun = time.monotonic()

    def left_s() -> float:
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    choices, known = choices or Choices(), Known()
    clocks: list[Limit] = []

    def search(own: Problem) -> _Found:
        singles = search_each_pool(
            standing := Standing(problem=own),
            pools_of(own.cluster),
            engine or Serial(),
            choices=choices,
            seconds=effort.pool_grid_time_share * time_limit_s,
            stops=stops if own is problem else None,
            memory=memory,
            known=known,
            effort=effort,
            done=lambda count: _say(
                progress, "plan each kind of device alone", count, len(own.cluster.groups)
            ),
        )
        rows = () if why_alone(own) else option_rows(singles, choices)
        pipeline_sets = {
            options: PricedPipelines.of(StageCosts.of(under(own, options), choices), effort=effort)
            for options in rows
        }
        if not clocks:
            clocks.append(
                limit_of(
                    effort.composition_time_share * left_s(),
                    stop_at=stops.composed if stops else None,
                )
            )
            clocks.append(limit_of(left_s(), stop_at=stops.search if stops else None))
        standing.limit = clocks[0]
        if not pipeline_sets:
            _require_grid(singles)
            return _Found(
                standing=standing,
                singles=singles,
                pipeline_sets=pipeline_sets,
                closings=(),
                lower_s=inf,
            )
        lower_s, closings = _narrowed(
            standing,
            pipeline_sets,
            clocks[1],
            engine or Serial(),
            effort=effort,
            tolerance=tolerance,
            progress=progress,
        )
        return _Found(
            standing=standing,
            singles=singles,
            pipeline_sets=pipeline_sets,
            closings=closings,
            lower_s=lower_s,
        )

    def on_fewer(own: Problem) -> tuple[Standing, dict[Options, StageCosts]]:
        found = search(own)
        return found.standing, {
            options: pipelines.stage_costs for options, pipelines in found.pipeline_sets.items()
        }

    found = search(problem)
    standing, pipeline_sets, proof = found.standing, found.pipeline_sets, clocks[1]
    search_fewer_nodes(standing, pipeline_sets, on_fewer, effort)
    simulate_behind(standing, pipeline_sets, top=top)
    part = _part(found, top=top, tolerance=tolerance)
    assert standing.best is not None
    return GeneralAnswer(
        strategy=standing.best,
        detail=standing.mixed,
        certificate=certified(
            standing,
            part,
            space_text(problem, tuple(pipeline_sets), choices),
            best_s=standing.best_s,
            shown_s=min(
                [
                    part.lower_bound_s if pipeline_sets else inf,
                    *(one.lower_bound_s for one in found.singles),
                ]
            ),
            stopped_at=proof.stopped_at,
        ),
        waited=standing.limit.waited or proof.waited,
        search_time_s=time.monotonic() - begun,
    )


def _require_grid(singles: list[PoolResult]) -> None:
    """Raises: InfeasibleError: no grid fits on any pool. OutOfTimeError: none was found in time on
    some.
    """
    if any(one.answer is not None for one in singles):
        return
    if any(one.stopped_at == GIVEN_UP for one in singles):
        raise out_of_time()
    raise InfeasibleError(
        "no grid fits in memory on any pool alone",
        hint="more or larger devices, or a smaller model",
    )


def _narrowed(
    standing: Standing,
    pipeline_sets: dict[Options, PricedPipelines],
    proof: Limit,
    engine: Engine,
    *,
    effort: Effort,
    tolerance: float,
    progress: Progress | None,
) -> tuple[float, tuple[Closing, ...]]:
    """The bound of all pipelines, after as many rounds of compositions and simulations as bring the
    best within `tolerance` of it.

    Raises:
        InfeasibleError: nothing fits. OutOfTimeError: long past the limit there is no plan yet.
    """

    def say(what: str, number: int) -> None:
        _say(
            progress,
            progress_text(what, best_s=standing.best_s, lower_s=found[0], limit=standing.limit),
            number,
            len(tasks.effort.rounds),
        )

    parts = [
        (options, part)
        for options, pipelines in pipeline_sets.items()
        for part in parts_of(pipelines)
    ]
    tasks = SearchTasks.of(engine, standing.problem, [part for _, part in parts], effort=effort)
    stage_costs_of = {
        options: pipelines.stage_costs for options, pipelines in pipeline_sets.items()
    }
    every = tuple(pipeline_sets.values())
    found: tuple[float, tuple[Closing, ...]] = (
        0.0,
        tuple(Closing(pipelines=one, tasks=tasks) for one in every),
    )
    proved_s = inf

    def within_tolerance() -> bool:
        return standing.best is not None and found[0] >= aimed_at(standing.best_s, tolerance)

    def prove(number: int) -> None:
        nonlocal found, proved_s
        say("polish the best", number)
        improve_best_plans(standing, tasks, stage_costs_of)
        if standing.best_s < proved_s:
            say("prove that nothing is faster", number)
            found = lower_bound(tasks, every, standing.best_s, tolerance=tolerance, clock=proof)
            proved_s = standing.best_s

    composing = _early_plans(
        standing, tasks, stage_costs_of, parts, proof, lambda what: say(what, 0)
    )
    all_sharded = all(one.share == 1 and one.pipelines.shapes.sharded.all() for one in composing)
    if standing.best is not None:
        prove(0)
    if within_tolerance():
        return found
    for options, pipelines in pipeline_sets.items():
        compose_one_shape(standing, tasks, pipelines, options)
    for number, (limits, most) in enumerate(tasks.effort.rounds):
        say("compose and simulate", number)
        compose_by_limits(standing, tasks, composing, most=limits)
        simulate_best(
            standing,
            tasks,
            stage_costs_of,
            most=most * sum(one.share == 1 for one in composing),
            sharded=all_sharded,
        )
        if not all_sharded:
            simulate_best(
                standing,
                tasks,
                stage_costs_of,
                most=max(most // tasks.effort.sharding_share, 1)
                * sum(one.share > 1 for one in composing),
                sharded=True,
            )
        if within_tolerance():
            break
        if number in tasks.effort.proof_rounds:
            prove(number)
            if within_tolerance():
                break
    if standing.best is None and standing.limit.stopped_at:
        raise out_of_time()
    if standing.best is None:
        raise InfeasibleError(
            "no plan fits in memory on any pool or on all together",
            hint="more or larger devices, or a smaller model",
        )
    return found


def _early_plans(
    standing: Standing,
    tasks: SearchTasks,
    stage_costs_of: Mapping[Options, StageCosts],
    parts: Sequence[tuple[Options, PricedPipelines]],
    whole: Limit,
    say: Callable[[str], None],
) -> list[Composing]:
    """Frames to compose plans of, after plans of undivided frames were composed and simulated.

    Plans in which no lane shards are simulated before anything is asked of the others, so that a
    first plan comes early. Until there is one the search goes by the limit of the whole search.

    Args:
        whole: limit of the whole search; `standing.limit` is the part of it that compositions have.
    """
    composed, standing.limit = standing.limit, whole
    composing: list[Composing] = []

    def simulate(
        some: Sequence[Composing], kinds: tuple[bool, ...], *, rise: float, latest_s: float
    ) -> None:
        say("find a first plan")
        compose_undivided(standing, tasks, some, rise=rise, latest_s=latest_s)
        for sharded in kinds:
            simulate_best(
                standing,
                tasks,
                stage_costs_of,
                most=tasks.effort.early_simulations,
                sharded=sharded,
            )
            if standing.ranked:
                standing.limit = composed

    latest_s = standing.best_s * tasks.effort.latest_limit_ratio
    say("find when compositions can end")
    first, *others = tasks.effort.early_limit_rises
    for sharded, group in composing_in_turn(standing, tasks, parts):
        composing += group
        simulate(group, (sharded,), rise=first, latest_s=latest_s)
        if standing.ends():
            break
    composing = in_task_order(tasks, composing)
    for rise in others:
        latest_s = standing.best_s * tasks.effort.latest_limit_ratio
        simulate(composing, (False, True), rise=rise, latest_s=latest_s)
    standing.limit = composed
    return composing


def _part(found: _Found, *, top: int, tolerance: float) -> MixedPart:
    """The part of the certificate that mixed clusters add: each pool alone, the next best plans,
    and the prices that close the frames.
    """
    standing, closings = found.standing, found.closings
    closed = tuple(
        Closed(options=options, duals=tuple(c.closed.values()))
        for options, c in zip(found.pipeline_sets, closings, strict=True)
    )
    stage_costs_of = {
        options: pipelines.stage_costs for options, pipelines in found.pipeline_sets.items()
    }
    worth, best = worth_of(closed, [one.pool.node for one in found.singles]), standing.mixed
    return MixedPart(
        shapes=sum(len(closing.pipelines.shapes) for closing in closings),
        alone=tuple(
            one.for_certificate(worth_s) for one, worth_s in zip(found.singles, worth, strict=True)
        ),
        closed=closed,
        tests=sum(closing.tests for closing in closings),
        # A tighter one that was met by the way is not claimed: with a node less it might not have
        # been, and no node more raises a bound.
        lower_bound_s=min(found.lower_s, aimed_at(standing.best_s, tolerance)) if closings else 0.0,
        tolerance=tolerance,
        pipelines=pipelines_text(closings[0].pipelines.stage_costs.table, best)
        if best is not None
        else "",
        runners=runners_of(standing, stage_costs_of, top=top),
        composed_stopped_at=standing.limit.stopped_at,
        why_alone=why_alone(standing.problem),
    )


def _say(progress: Progress | None, text: str, done: int, total: int) -> None:
    if progress is not None:
        progress(text, done, total)


def option_rows(singles: list[PoolResult], choices: Choices) -> tuple[Options, ...]:
    """The options of each pool's best grid; what is pinned, and else the runtime as it is, where no
    grid fits.
    """
    rows = [one.answer.grid.options for one in singles if one.answer is not None]
    return tuple(dict.fromkeys(rows)) or (in_vocabulary_order(choices.options),)


def space_text(problem: Problem, rows: tuple[Options, ...], choices: Choices) -> str:
    """The space in words and values."""
    pinned = f"; {choices.text()}" if choices.text() else ""
    return (
        f"{pipelines_space(problem, rows, choices)}; and every grid of the standard space of each"
        f" pool alone, on any number of its nodes{pinned}"
    )


def pipelines_space(problem: Problem, rows: tuple[Options, ...], choices: Choices) -> str:
    """The pipelines of the space in words and values."""
    devices = (
        f"mixed: {' + '.join(f'{pool.devices} {pool.name}' for pool in pools_of(problem.cluster))}"
    )
    if because := why_alone(problem):
        return f"{devices}; no pipelines over several pools, as {because}"
    stage = "tp inside a node and sp"
    if has_experts(problem):
        stage = "tp x dp inside a node, sp, and experts over all of it (ep = tp x dp)"
    cuts = f" ({said})" if (said := pattern_of(problem.model).text()) else ""
    options = ", ".join(
        " ".join(f"{name}={value}" for name, value in row) or "as it is" for row in rows
    )
    sizes = ", ".join(map(str, choices.sizes(MICROBATCHES)))
    return (
        f"{devices}; any number of replicas of any pipelines of at most two runs of like stages,"
        f" {MOST_STAGES} stages in all, a stage on one pool with {stage}; mbs {{{sizes}}}, any cut"
        f" of the layers{cuts}, each stage recomputes any number of its first layers in full and of"
        f" the next ones selectively, 1F1B, {_lanes_space(problem, choices)}, any shares of the"
        f" batch, any idle devices; options of the runtime {{{options}}}"
    )


def _lanes_space(problem: Problem, choices: Choices) -> str:
    """The sharding of lanes in words and values."""
    stages = zero_stages(problem, choices)
    if stages.every == (PLAIN,):
        return "zero1 over all replicas"
    of_all = (
        "zero1 over all replicas of a lane that shares no more, or "
        if PLAIN in stages.every
        else ""
    )
    several = [str(zero) for zero in stages.several if zero != PLAIN]
    beside = ""
    if several != [str(zero) for zero in stages.one]:
        beside = (
            f", {{{', '.join(several)}}} in pipelines of several stages"
            if several
            else ", in pipelines of one stage"
        )
    return (
        f"{of_all}zero {{{', '.join(map(str, stages.one))}}} over the two or more replicas of one"
        f" shape{beside}"
    )
