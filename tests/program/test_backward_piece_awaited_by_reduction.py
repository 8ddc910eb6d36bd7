"""Pieces of reductions and of last backwards of stages that are cut elsewhere."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwright.program.backward_piece_awaited_by_reduction import BlockRange, last_piece
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan, general_plan
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.simulator.simulate_plan import simulate_plan
from tests.search.mixed.members import batch_of, drawn_plan, mixed_problem, with_batch
from tests.tiers import cases, seeds


def stretch(first: int, count: int, *, run: int = 1) -> tuple[BlockRange, ...]:
    """A stage of neighbouring layers."""
    return (BlockRange(run=run, first=first, count=count, at=0),)


def waited(mine: list[int], theirs: list[int], *, piece: int, pieces: int, of: int) -> int | None:
    """The same by counting: parts of blocks as small as both kinds of pieces allow, the last one
    first."""
    fine = pieces * of
    own = [(b, part) for b in reversed(mine) for part in reversed(range(fine))]
    other = [(b, part) for b in reversed(theirs) for part in reversed(range(fine))]
    size = len(own) // pieces
    shared = set(own[piece * size : (piece + 1) * size]) & set(other)
    return max((other.index(one) // (len(other) // of) for one in shared), default=None)


@pytest.mark.parametrize("seed", cases(range(100), 40))
def test_a_piece_waits_for_the_last_piece_that_runs_its_blocks(seed: int) -> None:
    generator = random.Random(seed)
    (a, n), (b, m) = ((generator.randint(0, 6), generator.randint(1, 8)) for _ in range(2))
    pieces, of = generator.randint(1, 4), generator.randint(1, 4)
    for piece in range(pieces):
        found = last_piece(stretch(a, n), stretch(b, m), piece=piece, pieces=pieces, of=of)
        assert found == waited(
            list(range(a, a + n)), list(range(b, b + m)), piece=piece, pieces=pieces, of=of
        )


def test_blocks_of_other_runs_are_none_that_both_hold() -> None:
    assert last_piece(stretch(0, 4), stretch(0, 4, run=2), piece=0, pieces=2, of=2) is None


def one_stage_a_pool(pipelines: PricedPipelines, plan: MixedPlan) -> bool:
    """Stages of the only lane lie on pools of their own, where all replicas lie side by side."""
    rows = plan.lanes[0].stage_rows()
    return len(rows) > 1 and len(
        {int(pipelines.stage_costs.table.pool[row]) for row in rows}
    ) == len(rows)


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_replicas_of_a_lane_may_as_well_be_two_lanes(seed: int) -> None:
    """The same replicas under two names sum the same gradients at the same time, if they lie on the
    same devices."""
    generator = random.Random(seed)
    pipelines = PricedPipelines.of(MixedStageCosts.of(mixed_problem(generator)))
    plan = drawn_plan(pipelines, generator, lanes=1)
    while plan is None or plan.lanes[0].replicas < 2 or not one_stage_a_pool(pipelines, plan):
        plan = drawn_plan(pipelines, generator, lanes=1)
    problem = with_batch(pipelines.stage_costs.problem, batch_of(pipelines.stage_costs, plan))
    stage_costs, (lane,) = MixedStageCosts.of(problem), plan.lanes
    first = generator.randint(1, lane.replicas - 1)
    parted = replace(
        plan, lanes=(replace(lane, replicas=first), replace(lane, replicas=lane.replicas - first))
    )
    one, other = (
        simulate_plan(problem, general_plan(stage_costs, some)).step_time_s
        for some in (plan, parted)
    )
    assert other == pytest.approx(one, rel=1e-9)
