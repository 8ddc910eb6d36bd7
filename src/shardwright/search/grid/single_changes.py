"""Strategies that differ from a given one in a single decision."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import TypeVar

from shardwright.errors import ShardwrightError
from shardwright.program.problem import Problem
from shardwright.program.rule_violations import grid_violations, plan_violations
from shardwright.runtime.runtime_options import (
    BY_NAME,
    OF_EXPERTS,
    in_vocabulary_order,
    offered_values,
)
from shardwright.search.grid.members.declared_space import Space
from shardwright.simulator.plan_simulation import SimulatedPlan, simulate_grid, simulate_plan
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.grid_rules import GridFacts, canonical
from shardwright.strategy.grid.model_counts import has_experts
from shardwright.strategy.plan.plan import Plan

Strategy = TypeVar("Strategy", bound=Grid | Plan)


def one_change(
    problem: Problem, space: Space, facts: GridFacts, grid: Grid
) -> Iterator[tuple[str, Grid]]:
    """Strategies with another value of one axis of `space`, or of one option that changes no
    numerics, each once, with the change in the grid's words.

    Data parallelism takes what devices are left; a pipeline of another length or with other chunks
    spreads its layers anew, and takes the schedule that its number of chunks needs; tensor
    parallelism splits the stream too where it did, or was not there before.
    """
    seen = {canonical(grid, facts=facts)}
    options = ((f"{name}={value}", other) for name, value, other in option_changes(problem, grid))
    for text, other in (*_axes(space, facts, grid), *options):
        if other is None or other.dp < 1:
            continue
        same = canonical(other, facts=facts)
        if same not in seen:
            seen.add(same)
            yield text, same


def _axes(space: Space, facts: GridFacts, grid: Grid) -> Iterator[tuple[str, Grid | None]]:
    for tp in space.of("tp"):
        yield (
            f"tp{tp}",
            _meshed(
                facts,
                replace(grid, tp=int(tp), sp=grid.sp or (grid.tp == 1 and _has_sp(space)), etp=1),
            ),
        )
    for cp in space.of("cp"):
        yield f"cp{cp}", _meshed(facts, replace(grid, cp=int(cp), ulysses=1, gather=False))
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
            yield f"{words} vpp{vpp}".strip(), _pipelined(facts, grid, int(pp), vpp)
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
    return any(int(value) for value in space.of("sp"))


def _meshed(facts: GridFacts, grid: Grid) -> Grid | None:
    """`grid` with the data parallelism that its other degrees leave on all devices."""
    each = grid.tp * grid.cp * grid.pp
    return replace(grid, dp=facts.devices // each) if facts.devices % each == 0 else None


def _pipelined(facts: GridFacts, grid: Grid, pp: int, vpp: int) -> Grid | None:
    vpp = vpp if pp > 1 else 1
    schedule = "interleaved-1f1b" if vpp > 1 else "1f1b"
    return _meshed(
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
    """(option, value, strategy) of every value of each option that changes no numerics, the
    strategy's own included.

    Args:
        names, values: of the options that are changed; None = any.
    """
    own, chosen = dict(problem.runtime.own), dict(strategy.options)
    for name, offered in offered_values(problem.runtime).items():
        if (
            BY_NAME[name].numerics
            or (name in OF_EXPERTS and not has_experts(problem.model))
            or (names is not None and name not in names)
        ):
            continue
        for value in offered:
            if values is not None and value not in values:
                continue
            changed = {**chosen, name: value}
            if own.get(name) == value:
                del changed[name]
            yield name, value, replace(strategy, options=in_vocabulary_order(changed.items()))


def simulated_change(
    problem: Problem, strategy: Grid | Plan, *, capacity: float | None = None
) -> SimulatedPlan | None:
    """The simulated step of a strategy; None where it breaks a rule, the runtime refuses its
    options, or it does not fit.

    Args:
        capacity: bytes of every device that it may fill; None = of each device what it has.
    """
    try:
        if isinstance(strategy, Grid):
            done = (
                None
                if next(iter(grid_violations(problem, strategy)), None)
                else simulate_grid(problem, strategy)
            )
        else:
            done = (
                None
                if next(iter(plan_violations(problem, strategy)), None)
                else simulate_plan(problem, strategy)
            )
    except ShardwrightError:
        return None
    if done is None:
        return None
    return done if (done.fits if capacity is None else done.fits_in(capacity)) else None
