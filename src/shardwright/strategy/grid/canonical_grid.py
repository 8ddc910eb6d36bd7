"""The canonical form of grids that give the same plan: options without effect are reset."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

from shardwright.errors import StrategyError
from shardwright.strategy.grid.chunk_placement_by_schedule import WAVE, grid_schedule
from shardwright.strategy.grid.grid_rules import HOST_SHARDS, MAX_STAGE, GridFacts
from shardwright.strategy.grid.layers_per_chunk import chunks_of, largest_chunk
from shardwright.strategy.grid.parallelism_grid import AXES, Grid


def canonical(grid: Grid, *, facts: GridFacts) -> Grid:
    """Reset options without effect: the one grid that stands for all grids with the same plan.

    The function is idempotent.

    Switches without effect are off: sp without tp, gather without a ring, shards with one holder
    (unless states are kept in host memory under them: see `lone_stage`), experts' degrees on a
    dense model, first and last that only repeat the rule, full:N that covers every chunk, gpipe
    with one microbatch, and the places of axes in `order` that change no group.
    """
    if not facts.experts:
        grid = replace(grid, ep=1, etp=1)
    holders = grid.dp * grid.cp
    zero, shard = grid.zero, grid.shard
    single_holder = holders == 1 and not (facts.experts and grid.edp > 1)
    if single_holder or shard == 1:
        zero = lone_stage(grid, facts=facts) if holders == 1 else 0
    if not zero or shard == holders:
        shard = 0
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    grid = _by_rule(grid, layers=facts.layers)
    first, last = _needed_first_and_last(grid, layers=facts.layers)
    largest = largest_chunk(grid, layers=facts.layers)
    return replace(
        grid,
        sp=grid.sp and grid.tp > 1,
        gather=grid.gather and grid.ring > 1,
        zero=zero,
        shard=shard,
        recompute_layers=(
            0
            if grid.recompute_layers >= (facts.layers if largest < 0 else largest)
            else grid.recompute_layers
        ),
        schedule="1f1b" if grid.schedule == "gpipe" and microbatches <= 1 else grid.schedule,
        first=first,
        last=last,
        order=_plain_order(grid),
    )


def lone_stage(grid: Grid, *, facts: GridFacts) -> int:
    """Lowest ZeRO stage of equal effect where one device holds all parameters; 0 = no effect.

    A stage has an effect there only if it keeps states in host memory.
    """
    if grid.zero == MAX_STAGE and HOST_SHARDS in grid.options:
        return MAX_STAGE
    return dict(facts.lone_stages).get(grid.zero, 0)


def _by_rule(grid: Grid, *, layers: int) -> Grid:
    """Replace a grid's layers= by first= and last=, or by nothing, if that gives equal chunks.

    The list stays where they give other chunks.
    """
    if not grid.layers:
        return grid
    plain = replace(grid, layers=())
    if chunks_of(plain, layers=layers) == grid.layers:
        return plain
    if grid_schedule(grid.schedule).placement != WAVE:
        ends = [sum(grid.layers[rank :: grid.pp]) for rank in (0, grid.pp - 1)]
        if any(end % grid.vpp for end in ends):
            return grid
        plain = replace(plain, first=ends[0], last=ends[1])
    return plain if chunks_of(plain, layers=layers) == grid.layers else grid


def _needed_first_and_last(grid: Grid, *, layers: int) -> tuple[int, int]:
    """(first, last) of a grid, with 0 where the number only repeats the default division."""
    chunks = chunks_of(grid, layers=layers)
    if grid.layers or isinstance(chunks, StrategyError):
        return grid.first, grid.last
    first_rank, last_rank = chunks[0] * grid.vpp, chunks[grid.pp - 1] * grid.vpp
    for first, last in ((0, 0), (first_rank, 0), (0, last_rank)):
        if chunks_of(replace(grid, first=first, last=last), layers=layers) == chunks:
            return first, last
    return first_rank, last_rank


def _plain_order(grid: Grid) -> tuple[str, ...]:
    """The first permutation of axes, from the default, that gives the same device groups."""
    sizes = {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    expert = {"tp": grid.etp, "ep": grid.ep, "dp": grid.edp} if grid.ep * grid.etp > 1 else {}
    dense_order = tuple(axis for axis in grid.order if sizes.get(axis, 1) > 1)
    expert_order = tuple(axis for axis in grid.order if expert.get(axis, 1) > 1)
    return _first_order(dense_order, expert_order)


@lru_cache(maxsize=4096)
def _first_order(dense: tuple[str, ...], expert: tuple[str, ...]) -> tuple[str, ...]:
    """The first permutation of all axes that keeps both meshes' axes in the given orders."""
    for order in itertools.permutations(AXES):
        if (
            tuple(a for a in order if a in dense) == dense
            and tuple(a for a in order if a in expert) == expert
        ):
            return order
    raise AssertionError("an order exists: the grid's own")
