"""Strategies that differ from a given strategy in a single decision."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import TypeVar

from shardwright.errors import ShardwrightError
from shardwright.program.strategy_rule_violations import grid_violations, plan_violations
from shardwright.program.training_problem import Problem
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, OF_EXPERTS, in_vocabulary_order
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid, simulate_plan
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.plan.plan import Plan

Strategy = TypeVar("Strategy", bound=Grid | Plan)


def one_change(
    problem: Problem, space: Space, facts: GridFacts, grid: Grid
) -> Iterator[tuple[str, Grid]]:
    """Yield (change text, grid) of distinct grids with one other axis value or neutral option.

    Only options that change no numerics are changed. Data parallelism takes the remaining devices.
    A pipeline of another length or with other chunks distributes its layers anew and takes the
    schedule that its number of chunks needs. Sequence parallelism stays on, or is switched on with
    the first tensor parallelism.
    """
    seen = {canonical(grid, facts=facts)}
    options = (
        (f"{name}={value}", changed) for name, value, changed in option_changes(problem, grid)
    )
    for text, changed in (*_axis_changes(space, facts, grid), *options):
        if changed is None or changed.dp < 1:
            continue
        canonical_grid = canonical(changed, facts=facts)
        if canonical_grid not in seen:
            seen.add(canonical_grid)
            yield text, canonical_grid


def _axis_changes(space: Space, facts: GridFacts, grid: Grid) -> Iterator[tuple[str, Grid | None]]:
    """Yield (change text, grid) for each value of each axis; None if dp would not be whole."""
    for tp in space.of("tp"):
        yield (
            f"tp{tp}",
            _with_remaining_dp(
                facts,
                replace(grid, tp=int(tp), sp=grid.sp or (grid.tp == 1 and _has_sp(space)), etp=1),
            ),
        )
    for cp in space.of("cp"):
        yield (
            f"cp{cp}",
            _with_remaining_dp(facts, replace(grid, cp=int(cp), ulysses=1, gather=False)),
        )
    for ulysses in space.of("ulysses"):
        if grid.cp % int(ulysses) == 0:
            yield f"ulysses{ulysses}", replace(grid, ulysses=int(ulysses), gather=False)
    for ep in space.of("ep"):
        for etp in space.of("etp"):
            yield (
                f"ep{ep}" if etp == grid.etp else f"ep{ep} etp{etp}",
                replace(grid, ep=int(ep), etp=int(etp)),
            )
    chunks = sorted({1, grid.vpp, *map(int, space.of("vpp"))})
    for pp in space.of("pp"):
        for vpp in chunks if int(pp) == grid.pp else (1, grid.vpp):
            words = f"pp{pp}" if int(pp) != grid.pp else ""
            yield f"{words} vpp{vpp}".strip(), _with_pipeline(facts, grid, int(pp), vpp)
    for mbs in space.of("mbs"):
        yield f"mbs{mbs}", replace(grid, microbatch=int(mbs))
    for zero in space.of("zero"):
        yield f"zero{zero}", replace(grid, zero=int(zero), shard=0)
    for recompute in space.of("recompute"):
        yield (
            f"recompute={recompute}",
            replace(grid, recompute=Recompute(str(recompute)), recompute_layers=0),
        )
    for order in space.orders:
        yield f"order={'-'.join(order)}", replace(grid, order=order)
    if grid.offload:
        yield "offload=0", replace(grid, offload=0)


def _has_sp(space: Space) -> bool:
    """True if the space has sequence parallelism."""
    return any(int(value) for value in space.of("sp"))


def _with_remaining_dp(facts: GridFacts, grid: Grid) -> Grid | None:
    """`grid` with the data parallelism that uses all devices, or None if no whole degree does."""
    devices_per_replica = grid.tp * grid.cp * grid.pp
    return (
        replace(grid, dp=facts.devices // devices_per_replica)
        if facts.devices % devices_per_replica == 0
        else None
    )


def _with_pipeline(facts: GridFacts, grid: Grid, pp: int, vpp: int) -> Grid | None:
    """`grid` with this pp and vpp, equal stages and (interleaved) 1F1B; None if dp is not whole."""
    vpp = vpp if pp > 1 else 1
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    return _with_remaining_dp(
        facts,
        replace(grid, pp=pp, vpp=vpp, first=0, last=0, layers=(), schedule=schedule, slices=1),
    )


def option_changes(
    problem: Problem,
    strategy: Strategy,
    *,
    names: Container[str] | None = None,
    values: Container[str] | None = None,
) -> Iterator[tuple[str, str, Strategy]]:
    """Yield (option, value, strategy) for all values, own included, of numerics-neutral options.

    The strategy's own values are included.

    Args:
        names, values: options to change and values to try; None = any.
    """
    runtime_values, chosen = dict(problem.runtime.own), dict(strategy.options)
    for name, option_values in offered_values(problem.runtime).items():
        if (
            BY_NAME[name].numerics
            or (name in OF_EXPERTS and not has_experts(problem.model))
            or (names is not None and name not in names)
        ):
            continue
        for value in option_values:
            if values is not None and value not in values:
                continue
            changed = {**chosen, name: value}
            if runtime_values.get(name) == value:
                del changed[name]
            yield name, value, replace(strategy, options=in_vocabulary_order(changed.items()))


def simulated_change(
    problem: Problem, strategy: Grid | Plan, *, capacity: float | None = None
) -> SimulatedPlan | None:
    """Simulate a step; None if a rule is broken or memory exceeds `capacity` (None = devices').

    None also if the runtime rejects its options.

    Args:
        capacity: bytes that the strategy may fill on every device; None = each device's memory.
    """
    try:
        if isinstance(strategy, Grid):
            simulated = (
                None
                if next(iter(grid_violations(problem, strategy)), None)
                else simulate_grid(problem, strategy)
            )
        else:
            simulated = (
                None
                if next(iter(plan_violations(problem, strategy)), None)
                else simulate_plan(problem, strategy)
            )
    except ShardwrightError:
        return None
    if simulated is None:
        return None
    return (
        simulated if (simulated.fits if capacity is None else simulated.fits_in(capacity)) else None
    )
