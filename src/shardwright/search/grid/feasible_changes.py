"""Changes to an infeasible request, the least intrusive first, and a test whether a plan fits in
memory after each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import ShardwrightError
from shardwright.lazy_dataclass import dataclass
from shardwright.model.trained_parameters import trained
from shardwright.program.problem import Problem, under
from shardwright.program.rule_violations import facts_of, grid_violations
from shardwright.runtime.runtime import Runtime
from shardwright.runtime.runtime_options import (
    BY_NAME,
    OF_EXPERTS,
    in_vocabulary_order,
    offered_values,
)
from shardwright.runtime.runtime_registry import VENDORS, load_runtime, runtime_names
from shardwright.search.grid.bounds.bounded_space import bound_space, smallest
from shardwright.search.grid.members.declared_space import (
    AXES,
    Space,
    exhaustive_space,
    require_searchable,
    standard_space,
)
from shardwright.search.grid.members.searched_options import LADDER
from shardwright.simulator.plan_simulation import footprint_of_grid
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_counts import has_experts

DOUBLINGS: Final = 10
"""Largest number of times that devices are doubled, and batches and sequences halved."""
NO_LIMIT: Final = 10**6
LARGEST_CLUSTER: Final = 2**21
ADAPTERS: Final = "lora:r16"
_BUILDERS: Final[MappingProxyType[str, Callable[[Problem, GridFacts], Space]]] = MappingProxyType(
    {"standard": standard_space, "exhaustive": exhaustive_space}
)
_MEMORY_AXES: Final = ("zero", "offload", "recompute", "recompute_layers", "shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRequest:
    """One change of the request, and the problem and space after it."""

    text: str
    problem: Problem
    space: Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Changes of one kind, the smallest first.

    Args:
        about: what is looked for, for the progress line.
        most: how many of those that fit are told; the others are not looked for.
        flag: that the texts of all changes begin with, so that those that fit are told together.
    """

    about: str
    changes: Iterable[ChangedRequest]
    most: int = 1
    flag: str = ""

    def hint_texts(self, fitting: list[str]) -> list[str]:
        """Texts of the changes that fit, as the hint shows them: ``--runtime deepspeed-0.16 or
        maxtext``.
        """
        if not self.flag or not fitting:
            return fitting
        names = [text.removeprefix(self.flag).strip() for text in fitting]
        return [f"{self.flag} {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleRequest:
    """A request that has no plan that fits.

    Args:
        space: with one value of each option.
        grid: the strategy that needs least.
        need: bytes of its fullest device.
        capacity: bytes of a device that plans may fill.
    """

    problem: Problem
    space: Space
    grid: Grid
    need: int
    capacity: int

    @property
    def facts(self) -> GridFacts:
        """Counts that the rules of grids read."""
        return facts_of(self.problem)


def series_of(asked: InfeasibleRequest) -> tuple[Series, ...]:
    """All changes that are tried, in the order in which they are shown: software first, then the
    trained parameters, then hardware.
    """
    unpinned = [
        (axis, change) for axis, change in unpinned_changes(asked.problem, asked.space, asked.facts)
    ]
    of_memory = [change for axis, change in unpinned if axis in _MEMORY_AXES]
    others = [change for axis, change in unpinned if axis not in _MEMORY_AXES]
    wide = _wider(asked) if asked.space.name == "standard" else ()
    return (
        Series(about="options of the runtime", changes=_options(asked), most=NO_LIMIT),
        Series(about="ZeRO, offload and recompute", changes=of_memory, most=NO_LIMIT),
        Series(about="other pins", changes=others, most=NO_LIMIT),
        Series(about="a wider space", changes=wide),
        Series(about="other runtimes", changes=_runtimes(asked), most=NO_LIMIT, flag="--runtime"),
        Series(about="adapters", changes=_adapters(asked)),
        Series(about="a smaller batch", changes=_smaller_batches(asked)),
        Series(about="a shorter sequence", changes=_shorter(asked)),
        Series(about="more devices", changes=_more_devices(asked)),
    )


def fits(change: ChangedRequest, capacity: int) -> bool:
    """True if a member of the `lean` space fits in device and host memory; stops at the first
    that does.
    """
    try:
        facts = facts_of(change.problem)
        bounded = bound_space(change.problem, lean(change.space), facts, capacity=capacity)
    except ShardwrightError:
        return False
    return smallest(change.problem, bounded, enough=capacity, most=capacity) is not None


def lean(space: Space) -> Space:
    """The part of `space` with the least memory of each choice: one microbatch size, all layers
    recomputed, whole groups, one order.
    """
    kept = dict(space.values)
    kept["mbs"] = (min(space.of("mbs")),)
    kept["order"] = space.of("order")[:1]
    for axis in ("shard", "recompute_layers", "gather"):
        if 0 in kept[axis]:
            kept[axis] = (0,)
    return replace(space.rows()[0], values=tuple((axis, kept[axis]) for axis in AXES))


def same_choices(space: Space, facts: GridFacts, problem: Problem, changed: Problem) -> Space:
    """The space of the same name for another problem, with the same pins and exclusions."""
    build = _BUILDERS[space.name]
    plain, there = build(problem, facts), build(changed, facts_of(changed))
    values = tuple(
        (axis, there.of(axis) if space.of(axis) == plain.of(axis) else space.of(axis))
        for axis in AXES
    )
    modules = there.modules if space.modules == plain.modules else space.modules
    return replace(
        there,
        values=values,
        dp=space.dp,
        first=space.first,
        last=space.last,
        options=space.options,
        modules=modules,
    )


def changed_to(
    text: str, problem: Problem, space: Space, facts: GridFacts, changed: Problem
) -> ChangedRequest:
    """The change to another problem, with the pins of `space`."""
    return ChangedRequest(
        text=text, problem=changed, space=same_choices(space, facts, problem, changed)
    )


def unpinned_changes(
    problem: Problem, space: Space, facts: GridFacts
) -> Iterator[tuple[str, ChangedRequest]]:
    """(axis, change) of each restricted axis without its restriction."""
    plain = _BUILDERS[space.name](problem, facts)
    for axis in AXES:
        if set(space.of(axis)) != set(plain.of(axis)):
            values = tuple((a, plain.of(a) if a == axis else space.of(a)) for a in AXES)
            text = f"another {axis} than {','.join(map(str, space.of(axis)))}"
            yield (
                axis,
                ChangedRequest(text=text, problem=problem, space=replace(space, values=values)),
            )
    if space.dp:
        text = f"another dp than {','.join(map(str, space.dp))}"
        yield "dp", ChangedRequest(text=text, problem=problem, space=replace(space, dp=()))
    if space.first or space.last:
        yield (
            "first",
            ChangedRequest(
                text="no pinned first and last",
                problem=problem,
                space=replace(space, first=0, last=0),
            ),
        )


def _options(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Changes of the runtime's options that lower the need or allow other ZeRO stages, those
    without effect on numerics first.

    The rungs of recompute (`modules.LADDER`) are in the space already.
    """
    chosen, runtime = dict(asked.space.chosen), asked.problem.runtime
    offers = [
        (name, value)
        for name, values in offered_values(runtime).items()
        if name not in LADDER and (name not in OF_EXPERTS or has_experts(asked.problem.model))
        for value in values
        if value != chosen.get(name, dict(runtime.own).get(name))
    ]
    for name, value in sorted(offers, key=lambda pair: BY_NAME[pair[0]].numerics):
        try:
            changed = under(asked.problem, in_vocabulary_order({**chosen, name: value}.items()))
        except ShardwrightError:
            continue
        if not _may_need_less(asked, changed, name, value):
            continue
        change = changed_to(
            _option_text(name, value), asked.problem, asked.space, asked.facts, changed
        )
        yield replace(
            change, space=replace(change.space, options=_with_option(asked.space, name, value))
        )


def _option_text(name: str, value: str) -> str:
    return f"--pin {name}={value}" + (" (changes numerics)" if BY_NAME[name].numerics else "")


def _with_option(space: Space, name: str, value: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return in_vocabulary_order({**dict(space.options), name: (value,)}.items())


def _may_need_less(asked: InfeasibleRequest, changed: Problem, name: str, value: str) -> bool:
    """True if the strategy that needs least memory needs less under an option, or the option
    allows other ZeRO stages.
    """
    if changed.runtime.zero_stages != asked.problem.runtime.zero_stages:
        return True
    grid = replace(
        asked.grid, options=in_vocabulary_order({**dict(asked.grid.options), name: value}.items())
    )
    try:
        if next(grid_violations(changed, grid), None) is not None:
            return False
        memory, hosts = footprint_of_grid(asked.problem, grid)
    except ShardwrightError:
        return False
    before = sum(host.lacking for host in footprint_of_grid(asked.problem, asked.grid)[1])
    return (
        max(one.reserved for one in memory) < asked.need
        or sum(host.lacking for host in hosts) < before
    )


def _wider(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    wide = same_choices(
        replace(asked.space, name="exhaustive"), asked.facts, asked.problem, asked.problem
    )
    yield ChangedRequest(text="--space exhaustive", problem=asked.problem, space=wide)


def _runtimes(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Changes to the newest release of each framework that runs on these devices, other than the
    request's; the same framework last.
    """
    vendor = asked.problem.cluster.node.accelerator.vendor
    newest: dict[str, Runtime] = {}
    for name in runtime_names():
        one = load_runtime(name)
        if vendor in one.vendors or vendor not in VENDORS:
            known = newest.get(one.framework)
            newest[one.framework] = one if known is None or one.released > known.released else known
    for one in sorted(
        newest.values(),
        key=lambda runtime: (runtime.framework == asked.problem.runtime.framework, runtime.name),
    ):
        if one.name == asked.problem.runtime.base:
            continue
        changed = replace(asked.problem, runtime=one)
        plain = replace(asked.space, options=())
        change = changed_to(f"--runtime {one.name}", asked.problem, plain, asked.facts, changed)
        try:
            require_searchable(change.space, changed)
        except ShardwrightError:
            continue
        yield change


def _adapters(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Changes to low-rank adapters, where all parameters are trained."""
    model = asked.problem.model
    if model.base is None and model.num_trainable_parameters == model.num_parameters:
        changed = replace(asked.problem, model=trained(model, ADAPTERS))
        yield changed_to(f"--train {ADAPTERS}", asked.problem, asked.space, asked.facts, changed)


def _smaller_batches(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    batch = asked.problem.job.global_batch
    for power in range(1, DOUBLINGS + 1):
        if batch % 2**power:
            return
        smaller = replace(
            asked.problem, job=replace(asked.problem.job, global_batch=batch // 2**power)
        )
        yield changed_to(
            f"--global-batch {batch // 2**power}", asked.problem, asked.space, asked.facts, smaller
        )


def _shorter(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    job = asked.problem.job
    for power in range(1, DOUBLINGS + 1):
        if job.sequence_length % 2**power:
            return
        tokens = job.sequence_length // 2**power
        sequences = tuple(
            replace(s, tokens=tokens) if s.name == "text" else s for s in job.sequences
        )
        shorter = replace(asked.problem, job=replace(job, sequences=sequences))
        yield changed_to(f"--seq-len {tokens}", asked.problem, asked.space, asked.facts, shorter)


def _more_devices(asked: InfeasibleRequest) -> Iterator[ChangedRequest]:
    cluster = asked.problem.cluster
    for power in itertools.takewhile(
        lambda power: cluster.num_devices * 2**power <= LARGEST_CLUSTER, range(1, DOUBLINGS + 1)
    ):
        groups = tuple(replace(g, count=g.count * 2**power) for g in cluster.groups)
        larger = replace(asked.problem, cluster=replace(cluster, groups=groups))
        yield changed_to(
            f"{cluster.num_devices * 2**power} devices",
            asked.problem,
            asked.space,
            asked.facts,
            larger,
        )
