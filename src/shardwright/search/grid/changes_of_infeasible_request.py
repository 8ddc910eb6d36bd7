"""Changes to an infeasible request, the least intrusive first, and a memory check of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import ShardwrightError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.program.strategy_rule_violations import facts_of, grid_violations
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, OF_EXPERTS, in_vocabulary_order
from shardwright.runtime.runtime_registry import VENDORS, load_runtime, runtime_names
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space, smallest
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.search.grid.members.pinned_and_excluded_values import require_searchable
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.simulator.simulate_plan import footprint_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts
from shardwright.strategy.grid.parallelism_grid import Grid

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
    """A changed request: the hint's text, and the problem and space after the change."""

    text: str
    problem: Problem
    space: Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Candidate changes of one kind to an infeasible request, the smallest first.

    Args:
        about: kind of change, for the progress line.
        most: most fitting changes to show; the search of the series stops there.
        flag: option name with which every text begins, so that the fitting values are joined.
    """

    about: str
    changes: Iterable[ChangedRequest]
    most: int = 1
    flag: str = ""

    def hint_texts(self, fitting: list[str]) -> list[str]:
        """Hint texts of fitting changes; with a flag one text, as in ``--runtime a, b or c``.

        For example ``--runtime deepspeed-0.16 or maxtext``.
        """
        if not self.flag or not fitting:
            return fitting
        names = [text.removeprefix(self.flag).strip() for text in fitting]
        return [f"{self.flag} {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleRequest:
    """A request without a plan that fits in memory.

    Args:
        space: space with one value of each runtime option.
        grid: the strategy that needs the least memory.
        need: bytes of that strategy's fullest device.
        capacity: bytes of a device that plans may fill.
    """

    problem: Problem
    space: Space
    grid: Grid
    need: int
    capacity: int

    @property
    def facts(self) -> GridFacts:
        """Sizes of the model and cluster that the rules of grids read."""
        return facts_of(self.problem)


def series_of(request: InfeasibleRequest) -> tuple[Series, ...]:
    """All changes to try, in display order: software, trained parameters, batch, then hardware."""
    unpinned = [
        (axis, change)
        for axis, change in unpinned_changes(request.problem, request.space, request.facts)
    ]
    memory_changes = [change for axis, change in unpinned if axis in _MEMORY_AXES]
    other_changes = [change for axis, change in unpinned if axis not in _MEMORY_AXES]
    wider_space = _wider_space(request) if request.space.name == "standard" else ()
    return (
        Series(about="options of the runtime", changes=_option_changes(request), most=NO_LIMIT),
        Series(about="ZeRO, offload and recompute", changes=memory_changes, most=NO_LIMIT),
        Series(about="other pins", changes=other_changes, most=NO_LIMIT),
        Series(about="a wider space", changes=wider_space),
        Series(
            about="other runtimes",
            changes=_runtime_changes(request),
            most=NO_LIMIT,
            flag="--runtime",
        ),
        Series(about="adapters", changes=_adapter_changes(request)),
        Series(about="a smaller batch", changes=_smaller_batches(request)),
        Series(about="a shorter sequence", changes=_shorter_sequences(request)),
        Series(about="more devices", changes=_more_devices(request)),
    )


def fits(change: ChangedRequest, capacity: int) -> bool:
    """True if a least-memory member fits `capacity` bytes a device and hosts; False on errors."""
    try:
        facts = facts_of(change.problem)
        bounded = bound_space(
            change.problem, least_memory_space(change.space), facts, capacity=capacity
        )
    except ShardwrightError:
        return False
    return smallest(change.problem, bounded, enough=capacity, most=capacity) is not None


def least_memory_space(space: Space) -> Space:
    """Reduce `space` to its first options and order, and to the mbs, shard, etc. of least memory.

    One microbatch size, all layers recomputed, whole sharding groups, one order.
    """
    values = dict(space.values)
    values["mbs"] = (min(space.of("mbs")),)
    values["order"] = space.of("order")[:1]
    for axis in ("shard", "recompute_layers", "gather"):
        if 0 in values[axis]:
            values[axis] = (0,)
    return replace(space.option_parts()[0], values=tuple((axis, values[axis]) for axis in AXES))


def same_choices(
    space: Space, facts: GridFacts, problem: Problem, changed: Problem, *, kind: str = ""
) -> Space:
    """Space of a `kind` (default: the same) for a changed problem, with the pins of `space`."""
    default = _BUILDERS[space.name](problem, facts)
    changed_default = _BUILDERS[kind or space.name](changed, facts_of(changed))
    values = tuple(
        (axis, changed_default.of(axis) if space.of(axis) == default.of(axis) else space.of(axis))
        for axis in AXES
    )
    modules = changed_default.modules if space.modules == default.modules else space.modules
    return replace(
        changed_default,
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
    """Build a change from `problem` to `changed` that keeps the pins of `space`."""
    return ChangedRequest(
        text=text, problem=changed, space=same_choices(space, facts, problem, changed)
    )


def unpinned_changes(
    problem: Problem, space: Space, facts: GridFacts
) -> Iterator[tuple[str, ChangedRequest]]:
    """Yield (axis, change) for each restricted axis of `space`, with the restriction lifted."""
    default = _BUILDERS[space.name](problem, facts)
    for axis in AXES:
        if set(space.of(axis)) != set(default.of(axis)):
            values = tuple((a, default.of(a) if a == axis else space.of(a)) for a in AXES)
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


def _option_changes(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield changes of one runtime option that may lower memory, the numerics-neutral ones first.

    The space has the recompute options of `default_runtime_and_recompute_options.LADDER` already.
    """
    chosen, runtime = dict(request.space.chosen), request.problem.runtime
    offers = [
        (name, value)
        for name, values in offered_values(runtime).items()
        if name not in LADDER and (name not in OF_EXPERTS or has_experts(request.problem.model))
        for value in values
        if value != chosen.get(name, dict(runtime.own).get(name))
    ]
    for name, value in sorted(offers, key=lambda pair: BY_NAME[pair[0]].numerics):
        try:
            changed = under(request.problem, in_vocabulary_order({**chosen, name: value}.items()))
        except ShardwrightError:
            continue
        if not _may_need_less(request, changed, name, value):
            continue
        change = changed_to(
            _option_text(name, value), request.problem, request.space, request.facts, changed
        )
        yield replace(
            change, space=replace(change.space, options=_with_option(request.space, name, value))
        )


def _option_text(name: str, value: str) -> str:
    """Command-line text of a pinned runtime option, marked if it changes numerics."""
    return f"--pin {name}={value}" + (" (changes numerics)" if BY_NAME[name].numerics else "")


def _with_option(space: Space, name: str, value: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Options of `space` with one option set to a single value."""
    return in_vocabulary_order({**dict(space.options), name: (value,)}.items())


def _may_need_less(request: InfeasibleRequest, changed: Problem, name: str, value: str) -> bool:
    """True if an option lowers device or lacking host bytes of `request.grid`, or changes ZeRO."""
    if changed.runtime.zero_stages != request.problem.runtime.zero_stages:
        return True
    grid = replace(
        request.grid,
        options=in_vocabulary_order({**dict(request.grid.options), name: value}.items()),
    )
    try:
        if next(grid_violations(changed, grid), None) is not None:
            return False
        memory, hosts = footprint_of_grid(request.problem, grid)
    except ShardwrightError:
        return False
    before = sum(host.lacking for host in footprint_of_grid(request.problem, request.grid)[1])
    return (
        max(stage.reserved for stage in memory) < request.need
        or sum(host.lacking for host in hosts) < before
    )


def _wider_space(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield the change to the exhaustive space."""
    exhaustive = same_choices(
        request.space, request.facts, request.problem, request.problem, kind="exhaustive"
    )
    yield ChangedRequest(text="--space exhaustive", problem=request.problem, space=exhaustive)


def _runtime_changes(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield changes to the newest release of each framework that supports the accelerator.

    The framework of the request comes last.
    """
    vendor = request.problem.cluster.node.accelerator.vendor
    newest: dict[str, Runtime] = {}
    for name in runtime_names():
        runtime = load_runtime(name)
        if vendor in runtime.vendors or vendor not in VENDORS:
            newest_known = newest.get(runtime.framework)
            newest[runtime.framework] = (
                runtime
                if newest_known is None or runtime.released > newest_known.released
                else newest_known
            )
    for runtime in sorted(
        newest.values(),
        key=lambda runtime: (runtime.framework == request.problem.runtime.framework, runtime.name),
    ):
        if runtime.name == request.problem.runtime.base:
            continue
        changed = replace(request.problem, runtime=runtime)
        default = replace(request.space, options=())
        change = changed_to(
            f"--runtime {runtime.name}", request.problem, default, request.facts, changed
        )
        try:
            require_searchable(change.space, changed)
        except ShardwrightError:
            continue
        yield change


def _adapter_changes(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield the change to low-rank adapters if the request trains all parameters."""
    model = request.problem.model
    if model.base is None and model.num_trainable_parameters == model.num_parameters:
        changed = replace(request.problem, model=trained(model, ADAPTERS))
        yield changed_to(
            f"--train {ADAPTERS}", request.problem, request.space, request.facts, changed
        )


def _smaller_batches(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield changes that halve the global batch 1 to DOUBLINGS times, while it stays whole."""
    batch = request.problem.job.global_batch
    for power in range(1, DOUBLINGS + 1):
        if batch % 2**power:
            return
        smaller = replace(
            request.problem, job=replace(request.problem.job, global_batch=batch // 2**power)
        )
        yield changed_to(
            f"--global-batch {batch // 2**power}",
            request.problem,
            request.space,
            request.facts,
            smaller,
        )


def _shorter_sequences(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield changes that halve the sequence length 1 to DOUBLINGS times, while it stays whole."""
    job = request.problem.job
    for power in range(1, DOUBLINGS + 1):
        if job.sequence_length % 2**power:
            return
        tokens = job.sequence_length // 2**power
        sequences = tuple(
            replace(s, tokens=tokens) if s.name == "text" else s for s in job.sequences
        )
        shorter = replace(request.problem, job=replace(job, sequences=sequences))
        yield changed_to(
            f"--seq-len {tokens}", request.problem, request.space, request.facts, shorter
        )


def _more_devices(request: InfeasibleRequest) -> Iterator[ChangedRequest]:
    """Yield changes that double the number of devices repeatedly, up to `LARGEST_CLUSTER`."""
    cluster = request.problem.cluster
    for power in itertools.takewhile(
        lambda power: cluster.num_devices * 2**power <= LARGEST_CLUSTER, range(1, DOUBLINGS + 1)
    ):
        groups = tuple(replace(g, count=g.count * 2**power) for g in cluster.groups)
        larger = replace(request.problem, cluster=replace(cluster, groups=groups))
        yield changed_to(
            f"{cluster.num_devices * 2**power} devices",
            request.problem,
            request.space,
            request.facts,
            larger,
        )
