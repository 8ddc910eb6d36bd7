"""Models of which a part is frozen: each tier is a lower bound of the next, and columns price
chunks as the plan does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.program.device_classes_with_equal_actions import class_numbers
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.bounds.unequal_group_placement_bounds import member_path
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.program.small import is_legal
from tests.simulator.test_bounds import SPARSE, around, assert_priced_alike, drawn, is_aligned
from tests.simulator.test_folding import both, finishes
from tests.simulator.test_plans import assert_folds
from tests.strategies import dense_model
from tests.tiers import many, seeds

EACH = many(10, 120)
TRAINED = (
    "lora:r4",
    "lora:r8:attn",
    "frozen:embed",
    "frozen:mlp,embed",
    "frozen:attn,head",
    "frozen:stream,attn",
)
OF_EXPERTS = ("lora:r4:attn,mlp", "lora:r4:experts", "frozen:experts", "frozen:attn,router")


def partly(draw: random.Random, model: Model) -> Model:
    """Some way to train a part of a model, beside a teacher or not."""
    made = (
        trained(model, draw.choice(OF_EXPERTS if model is SPARSE else TRAINED))
        if draw.random() < 0.7
        else model
    )
    if model is SPARSE or (made is not model and draw.random() < 0.7):
        return made
    return with_teacher(
        made,
        dense_model(layers=draw.choice((3, 16)), vocab=model.vocab, ffn=draw.choice((512, 8192))),
    )


def drawn_partly(draw: random.Random) -> tuple[Problem, Grid]:
    """As those of models that are trained whole; half under ZeRO-3, the least of all stages if a
    pipeline may not have it."""
    while True:
        problem, grid = drawn(draw)
        problem = replace(problem, model=partly(draw, problem.model))
        grid = replace(grid, zero=3 if draw.random() < 0.6 else grid.zero)
        if is_legal(problem, grid):
            return problem, grid


@pytest.mark.parametrize("block", seeds(1, 20))
def test_each_tier_bounds_the_next(block: int) -> None:
    draw, seen = random.Random(700 + block), Counter[str]()
    for _ in range(EACH):
        problem, grid = drawn_partly(draw)
        facts = grid_facts(
            problem.model,
            devices=grid.devices,
            global_batch=problem.job.global_batch,
            seq_len=problem.job.sequence_length,
        )
        space = around(grid, alike=False)
        bounded = bound_space(problem, space, facts, capacity=10**15)
        for place in draw.sample(
            range(bounded.members.num_members), min(4, bounded.members.num_members)
        ):
            member = member_grid(bounded.members, place)
            costs = step_costs(problem, member, bounded.prepared.priced(place))
            path, simulated = (
                member_path(problem, bounded.prepared, place, member, costs),
                simulate_grid(problem, member),
            )
            where = f"{problem.runtime.name} {problem.model.name} {member}"
            assert 0.0 < bounded.seconds[place] <= path <= simulated.step_time_s, where
            need = reserved_bytes(
                problem, order_table(member, microbatches=microbatches_of(problem, member)), costs
            )
            assert np.floor(bounded.memory[place]) <= need.max() <= simulated.need, where
            seen.update(
                members=1,
                gathered=member.zero == 3,
                taught=problem.model.teacher_layers > 0,
                hybrid=member.shard > 0,
            )
            seen["tight"] += bounded.seconds[place] > 0.8 * path
    assert seen["members"] >= 3 * EACH
    assert seen["tight"] > seen["members"] // 2
    assert min(seen.values()) > EACH // 4, seen


@pytest.mark.parametrize("block", seeds(1, 12))
def test_folded_equals_unfolded(block: int) -> None:
    """Every device alone finishes every task when its class does, and holds as much."""
    draw, gathered = random.Random(900 + block), 0
    for _ in range(EACH // 2):
        problem, grid = drawn_partly(draw)
        folded, every = both(problem, grid)
        assert_folds(problem, folded, every)
        number = class_numbers(every.program.classes)
        for klass, one in enumerate(folded.program.classes):
            for device in one.devices:
                assert finishes(every, int(number[device])) == finishes(folded, klass), (
                    grid,
                    klass,
                    device,
                )
        gathered += grid.zero == 3
    assert gathered > EACH // 8


def test_columns_price_chunks_as_the_plan_does() -> None:
    """Never more than the plan; equal where nothing is held by more devices than columns know of,
    tied weights of two stages among it."""
    draw, alike = random.Random(17), 0
    for _ in range(2 * EACH):
        problem, grid = drawn_partly(draw)
        tied = any(
            p.tied_to for b in problem.model.blocks for o in b.operators for p in o.parameters
        )
        if is_aligned(problem, grid) and not (tied and grid.pp > 1):
            assert_priced_alike(problem, grid, simulate_grid(problem, grid))
            alike += 1
    assert alike > EACH // 4
