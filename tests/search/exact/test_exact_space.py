"""The small joint search against brute force, and what it promises beside the best plan.

200 instances are a proof (about a quarter of an hour on one core).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from shardwright.errors import InfeasibleError, StrategyError
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.exact.enumerate_forward_backward_orders import (
    num_orders,
    pipeline_orders,
    stage_orders,
)
from shardwright.search.exact.enumerate_tensor_split_trees import (
    CutNode,
    TreeSpace,
    labelled_trees,
    split_on,
    tree_placements,
)
from shardwright.search.exact.exact_space import ExactSpace, device_labels, partitions
from shardwright.search.exact.find_exact import find_exact
from shardwright.search.exact.lower_candidate_stages_to_tasks_without_order import (
    plan_of_stages,
    shape_tasks,
)
from shardwright.search.exact.price_one_stage_under_split_tree import options_in_one_plan
from shardwright.search.exact.stage_choices_and_bounds import StagePrices, shape_bounds
from shardwright.search.exact.stage_of_block_range import chain_blocks
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import GeneralAnswer
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.plan.pipeline_order import Action, Kind, Table
from shardwright.strategy.plan.plan import ALL, Plan, Shards, State
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.search.exact.brute_exact import (
    SERIAL,
    Found,
    Instance,
    brute_force,
    cluster_of,
    draw_instance,
    model_of,
)
from tests.tiers import chosen, in_both, many, numbers, seeds


def small_problem(
    cluster: str = "a100-sxm-80gb:2+v100-sxm-32gb:1", *, memory: float = 1.0, batch: int = 6
) -> Problem:
    """A Llama of one layer."""
    return Problem(
        model=model_of("llama-3-8b", 1),
        cluster=cluster_of(cluster, memory=memory),
        job=TrainingJob(sequences=(SequenceLength(name="text", tokens=2048),), global_batch=batch),
        runtime=load_runtime("megatron-core"),
    )


def accounted(certificate: Certificate) -> int:
    """Members that the certificate says something about."""
    c = certificate
    return c.illegal + c.duplicates + c.infeasible + c.bounded_b0 + c.bounded_b1 + c.simulated


def compare(instance: Instance, number: int) -> tuple[GeneralAnswer[None] | None, Found]:
    """Search and brute force say the same; else an AssertionError."""
    found = brute_force(instance, generator=Random(number), samples=4)
    assert found.paths_above == 0
    assert found.members == found.illegal + found.too_large + found.simulated
    try:
        answer = find_exact(instance.problem, instance.space)
    except InfeasibleError:
        assert found.best is None
        return None, found
    certificate = answer.certificate
    assert found.best is not None
    assert answer.step_time_s == found.best
    assert simulate_plan(instance.problem, answer.plan).step_time_s == answer.step_time_s
    assert accounted(certificate) == certificate.enumerated == found.members
    assert certificate.illegal <= found.illegal <= certificate.illegal + certificate.duplicates
    assert (
        certificate.infeasible <= found.too_large <= certificate.infeasible + certificate.duplicates
    )
    assert certificate.optimal
    assert certificate.gap == 0.0
    assert certificate.lower_bound_s == certificate.best_s == answer.step_time_s
    return answer, found


@pytest.mark.parametrize("number", seeds(1, 200, first=2))
def test_equals_brute_force(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    instance = draw_instance(number)
    answer, found = compare(instance, number)
    assert 1000 <= found.members <= 100_000
    share = answer.certificate.simulated / max(found.simulated, 1) if answer else 0.0
    line = (
        f"{number}: {instance.problem.cluster.expression}, {found.members} members, {found.illegal}"
        f" illegal, {found.too_large} too large"
    )
    with capsys.disabled():
        sys.stdout.write(
            f"\n{line}; brute force simulates {found.simulated}, the search {share:.2%} of them"
        )


def every_order(microbatches: int, stages: int) -> list[tuple[tuple[int, ...], ...]]:
    """All orders of all stages in which a microbatch's backward follows its forward; the first
    stage's forwards come by number."""
    actions = range(2 * microbatches)
    legal = [
        o
        for o in permutations(actions)
        if all(o.index(k) < o.index(k + microbatches) for k in range(microbatches))
    ]
    first = [o for o in legal if [a for a in o if a < microbatches] == list(range(microbatches))]
    return list(product(first, *[legal] * (stages - 1)))


def with_order(plan: Plan, rows: tuple[tuple[int, ...], ...], microbatches: int) -> Plan:
    """`plan` under these orders of its stages."""
    table = plan.orders[0]
    assert isinstance(table, Table)
    chunk_of = {row[0].chunk: key for key, row in table.rows if isinstance(row[0], Action)}
    entries = []
    for chunk, row in enumerate(rows):
        kinds = [Kind.F if a < microbatches else Kind.B for a in row]
        actions = tuple(
            Action(chunk=chunk, kind=k, microbatch=a % microbatches)
            for k, a in zip(kinds, row, strict=True)
        )
        entries.append((chunk_of[chunk], actions))
    return replace(plan, orders=(Table(lanes=table.lanes, rows=tuple(sorted(entries))),))


def some_plans(
    problem: Problem,
    space: ExactSpace,
    *,
    stages: int,
    microbatches: int,
    generator: Random,
    count: int,
) -> list[Plan]:
    """Plans of so many stages, drawn at random, under some order."""
    prices = StagePrices(problem=problem, space=space)
    found = [
        f
        for f in partitions(problem, space, blocks=chain_blocks(problem))
        if len(f.ends) == stages and f.microbatches == microbatches
    ]
    plans = []
    for partition in generator.sample(found, min(count, len(found))):
        chosen = tuple(generator.choice(c.options) for c in prices.choices(partition))
        plans.append(
            plan_of_stages(
                problem,
                options_in_one_plan(chosen),
                microbatches=microbatches,
                order=pipeline_orders(stages, microbatches)[0][0],
            )
        )
    return plans


SIZES = ((2, 2, many(1, 8)), (2, 3, many(1, 3)), (3, 2, 1))
"""Microbatches, stages, plans."""


@pytest.mark.parametrize(
    ("microbatches", "stages", "count", "runtime"),
    chosen(
        [(*size, runtime) for size in SIZES for runtime in ("megatron-core", SERIAL)],
        [(*SIZES[0], "megatron-core"), (*SIZES[1], SERIAL), (*SIZES[2], "megatron-core")],
    ),
)
def test_other_orders_of_microbatches_are_no_better(
    microbatches: int, stages: int, count: int, runtime: str
) -> None:
    """Orders in which microbatches overtake each other, simulated with contention: none beats the
    best of those by number."""
    problem = replace(
        small_problem("a100-sxm-80gb:2+v100-sxm-32gb:2", batch=4 * microbatches),
        runtime=load_runtime(runtime),
    )
    space = ExactSpace(trees=TreeSpace(weights=(1, 3), depth=1), microbatches=(microbatches,))
    by_number = set(product(stage_orders(microbatches), repeat=stages))
    for plan in some_plans(
        problem,
        space,
        stages=stages,
        microbatches=microbatches,
        generator=Random(stages),
        count=count,
    ):
        best: dict[bool, float] = {True: float("inf"), False: float("inf")}
        orders = every_order(microbatches, stages)
        for rows in (
            orders
            if len(orders) <= 500
            else [*Random(7).sample(orders, many(12, 300)), *(r for r in orders if r in by_number)]
        ):
            try:
                step = simulate_plan(problem, with_order(plan, rows, microbatches)).step_time_s
            except StrategyError:
                continue
            best[rows in by_number] = min(best[rows in by_number], step)
        assert best[True] <= best[False] < float("inf")


def test_the_plan_is_legal_and_prints() -> None:
    problem = small_problem("h100-sxm:1+a100-sxm-80gb:1")
    space = ExactSpace(
        trees=TreeSpace(weights=(1, 2), dims=(Dim.BATCH, Dim.HIDDEN)), microbatches=(2, 3)
    )
    plan = find_exact(problem, space).strategy
    assert not verify(plan, model=problem.model, global_batch=6, seq_len=2048)
    assert parse_plan(print_plan(plan)) == plan


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_time_limit_gives_a_plan_and_a_bound(limit: float) -> None:
    problem = small_problem("h100-sxm:1+a100-sxm-80gb:1")
    space = ExactSpace(trees=TreeSpace(weights=(1, 2)), microbatches=(3,))
    whole = find_exact(problem, space)
    cut = find_exact(problem, space, time_limit_s=limit)
    assert accounted(cut.certificate) == cut.certificate.enumerated == whole.certificate.enumerated
    assert cut.certificate.lower_bound_s <= whole.step_time_s <= cut.step_time_s
    assert cut.certificate.gap >= 0.0
    assert cut.certificate.optimal == (cut.certificate.gap == 0.0)
    assert simulate_plan(problem, cut.plan).step_time_s == cut.step_time_s


def test_memory_limits_change_the_plan() -> None:
    space = ExactSpace(trees=TreeSpace(weights=(1,)), microbatches=(2, 3))
    roomy, tight = (
        find_exact(small_problem("h100-sxm:2", memory=m, batch=18), space) for m in (1.0, 0.3)
    )
    assert tight.certificate.infeasible > roomy.certificate.infeasible
    assert tight.step_time_s >= roomy.step_time_s
    with pytest.raises(InfeasibleError, match="fits in memory"):
        find_exact(small_problem("h100-sxm:2", memory=0.01), space)


@pytest.mark.parametrize(("name", "rule"), [("gpt2", "search.tied"), ("t5-11b", "search.chain")])
def test_models_that_are_left_out_are_named(name: str, rule: str) -> None:
    problem = replace(small_problem(), model=load_model(name))
    with pytest.raises(StrategyError) as error:
        find_exact(problem, ExactSpace())
    assert error.value.rule == rule


def test_a_plan_whose_offloaded_states_exceed_the_host_is_not_found() -> None:
    """Two replicas keep their states on the host of one node, each all of them; stages keep them
    once."""
    space = ExactSpace(
        trees=TreeSpace(dims=(Dim.BATCH,)),
        microbatches=(1,),
        max_stages=2,
        shards=(Shards(host=((State.OPTIMIZER, 100),)),),
    )
    drawn = small_problem("a100-sxm-80gb:2", batch=2)
    (group,) = drawn.cluster.groups
    # Over a fast link, so that two replicas are faster.
    fast = replace(
        group.kind.host, pcie=replace(group.kind.host.pcie, bandwidth=1e15), memory_bandwidth=1e15
    )

    def with_host(**changed: int) -> Problem:
        own = replace(group, kind=replace(group.kind, host=replace(fast, **changed)))  # type: ignore[arg-type]
        return replace(drawn, cluster=replace(drawn.cluster, groups=(own,)))

    problem = with_host()
    found = find_exact(problem, space)
    (host,) = simulate_plan(problem, found.plan).host_memory
    tight = with_host(memory_bytes=host.need - 1)
    answer = find_exact(tight, space)
    done = simulate_plan(tight, answer.plan)
    assert done.fits
    assert done.step_time_s == answer.step_time_s > found.step_time_s
    assert accounted(answer.certificate) == answer.certificate.enumerated
    assert answer.certificate.infeasible > found.certificate.infeasible


def test_trees_by_hand() -> None:
    one = TreeSpace(dims=(Dim.BATCH,), weights=(1,), depth=2)
    assert list(labelled_trees((1,), one)) == [0]
    assert list(labelled_trees((2,), one)) == [
        CutNode(dim=Dim.BATCH, weights=(1, 1), children=(0, 0))
    ]
    # b{b, .}, b{., b} and b3
    assert len(list(labelled_trees((3,), one))) == 3
    # 2:1 over two unlike devices: either takes the larger share
    assert len(list(labelled_trees((1, 1), replace(one, weights=(2,))))) == 2
    everything = list(labelled_trees((2, 1), TreeSpace()))
    assert len(set(everything)) == len(everything)
    nested = CutNode(
        dim=Dim.BATCH,
        weights=(2, 1),
        children=(CutNode(dim=Dim.HEADS, weights=(1, 1), children=(0, 0)), 1),
    )
    split = split_on(nested, ((3, 4), (1,)))
    assert split is not None
    assert (split.parts, split.step) == ((2, 1), (2, 0))


def test_cuts_that_a_class_lacks_are_copies() -> None:
    operators = tuple(o for block in model_of("llama-3-8b", 1).blocks for o in block.operators)
    heads = split_on(CutNode(dim=Dim.HEADS, weights=(1, 1), children=(0, 0)), ((0, 1),))
    dims = {
        p.select.classes: p.split.dim
        for p in tree_placements(heads, operators)
        if p.split is not None
    }
    assert {klass: dim for classes, dim in dims.items() for klass in classes or ("all",)} == {
        "all": Dim.REPLICATE,
        "attn": Dim.HEADS,
        "core": Dim.HEADS,
    }


def test_orders_by_hand() -> None:
    assert [len(stage_orders(m)) for m in (1, 2, 3, 4)] == [1, 2, 5, 14]
    orders, peaks = pipeline_orders(2, 2)
    # 0F 0B 1F 1B on the first stage waits for its backward, which the second one gives before its
    # second forward only in the same order
    assert num_orders(2, 2) == 4
    assert len(orders) == 3
    assert sorted(map(tuple, peaks.tolist())) == [(1, 1), (2, 1), (2, 2)]
    with pytest.raises(StrategyError, match="orders of 8 stages"):
        pipeline_orders(8, 4)


def test_labels_tell_kinds_nodes_and_units_apart() -> None:
    for text, sizes in {
        "h100-sxm:4": [4],
        "a100-sxm-80gb:2*": [2, 2],
        "a100-sxm-80gb:2+v100-sxm-32gb:1": [2, 1],
    }.items():
        assert [len(some) for some in device_labels(cluster_of(text))] == sizes


@in_both
def test_paths_are_bounds_of_steps() -> None:
    """The closed form is at most the longest path, and that at most the simulated step, of every
    order of random shapes."""
    for number in numbers(1, 4, first=2):
        instance = draw_instance(number)
        prices = StagePrices(problem=instance.problem, space=instance.space)
        generator = Random(number)
        found = list(partitions(instance.problem, instance.space, blocks=instance.blocks))
        for partition in generator.sample(found, min(many(3, 6), len(found))):
            choices = prices.choices(partition)
            bounds = shape_bounds(choices, partition.microbatches)
            drawn = tuple(generator.choice(c.options) for c in choices)
            stages = options_in_one_plan(drawn)
            tasks = shape_tasks(
                instance.problem, stages, microbatches=partition.microbatches, messages={}
            )
            orders, _ = pipeline_orders(len(stages), partition.microbatches)
            paths, steps = (
                tasks.finish(orders, contended=contended) for contended in (False, True)
            )
            at = tuple(c.options.index(o) for c, o in zip(choices, drawn, strict=True))
            assert all(o.room for o in stages) == (bounds[at] < np.iinfo(np.int64).max)
            assert not all(o.room for o in stages) or bounds[at] <= paths.min()
            assert (paths > 0).all()
            assert (paths <= steps).all()


def test_sharded_states_and_several_numbers_of_microbatches() -> None:
    problem = small_problem("h100-sxm:2", batch=4)
    space = ExactSpace(
        trees=TreeSpace(dims=(Dim.BATCH,), weights=(1, 3)),
        microbatches=(1, 2, 3, 4),
        max_stages=2,
        shards=(Shards(optimizer=ALL),),
    )
    answer = find_exact(problem, space)
    assert answer.plan.shards == space.shards
    assert accounted(answer.certificate) == answer.certificate.enumerated
    assert simulate_plan(problem, answer.plan).step_time_s == answer.step_time_s
    # 3 does not divide the batch. One stage: on one device, or one of two trees on two; two stages:
    # 2 cuts of the 3 blocks.
    assert answer.certificate.enumerated == sum(
        3 * num_orders(1, m) + 2 * num_orders(2, m) for m in (1, 2, 4)
    )


def test_certificates_are_reproducible() -> None:
    problem, space = (
        small_problem("h100-sxm:2"),
        ExactSpace(trees=TreeSpace(weights=(1,)), microbatches=(2,)),
    )
    assert find_exact(problem, space) == find_exact(problem, space)
    other = find_exact(problem, replace(space, microbatches=(3,)))
    assert other.certificate.digest != find_exact(problem, space).certificate.digest
