"""The search over mixed clusters: against every plan of tiny ones, its prices, and what more
devices do."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from math import inf
from typing import Any

import numpy as np
import pytest

from shardwright.api.request_to_problem import problem_of, with_defaults
from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.mixed.bounds.time_bound import (
    BranchAndBound,
    covers_space,
    dual_holds,
    seconds_of,
    step_of,
)
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks, TaskInputs
from shardwright.search.mixed.plans import compose_at_time_limits as composition_search
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    PoolGridSearch,
    best_pool_grid,
)
from shardwright.search.mixed.plans.compose_at_time_limits import (
    SubspaceAnswer,
    SubspaceQuery,
    compose_subspace,
    first_limit,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedLane,
    MixedPlan,
    general_plan,
    subspace_of,
)
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.search_effort_limits import USUAL
from shardwright.search.mixed.stages.device_pools import DevicePool, pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts, full_subspace
from shardwright.search.mixed_cluster_certificate import MixedPart, Subspace
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY, Request
from shardwright.search.search_time_limit import Stops
from shardwright.simulator.simulate_plan import simulate_plan
from tests.search.mixed.members import (
    KINDS,
    SHARDING,
    chain_model,
    mixed_problem,
    replicas_that_fit,
)
from tests.tiers import in_both, random_of, seeds


def tiny(
    cluster: str,
    *,
    seed: int = 3,
    batch: int = 4,
    kind: str = "dense",
    runtime: str = "megatron-core",
) -> Problem:
    """A small model on a few devices."""
    generator = random.Random(seed)
    job = job_from_flags(seq_len=1024, global_batch=batch, precision="fp16")
    model = chain_model(generator, kind=kind, layers={"in turns": 6, "first dense": 5}.get(kind, 3))
    return Problem(
        model=model, cluster=parse_cluster(cluster), job=job, runtime=load_runtime(runtime)
    )


def part_of(certificate: Certificate) -> MixedPart:
    """What a mixed space's certificate has more."""
    assert certificate.mixed is not None
    return certificate.mixed


def cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Every cut of the layers into stages of one or more."""
    found = combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in zip((0, *c), (*c, layers), strict=True)) for c in found]


def every_plan(pipelines: PricedPipelines, batch: int) -> list[MixedPlan]:
    """Every plan of one or two lanes, in the order of their shapes."""
    table, shapes = pipelines.stage_costs.table, pipelines.shapes
    room = np.array([pool.devices for pool in table.pools])
    lanes: list[tuple[MixedLane, np.ndarray, int]] = []  # type: ignore[type-arg]
    for shape in range(len(shapes)):
        runs = 2 if shapes.stages[shape, 1] else 1
        rows, stages = (
            tuple(shapes.rows[shape, :runs].tolist()),
            tuple(shapes.stages[shape, :runs].tolist()),
        )
        least, most = int(shapes.least[shape]), int(replicas_that_fit(shapes, room)[shape])
        for replicas, sizes in product(range(least, most + 1), cuts(table.layers, sum(stages))):
            each = replicas * int(shapes.mbs[shape])
            for microbatches in range(1, batch // each + 1):
                lane = MixedLane(
                    rows=rows,
                    stages=stages,
                    sizes=sizes,
                    replicas=replicas,
                    microbatches=microbatches,
                )
                lanes.append((lane, replicas * shapes.use[shape], each * microbatches))
    alone = [MixedPlan(lanes=(lane,)) for lane, _, samples in lanes if samples == batch]
    two = [
        MixedPlan(lanes=(one, other))
        for (one, used, some), (other, more, rest) in combinations(lanes, 2)
        if some + rest == batch and (used + more <= room).all()
    ]
    return alone + two


@in_both
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.proof] if kind != "dense" else []) for kind in KINDS],
)
@pytest.mark.parametrize(
    "cluster",
    [
        "a100-sxm-40gb:1+v100-sxm-16gb:2",
        pytest.param("a100-sxm-40gb:2+v100-sxm-16gb:1", marks=pytest.mark.proof),
    ],
)
def test_no_plan_of_a_tiny_cluster_is_faster_than_the_bound_and_few_than_the_answer(
    cluster: str, kind: str
) -> None:
    problem = tiny(cluster, batch=2, kind=kind)
    answer = find_mixed(problem)
    c = answer.certificate
    steps = []
    for options in [closed.options for closed in part_of(c).closed]:
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, options)))
        for plan in every_plan(pipelines, 2):
            done = simulate_plan(
                problem, general_plan(pipelines.stage_costs, plan, options=options)
            )
            if done.fits:
                steps.append(done.step_time_s)
    assert len(steps) > 24
    assert min(steps) >= c.lower_bound_s
    assert answer.step_time_s <= min(steps) * 1.02
    assert c.best_s == simulate_plan(problem, answer.plan).step_time_s


@pytest.mark.parametrize("number", seeds(1, 40))
def test_answers_with_lanes_that_shard_are_as_fast_as_the_best_of_every_plan(number: int) -> None:
    generator = random_of(f"every lane {number}")
    cluster = generator.choice(
        (
            "a100-sxm-40gb:2+v100-sxm-16gb:2",
            "a100-sxm-40gb:3+v100-sxm-16gb:2",
            "h100-sxm:2+a100-sxm-80gb:2",
        )
    )
    problem = tiny(
        cluster,
        seed=number,
        batch=generator.choice((2, 4)),
        kind=generator.choice(KINDS),
        runtime=generator.choice(SHARDING),
    )
    try:
        found = find_mixed(problem)
    except InfeasibleError:
        pytest.skip("nothing fits")
    best, plans = inf, 0
    for options in [closed.options for closed in part_of(found.certificate).closed]:
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, options)))
        some = every_plan(pipelines, problem.job.global_batch)
        plans += sum(subspace_of(pipelines.stage_costs.table, plan).sharded for plan in some)
        for plan in generator.sample(some, min(len(some), 400)):
            done = simulate_plan(
                problem, general_plan(pipelines.stage_costs, plan, options=options)
            )
            best = min(best, done.step_time_s) if done.fits else best
    assert plans
    assert found.certificate.lower_bound_s <= best * (1 + 1e-9)
    assert found.step_time_s <= best * 1.02


def test_without_pipelines_and_zero1_lanes_of_both_kinds_shard_each_for_itself() -> None:
    request = Request(
        model="llama-2-7b",
        cluster="a100-sxm-40gb:8+v100-sxm-16gb:8",
        seq_len=2048,
        global_batch=128,
        runtime="fsdp1-llm-foundry",
    )
    problem = problem_of(with_defaults(request))
    found = find_mixed(problem)
    assert found.detail is not None
    alone = part_of(found.certificate).fastest_alone
    assert alone is not None
    # No device holds the model's states: 7 billion parameters of 16 bytes.
    assert found.step_time_s < 0.9 * (alone.step_time_s or 0.0)
    assert found.certificate.gap < 0.04
    named = {name for rule in found.plan.shards for name in rule.lanes}
    assert named == {lane.name for lane in found.plan.lanes}
    assert len(named) == 2
    assert "zero3" in part_of(found.certificate).pipelines
    pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
    assert covers_space(
        pipelines.stage_costs,
        [dual.frame for closed in part_of(found.certificate).closed for dual in closed.duals],
    )
    assert all(
        dual_holds(pipelines, dual)
        for closed in part_of(found.certificate).closed
        for dual in closed.duals
    )


@pytest.mark.parametrize("number", seeds(1, 40))
def test_with_a_node_more_lanes_that_shard_are_no_slower_and_no_bound_is_higher(
    number: int,
) -> None:
    generator = random_of(f"grown lanes {number}")
    problem = tiny(
        "a100-sxm-40gb:2+v100-sxm-16gb:2",
        seed=number,
        batch=8,
        kind=generator.choice(KINDS),
        runtime=generator.choice(SHARDING),
    )
    group = generator.randint(0, 1)
    groups = tuple(
        replace(one, count=one.count + (place == group))
        for place, one in enumerate(problem.cluster.groups)
    )
    try:
        before = find_mixed(problem)
    except InfeasibleError:
        pytest.skip("nothing fits")
    after = find_mixed(replace(problem, cluster=replace(problem.cluster, groups=groups)))
    assert after.step_time_s <= before.step_time_s * (1 + 1e-9)
    assert after.certificate.lower_bound_s <= before.certificate.lower_bound_s * (1 + 1e-9)


@pytest.mark.parametrize("number", seeds(1, 40, first=1))
def test_answers_to_models_with_experts_are_as_fast_as_the_best_of_every_plan(number: int) -> None:
    generator = random_of(f"every plan {number}")
    cluster = generator.choice(
        (
            "a100-sxm-40gb:2+v100-sxm-16gb:1",
            "a100-sxm-40gb:1+v100-sxm-16gb:2",
            "h100-sxm:2+a100-sxm-80gb:2",
        )
    )
    problem = tiny(
        cluster,
        seed=number,
        batch=2 if cluster.startswith("h100") else generator.choice((2, 3)),
        kind=generator.choice(KINDS[1:]),
    )
    try:
        found = find_mixed(problem)
    except InfeasibleError:
        pytest.skip("nothing fits")
    best = inf
    for options in [closed.options for closed in part_of(found.certificate).closed]:
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, options)))
        for plan in every_plan(pipelines, problem.job.global_batch):
            done = simulate_plan(
                problem, general_plan(pipelines.stage_costs, plan, options=options)
            )
            best = min(best, done.step_time_s) if done.fits else best
    assert found.certificate.lower_bound_s <= best * (1 + 1e-9)
    assert found.step_time_s <= best * 1.02


@pytest.fixture(scope="module")
def answer() -> tuple[Problem, GeneralAnswer[MixedPlan | None]]:
    problem = tiny("a100-sxm-40gb:1+v100-sxm-16gb:2", batch=8)
    return problem, find_mixed(problem)


def test_the_prices_of_every_frame_hold_and_cheaper_ones_do_not(
    answer: tuple[Problem, GeneralAnswer[MixedPlan | None]],
) -> None:
    problem, found = answer
    part = part_of(found.certificate)
    assert part.closed
    for closed in part.closed:
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, closed.options)))
        subspaces = [dual.frame for dual in closed.duals]
        assert covers_space(pipelines.stage_costs, subspaces)
        assert not covers_space(pipelines.stage_costs, subspaces[1:])
        for dual in closed.duals:
            assert dual.limit_s >= part.lower_bound_s * (1 - 1e-9)
            assert dual_holds(pipelines, dual)
        # Five times as late all of them together do the batch.
        late = replace(closed.duals[0], limit_s=5 * found.step_time_s)
        assert not dual_holds(pipelines, late)


def test_where_nothing_fits_no_frame_waits_for_ever_later_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory closes every subspace at the latest limit as at the first."""
    queries = []

    def counted(inputs: TaskInputs, query: SubspaceQuery) -> SubspaceAnswer:
        queries.append(query.subspace)
        return compose_subspace(inputs, query)

    monkeypatch.setattr(composition_search, "compose_subspace", counted)
    problem = tiny(
        "a100-sxm-40gb:2+v100-sxm-16gb:2",
        seed=616412,
        batch=8,
        kind="in turns",
        runtime="torchtitan-0.2",
    )
    with pytest.raises(InfeasibleError, match="no plan fits in memory"):
        find_mixed(problem, engine=Serial())
    times = Counter(queries)
    # Plans of the undivided subspace are composed once for each early limit, of every part once.
    whole = max(times, key=lambda subspace: subspace.replicas[1] - subspace.replicas[0])
    assert 1 <= times.pop(whole) <= len(USUAL.early_limit_rises)
    assert times
    assert set(times.values()) == {1}


def test_a_plan_near_the_best_is_found_before_frames_are_divided(
    answer: tuple[Problem, GeneralAnswer[MixedPlan | None]],
) -> None:
    """Plans composed of undivided subspaces alone are within 10 % of the answer, and lead to its
    bound."""
    problem, whole = answer
    early = find_mixed(problem, engine=Serial(), effort=replace(USUAL, rounds=()))
    assert early.detail is not None
    assert early.step_time_s <= 1.1 * whole.step_time_s
    assert early.certificate.lower_bound_s >= 0.95 * whole.certificate.lower_bound_s


def test_frames_that_stay_open_are_lowered_to_the_last_limit_that_closes_all() -> None:
    problem = tiny("a100-sxm-40gb:2+v100-sxm-16gb:4", batch=8)
    pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
    first, _ = first_limit(pipelines, full_subspace(pipelines.stage_costs), latest_limit_s=100.0)
    closing = BranchAndBound(
        pipelines=pipelines, tasks=SearchTasks.of(Serial(), problem, [pipelines])
    )
    assert not closing.close(2 * first, max_tests=6)
    lowered = closing.lower_limit(2 * first)
    assert first < lowered < 2 * first
    assert not closing.open
    assert covers_space(pipelines.stage_costs, list(closing.closed))
    assert all(
        dual.limit_s >= lowered and dual_holds(pipelines, dual) for dual in closing.closed.values()
    )
    later = seconds_of(step_of(lowered) + 1)
    assert any(
        pipelines.priced(subspace, later)[0].samples >= pipelines.batch
        for subspace in closing.closed
    )


def test_counts_add_up_and_the_best_part_alone_is_no_faster(
    answer: tuple[Problem, GeneralAnswer[MixedPlan | None]],
) -> None:
    _, found = answer
    c = found.certificate
    assert c.enumerated == c.infeasible + c.bounded_b1 + c.simulated
    alone = part_of(c).fastest_alone
    assert alone is not None
    assert alone.step_time_s is not None
    assert found.step_time_s <= alone.step_time_s
    assert c.lower_bound_s <= c.best_s


@pytest.mark.proof
def test_the_same_search_finds_the_same(
    answer: tuple[Problem, GeneralAnswer[MixedPlan | None]],
) -> None:
    problem, found = answer
    assert find_mixed(problem) == found


@in_both
@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (0, "dense"),
        pytest.param(1, "dense", marks=pytest.mark.proof),
        (2, "experts"),
        pytest.param(3, "first dense", marks=pytest.mark.proof),
        pytest.param(4, "in turns", marks=pytest.mark.proof),
    ],
)
def test_more_devices_do_no_less_by_a_limit(seed: int, kind: str) -> None:
    generator = random.Random(seed)
    problem = mixed_problem(generator, kind=kind)
    groups = problem.cluster.groups
    grown = replace(groups[1], count=groups[1].count + generator.randint(1, 3))
    larger = replace(
        problem, cluster=replace(problem.cluster, groups=(groups[0], grown, *groups[2:]))
    )
    one, other = (
        PricedPipelines.of(MixedStageCosts.of(problem)),
        PricedPipelines.of(MixedStageCosts.of(larger)),
    )
    subspaces = (
        Subspace(replicas=(1, 16), tp=1, nodes=(0.0, 1e9)),
        Subspace(replicas=(4, 8), tp=2, nodes=(0.0, 1e9)),
    )
    for subspace in (*subspaces, *(replace(subspace, sharded=True) for subspace in subspaces)):
        before, after = (
            pipelines.priced(subspace, 0.5, thorough=True)[0].samples for pipelines in (one, other)
        )
        assert after >= before * (1 - 1e-9)


@pytest.mark.parametrize(
    ("model", "because", "cluster"),
    [
        ("t5-11b", "has branches", "h100-sxm:8+a100-sxm-80gb:8"),
    ],
)
def test_models_without_pipelines_have_the_best_grid_of_any_pool_alone(
    model: str, because: str, cluster: str
) -> None:
    request = Request(
        model=model,
        cluster=cluster,
        seq_len=512,
        global_batch=32,
        encoder_len=512 * ("branches" in because),
    )
    problem = problem_of(request)
    answer = find_mixed(problem)
    c = answer.certificate
    assert because in part_of(c).why_alone
    assert f"no pipelines over several pools, as {part_of(c).why_alone}" in c.space
    assert "every grid" in c.space
    assert not part_of(c).closed
    steps = [find_mixed_alone(problem, pool) for pool in pools_of(problem.cluster)]
    assert c.best_s == pytest.approx(min(steps), rel=1e-9)
    assert c.lower_bound_s <= c.best_s
    # The proof is that of each pool's own grids, and no more.
    assert c.lower_bound_s == min(
        one.lower_bound_s for one in part_of(c).alone if one.lower_bound_s is not None
    )


def find_mixed_alone(problem: Problem, pool: DevicePool) -> float:
    """Seconds of the best grid of a pool's devices as a cluster of their own."""
    found = best_pool_grid(
        problem,
        PoolGridSearch(
            pool=pool, choices=PinnedValues(), seconds=inf, stop=None, memory=SEARCH_MEMORY
        ),
    )
    return found if isinstance(found, float) else found.certificate.best_s


def test_where_no_grid_fits_and_there_are_no_pipelines_it_says_so() -> None:
    request = Request(
        model="t5-11b",
        cluster="a100-sxm-40gb:1+v100-sxm-16gb:1",
        seq_len=512,
        encoder_len=512,
        global_batch=4,
    )
    with pytest.raises(InfeasibleError, match="no grid fits in memory on any pool alone"):
        find_mixed(problem_of(request))


def test_a_composed_plan_is_simulated_before_frames_with_sharding_lanes_are_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    priced, take = PricedPipelines.priced, SearchState.add_simulated

    def counted(pipelines: PricedPipelines, subspace: Subspace, *args: Any, **given: Any) -> Any:
        events.append("sharded" if subspace.sharded else "priced")
        return priced(pipelines, subspace, *args, **given)

    def taken(state: SearchState, mixed: MixedPlan | None, *args: Any) -> float:
        events.append("grid" if mixed is None else "composed")
        return take(state, mixed, *args)

    monkeypatch.setattr(PricedPipelines, "priced", counted)
    monkeypatch.setattr(SearchState, "add_simulated", taken)
    find_mixed(tiny("a100-sxm-40gb:2+v100-sxm-16gb:2"))
    before = Counter(events[: events.index("composed")])
    # Of all pools together: the first limit to a percent, and one search for compositions.
    assert before["sharded"] == 0 < events.count("sharded")
    assert before["priced"] <= 24
    assert before["grid"] == 2


def test_the_first_composed_plan_goes_by_the_limit_of_the_whole_search() -> None:
    """The limit of the search for plans has passed at its first look at the clock."""
    stops = Stops(grids=(0, 0), composed=1)
    answer = find_mixed(tiny("a100-sxm-40gb:2+v100-sxm-16gb:2"), stops=stops)
    grids = 2
    assert answer.certificate.simulated > grids
    assert part_of(answer.certificate).composed_stopped_at == 1
