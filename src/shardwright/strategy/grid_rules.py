"""What makes a grid legal for a model, a batch and a number of devices; and the one representative of grids that mean the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from shardwright.errors import StrategyError, nearest
from shardwright.strategy.chunks import chunk_layers
from shardwright.strategy.grid import AXES, Grid
from shardwright.strategy.grid_fold import fold
from shardwright.strategy.grid_schedules import GRID_SCHEDULES, WAVE, grid_schedule
from shardwright.strategy.violation import Violation

SCHEDULES: Final[Mapping[str, bool]] = MappingProxyType({"gpipe": False, "1f1b": False, "interleaved-1f1b": True})
"""Schedules that grids are searched and lowered with directly -> they need several chunks a device (vpp > 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFacts:
    """What a grid is checked against, as plain counts.

    Args:
        devices: of the cluster that the plan uses. global_batch: samples a step. seq_len: tokens a sample.
        layers: blocks between embedding and head. vocab: rows of the embedding.
        heads, kv_heads: of attention (the greatest common divisor if layers differ; 0 = no attention).
        ffn: width of the dense and shared feed-forward (greatest common divisor; 0 = none).
        experts: of a layer (greatest common divisor; 0 = dense model). expert_ffn: width of one.
        scan_heads: heads of linear recurrences (greatest common divisor; 0 = none).
    """

    devices: int
    global_batch: int
    seq_len: int
    layers: int
    vocab: int = 0
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    experts: int = 0
    expert_ffn: int = 0
    scan_heads: int = 0


def violations(grid: Grid, *, facts: GridFacts, general: bool = False) -> tuple[Violation, ...]:
    """Every rule that `grid` breaks; none = it is a legal plan for a model, batch and number of devices with these `facts`.

    Args:
        general: schedules that only general plans are lowered with are legal too; what they themselves refuse is
            `schedules.grid_order.order_violations`.
    """
    pipeline = _general_pipeline if general and grid.schedule not in SCHEDULES else _pipeline
    return tuple(broken for rule in (_devices, _widths, _sequence, _experts, _chunks, pipeline, _memory) for broken in rule(grid, facts))


def require_legal(grid: Grid, *, facts: GridFacts, general: bool = False) -> None:
    """Raise the first broken rule; see `violations`.

    Raises:
        StrategyError: with the rule's id.
    """
    for broken in violations(grid, facts=facts, general=general):
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule)


def _devices(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    if grid.devices != facts.devices:
        yield Violation(
            rule="grid.devices",
            message=f"tp x cp x dp x pp = {grid.tp} x {grid.cp} x {grid.dp} x {grid.pp} = {grid.devices}, not the {facts.devices} devices",
            hint="ep folds over tp x cp x dp and does not count",
        )
    if facts.global_batch % (grid.dp * grid.microbatch):
        yield Violation(
            rule="grid.batch",
            message=f"global batch {facts.global_batch} does not divide by dp x mbs = {grid.dp} x {grid.microbatch}",
            hint="every replica takes a whole number of microbatches",
        )


def _widths(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    parts = grid.tp * grid.ulysses
    if facts.heads % parts or (facts.kv_heads and facts.kv_heads % parts and parts % facts.kv_heads):
        yield Violation(
            rule="grid.heads",
            message=f"{facts.heads} heads ({facts.kv_heads} of keys) do not divide over tp x ulysses = {grid.tp} x {grid.ulysses}",
            hint="tp x ulysses divides the heads, and the key heads divide it or are divided by it",
        )
    if facts.scan_heads % grid.tp:
        yield Violation(
            rule="grid.heads", message=f"{facts.scan_heads} recurrence heads do not divide by tp {grid.tp}", hint="tp divides the heads"
        )
    if facts.ffn % grid.tp:
        yield Violation(rule="grid.ffn", message=f"feed-forward width {facts.ffn} does not divide by tp {grid.tp}", hint="tp divides it")


def _sequence(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    pieces = grid.cp * (grid.tp if grid.sp else 1)
    if facts.seq_len % pieces or (grid.ring > 1 and facts.seq_len % (2 * grid.ring)):
        yield Violation(
            rule="grid.sequence",
            message=f"{facts.seq_len} tokens do not divide by {grid.cp} x {pieces // grid.cp} (cp x tp with sp) and 2 x ring {grid.ring}",
            hint="causal ring parts are dealt in pairs, so twice the ring degree must divide the length",
        )
    if grid.sp and grid.tp == 1:
        yield Violation(rule="grid.sp", message="sp without tp", hint="sequence parallelism splits the stream over the tp group: drop sp")


def _experts(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    if grid.ep == grid.etp == 1:
        return
    stage, coset = grid.tp * grid.cp * grid.dp, grid.ep * grid.etp
    if not facts.experts:
        yield Violation(rule="grid.experts", message=f"ep {grid.ep} etp {grid.etp} on a model without experts", hint="drop ep and etp")
    elif facts.experts % grid.ep or facts.expert_ffn % grid.etp:
        yield Violation(
            rule="grid.experts",
            message=f"{facts.experts} experts of width {facts.expert_ffn} do not divide by ep {grid.ep} and etp {grid.etp}",
            hint="ep divides the experts, etp their width",
        )
    elif stage % coset:
        yield Violation(
            rule="grid.experts",
            message=f"edp = tp x cp x dp / (ep x etp) = {grid.tp} x {grid.cp} x {grid.dp} / ({grid.ep} x {grid.etp}) = {stage / coset:.4g}",
            hint="edp must be whole: ep x etp divides the devices of a pipeline stage",
        )
    elif fold(grid) is None:
        yield Violation(
            rule="grid.experts",
            message=f"edp {grid.edp} x ep {grid.ep} x etp {grid.etp} does not line up with tp, cp, dp in order {'-'.join(grid.order)}",
            hint="going outwards, the products of both meshes must divide one another",
        )
    if grid.ep > 1 and grid.tp > 1 and not grid.sp:
        yield Violation(
            rule="grid.experts", message="ep with tp needs sp", hint="else every token is dispatched by each member of its tp group: add sp"
        )


def _chunks(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    try:
        largest = max(chunk_layers(facts.layers, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last, layers=grid.layers))
    except StrategyError as error:
        yield Violation(rule="grid.layers", message=error.message.removesuffix(" [grid.layers]"), hint=error.hint)
        largest = facts.layers
    if grid.recompute_layers > largest:
        yield Violation(
            rule="grid.recompute",
            message=f"recompute=full:{grid.recompute_layers}, but the largest chunk has {largest} layers",
            hint="recompute=full recomputes them all",
        )
    if grid.slices > facts.seq_len:
        yield Violation(rule="grid.slices", message=f"{grid.slices} slices of {facts.seq_len} tokens", hint="a slice is a token or more")


def _general_pipeline(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    """Rules of grids whose schedule only general plans know."""
    if grid.schedule not in GRID_SCHEDULES:
        yield Violation(rule="grid.schedule", message=f"unknown schedule {grid.schedule!r}", hint=nearest(grid.schedule, GRID_SCHEDULES))
        return
    laid = GRID_SCHEDULES[grid.schedule]
    if laid.placement == WAVE and (grid.first or grid.last):
        yield Violation(
            rule="grid.layers",
            message=f"first {grid.first} last {grid.last} with schedule {grid.schedule}, whose first rank has the last chunk",
            hint="layers= names every chunk's",
        )
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    if microbatches % laid.lanes:
        yield Violation(
            rule="grid.lanes",
            message=f"{microbatches} microbatches a replica do not halve over the two lanes of {grid.schedule}",
            hint="each lane takes as many",
        )


def _pipeline(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    if grid.schedule not in SCHEDULES:
        yield Violation(rule="grid.schedule", message=f"unknown schedule {grid.schedule!r}", hint=nearest(grid.schedule, SCHEDULES))
        return
    if grid.slices > 1:
        yield Violation(rule="grid.slices", message=f"slices with schedule {grid.schedule}", hint="terapipe and seq-1f1b order slices")
    interleaved = SCHEDULES[grid.schedule]
    if (grid.vpp > 1) != interleaved or (grid.vpp > 1 and grid.pp == 1):
        yield Violation(
            rule="grid.vpp",
            message=f"pp {grid.pp} vpp {grid.vpp} with schedule {grid.schedule}",
            hint="several chunks a device need pp above 1 and an interleaved schedule, and the other way round",
        )
    microbatches, rest = divmod(facts.global_batch, grid.dp * grid.microbatch)
    if interleaved and not rest and microbatches % grid.pp:
        yield Violation(
            rule="grid.interleave",
            message=f"{microbatches} microbatches a replica do not divide by pp {grid.pp}",
            hint="the interleaved schedule runs microbatches in rounds of pp",
        )


def _memory(grid: Grid, facts: GridFacts) -> Iterator[Violation]:
    holders = grid.dp * grid.cp
    if grid.zero and grid.shard and holders % grid.shard:
        yield Violation(
            rule="grid.zero",
            message=f"shard {grid.shard} does not divide dp x cp = {grid.dp} x {grid.cp} = {holders}",
            hint="a sharding group is a whole part of the replicas",
        )


def canonical(grid: Grid, *, facts: GridFacts) -> Grid:
    """The representative of all grids that lower to the same plan for a model with these `facts` (idempotent).

    Switches without effect are off: sp without tp, gather without a ring, shards with one holder, experts' degrees on a dense model,
    first and last that only repeat the rule, full:N that covers every chunk, gpipe with one microbatch, and the places of axes in
    `order` that change no group.
    """
    if not facts.experts:
        grid = replace(grid, ep=1, etp=1)
    holders = grid.dp * grid.cp
    zero, shard = grid.zero, grid.shard
    if (holders == 1 and not (facts.experts and grid.edp > 1)) or shard == 1:
        zero = 0
    if not zero or shard == holders:
        shard = 0
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    grid = _by_rule(grid, layers=facts.layers)
    first, last = _redundant(grid, layers=facts.layers)
    recompute_layers = grid.recompute_layers
    if recompute_layers and recompute_layers >= _largest_chunk(grid, layers=facts.layers):
        recompute_layers = 0
    return replace(
        grid,
        sp=grid.sp and grid.tp > 1,
        gather=grid.gather and grid.ring > 1,
        zero=zero,
        shard=shard,
        recompute_layers=recompute_layers,
        schedule="1f1b" if grid.schedule == "gpipe" and microbatches <= 1 else grid.schedule,
        first=first,
        last=last,
        order=_plain_order(grid),
    )


def _largest_chunk(grid: Grid, *, layers: int) -> int:
    """Layers of the largest chunk; all of them if the grid cuts them illegally."""
    try:
        return max(chunk_layers(layers, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last, layers=grid.layers))
    except StrategyError:
        return layers


def _by_rule(grid: Grid, *, layers: int) -> Grid:
    """`grid` without a list of layers that the rules give too: first and last in its place."""
    if not grid.layers:
        return grid
    if grid_schedule(grid.schedule).placement == WAVE:
        return _without_list(grid, layers=layers)
    if any(sum(grid.layers[r :: grid.pp]) % grid.vpp for r in (0, grid.pp - 1)):
        return grid
    ends = replace(grid, layers=(), first=sum(grid.layers[:: grid.pp]), last=sum(grid.layers[grid.pp - 1 :: grid.pp]))
    try:
        same = chunk_layers(layers, pp=grid.pp, vpp=grid.vpp, first=ends.first, last=ends.last) == grid.layers
    except StrategyError:
        return grid
    return ends if same else grid


def _without_list(grid: Grid, *, layers: int) -> Grid:
    """`grid` without a list of layers that the plain rule gives too."""
    try:
        same = chunk_layers(layers, pp=grid.pp, vpp=grid.vpp) == grid.layers
    except StrategyError:
        return grid
    return replace(grid, layers=()) if same else grid


def _redundant(grid: Grid, *, layers: int) -> tuple[int, int]:
    """(first, last) with what only repeats the rule for the others set to 0."""
    if grid.layers or not (grid.first or grid.last):
        return 0, 0
    try:
        meant = chunk_layers(layers, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last, layers=grid.layers)
    except StrategyError:
        return grid.first, grid.last
    head, tail = meant[0] * grid.vpp, meant[grid.pp - 1] * grid.vpp
    for first, last in ((0, 0), (head, 0), (0, tail)):
        try:
            if chunk_layers(layers, pp=grid.pp, vpp=grid.vpp, first=first, last=last) == meant:
                return first, last
        except StrategyError:
            continue
    return head, tail


def _plain_order(grid: Grid) -> tuple[str, ...]:
    """The first order, counting up from the default, with the same groups."""
    sizes = {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    expert = {"tp": grid.etp, "ep": grid.ep, "dp": grid.edp} if grid.ep * grid.etp > 1 else {}
    dense_kept = tuple(axis for axis in grid.order if sizes.get(axis, 1) > 1)
    expert_kept = tuple(axis for axis in grid.order if expert.get(axis, 1) > 1)
    return _first_order(dense_kept, expert_kept)


@lru_cache(maxsize=4096)
def _first_order(dense: tuple[str, ...], expert: tuple[str, ...]) -> tuple[str, ...]:
    """The least permutation of the axes that keeps these axes in these orders."""
    for order in itertools.permutations(AXES):
        if tuple(a for a in order if a in dense) == dense and tuple(a for a in order if a in expert) == expert:
            return order
    raise AssertionError("an order exists: the grid's own")
