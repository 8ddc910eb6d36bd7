"""The bound of a mixed space against the simulator, and its inequalities against the walk of
1F1B."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.search.mixed.bounds.time_bound import covers_space
from shardwright.search.mixed.pipelines.microbatches_and_layer_cut_by_deadline import (
    best_cut,
    most_above,
)
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedPlan,
    general_plan,
    subspace_of,
)
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import (
    FIRST,
    LAST,
    ROLES,
    StateSharers,
    static_bytes,
)
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import (
    _activation_room_bytes as room_of,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import AFTER, BEFORE, LAYER
from shardwright.search.mixed.stages.stage_cost_table import MODES
from shardwright.search.mixed.stages.subspaces_and_stage_costs import (
    MixedStageCosts,
    Terms,
    layers_that_fit,
    root_subspaces,
    split_subspace,
)
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import StageMesh
from shardwright.search.mixed_cluster_certificate import Subspace
from shardwright.simulator.simulate_plan import simulate_plan
from tests.search.mixed.members import (
    CLUSTERS,
    KINDS,
    RUNTIMES,
    SHARDING,
    batch_of,
    drawn_plan,
    mixed_problem,
    placed_anyhow,
    shape_of,
    sole_of,
    with_batch,
)
from tests.tiers import cases, in_proof


def step_of_1f1b(
    forward: list[float],
    backward: list[float],
    out: list[float],
    back: list[float],
    m: int,
    *,
    blocking: bool,
) -> float:
    """End of m microbatches in 1F1B, by walking the rows; out[i], back[i]: sends over the border
    behind stage i."""
    p = len(forward)
    rows = []
    for i in range(p):
        warm = min(p - i - 1, m)
        row = [("F", k) for k in range(warm)]
        for k in range(m - warm):
            row += [("F", warm + k), ("B", k)]
        rows.append(row + [("B", k) for k in range(m - warm, m)])
    there: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * p, [0] * p
    sent_free = {("F", i): 0.0 for i in range(p)} | {("B", i): 0.0 for i in range(p)}
    moving = True
    while moving:
        moving = False
        for i in range(p):
            while at[i] < len(rows[i]):
                kind, k = rows[i][at[i]]
                first = kind == "F" and i == 0
                last = kind == "B" and i == p - 1
                if not (first or last) and (kind, i, k) not in there:
                    break
                start = max(free[i], 0.0 if first or last else there[kind, i, k])
                end = start + (forward[i] if kind == "F" else backward[i])
                free[i] = end
                to = i + 1 if kind == "F" else i - 1
                if 0 <= to < p:
                    sent = max(end, sent_free[kind, i]) + (out[i] if kind == "F" else back[to])
                    sent_free[kind, i] = sent
                    there[kind, to, k] = sent
                    if blocking:
                        free[i] = sent
                at[i] += 1
                moving = True
    return max(free)


def drawn_terms(generator: random.Random, *, layers: int, blocking: bool) -> Terms:
    """Two rows with random seconds, without sums and updates."""
    seconds = np.array(
        [[[generator.uniform(0.1, 2) for _ in range(2)] for _ in range(3)] for _ in range(2)]
    )
    send = np.array(
        [
            [[generator.choice((0.0, generator.uniform(0, 1))) for _ in range(2)] for _ in range(2)]
            for _ in range(2)
        ]
    )
    none, extra = np.zeros((2, 3)), np.zeros((2, ROLES, layers, layers + 1))
    return Terms(
        seconds=seconds,
        extra=extra,
        fits=layers_that_fit(extra),
        whole=np.zeros(0),
        send=send,
        gather=none,
        reduce=none,
        update=none,
        layers=layers,
        blocks=np.ones(3, dtype=np.int64),
        blocking=blocking,
        gathers_first=True,
        reduces_last=False,
    )


class _Pair:
    """One shape."""

    def __init__(self, p1: int, p2: int) -> None:
        self.rows, self.stages = np.array([[0, 1 if p2 else -1]]), np.array([[p1, p2]])


@pytest.mark.parametrize("seed", cases(range(40), 20))
def test_no_cut_ends_before_a_limit_by_which_the_inequalities_leave_fewer_microbatches(
    seed: int,
) -> None:
    generator = random.Random(seed)
    layers, blocking = generator.randint(2, 7), generator.random() < 0.5
    p1 = generator.randint(1, min(layers, 3))
    p2 = generator.randint(0, min(layers - p1, 3))
    m, terms = generator.randint(1, 9), drawn_terms(generator, layers=layers, blocking=blocking)
    p, rows = p1 + p2, [0] * p1 + [1] * p2
    best = float("inf")
    for cuts in combinations(range(1, layers), p - 1):
        sizes = [b - a for a, b in zip((0, *cuts), (*cuts, layers), strict=True)]
        each = [
            [n * terms.seconds[r, 0, w] for r, n in zip(rows, sizes, strict=True)] for w in range(2)
        ]
        for way in range(2):
            each[way][0] += terms.seconds[rows[0], 1, way]
            each[way][-1] += terms.seconds[rows[-1], 2, way]
        out, back = (
            [float(terms.send[rows[i], rows[i + 1], way]) for i in range(p - 1)] for way in range(2)
        )
        best = min(best, step_of_1f1b(each[0], each[1], out, back, m, blocking=blocking))
    limit = best * (1 + 1e-9)
    some = most_above(
        terms,
        _Pair(p1, p2),
        upper=np.array([m]),
        shape_indices=np.array([0]),
        lower=np.array([0]),
        limit=limit,
    )  # type: ignore[arg-type]
    assert some[0] == m
    seconds, sizes = best_cut(terms, (0, 1 if p2 else -1, p1, p2), microbatches=m, limit=limit)
    assert sum(sizes) == layers
    assert seconds <= limit
    # The inequalities are no empty ones: far below the least work of a stage nothing is left.
    work = layers * terms.seconds[:, 0].sum(axis=1).min() * m / p
    none = most_above(
        terms,
        _Pair(p1, p2),
        upper=np.array([m]),
        shape_indices=np.array([0]),
        lower=np.array([0]),
        limit=0.99 * work / 2,
    )  # type: ignore[arg-type]
    assert none[0] < m


@pytest.mark.parametrize("seed", cases(range(60), 30))
def test_microbatches_that_memory_leaves_are_those_of_every_cut(seed: int) -> None:
    """Whatever the time: stages that stand nearer to the front keep more microbatches, so they have
    room for fewer layers."""
    generator = random.Random(seed)
    layers, most = generator.randint(2, 8), generator.randint(1, 9)
    p1 = generator.randint(1, min(layers, 4))
    p2 = generator.randint(0, min(layers - p1, 4))
    p, rows = p1 + p2, [0] * p1 + [1] * p2
    room = np.sort(
        np.array([generator.randint(0, 3) for _ in range(2 * ROLES * layers)]).reshape(
            2, ROLES, layers
        )
    )[..., ::-1]
    room[generator.randint(0, 1)] += layers // 2
    extra = np.where(np.arange(layers + 1) > room[..., None], np.inf, 0.0)
    terms = drawn_terms(generator, layers=layers, blocking=False)._replace(
        extra=extra, fits=layers_that_fit(extra)
    )

    def holds(m: int) -> bool:
        role = [(i == 0) + 2 * (i == p - 1) for i in range(p)]
        flight = [min(m, p - i) for i in range(p)]
        return any(
            all(
                n <= room[rows[i], role[i], flight[i] - 1]
                for i, n in enumerate(b - a for a, b in pairwise((0, *cuts, layers)))
            )
            for cuts in combinations(range(1, layers), p - 1)
        )

    expected = max((m for m in range(1, most + 1) if holds(m)), default=0)
    found = most_above(
        terms,
        _Pair(p1, p2),
        upper=np.array([most]),
        shape_indices=np.array([0]),
        lower=np.array([0]),
        limit=1e9,
    )  # type: ignore[arg-type]
    assert found[0] == expected


def check_members(
    generator: random.Random,
    *,
    plans: int,
    kind: str = "dense",
    runtimes: tuple[str, ...] = RUNTIMES,
    sharded: bool = False,
    anyhow: bool = False,
) -> list[float]:
    """Bound over simulated step of random members of one problem; each lane does its microbatches
    by the simulated step.

    Args:
        anyhow: stages lie on any devices of their pools.
    """
    problem = mixed_problem(generator, kind=kind, runtimes=runtimes)
    pipelines = PricedPipelines.of(MixedStageCosts.of(problem))
    ratios = []
    for _ in range(plans):
        plan = drawn_plan(
            pipelines, generator, lanes=generator.randint(1, 3 if sharded else 2), sharded=sharded
        )
        if (
            plan is None
            or batch_of(pipelines.stage_costs, plan) < pipelines.stage_costs.table.mbs.max()
        ):
            continue
        placed = general_plan(pipelines.stage_costs, plan)
        if anyhow:
            placed = placed_anyhow(pipelines.stage_costs, plan, placed, generator) or placed
        # What stages take depends on no batch.
        done = simulate_plan(with_batch(problem, batch_of(pipelines.stage_costs, plan)), placed)
        if not done.fits:
            continue
        ratios.append(_ratio(pipelines, plan, done.step_time_s))
    return ratios


def _ratio(pipelines: PricedPipelines, plan: MixedPlan, seconds: float) -> float:
    subspace = subspace_of(pipelines.stage_costs.table, plan)
    if not subspace.sharded:
        subspace = replace(subspace, sole=sole_of(pipelines.stage_costs, plan))
    terms, jitter = pipelines.stage_costs.terms(subspace), pipelines.stage_costs.jitter(subspace)
    least = 0.0
    for lane in plan.lanes:
        shape = shape_of(pipelines, lane)
        rows, stages = (
            pipelines.shapes.rows[shape].tolist(),
            pipelines.shapes.stages[shape].tolist(),
        )
        limit = seconds / jitter
        upper = np.full(len(pipelines.shapes), lane.microbatches)
        some = most_above(
            terms,
            pipelines.shapes,
            upper=upper,
            shape_indices=np.array([shape]),
            lower=np.array([0]),
            limit=limit,
        )
        assert some[0] == lane.microbatches, f"{lane} is simulated in {seconds} s, below its bound"
        bound, _ = best_cut(terms, (*rows, *stages), microbatches=lane.microbatches, limit=limit)
        least = max(least, bound * jitter / seconds)
    return least


PROVEN = [pytest.param(kind, marks=pytest.mark.proof) for kind in KINDS[1:]]
"""Kinds of models that have proofs alone, where others are tested."""


def test_random_members_simulate_above_the_bound() -> None:
    ratios = [ratio for seed in (0, 2) for ratio in check_members(random.Random(seed), plans=7)]
    assert len(ratios) >= 10
    # A bound of nothing would hold too.
    assert max(ratios) > 0.8


@pytest.mark.parametrize("kind", [KINDS[0], *PROVEN[:-1], KINDS[-1]])
def test_random_members_with_lanes_that_shard_simulate_above_the_bound(kind: str) -> None:
    draws = [random.Random(f"lanes {kind} {seed}") for seed in ((0, 2) if in_proof() else (2,))]
    ratios = [
        ratio
        for draw in draws
        for ratio in check_members(draw, plans=8, kind=kind, runtimes=SHARDING, sharded=True)
    ]
    assert len(ratios) >= 6
    assert max(ratios) > 0.7


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_random_members_with_lanes_that_shard_simulate_above_the_bound(
    kind: str,
) -> None:
    draws = [random.Random(f"more lanes {kind} {seed}") for seed in range(60)]
    ratios = [
        ratio
        for draw in draws
        for ratio in check_members(draw, plans=14, kind=kind, runtimes=SHARDING, sharded=True)
    ]
    assert len(ratios) >= 300


def test_random_members_on_any_devices_of_their_pools_simulate_above_the_bound() -> None:
    ratios = [
        ratio
        for seed in range(2)
        for ratio in check_members(random.Random(f"anyhow {seed}"), plans=6, anyhow=True)
    ]
    sharded = [random.Random(f"lanes anyhow {seed}") for seed in range(1)]
    ratios += [
        ratio
        for draw in sharded
        for ratio in check_members(draw, plans=7, runtimes=SHARDING, sharded=True, anyhow=True)
    ]
    assert len(ratios) >= 10
    assert max(ratios) > 0.7


@pytest.mark.proof
@pytest.mark.parametrize("sharded", [False, True])
def test_hundreds_of_random_members_on_any_devices_simulate_above_the_bound(sharded: bool) -> None:
    runtimes = SHARDING if sharded else RUNTIMES
    draws = [random.Random(f"more anyhow {sharded} {seed}") for seed in range(60)]
    ratios = [
        ratio
        for draw in draws
        for ratio in check_members(draw, plans=14, runtimes=runtimes, sharded=sharded, anyhow=True)
    ]
    assert len(ratios) >= 300


@pytest.mark.parametrize("kind", [KINDS[1], *PROVEN[1:]])
def test_random_members_with_experts_simulate_above_the_bound(kind: str) -> None:
    ratios = [
        ratio
        for seed in range(8, 10)
        for ratio in check_members(random.Random(f"{kind} {seed}"), plans=4, kind=kind)
    ]
    assert len(ratios) >= 4
    assert max(ratios) > 0.8


@pytest.mark.proof
def test_a_thousand_random_members_simulate_above_the_bound() -> None:
    ratios = [
        ratio for seed in range(100, 200) for ratio in check_members(random.Random(seed), plans=14)
    ]
    assert len(ratios) >= 1000


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS[1:])
def test_hundreds_of_random_members_with_experts_simulate_above_the_bound(kind: str) -> None:
    ratios = [
        ratio
        for seed in range(40)
        for ratio in check_members(random.Random(f"more {kind} {seed}"), plans=14, kind=kind)
    ]
    assert len(ratios) >= 200


def test_a_frame_between_edges_is_split_by_the_classes_that_alone_hold_a_layer() -> None:
    problem = mixed_problem(random.Random(3))
    for cluster, classes in (
        (CLUSTERS[0], 2),
        (CLUSTERS[4], 3),
        ("h100-sxm:8@east+h100-sxm:8@west,east~west=50gbps/10ms", 2),
    ):
        stage_costs = MixedStageCosts.of(replace(problem, cluster=parse_cluster(cluster)))
        smallest = Subspace(replicas=(1, 1), tp=1, nodes=(0.0, 1.0))
        parts = split_subspace(stage_costs, smallest)
        assert {part.sole for part in parts} == {
            some for count in range(3) for some in combinations(range(classes), count)
        }
        assert covers_space(
            stage_costs,
            [
                part
                for whole in root_subspaces(stage_costs)
                for part in _smallest(stage_costs, whole)
            ],
        )
        assert not covers_space(
            stage_costs,
            [
                part
                for whole in root_subspaces(stage_costs)
                for part in _smallest(stage_costs, whole)
            ][1:],
        )


def _smallest(stage_costs: MixedStageCosts, subspace: Subspace) -> list[Subspace]:
    parts = split_subspace(stage_costs, subspace)
    return [one for part in parts for one in _smallest(stage_costs, part)] if parts else [subspace]


def test_sums_of_layers_that_several_classes_hold_pass_the_cards_of_the_emptiest_node() -> None:
    """A stage with tp8 has one member in its node: all of its part of the gradients passes one
    card."""
    problem = replace(
        mixed_problem(random.Random(3)), cluster=parse_cluster("a100-sxm-40gb:16+v100-sxm-16gb:16")
    )
    stage_costs = MixedStageCosts.of(problem)
    table, subspace = stage_costs.table, Subspace(replicas=(4, 5), tp=1, nodes=(2.0, 2.3))
    pair = table.meshes.index((1, StageMesh(tp=8)))
    layer = next(block for block in problem.model.blocks if block.name == "layer")
    matrices = sum(p.size for o in layer.operators for p in o.parameters)
    card = problem.cluster.groups[1].kind.network_per_device.achieved
    parts = 4 * matrices / 8 * (1 - 1 / 4) / card
    shared = stage_costs.shared.least(
        stage_costs.rows(subspace),
        stage_costs.sums.members(subspace, stage_costs.rows(subspace))[0],
        (),
    )
    assert shared[1, pair, LAYER] == pytest.approx(parts, rel=0.01)
    base, known = stage_costs.terms(subspace), stage_costs.terms(replace(subspace, sole=()))
    rows = table.pairs == pair
    assert (known.reduce[rows, LAYER] > 2 * base.reduce[rows, LAYER]).all()
    assert (known.reduce >= base.reduce).all()
    # What the V100 alone may hold is summed as before, what the A100 hold is not.
    some = stage_costs.terms(replace(subspace, sole=(1,)))
    assert (some.reduce[rows] == base.reduce[rows]).all()
    assert (some.reduce[table.pool == 0, LAYER] >= known.reduce[table.pool == 0, LAYER]).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_recompute_of_a_stage_is_the_cheapest_that_fits(seed: int) -> None:
    """Against every number of layers that run again in full and of those that do selectively; no
    other stage has a last one's flights."""
    generator = random.Random(seed)
    problem = mixed_problem(generator)
    # With little memory every choice occurs: nothing runs again, some layers do, nothing fits.
    little = tuple(
        replace(g, kind=_with_memory(g.kind, generator.choice((0.02, 0.05, 0.1, 1.0))))
        for g in problem.cluster.groups
    )
    stage_costs = MixedStageCosts.of(
        replace(problem, cluster=replace(problem.cluster, groups=little))
    )
    table, several = stage_costs.table, generator.random() < 0.5
    sharers = StateSharers(members=(4,) * len(table.meshes), replicas=4, several=several)
    found, static = stage_costs.recompute(sharers), static_bytes(table, sharers)
    rooms = [
        [
            room_of(stage_costs.problem, table, static, role, mode, several=several)
            for mode in range(MODES)
        ]
        for role in range(ROLES)
    ]
    seen = set()
    for _ in range(150):
        row, role, n = (
            generator.randrange(table.several),
            generator.randrange(ROLES),
            generator.randint(0, table.layers),
        )
        flight = 1 if role & LAST else generator.randint(1, found.seconds.shape[2])
        ends = sum(
            table.saved[row, part, 0]
            for bit, part in ((FIRST, BEFORE), (LAST, AFTER))
            if role & bit
        )
        plain, some, full = table.saved[row, LAYER]
        best = float("inf")
        for x in range(n + 1):
            for y in range(n - x + 1):
                use = (
                    flight * (ends + (n - x - y) * plain + y * some + x * full)
                    + n * static[row, LAYER]
                )
                if use <= rooms[role][2 if x else min(y, 1)][row]:
                    best = min(best, x * table.again[row, 2] + y * table.again[row, 1])
        assert found.seconds[row, role, flight - 1, n] == pytest.approx(best, rel=1e-9)
        seen.add((best > 0) + (best == float("inf")))
    assert len(seen) > 1


def _with_memory(kind: NodeKind, share: float) -> NodeKind:
    return replace(
        kind,
        accelerator=replace(
            kind.accelerator, memory_bytes=int(kind.accelerator.memory_bytes * share)
        ),
    )
