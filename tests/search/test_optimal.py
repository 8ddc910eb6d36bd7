"""The answer is the best: on many small problems it equals brute force, and every member is
accounted for."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.errors import InfeasibleError
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.bounds.mesh_bounds import mesh_bounds
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.legal_degrees_and_axis_orders import idle_meshes
from shardwright.search.search_answer import Answer
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.search.brute import Counted, Judged, count, judge
from tests.search.problems import DOMAINS, Case, small_case
from tests.tiers import many, seeds

PROBLEMS = many(4, 26)
"""In a block."""
TOP = 4
DEGREES = (
    "tp",
    "cp",
    "ulysses",
    "ep",
    "etp",
    "dp",
    "pp",
    "vpp",
    "microbatch",
    "zero",
    "shard",
    "recompute_layers",
)
ROUNDING = 1 + 1e-12


@pytest.mark.parametrize("block", seeds(1, 16))
def test_answer_equals_brute_force(
    block: int, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()
    for turn, seed in enumerate(range(block * PROBLEMS, (block + 1) * PROBLEMS)):
        assert_answer_is_best(small_case(seed, most=many(400, 3000)), turn, seen)
    for name, number in seen.items():
        record_property(name, number)
    assert seen["members"] > 15 * PROBLEMS
    assert seen["infeasible"]
    assert seen["refused"]


@pytest.mark.parametrize("block", seeds(1, 8))
def test_answer_equals_brute_force_where_groups_straddle_islands(block: int) -> None:
    """Islands of 6 and 12 devices, which groups of 4 and 8 do not divide."""
    seen: Counter[str] = Counter()
    for turn, seed in enumerate(range(block * PROBLEMS, (block + 1) * PROBLEMS)):
        assert_answer_is_best(
            small_case(1006 + seed, most=many(250, 3000), nodes=DOMAINS), turn, seen
        )
    assert seen["members"] > 15 * PROBLEMS
    assert seen["lined"] > PROBLEMS


MIDDLE = 2
"""A turn under which half of the members exceed the capacity."""


def assert_answer_is_best(case: Case, turn: int, seen: Counter[str]) -> dict[Grid, Judged]:
    """Compare a search with brute force, under a capacity that depends on `turn`. Returns every
    member as it was judged."""
    counted = count(case.problem, case.space, case.facts)
    known = dict(zip(counted.grids, judge(case.problem, counted.grids.values()), strict=True))
    needs = sorted(j.need for j in known.values())
    # A capacity that is exactly some member's need, so that others exceed it; at times all exceed
    # it.
    capacity = needs[len(needs) * (turn % 4) // 4] - (turn % 12 == 0) if needs else 10**9
    fits = sorted(j.step_s for j in known.values() if j.need <= capacity)
    seen.update(members=len(known), infeasible=len(known) - len(fits))
    seen["lined"] += assert_bounds_hold(case, known, capacity)
    try:
        answer = find(case.problem, case.space, case.facts, capacity=capacity, top=TOP, hints=False)
    except InfeasibleError:
        assert not fits
        seen.update(refused=1)
    else:
        assert_certified(answer, counted, fits, idle=case.space.fewest > 0)
    return known


def test_problems_use_every_axis() -> None:
    """Problems are no easy ones: of two hundred and eight, each degree and switch is met in many
    members."""
    seen: Counter[str] = Counter()
    for seed in range(208):
        case = small_case(seed)
        members = enumerate_members(case.problem, case.space, case.facts)
        for place in range(members.num_members):
            grid = member_grid(members, place)
            seen.update(members=1, **{axis: int(getattr(grid, axis) > 1) for axis in DEGREES})
            seen.update(
                {
                    grid.schedule: 1,
                    grid.recompute.value: 1,
                    "sp": grid.sp,
                    "gather": grid.gather,
                    "offload": grid.offload > 0,
                }
            )
    assert seen["members"] > 5000
    assert min(seen.values()) >= 10, seen


def assert_bounds_hold(case: Case, known: dict[Grid, Judged], capacity: int) -> int:
    """Each member of the space is enumerated once, under bounds in their order: B0 <= B1 <= S.
    Members with lines of their own."""
    lined = 0
    idle = idle_meshes(case.space, case.facts)
    full = bound_space(case.problem, case.space, case.facts, capacity=capacity)
    mesh_s = mesh_bounds(case.problem, case.space, case.facts, idle, known=full.prepared)
    mean_s = mesh_bounds(
        case.problem, case.space, case.facts, idle, known=full.prepared, until_s=0.0
    )
    assert (mean_s <= mesh_s * ROUNDING).all()
    left = dict(known)
    for at in (None, *range(len(idle))):
        meshes, floor = (
            (None, 0.0) if at is None else (idle.take(np.array([at])), float(mesh_s[at]))
        )
        bounded = bound_space(
            case.problem, case.space, case.facts, capacity=capacity, meshes=meshes
        )
        assert math.isfinite(floor) or not len(bounded.seconds), (
            "a mesh without a bound has members"
        )
        for place, bound in enumerate(bounded.seconds):
            grid, prepared = member_grid(bounded.members, place), bounded.prepared
            member = left.pop(canonical(grid, facts=case.facts))
            path_s = member_path(
                case.problem,
                prepared,
                place,
                grid,
                step_costs(case.problem, grid, prepared.priced(place)),
            )
            lined += (
                prepared.lines is not None
                and int(prepared.lines.of_outer[prepared.members.chosen(place).outer]) >= 0
            )
            assert math.floor(bounded.memory[place]) <= member.need
            if math.isfinite(bound):
                assert floor <= bound <= path_s * ROUNDING, member.grid
            else:
                assert member.need > capacity
            assert member.path_s <= path_s * ROUNDING, member.grid
            assert path_s <= member.step_s * ROUNDING, member.grid
    assert not left, "members of the space that were not enumerated"
    return lined


def assert_certified(answer: Answer, counted: Counted, fits: list[float], *, idle: bool) -> None:
    """The ranks are the true ones, and the counts of the certificate are those of the brute
    force."""
    ranked = [answer.prediction.step_time_s, *(a.step_time_s for a in answer.alternatives)]
    assert ranked == pytest.approx(fits[:TOP], rel=1e-12)
    proof = answer.certificate
    assert proof.enumerated == counted.enumerated
    # Members of meshes that were ruled out whole are not told apart.
    assert proof.illegal <= counted.illegal
    assert proof.duplicates <= counted.duplicates
    if not idle:
        assert (proof.illegal, proof.duplicates) == (counted.illegal, counted.duplicates)
    others = proof.infeasible + proof.bounded_b0 + proof.bounded_b1 + proof.simulated
    assert proof.enumerated == proof.illegal + proof.duplicates + others
    assert min(proof.infeasible, proof.bounded_b0, proof.bounded_b1) >= 0
    assert proof.simulated >= len(ranked)
    assert proof.infeasible <= len(counted.grids) - len(fits)
    assert proof.optimal
    assert proof.gap == 0.0
    assert proof.best_s == proof.lower_bound_s == ranked[0]
    assert 0.0 <= proof.universal_gap < 1.0
