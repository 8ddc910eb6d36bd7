"""The joint search on small problems: never worse than the best grid, its bound holds, every member
is accounted for."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import InfeasibleError, StrategyError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import (
    facts_of as kernel_facts,
)
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.joint.chunk_layer_counts_with_time_bounds import (
    layer_count_bounds,
    layer_counts,
    least_full_recompute,
)
from shardwright.search.joint.find_joint import find_joint
from shardwright.search.joint.joint_plan_and_step_costs import plan_of_cut, plan_of_sizes
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_space import joint_space, shaped_space
from shardwright.search.joint.label_dynamic_program_inputs import (
    has_equal_layers,
    label_pipeline_of,
    splits_of,
)
from shardwright.search.joint.model_as_chain_of_one_layer_positions import chain_of
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import (
    RankChoice,
    bound_pipeline,
)
from shardwright.search.joint.score_joint_plan import path_score, simulate_scored
from shardwright.search.joint.work_bounds import pipeline_work_bounds
from shardwright.simulator.simulate_plan import simulate_grid, simulate_plan
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.search.joint.answers import part_of
from tests.search.problems import Case, facts_of, real_problem, small_case
from tests.tiers import in_both, many, seeds

SMALL = many(2, 14)
"""Problems in a block."""
ROUNDING = 1 + 1e-9


def pipelined_case(seed: int) -> Case:
    """A small problem with the pipelines of its standard space."""
    case = small_case(seed)
    space = standard_space(case.problem, case.facts)
    runtime = case.problem.runtime
    pipelines = min(runtime.zero_stages) <= runtime.zero_with_pipeline
    deep = tuple(p for p in space.of("pp") if 1 < int(p) <= case.facts.layers) if pipelines else ()
    values = dict(space.values) | ({"pp": deep} if deep else {})
    return replace(
        case, space=replace(space, values=tuple((axis, values[axis]) for axis, _ in space.values))
    )


def tight_capacity(case: Case, seed: int) -> int:
    """Bytes near the need of the best grid, so that recompute matters in most cases."""
    whole = smallest_memory_bytes(case.problem.cluster)
    answer = find(case.problem, case.space, case.facts, capacity=whole, top=1)
    return int(answer.prediction.reserved_bytes * random.Random(seed).choice((0.8, 0.9, 1.0, 1.3)))


@pytest.mark.parametrize("block", seeds(1, 10))
def test_never_worse_than_a_grid_and_accounted_for(
    block: int, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * SMALL, (block + 1) * SMALL):
        case = pipelined_case(seed)
        capacity = tight_capacity(case, seed)
        try:
            answer = find_joint(case.problem, case.space, case.facts, capacity=capacity)
        except InfeasibleError:
            seen["refused"] += 1
            continue
        certificate = answer.certificate
        parts = (
            certificate.infeasible
            + certificate.bounded_b0
            + certificate.bounded_b1
            + certificate.simulated
        )
        assert certificate.enumerated == parts
        assert certificate.bounded_b0 >= 0
        assert certificate.lower_bound_s <= answer.step_time_s
        assert certificate.gap == pytest.approx(1 - certificate.lower_bound_s / answer.step_time_s)
        assert part_of(answer).complete
        if answer.detail.grid is not None:
            assert answer.step_time_s <= answer.detail.grid.certificate.best_s
        if answer.detail.best is not None:
            seen["joint is better"] += 1
            assert max(answer.detail.best.need) <= capacity
            broken = verify(
                general_plan(case.problem, answer.detail.best.plan),
                model=case.problem.model,
                global_batch=case.problem.job.global_batch,
            )
            assert not broken, broken
        seen["problems"] += 1
    for name, number in seen.items():
        record_property(name, number)
    assert seen["problems"] >= SMALL // 2
    assert seen["joint is better"]


@pytest.mark.parametrize("seed", seeds(3, 300, first=1000))
def test_joint_never_loses(seed: int) -> None:
    """Tied and untied: the joint answer takes at most what the best grid takes, the same where the
    plan is the same; its bound holds."""
    case = pipelined_case(seed)
    capacity = smallest_memory_bytes(case.problem.cluster)
    try:
        best = find(case.problem, case.space, case.facts, capacity=capacity, top=1, hints=False)
    except InfeasibleError:
        pytest.skip("nothing fits")
    answer = find_joint(case.problem, case.space, case.facts, capacity=capacity)
    assert answer.step_time_s <= best.prediction.step_time_s
    assert answer.certificate.lower_bound_s <= answer.step_time_s == answer.certificate.best_s
    if answer.detail.best is None:
        assert answer.step_time_s == best.prediction.step_time_s
    else:
        assert (
            simulate_plan(
                case.problem, general_plan(case.problem, answer.detail.best.plan)
            ).step_time_s
            == answer.step_time_s
        )


@in_both
def test_first_and_last_are_in_the_space(record_property: Callable[[str, object], None]) -> None:
    """No grid with Megatron's first and last stage is better than the joint plan."""
    compared, problems = 0, many(2, 14)
    for seed in range(problems):
        case = pipelined_case(seed)
        capacity = smallest_memory_bytes(case.problem.cluster)
        answer = find_joint(case.problem, case.space, case.facts, capacity=capacity)
        layers = case.facts.layers
        for pp in (int(p) for p in case.space.of("pp") if int(p) > 1):
            for first in range(1, layers):
                for last in range(layers - first + 1):
                    # What the pipelines share: one step's gradients, whole groups, 1F1B.
                    only = {
                        "pp": (pp,),
                        "zero": (0, 1),
                        "shard": (0,),
                        "offload": (0,),
                        "schedule": ("1f1b", "interleaved-1f1b"),
                    }
                    values = tuple(
                        (
                            axis,
                            tuple(v for v in value if v in only[axis]) if axis in only else value,
                        )
                        for axis, value in case.space.values
                    )
                    if not all(value for _, value in values):
                        continue
                    space = replace(case.space, values=values, first=first, last=last)
                    try:
                        grid = find(
                            case.problem,
                            space,
                            case.facts,
                            capacity=capacity,
                            top=1,
                            hints=False,
                        )
                    except (InfeasibleError, StrategyError):
                        continue
                    compared += 1
                    assert answer.certificate.lower_bound_s <= grid.certificate.best_s * ROUNDING, (
                        grid.grid
                    )
                    assert answer.step_time_s <= grid.certificate.best_s * ROUNDING, grid.grid
    record_property("grids with ends", compared)
    assert compared > 5 * problems


def test_a_grid_composed_is_the_grid() -> None:
    """Time and peak of a plan that is a grid are the grid's, with several chunks and with
    recompute."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:32", seq_len=4096, global_batch=64)
    facts = facts_of(problem)
    shaped = shaped_space(problem, joint_space(standard_space(problem, facts)), facts)
    assert shaped is not None
    compared = 0
    for pipeline in shaped.pipelines[::149]:
        try:
            sizes = chunk_layers(facts.layers, pp=pipeline.ranks, vpp=pipeline.chunks)
        except StrategyError:
            continue
        plan = plan_of_sizes(shaped, pipeline, np.array(sizes))
        grid: Grid = plan.grids[0]
        done = simulate_scored(problem, path_score(problem, shaped, plan))
        assert done.seconds == simulate_grid(problem, grid).step_time_s
        assert general_plan(problem, plan) == plan_of(grid, model=problem.model, global_batch=64)
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("seed", seeds(1, 50, first=2))
def test_bounds_hold_for_random_members(seed: int) -> None:
    """Work alone, labels and shapes never exceed the path of a member, and the path never the
    simulation."""
    generator = random.Random(seed)
    case = pipelined_case(seed)
    problem, capacity = case.problem, smallest_memory_bytes(case.problem.cluster)
    shaped = shaped_space(problem, joint_space(case.space), case.facts)
    if shaped is None:
        pytest.skip("the runtime has no 1F1B")
    chain, facts = (
        chain_of(problem.model),
        kernel_facts(problem, devices=case.space.devices, capacity=capacity),
    )
    quick = pipeline_work_bounds(problem, shaped, chain, facts) * facts.jitter
    seen = 0
    for place in generator.sample(
        range(len(shaped.pipelines)), min(many(12, 40), len(shaped.pipelines))
    ):
        pipeline = shaped.pipelines[place]
        splits, pipe = (
            splits_of(problem, shaped, chain, pipeline, facts),
            label_pipeline_of(problem, shaped, pipeline, facts),
        )
        solved = bound_pipeline(
            splits, pipe, limit=1e6, alike=has_equal_layers(chain) or pipeline.chunks > 1
        )
        norm = float(min(shaped.costs.norm[shaped.prepared.mesh_row[list(pipeline.outers)]]))
        lower = (solved.lower_s + norm) * facts.jitter * (1 - 1e-9) if solved.cuts else float("inf")
        for _ in range(3):
            if pipeline.chunks == 1:
                inner = sorted(generator.sample(range(1, len(chain)), pipeline.ranks - 1))
                sizes = np.diff([0, *inner, len(chain)])
                cut = tuple(
                    RankChoice(
                        layers=int(n),
                        split=generator.randrange(len(pipeline.outers)),
                        redone=generator.choice((0, 0, int(n))),
                    )
                    for n in sizes
                )
                plan = plan_of_cut(shaped, pipeline, cut)
            else:
                shapes = layer_counts(len(chain), pipeline.ranks, pipeline.chunks)
                if not len(shapes):
                    break
                shape = shapes[generator.randrange(len(shapes))]
                exact = splits_of(problem, shaped, chain, replace(pipeline, chunks=1), facts)
                redone = least_full_recompute(exact, pipe, shape)
                plan = plan_of_sizes(shaped, pipeline, shape, redone)
            scored = path_score(problem, shaped, plan)
            if max(scored.need) > capacity:
                continue
            done = simulate_scored(problem, scored)
            assert scored.seconds <= done.seconds * ROUNDING
            assert quick[place] <= scored.seconds * ROUNDING
            assert lower <= scored.seconds * ROUNDING, (pipeline, plan)
            if pipeline.chunks > 1:
                assert (layer_count_bounds(exact, pipe, shape[None])[0] + norm) * facts.jitter * (
                    1 - 1e-9
                ) <= scored.seconds * ROUNDING
            seen += 1
    assert seen or quick.min() == float("inf")


def test_time_limit_gives_a_valid_gap() -> None:
    """A search cut off at once proves less, and nothing false."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:8", seq_len=8192, global_batch=32)
    facts = facts_of(problem)
    space, capacity = standard_space(problem, facts), smallest_memory_bytes(problem.cluster)
    whole = find_joint(problem, space, facts, capacity=capacity)
    short = find_joint(problem, space, facts, capacity=capacity, time_limit_s=0.0)
    assert part_of(whole).complete
    assert not part_of(short).complete
    assert short.certificate.lower_bound_s <= whole.step_time_s <= short.step_time_s
    assert whole.certificate.gap <= short.certificate.gap


@in_both
def test_no_member_beats_the_certificate(record_property: Callable[[str, object], None]) -> None:
    """Every shape and every cut without recompute of small pipelines: none that fits ends before
    the certified lower bound."""
    compared, problems = 0, many(2, 12)
    for seed in range(problems):
        case = pipelined_case(seed)
        problem, capacity = case.problem, smallest_memory_bytes(case.problem.cluster)
        answer = find_joint(problem, case.space, case.facts, capacity=capacity)
        shaped = shaped_space(problem, joint_space(case.space), case.facts)
        if shaped is None:
            continue
        layers = len(chain_of(problem.model))
        for pipeline in random.Random(seed).sample(
            shaped.pipelines, min(12, len(shaped.pipelines))
        ):
            if pipeline.chunks > 1:
                plans = [
                    plan_of_sizes(shaped, pipeline, shape)
                    for shape in layer_counts(layers, pipeline.ranks, pipeline.chunks)[:40]
                ]
            else:
                inners = itertools.islice(
                    itertools.combinations(range(1, layers), pipeline.ranks - 1), 20
                )
                cuts = [
                    [
                        RankChoice(layers=b - a, split=0)
                        for a, b in itertools.pairwise((0, *inner, layers))
                    ]
                    for inner in inners
                ]
                plans = [plan_of_cut(shaped, pipeline, tuple(cut)) for cut in cuts]
            for plan in plans:
                scored = path_score(problem, shaped, plan)
                if max(scored.need) <= capacity:
                    compared += 1
                    assert (
                        simulate_scored(problem, scored).seconds
                        >= answer.certificate.lower_bound_s / ROUNDING
                    ), plan
    record_property("members", compared)
    assert compared > 19 * problems
