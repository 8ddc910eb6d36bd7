"""A grid and the plan written out are one strategy: the same seconds and bytes, bit for bit,
whichever of the two is given.

500 of them are a proof.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from shardwright.api.raise_first_broken_strategy_rule import check_grid
from shardwright.api.request_to_problem import facts_of
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.dtype import Dtype
from shardwright.errors import StrategyError
from shardwright.hardware.cluster import FabricTier
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.search.search_request import Request
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_grid, simulate_plan
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from tests.program.small import RUNTIME, cluster_of, random_grid
from tests.search.problems import small_model
from tests.strategies import dense_model, expert_model
from tests.strategy.zoo_models import encoder_decoder, hybrid
from tests.tiers import in_both, many, numbers, seeds

GRIDS = many(10, 500)
BLOCK = many(6, 10)
CATALOG = (
    "gemma-2-2b",  # tied
    "qwen2.5-0.5b",  # tied, two key heads
    "llama-3.2-1b",
    "deepseek-v2-lite",  # latent attention, experts
    "qwen3-30b-a3b",  # experts
    "t5-v1.1-xxl",  # an encoder and a decoder
    "granite-4.0-h-small",  # hybrid, experts
    "falcon-h1-7b",  # attention and recurrence side by side
    "qwen3-next-80b-a3b",  # linear attention
)
SMALL: tuple[Callable[[random.Random], Model], ...] = (
    small_model,
    lambda draw: dense_model(
        layers=draw.choice((6, 12)), tied=True, kv_heads=draw.choice((1, 2, 8))
    ),
    lambda draw: expert_model(dense=draw.choice((1, 2)), sparse=draw.choice((5, 10)), experts=8),
    lambda _: encoder_decoder(),
    lambda _: hybrid(),
)
ANY = replace(
    RUNTIME,
    name="any",
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    optimizer_offload=True,
)
EIGHT = replace(
    ANY, name="eight", saves_quantized=True, gathers_narrow=True, gathers_quantized=True
)
PLAIN = replace(
    ANY, name="plain", overlap_p2p=False, overlap_grad_reduce=False, overlap_param_gather=False
)
TWO_CHUNKS = ("interleaved-1f1b", "looped-bfs", "breadth-first")
SLICED = ("terapipe", "seq-1f1b")


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    """A legal grid for a model of the catalog or a small one, on nodes of 4, 8 or 12."""
    while True:
        known = draw.random() < 0.5
        model = load_model(draw.choice(CATALOG)) if known else draw.choice(SMALL)(draw)
        grid = random_grid(draw, experts=any(o.experts for b in model.blocks for o in b.operators))
        name = draw.choice(tuple(GRID_SCHEDULES)) if grid.pp > 1 else "1f1b"
        chunks = draw.choice((2, 3)) if name in TWO_CHUNKS else GRID_SCHEDULES[name].chunks
        holders = grid.dp * grid.cp
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        changes = {
            "vpp": chunks if grid.pp > 1 else 1,
            "schedule": name,
            "shard": draw.choice((0, 0, max(holders // 2, 1))) if grid.zero else 0,
            "slices": draw.choice((1, 2)) if name in SLICED else 1,
            "offload": draw.choice((0, 0, 50)),
        }
        try:
            grid = replace(grid, **changes)
        except StrategyError:
            continue
        leaf = FabricTier(name="leaf", num_devices=2 * node)
        spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0, latency_s=2e-6)
        names = {s for b in model.blocks for s in (b.sequence, b.memory) if s} - {"text"}
        tokens = draw.choice((512, 4096))
        sequences = (
            SequenceLength(name="text", tokens=tokens),
            *(SequenceLength(name=n, tokens=256) for n in sorted(names)),
        )
        problem = Problem(
            model=model,
            cluster=cluster_of(
                grid.devices,
                node=node,
                fabric=draw.choice(((), (leaf, spine))),
                accelerator=draw.choice(("h100-sxm", "l40s")),
            ),
            job=TrainingJob(
                sequences=sequences,
                global_batch=grid.dp * grid.microbatch * grid.pp * draw.choice((1, 2, 4)),
            ),
            runtime=draw.choice((ANY, ANY, PLAIN, EIGHT)),
        )
        if problem.runtime is EIGHT:
            problem = replace(problem, job=replace(problem.job, compute=Dtype.FP8))
        layers = facts_of(problem).layers
        if layers % (grid.pp * grid.vpp) and layers > grid.pp * grid.vpp:
            inner = sorted(draw.sample(range(1, layers), grid.pp * grid.vpp - 1))
            grid = replace(grid, layers=tuple(np.diff([0, *inner, layers]).tolist()))
        try:
            check_grid(problem, grid)
        except StrategyError:
            continue
        return problem, grid


def refusal(simulate_legal_strategy: Callable[[], object]) -> str:
    """Why a strategy is refused; empty if it is simulated."""
    try:
        simulate_legal_strategy()
    except StrategyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("block", seeds(2, 50))
def test_a_grid_is_the_plan_written_out(block: int) -> None:
    """Printed and read again as a grid, and as the general plan that it is: predictions, timelines
    and bytes are equal, bit for bit."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        problem, grid = drawn(random.Random(seed))
        text, job = print_grid(grid), problem.job
        plan = parse_plan(print_plan(plan_of_grid(problem, grid)))
        request = Request(
            model=problem.model.name,
            cluster="given",
            seq_len=job.sequence_length,
            global_batch=job.global_batch,
        )
        refusals = [
            refusal(partial(simulate_grid, problem, parse_grid(text))),
            refusal(partial(simulate_plan, problem, plan)),
        ]
        if any(refusals):
            # DualPipe's ranks send to each other at once: where sends block the compute stream it
            # waits for itself, in either form.
            assert refusals[0] == refusals[1], text
            assert "order.deadlock" in refusals[0], text
            assert (grid.schedule in ("dualpipe", "dualpipe-v"), problem.runtime.name) == (
                True,
                "plain",
            ), text
            continue
        shown = simulate_legal_strategy(request, problem, name="", grid=parse_grid(text)).prediction
        one, other = simulate_grid(problem, parse_grid(text)), simulate_plan(problem, plan)
        assert shown == predict_plan(problem, plan, other), text
        assert shown.step_time_s == one.step_time_s == other.step_time_s, text
        assert one.memory == other.memory, text
        for name in ("start", "finish", "work"):
            assert np.array_equal(getattr(one.timeline, name), getattr(other.timeline, name)), text


def crosses_nodes(problem: Problem, grid: Grid) -> bool:
    """Some run of axes, from the innermost on, neither fits into a unit of a tier nor fills it."""
    size = 1
    for axis in (a for a in grid.order if a in ("tp", "cp", "dp", "pp")):
        size *= getattr(grid, axis)
        if any(
            size % tier.num_devices and tier.num_devices % size for tier in problem.cluster.tiers()
        ):
            return True
    return False


@in_both
def test_what_was_compared(record_property: Callable[[str, object], None]) -> None:
    """Every ZeRO stage, most schedules that a grid can name, ties, experts, few key heads, and
    groups over node borders."""
    seen: Counter[str] = Counter()
    for problem, grid in map(drawn, map(random.Random, numbers(GRIDS))):
        operators = [o for b in problem.model.blocks for o in b.operators]
        keys = min((o.attention.kv_heads for o in operators if o.attention), default=grid.tp)
        seen.update([grid.schedule, f"zero {grid.zero}", problem.model.name])
        seen["tied"] += any(p.tied_to for o in operators for p in o.parameters)
        seen["experts"] += grid.ep > 1
        seen["fewer key heads than parts"] += keys < grid.tp * grid.ulysses
        seen["over node borders"] += crosses_nodes(problem, grid)
        seen["two sequences"] += len(problem.job.sequences) > 1
    for key, count in seen.items():
        record_property(key, count)
    assert all(seen[f"zero {z}"] >= GRIDS // 20 for z in range(4))
    for key in ("tied", "experts", "fewer key heads than parts", "over node borders"):
        assert seen[key] >= GRIDS // 20, key
    assert sum(seen[name] > 0 for name in GRID_SCHEDULES) >= min(
        GRIDS // 4, len(GRID_SCHEDULES) - 1
    )
