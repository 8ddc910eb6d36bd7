"""Found orders in the joint search: bounds hold for every order that is found, plans fit, and
nothing gets worse than with named orders."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.step.strategy_rank_bytes import held_bytes
from shardwright.errors import InfeasibleError, StrategyError
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.schedules.action_order_arrays import I, W
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import (
    facts_of as kernel_facts,
)
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.joint.chunk_layer_counts_with_time_bounds import (
    any_order_bounds,
    layer_counts,
)
from shardwright.search.joint.find_joint import FOUND_ORDERS, find_joint
from shardwright.search.joint.joint_plan_and_step_costs import (
    ChunkChoice,
    JointPlan,
    joint_step_costs,
    plan_of_cut,
    plan_of_sizes,
)
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_space import PipelineShape, joint_space, shaped_space
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
from shardwright.search.joint.recompute_with_order import (
    memory_options_of_rank,
    search_recompute_and_order,
)
from shardwright.search.joint.score_joint_plan import ScoredPlan, path_score, simulate_scored
from shardwright.search.joint.search_any_order import any_order_pipelines
from shardwright.search.joint.search_order_of_joint_plan_within_memory import (
    UNITS_PER_SECOND,
    activation_room_of_ranks,
    weight_gradients_by_chunk,
    with_found_order,
)
from shardwright.search.joint.work_bounds import pipeline_work_bounds
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.search.joint.test_joint import ROUNDING, pipelined_case, tight_capacity
from tests.search.problems import facts_of, real_problem
from tests.tiers import chosen, many, seeds

EFFORT = 0.1
RECOMPUTING = 0.4
"""Share of ranks that recompute some layers in full, and share of ranks that recompute some
selectively."""


def random_plan(
    generator: random.Random, shaped: object, pipeline: PipelineShape, layers: int
) -> JointPlan | None:
    """A member of a pipeline with any order, its order still open."""
    if pipeline.chunks > 1:
        shapes = layer_counts(layers, pipeline.ranks, pipeline.chunks)
        if not len(shapes):
            return None
        shape = shapes[generator.randrange(len(shapes))]
        return plan_of_sizes(shaped, pipeline, shape)  # type: ignore[arg-type]
    sizes = np.diff(
        [0, *sorted(generator.sample(range(1, layers), pipeline.ranks - 1)), layers]
    ).tolist()
    cut = []
    for n in sizes:
        redone = (
            generator.choice((n, generator.randint(0, n)))
            if generator.random() < RECOMPUTING
            else 0
        )
        selective = (
            generator.choice((n - redone, generator.randint(0, n - redone)))
            if generator.random() < RECOMPUTING
            else 0
        )
        cut.append(
            RankChoice(
                layers=n,
                split=generator.randrange(len(pipeline.outers)),
                redone=redone,
                selective=selective,
            )
        )
    return plan_of_cut(shaped, pipeline, tuple(cut))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", seeds(1, 40, first=5))
def test_bounds_hold_for_found_orders(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Work alone, labels and shapes never exceed the simulation of a member with an order found for
    it, and none needs more than fits."""
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
    pipelines = any_order_pipelines(shaped, len(chain))
    quick = (
        pipeline_work_bounds(problem, replace(shaped, pipelines=pipelines), chain, facts)
        * facts.jitter
    )
    seen: Counter[str] = Counter()
    for place in generator.sample(range(len(pipelines)), min(many(8, 12), len(pipelines))):
        pipeline = pipelines[place]
        plan = random_plan(generator, shaped, pipeline, len(chain))
        if plan is None:
            continue
        found = with_found_order(problem, shaped, plan, capacity=capacity, effort=0.0)
        if found is None:
            continue
        jitter = facts.jitter * (1 - 1e-9)
        norm = float(min(shaped.costs.norm[shaped.prepared.mesh_row[list(pipeline.outers)]]))
        pipe = label_pipeline_of(problem, shaped, pipeline, facts)
        if pipeline.chunks == 1:
            scored = path_score(problem, shaped, found.plan)
            solved = bound_pipeline(
                splits_of(problem, shaped, chain, pipeline, facts),
                pipe,
                limit=1e6,
                alike=has_equal_layers(chain),
            )
            lower = (solved.lower_s + norm) * jitter
        else:
            scored = ScoredPlan(
                plan=found.plan,
                costs=joint_step_costs(problem, shaped, found.plan),
                seconds=0.0,
                need=(),
            )
            exact = splits_of(problem, shaped, chain, replace(pipeline, chunks=1), facts)
            shape = np.array([[chunk.layers for chunk in plan.chunks]])
            lower = (
                float(any_order_bounds(exact, pipe, shape, np.array(plan.owners))[0]) + norm
            ) * jitter
        done = simulate_scored(problem, scored)
        assert done.result is not None
        assert max(done.need) <= capacity
        assert quick[place] <= done.seconds * ROUNDING, pipeline
        assert lower <= done.seconds * ROUNDING, pipeline
        # The plan fits into what it needs, so the bound under that capacity holds for it too.
        needed = pipe._replace(capacity=float(max(done.need)) + 1.0)
        if pipeline.chunks == 1:
            solved = bound_pipeline(
                splits_of(problem, shaped, chain, pipeline, facts),
                needed,
                limit=1e6,
                alike=has_equal_layers(chain),
            )
            lower = (solved.lower_s + norm) * jitter if solved.cuts else float("inf")
        else:
            lower = (
                float(any_order_bounds(exact, needed, shape, np.array(plan.owners))[0]) + norm
            ) * jitter
        assert lower <= done.seconds * ROUNDING, pipeline
        seen[
            f"{pipeline.chunks} chunks a rank{', V' if pipeline.folded else ''}"
            f"{', unlike splits' if not plan.is_uniform else ''}"
        ] += 1
    for name, count in seen.items():
        record_property(name, count)
    assert seen.total() or not pipelines


@pytest.mark.parametrize("seed", chosen([3, 12, 15], [3, 12]))
def test_never_worse_than_named_orders(seed: int) -> None:
    """The found-order search includes the named one; its plan is legal, fits, and takes what its
    simulation says."""
    case = pipelined_case(seed)
    capacity = tight_capacity(case, seed)
    try:
        named = find_joint(case.problem, case.space, case.facts, capacity=capacity)
    except InfeasibleError:
        pytest.skip("nothing fits")
    found = find_joint(
        case.problem, case.space, case.facts, capacity=capacity, orders=FOUND_ORDERS, effort=EFFORT
    )
    certificate = found.certificate
    assert found.step_time_s <= named.step_time_s
    assert certificate.lower_bound_s <= named.certificate.lower_bound_s * ROUNDING
    assert certificate.lower_bound_s <= found.step_time_s
    assert (
        certificate.enumerated
        == certificate.infeasible
        + certificate.bounded_b0
        + certificate.bounded_b1
        + certificate.simulated
    )
    assert certificate.enumerated >= named.certificate.enumerated
    if found.detail.best is not None:
        plan = general_plan(case.problem, found.detail.best.plan)
        assert not verify(
            plan, model=case.problem.model, global_batch=case.problem.job.global_batch
        )
        again = simulate_plan(case.problem, plan)
        assert again.step_time_s == found.step_time_s
        assert max(m.reserved for m in again.memory) <= capacity


@pytest.mark.parametrize("seed", seeds(1, 60, first=1))
def test_no_named_order_of_the_cut_is_faster(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    """The answer's cut under any named order that fits takes no less than the answer."""
    case = pipelined_case(seed)
    capacity = tight_capacity(case, seed)
    try:
        found = find_joint(
            case.problem,
            case.space,
            case.facts,
            capacity=capacity,
            orders=FOUND_ORDERS,
            effort=EFFORT,
        )
    except InfeasibleError:
        pytest.skip("nothing fits")
    if found.detail.best is None or found.detail.best.plan.table is None:
        pytest.skip("a grid or a named order is best")
    plan = general_plan(case.problem, found.detail.best.plan)
    compared = 0
    for name in SCHEDULES:
        try:
            result = simulate_plan(
                case.problem,
                replace(plan, orders=(NamedOrder(schedule=name, lanes=plan.orders[0].lanes),)),
            )
        except StrategyError:
            continue
        if not name.startswith("dualpipe") and max(m.reserved for m in result.memory) <= capacity:
            assert found.step_time_s <= result.step_time_s * ROUNDING, name
            compared += 1
    record_property("named orders", compared)
    assert compared


def test_a_found_order_is_better_where_the_bubble_is_large() -> None:
    """Eight layers over four ranks and few microbatches: weight gradients fill the bubble."""
    problem = real_problem("llama-3.2-1b", "h100-sxm:8", seq_len=4096, global_batch=16)
    facts = facts_of(problem)
    space = standard_space(problem, facts)
    chosen = {"pp": (4,), "vpp": (1,), "tp": (2,), "cp": (1,), "mbs": (1,)}
    space = replace(
        space, values=tuple((axis, chosen.get(axis, value)) for axis, value in space.values)
    )
    capacity = smallest_memory_bytes(problem.cluster)
    named = find_joint(problem, space, facts, capacity=capacity)
    found = find_joint(problem, space, facts, capacity=capacity, orders=FOUND_ORDERS, effort=EFFORT)
    assert found.detail.best is not None
    assert found.detail.best.plan.table is not None
    assert found.step_time_s < named.step_time_s * 0.97
    assert found.certificate.lower_bound_s < found.step_time_s


def test_recompute_and_order_together_beat_every_uniform_recompute() -> None:
    """In little memory the first ranks recompute some layers in full and some selectively, the last
    ones none; its simulation fits."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:8", seq_len=8192, global_batch=16)
    facts = facts_of(problem)
    space = standard_space(problem, facts)
    chosen = {"pp": (4,), "vpp": (1,), "tp": (2,), "cp": (1,), "mbs": (1,)}
    shaped = shaped_space(
        problem,
        joint_space(replace(space, values=tuple((a, chosen.get(a, v)) for a, v in space.values))),
        facts,
    )
    assert shaped is not None
    pipeline = any_order_pipelines(shaped, facts.layers)[0]

    def uniform(redone: int, selective: int) -> JointPlan:
        return plan_of_cut(
            shaped,
            pipeline,
            (RankChoice(layers=8, split=0, redone=redone, selective=selective),) * 4,
        )

    capacity = 34 * 2**30
    found = search_recompute_and_order(
        problem, shaped, uniform(8, 0), capacity=capacity, effort=EFFORT
    )
    assert found is not None
    choices = [(chunk.redone, chunk.selective) for chunk in found.plan.chunks]
    assert any(redone and selective for redone, selective in choices)
    assert (0, 0) in choices
    done = simulate_scored(problem, path_score(problem, shaped, found.plan))
    assert max(done.need) <= capacity
    others = [
        with_found_order(problem, shaped, uniform(x, y), capacity=capacity, effort=EFFORT)
        for x in (0, 4, 8)
        for y in {0, (8 - x) // 2, 8 - x}
    ]
    assert done.seconds < 0.9 * min(other.estimate_s for other in others if other is not None)
    # Where everything fits there is nothing to choose.
    assert (
        search_recompute_and_order(problem, shaped, uniform(0, 0), capacity=2**40, effort=EFFORT)
        is None
    )


@pytest.mark.parametrize("seed", seeds(2, 60, first=1))
def test_what_an_option_says_is_what_the_plan_takes(seed: int) -> None:
    """The seconds and bytes that the search of orders weighs for a recompute are those of the plan
    that has it."""
    generator = random.Random(seed)
    case = pipelined_case(seed)
    problem, capacity = case.problem, smallest_memory_bytes(case.problem.cluster)
    shaped = shaped_space(problem, joint_space(case.space), case.facts)
    if shaped is None:
        pytest.skip("the runtime has no 1F1B")
    pipelines = [
        pipeline
        for pipeline in any_order_pipelines(shaped, case.facts.layers)
        if pipeline.chunks == 1
    ]
    compared = 0
    for pipeline in generator.sample(pipelines, min(6, len(pipelines))):
        plan = random_plan(generator, shaped, pipeline, case.facts.layers)
        assert plan is not None
        bare = replace(
            plan, chunks=tuple(ChunkChoice(layers=chunk.layers) for chunk in plan.chunks)
        )
        costs, made = (
            joint_step_costs(problem, shaped, bare),
            joint_step_costs(problem, shaped, plan),
        )
        room = activation_room_of_ranks(problem, made, capacity=capacity)
        for rank, chunk in enumerate(plan.chunks):
            option = memory_options_of_rank(
                problem, shaped, bare, costs, rank, [chunk], capacity=capacity
            )[chunk]
            assert option.extra == pytest.approx(
                (made.backward_s[rank] - costs.backward_s[rank]) * UNITS_PER_SECOND, abs=1
            )
            assert option.held == made.saved_bytes[rank]
            assert option.working == max(
                int(activation_room_of_ranks(problem, costs, capacity=capacity)[rank] - room[rank]),
                0,
            )
            compared += 1
    assert compared or not pipelines


@pytest.mark.parametrize("seed", seeds(1, 40, first=1))
def test_room_is_the_inverse_of_what_is_reserved(seed: int) -> None:
    """Activations of exactly the room fit, and a little more does not."""
    generator = random.Random(seed)
    case = pipelined_case(seed)
    problem, capacity = case.problem, smallest_memory_bytes(case.problem.cluster)
    shaped = shaped_space(problem, joint_space(case.space), case.facts)
    if shaped is None:
        pytest.skip("the runtime has no 1F1B")
    plan = random_plan(
        generator, shaped, any_order_pipelines(shaped, case.facts.layers)[0], case.facts.layers
    )
    assert plan is not None
    costs = joint_step_costs(problem, shaped, plan)
    room = activation_room_of_ranks(problem, costs, capacity=capacity)
    rest = (
        costs.logits_bytes + costs.transient_bytes + sum(values for _, values in costs.static_bytes)
    )
    fits = held_bytes(problem, costs, rest + room)[1] <= capacity
    assert (fits | (room == 0)).all()
    assert (held_bytes(problem, costs, rest + room + 4096)[1] > capacity).all()


def test_closed_in_turn_keeps_every_action() -> None:
    """The same actions, weight gradients behind their input gradients, and chunks closed from the
    deepest on."""
    problem = real_problem("llama-3.1-8b", "h100-sxm:16", seq_len=4096, global_batch=64)
    facts = facts_of(problem)
    shaped = shaped_space(problem, joint_space(standard_space(problem, facts)), facts)
    assert shaped is not None
    pipelines = [
        f for f in any_order_pipelines(shaped, facts.layers) if f.chunks == 2 and f.ranks == 4
    ]
    checked = 0
    for pipeline in pipelines[:6]:
        plan = random_plan(random.Random(1), shaped, pipeline, facts.layers)
        assert plan is not None
        found = with_found_order(
            problem, shaped, plan, capacity=smallest_memory_bytes(problem.cluster), effort=0.0
        )
        if found is None or found.plan.table is None:
            continue
        table = found.plan.table
        turned = weight_gradients_by_chunk(table)

        def actions(one: object) -> list[tuple[int, int, int]]:
            return sorted(
                zip(one.kind.tolist(), one.chunk.tolist(), one.microbatch.tolist(), strict=True)
            )  # type: ignore[attr-defined]

        assert actions(table) == actions(turned)
        for rank in range(table.num_ranks):
            span = slice(int(table.row_start[rank]), int(table.row_start[rank + 1]))
            rows = list(
                zip(
                    turned.kind[span].tolist(),
                    turned.chunk[span].tolist(),
                    turned.microbatch[span].tolist(),
                    strict=True,
                )
            )
            place = {row: index for index, row in enumerate(rows)}
            assert all(place[I, c, m] < index for index, (k, c, m) in enumerate(rows) if k == W)
            checked += 1
    assert checked >= 4
