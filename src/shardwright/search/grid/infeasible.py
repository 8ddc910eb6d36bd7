"""Why nothing in a space can run: the tightest constraint, by how much, and the smallest changes that would make something run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from shardwright.errors import InfeasibleError, StrategyError
from shardwright.hardware.overrides import effective_memory, limit_devices
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem, under
from shardwright.search.grid.bounded import Crossed, bound_space, smallest
from shardwright.search.grid.members import enumerate_members
from shardwright.search.grid.space import AXES, Space, exhaustive_space, standard_space
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.grid.rules import GridFacts, violations
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes

DOUBLINGS = 10
"""How far devices are doubled and sequences halved."""
NEAR = 24
"""Numbers of devices below the given one that are tried."""
MOST_SHOWN = 4
MOST_RAW = 4000
LARGEST_CLUSTER = 2**21
_BUILDERS: dict[str, Callable[[Problem, GridFacts], Space]] = {"standard": standard_space, "exhaustive": exhaustive_space}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One change of what was asked, and what is asked then."""

    text: str
    problem: Problem
    space: Space


def nothing_fits(problem: Problem, space: Space, facts: GridFacts, crossed: tuple[Crossed, ...], *, capacity: int) -> InfeasibleError:
    """The error of a space without a member that fits in `capacity` bytes a device.

    The hint names changes that were tried and fit: pins dropped, a wider space, more devices (doubled), a shorter sequence (halved),
    more memory, another runtime. Each probe looks only at the members of least memory.
    """
    parts = ((under(problem, part.space.chosen), part.bounded(problem, facts, capacity=capacity)) for part in crossed)
    found = [least for own, part in parts if (least := smallest(own, part, enough=capacity)) is not None]
    # Where options are searched, changes are tried with the first value of each.
    problem, space = under(problem, space.rows()[0].chosen), space.rows()[0]
    if not found:
        return _nothing_legal(problem, space, facts, sum(part.enumerated for part in crossed))
    grid, stage = min(found, key=lambda least: least[1].reserved)
    need, more = format_bytes(stage.reserved), format_bytes(stage.reserved - capacity)
    name, most = max(stage.items, key=lambda item: item[1])
    fitting = (next((c.text for c in series if _fits(c, capacity)), "") for series in _roomier(problem, space, facts))
    roomy = ["--headroom 0"] if stage.reserved <= effective_memory(problem.cluster) else []
    hints = [*roomy, *itertools.islice(filter(None, fitting), MOST_SHOWN - 1 - len(roomy)), f"{need} a device"]
    return InfeasibleError(
        f"nothing fits: the smallest strategy ({print_grid(grid)}) needs {need} on stage {stage.rank} ({format_bytes(most)} of it {name}), "
        f"{more} more than the {format_bytes(capacity)} of a device that plans may fill",
        hint=f"what would fit: {'; or '.join(hints)}",
    )


def _fits(change: _Change, capacity: int) -> bool:
    """Some member of least memory fits."""
    facts = _facts(change.problem)
    bounded = bound_space(change.problem, lean(change.space), facts, capacity=capacity)
    return smallest(change.problem, bounded, enough=capacity, most=capacity) is not None


def _is_legal(change: _Change) -> bool:
    return enumerate_members(change.problem, lean(change.space), _facts(change.problem)).num_members > 0


def lean(space: Space) -> Space:
    """The part of `space` with the least memory of each choice: one microbatch size, all layers recomputed, whole groups, one order."""
    kept = dict(space.values)
    kept["mbs"] = (min(space.of("mbs")),)
    kept["order"] = space.of("order")[:1]
    for axis in ("shard", "recompute_layers", "gather"):
        if 0 in kept[axis]:
            kept[axis] = (0,)
    return replace(space.rows()[0], values=tuple((axis, kept[axis]) for axis in AXES))


def _facts(problem: Problem) -> GridFacts:
    job = problem.job
    return grid_facts(problem.model, devices=problem.cluster.num_devices, global_batch=job.global_batch, seq_len=job.sequence_length)


def _same_choices(space: Space, facts: GridFacts, problem: Problem, changed: Problem) -> Space:
    """The space of the same name for another problem, with what was pinned or excluded here."""
    build = _BUILDERS[space.name]
    plain, there = build(problem, facts), build(changed, _facts(changed))
    values = tuple((axis, there.of(axis) if space.of(axis) == plain.of(axis) else space.of(axis)) for axis in AXES)
    return replace(there, values=values, dp=space.dp, first=space.first, last=space.last)


def _changed(text: str, problem: Problem, space: Space, facts: GridFacts, changed: Problem) -> _Change:
    return _Change(text=text, problem=changed, space=_same_choices(space, facts, problem, changed))


def _unpinned(problem: Problem, space: Space, facts: GridFacts) -> Iterator[_Change]:
    """Each restricted axis set free."""
    plain = _BUILDERS[space.name](problem, facts)
    for axis in AXES:
        if set(space.of(axis)) != set(plain.of(axis)):
            values = tuple((a, plain.of(a) if a == axis else space.of(a)) for a in AXES)
            yield _Change(
                text=f"another {axis} than {','.join(map(str, space.of(axis)))}", problem=problem, space=replace(space, values=values)
            )
    if space.dp:
        yield _Change(text=f"another dp than {','.join(map(str, space.dp))}", problem=problem, space=replace(space, dp=()))
    if space.first or space.last:
        yield _Change(text="no pinned first and last", problem=problem, space=replace(space, first=0, last=0))


def _roomier(problem: Problem, space: Space, facts: GridFacts) -> Iterator[Iterable[_Change]]:
    """Changes that may give room, the smallest first, in series of which only the first that fits is worth saying."""
    for change in _unpinned(problem, space, facts):
        yield (change,)
    if space.name == "standard":
        wide = _same_choices(replace(space, name="exhaustive"), facts, problem, problem)
        yield (_Change(text="--space exhaustive", problem=problem, space=wide),)
    yield _more_devices(problem, space, facts)
    yield _shorter(problem, space, facts)
    runtime = problem.runtime
    if not runtime.optimizer_offload:
        other = replace(runtime, optimizer_offload=True)
        yield (_changed("a runtime with optimizer offload", problem, space, facts, replace(problem, runtime=other)),)
    if 3 not in runtime.zero_stages:
        other = replace(runtime, zero_stages=(*runtime.zero_stages, 3))
        yield (_changed("a runtime with ZeRO-3", problem, space, facts, replace(problem, runtime=other)),)


def _more_devices(problem: Problem, space: Space, facts: GridFacts) -> Iterator[_Change]:
    cluster = problem.cluster
    for power in range(1, DOUBLINGS + 1):
        groups = tuple(replace(g, count=g.count * 2**power) for g in cluster.groups)
        devices = cluster.num_devices * 2**power
        if devices > LARGEST_CLUSTER:
            return
        yield _changed(f"{devices} devices", problem, space, facts, replace(problem, cluster=replace(cluster, groups=groups)))


def _shorter(problem: Problem, space: Space, facts: GridFacts) -> Iterator[_Change]:
    tokens = problem.job.sequence_length
    for power in range(1, DOUBLINGS + 1):
        if tokens % 2**power:
            return
        sequences = tuple(replace(s, tokens=tokens // 2**power) if s.name == "text" else s for s in problem.job.sequences)
        changed = replace(problem, job=replace(problem.job, sequences=sequences))
        yield _changed(f"--seq-len {tokens // 2**power}", problem, space, facts, changed)


def _nothing_legal(problem: Problem, space: Space, facts: GridFacts, enumerated: int) -> InfeasibleError:
    """No member keeps the rules: the rule that the nearest one breaks, and changes with which some member keeps them all."""
    hints = [change.text for change in itertools.islice(filter(_is_legal, _unpinned(problem, space, facts)), MOST_SHOWN - 2)]
    for series in (_fewer_devices(problem, space, facts), _whole_batches(problem, space, facts)):
        hints += [change.text for change in itertools.islice(filter(_is_legal, series), 1)]
    return InfeasibleError(
        f"no legal strategy in the space: {_nearest(problem, space, facts, enumerated)}",
        hint=f"what would be legal: {'; or '.join(hints)}" if hints else "pin less, or choose another number of devices or another batch",
    )


def _fewer_devices(problem: Problem, space: Space, facts: GridFacts) -> Iterator[_Change]:
    devices = problem.cluster.num_devices
    tried: set[int] = {devices}
    near = range(devices - 1, max(devices - 1 - NEAR, 0), -1)
    halves = (2**power for power in range(devices.bit_length() - 1, -1, -1))
    for number in (*near, *halves):
        cluster = limit_devices(problem.cluster, num_devices=number)
        if cluster.num_devices not in tried:
            tried.add(cluster.num_devices)
            changed = replace(problem, cluster=cluster)
            yield _changed(f"--max-devices {cluster.num_devices}", problem, space, facts, changed)


def _whole_batches(problem: Problem, space: Space, facts: GridFacts) -> Iterator[_Change]:
    """The next batches that divide by more of the devices."""
    batch, devices = problem.job.global_batch, problem.cluster.num_devices
    steps = [devices // part for part in range(min(devices, NEAR), 0, -1) if devices % part == 0]
    larger = sorted({-(-batch // step) * step for step in steps} - {batch})
    for number in larger:
        changed = replace(problem, job=replace(problem.job, global_batch=number))
        yield _changed(f"--global-batch {number}", problem, space, facts, changed)


def _nearest(problem: Problem, space: Space, facts: GridFacts, enumerated: int) -> str:
    """The rule that the raw member with the fewest broken rules breaks."""
    best: tuple[int, str] | None = None
    for grid in itertools.islice(_raw(lean(space)), MOST_RAW):
        broken = [f"{v.message} [{v.rule}]" for v in violations(grid, facts=facts)]
        if grid.pp > 1 and grid.zero > problem.runtime.zero_with_pipeline:
            broken.append(f"{problem.runtime.name} has no zero{grid.zero} with pp above 1 [runtime.zero]")
        if broken and (best is None or len(broken) < best[0]):
            best = len(broken), broken[0]
    if best is None:
        axes = ", ".join(f"{axis} {{{','.join(map(str, space.of(axis)))}}}" for axis in ("tp", "cp", "pp"))
        only = f" and dp {{{','.join(map(str, space.dp))}}}" if space.dp else ""
        return f"no tp x cp x pp of {axes}{only} makes {space.devices} devices"
    return f"each of the {enumerated} members breaks a rule; the nearest, {best[1]}"


def _raw(space: Space) -> Iterator[Grid]:
    """Raw members that are grids at all, one for the choices that no rule joins to others."""
    axes = ("tp", "cp", "pp", "ep", "etp", "sp", "ulysses", "vpp", "schedule", "zero", "recompute_layers")
    for values in itertools.product(*(space.of(axis) for axis in axes)):
        member: dict[str, Any] = dict(zip(axes, values, strict=True))
        dp, rest = divmod(space.devices, member["tp"] * member["cp"] * member["pp"])
        if rest or (space.dp and dp not in space.dp):
            continue
        try:
            yield Grid(
                **member | {"sp": bool(member["sp"])},
                dp=dp,
                microbatch=int(space.of("mbs")[0]),
                recompute=Recompute.FULL if member["recompute_layers"] else Recompute(str(space.of("recompute")[0])),
                first=space.first,
                last=space.last,
                order=space.orders[0],
            )
        except StrategyError:
            continue
