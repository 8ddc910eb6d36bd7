"""The space of grids that a search covers: its axes, their values, pins and exclusions."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import isqrt
from types import SimpleNamespace

from shardwright.errors import RuntimeModelError, UsageError, nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.runtime_options import BY_NAME, in_vocabulary_order
from shardwright.search.grid.members.default_searched_options import (
    LADDER,
    NOTHING,
    module_ladder,
    pinned_modules,
    searched_options,
    turns_on,
    without_modules,
)
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts
from shardwright.strategy.grid.model_size_facts import num_layers
from shardwright.strategy.grid.parallelism_grid import AXES as MESH_AXES
from shardwright.strategy.grid.parallelism_grid import MAX_DEGREE, Grid, Recompute
from shardwright.strategy.grid.runtime_rules import AXES_READ, unrunnable

AXES = (
    "tp",
    "cp",
    "pp",
    "order",
    "ep",
    "etp",
    "sp",
    "ulysses",
    "gather",
    "mbs",
    "vpp",
    "schedule",
    "zero",
    "shard",
    "recompute",
    "recompute_layers",
    "offload",
)
"""Axes of the grid space; dp follows from the number of devices."""

PINNABLE = (*AXES, "dp", "first", "last")
"""Names that can be pinned: the axes, the dp that follows from them, and the layers of the first
and the last stage."""

Value = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A space of grids to search: the values of each axis, in the order of AXES.

    Args:
        devices: number of devices of the cluster.
        values: values of each axis. `shard` counts the members of a sharding group (0 = all
            holders); `recompute_layers` applies with full recompute (0 = all layers).
        dp: allowed data parallel degrees; empty = any.
        first, last: layers of the first and last pipeline rank of every member; 0 = as the other
            ranks.
        paired: schedules that only general plans run, for members of 1F1B (see
            `search.grid.overlapped_schedules`).
        options: values of each searched option of the runtime; a part that is searched at once has
            one value of each.
        modules: sets of options that choose the modules to recompute, the smallest set first; sets
            that recompute more than the runtime by itself are combined with recompute=none.
        runtime_options: the runtime's value of each option that it offers, which members have if
            the space searches no other value.
        fewest: least number of devices of a member whose dp divides the batch; 0 = all devices.
        node: devices that are left idle together.
    """

    name: str
    devices: int
    values: tuple[tuple[str, tuple[Value, ...]], ...]
    dp: tuple[int, ...] = ()
    first: int = 0
    last: int = 0
    fewest: int = 0
    node: int = 1
    paired: tuple[str, ...] = ()
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    modules: tuple[Options, ...] = NOTHING
    runtime_options: Options = ()

    def of(self, axis: str) -> tuple[Value, ...]:
        """The searched values of one axis."""
        return dict(self.values)[axis]

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Values of the axis `order`, each as a tuple of mesh axes, innermost first."""
        return tuple(tuple(str(order).split("-")) for order in self.of("order"))

    def option_parts(self) -> tuple[Space, ...]:
        """Split the space into its parts with one value of each runtime option."""
        names = [name for name, _ in self.options]
        crossed = itertools.product(*(values for _, values in self.options))
        return tuple(
            replace(
                self,
                options=tuple((name, (value,)) for name, value in zip(names, row, strict=True)),
            )
            for row in crossed
        )

    @property
    def chosen(self) -> Options:
        """(option, value) pairs of a part that has one value of each runtime option."""
        return tuple((name, value) for name, (value,) in self.options)

    @property
    def beside_recompute(self) -> tuple[bool, ...]:
        """(module sets,) True if the set may be combined with recompute=selective and full.

        Megatron's recompute granularity is full or selective.
        """
        runtime_values = dict(self.runtime_options)
        return tuple(not turns_on(module_set, runtime_values) for module_set in self.modules)

    def option_values(self, name: str) -> tuple[str, ...]:
        """Values that a runtime option has among the members; empty if the runtime lacks it."""
        runtime_values = dict(self.runtime_options)
        if name in LADDER:
            module_values = (
                dict(module_set).get(name, runtime_values.get(name, ""))
                for module_set in self.modules
            )
            return tuple(dict.fromkeys(value for value in module_values if value))
        searched = dict(self.options).get(name)
        return searched or ((runtime_values[name],) if name in runtime_values else ())

    def text(self) -> str:
        """Canonical text of the space, for the reader and for the digest."""
        axes = "; ".join(f"{axis} {{{_values_text(values)}}}" for axis, values in self.values)
        only = f" in {{{', '.join(map(str, self.dp))}}}" if self.dp else ""
        ends = "".join(
            f"; {name} {count}"
            for name, count in (("first", self.first), ("last", self.last))
            if count
        )
        idle = (
            f", or dp that divides the batch on whole nodes of {self.node}, at least {self.fewest}"
            " devices"
            if self.fewest
            else ""
        )
        options = "".join(f"; {name} {{{', '.join(values)}}}" for name, values in self.options)
        sets = ", ".join(
            " ".join(f"{name}={value}" for name, value in chosen) or "as it is"
            for chosen in self.modules
        )
        modules = f"; modules {{{sets}}}" if self.modules != NOTHING else ""
        paired = (
            f"; and 1F1B's members in the order of {', '.join(self.paired)}" if self.paired else ""
        )
        return (
            f"{self.name}: {self.devices} devices; {axes}; dp = devices / (tp cp"
            f" pp){only}{idle}{ends}{options}{modules}{paired}"
        )

    def digest(self, problem: str) -> str:
        """SHA-256 of the text of the space and of the problem."""
        return hashlib.sha256(f"{self.text()}\n{problem}".encode()).hexdigest()


def parts_of(problem: Problem, space: Space) -> tuple[Space, ...]:
    """The parts of `space` with one value of each option that the runtime supports together.

    Raises:
        RuntimeModelError: the runtime supports none of the parts; the error of the first part.
    """
    parts: list[Space] = []
    refused: list[RuntimeModelError] = []
    for part in space.option_parts():
        try:
            under(problem, part.chosen)
        except RuntimeModelError as error:
            refused.append(error)
        else:
            parts.append(part)
    if not parts:
        raise refused[0]
    return tuple(parts)


def row_of(space: Space, grid: Grid) -> Space:
    """The part of `space` that has the runtime options of its member `grid`."""
    chosen = dict(grid.options)
    return replace(
        space,
        options=tuple((name, (chosen.get(name, values[0]),)) for name, values in space.options),
    )


def _values_text(values: tuple[Value, ...]) -> str:
    """Text of axis values: a list, or `first to last` for consecutive integers."""
    counts_up = len(values) > 4 and all(
        isinstance(v, int) and v - i == values[0] for i, v in enumerate(values)
    )
    return f"{values[0]} to {values[-1]}" if counts_up else ", ".join(map(str, values))


def _has_one_layer_kind(model: Model) -> bool:
    """True if all layers are of one kind; only then is a recomputed layer count searched."""
    return sum(b.is_layer for b in model.blocks) == 1


def _divisors(number: int, limit: int) -> tuple[int, ...]:
    """Divisors of a number up to `limit`, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple([d for d in sorted({*small, *(number // d for d in small)}) if d <= limit])


def _eighths(top: int) -> tuple[int, ...]:
    """Layer counts to recompute: one to seven eighths of `top`, at least one layer each."""
    return (
        tuple(sorted({max(top * part // 8, 1) for part in (1, 2, 3, 4, 5, 6, 7)}))
        if top > 1
        else ()
    )


def standard_space(problem: Problem, facts: GridFacts) -> Space:
    """The space of usual settings: tp within an island, ZeRO stages and options of the runtime.

    Both orders of dp and pp; all devices, or more than half of the nodes.
    """
    return _space(problem, facts, name="standard", wide=False)


def exhaustive_space(problem: Problem, facts: GridFacts) -> Space:
    """The wide space: tp across islands, all axis orders, all counts of recomputed layers.

    Also context parallelism with gathered keys.
    """
    return _space(problem, facts, name="exhaustive", wide=True)


def with_options(space: Space, options: Iterable[tuple[str, tuple[str, ...]]]) -> Space:
    """Add values of runtime `options` to the space; the space's own values take precedence."""
    return replace(
        space, options=in_vocabulary_order({**dict(options), **dict(space.options)}.items())
    )


def requested(
    space: Space,
    problem: Problem,
    *,
    said: Collection[str],
    pins: Mapping[str, tuple[str, ...]],
    excludes: Mapping[str, tuple[str, ...]],
) -> Space:
    """`space` with the options that a search tries by default, then pinned and excluded.

    Args:
        said: options that the user wrote after the runtime's name. Each keeps its value, also if it
            is the runtime's own: module sets without that value are removed.
        pins, excludes: see `restricted`.
    """
    default_space = with_options(
        space, [option for option in searched_options(problem) if option[0] not in said]
    )
    stated_modules = {
        name: (value,)
        for name, value in default_space.runtime_options
        if name in said and name in LADDER
    }
    return restricted(default_space, pins={**stated_modules, **pins}, excludes=excludes)


def on_all_devices(space: Space) -> Space:
    """Remove the members that leave devices idle from the space."""
    return replace(space, fewest=0)


def _space(problem: Problem, facts: GridFacts, *, name: str, wide: bool) -> Space:
    """Build the standard or the wide space from the model's sizes and the runtime's features."""
    runtime, devices = problem.runtime, facts.devices
    island = problem.cluster.node.island
    layers = num_layers(problem.model)
    heads = facts.heads or facts.scan_heads
    tp = _divisors(heads or devices, min(heads or devices, devices, 64 if wide else island))
    has_context = runtime.context_ring or runtime.context_gather or runtime.context_ulysses
    largest_cp = min(devices, 64 if wide else 16, max(facts.seq_len // (256 if wide else 1024), 1))
    cp = _divisors(facts.seq_len, largest_cp) if has_context else (1,)
    scans = any(o.scan is not None for b in problem.model.blocks for o in b.operators)
    # A teacher's chain lies beside the model's own, stage by stage, and ends in its head.
    of_teacher = {r.name for r in problem.model.runs if problem.model.blocks[r.block].is_of_teacher}
    is_chain = not problem.model.joins_streams
    pp = tuple(p for p in range(1, min(devices, layers + 2) + 1) if p == 1 or is_chain)
    chunks = tuple(v for v in range(1, layers + 3) if v <= (64 if wide else 16))
    holders = tuple(d for d in _divisors(devices, devices) if d > 1)
    group_sizes = (
        tuple(d for d in holders if d <= (512 if wide else island))
        if runtime.hybrid_sharding
        else ()
    )
    recompute_counts = (
        (*(tuple(range(1, layers)) if wide else _eighths(layers)), 0)
        if _has_one_layer_kind(problem.model)
        else (0,)
    )
    moe = facts.experts > 0 and runtime.expert_parallel
    values: dict[str, tuple[Value, ...]] = {
        "tp": tp,
        "cp": (1,) if scans else cp,
        "pp": pp,
        "order": _orders(wide=wide),
        "ep": _divisors(facts.experts, devices) if moe else (1,),
        "etp": (tuple(range(1, min(devices, island) + 1)) if wide else (1,)) if moe else (1,),
        "sp": (0, 1) if runtime.sequence_parallel else (0,),
        "ulysses": cp if runtime.context_ulysses and not scans else (1,),
        "gather": (0, 1) if runtime.context_gather and wide else (0,),
        "mbs": tuple(2**i for i in range(7 if wide else 5)),
        "vpp": chunks,
        "schedule": tuple(
            s for s in ("gpipe", "1f1b", "interleaved-1f1b") if s in runtime.schedules
        ),
        "zero": runtime.zero_stages,
        "shard": (0, *group_sizes),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": recompute_counts,
        "offload": ((0, 50, 100) if wide else (0, 100)) if runtime.optimizer_offload else (0,),
    }
    fewest = devices // 2 + 1 if devices > 1 else 0
    node = problem.cluster.node.num_devices if devices > problem.cluster.node.num_devices else 1
    paired = (
        tuple(s for s in runtime.schedules if s not in SCHEDULES)
        if is_chain and not of_teacher
        else ()
    )
    return Space(
        name=name,
        devices=devices,
        values=tuple((axis, values[axis]) for axis in AXES),
        fewest=fewest,
        node=node,
        modules=module_ladder(problem),
        paired=paired,
        runtime_options=in_vocabulary_order({**dict(runtime.own), **dict(runtime.options)}.items()),
    )


def _orders(*, wide: bool) -> tuple[str, ...]:
    """Values of the axis order: dp and pp exchanged, or every permutation of cp, dp and pp."""
    if not wide:
        return ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    orders = []
    for order in itertools.permutations(("cp", "dp", "pp")):
        place = order.index("dp")
        orders.append("-".join(("tp", *order[:place], "ep", *order[place:])))
    return tuple(orders)


def restricted(
    space: Space, *, pins: Mapping[str, tuple[str, ...]], excludes: Mapping[str, tuple[str, ...]]
) -> Space:
    """Restrict `space` to the members with the pinned values and without the excluded ones.

    An exclusion never adds a member. A pinned value that the space does not have is added to its
    axis first; the rules and the runtime decide later if it is legal.

    Args:
        space: space with the runtime options that it searches.

    Raises:
        UsageError: unknown axis, a value that no grid can have, or no value is left.
    """
    for restrictions in (pins, excludes):
        for name in restrictions:
            if name not in BY_NAME:
                _require_axis(name)
    space = _pinned_axes(
        space, {axis: words for axis, words in pins.items() if axis not in BY_NAME}
    )
    space = _pinned_options(
        space,
        {name: _option_values(name, words) for name, words in pins.items() if name in BY_NAME},
    )
    for name, words in excludes.items():
        space = (
            _without_option(space, name, _option_values(name, words))
            if name in BY_NAME
            else _without_values(space, name, words)
        )
    return space


def _pinned_axes(space: Space, pins: Mapping[str, tuple[str, ...]]) -> Space:
    """Replace the values of pinned axes, dp, first, last and schedules by the pinned words."""
    values, dp, ends, paired = (
        dict(space.values),
        space.dp,
        {"first": space.first, "last": space.last},
        space.paired,
    )
    for axis, words in pins.items():
        if not words:
            raise UsageError(
                f"{axis} is pinned to nothing",
                hint=f"for example {axis}={_EXAMPLES.get(axis, '1')}",
            )
        if axis == "schedule":
            paired = tuple(name for name in space.paired if name in words)
            words = tuple(word for word in words if word not in space.paired)
            if not words:
                raise UsageError(
                    f"schedule={','.join(paired)} is searched beside 1f1b alone",
                    hint=f"schedule=1f1b,{','.join(paired)}",
                )
        pinned_values = tuple(dict.fromkeys(_axis_value(axis, word) for word in words))
        if axis == "dp":
            dp = tuple(int(v) for v in pinned_values)
        elif axis in ends:
            if len(pinned_values) > 1:
                raise UsageError(
                    f"{axis} takes one value, not {','.join(words)}", hint="plan once for each"
                )
            ends[axis] = int(pinned_values[0])
        else:
            values[axis] = pinned_values
    ordered_values = tuple((axis, values[axis]) for axis in AXES)
    return replace(
        space, values=ordered_values, dp=dp, first=ends["first"], last=ends["last"], paired=paired
    )


def _pinned_options(space: Space, pins: Mapping[str, tuple[str, ...]]) -> Space:
    """Replace the values of pinned runtime options and of pinned module sets."""
    modules = {name: values for name, values in pins.items() if name in LADDER}
    if modules:
        space = replace(
            space,
            modules=pinned_modules(
                space.modules, modules, runtime_values=dict(space.runtime_options)
            ),
        )
    searched = {
        **dict(space.options),
        **{name: values for name, values in pins.items() if name not in LADDER},
    }
    return replace(space, options=in_vocabulary_order(searched.items()))


def _without_values(space: Space, axis: str, words: tuple[str, ...]) -> Space:
    """Remove excluded values of one axis; raise UsageError if none is left."""
    if axis in ("dp", "first", "last"):
        raise UsageError(f"{axis} can be pinned, not excluded", hint=f"for example --pin {axis}=8")
    paired = space.paired
    if axis == "schedule":
        paired = tuple(name for name in space.paired if name not in words)
        words = tuple(word for word in words if word not in space.paired)
    unwanted = {_axis_value(axis, word) for word in words}
    remaining = tuple(v for v in space.of(axis) if v not in unwanted)
    if not remaining:
        raise UsageError(
            f"excluding {axis}={','.join(words)} leaves no value",
            hint=f"values: {', '.join(map(str, space.of(axis)))}",
        )
    values = tuple(
        (name, remaining if name == axis else values_of_axis)
        for name, values_of_axis in space.values
    )
    return replace(space, values=values, paired=paired)


def _without_option(space: Space, name: str, words: tuple[str, ...]) -> Space:
    """Remove the members that have a runtime option at one of the values `words`."""
    present = space.option_values(name)
    remaining = tuple(value for value in present if value not in words)
    if remaining == present:
        return space
    if not remaining:
        raise UsageError(
            f"excluding {name}={','.join(words)} leaves no value",
            hint=f"the space has {name}={', '.join(present)}; --pin takes another value",
        )
    if name in LADDER:
        return replace(
            space,
            modules=without_modules(
                space.modules, name, words, runtime_values=dict(space.runtime_options)
            ),
        )
    return replace(
        space,
        options=tuple(
            (option, remaining if option == name else values) for option, values in space.options
        ),
    )


def _option_values(name: str, words: Iterable[str]) -> tuple[str, ...]:
    """Distinct values of a runtime option; raise UsageError for an unknown value."""
    values, legal_values = tuple(dict.fromkeys(words)), BY_NAME[name].values
    unknown = next((value for value in values if value not in legal_values), "")
    if unknown or not values:
        message = (
            f"{name}={unknown[:40]} is not known" if unknown else f"no value of {name} is named"
        )
        raise UsageError(message, hint=f"{name} is {' or '.join(legal_values)}")
    return values


_EXAMPLES = {"order": "tp-cp-ep-dp-pp", "schedule": "1f1b", "recompute": "none", "offload": "100"}
_LARGEST = {"sp": 1, "gather": 1, "zero": 3, "offload": 100}
_FROM_ZERO = ("sp", "gather", "zero", "shard", "recompute_layers", "offload", "first", "last")


def _require_axis(axis: str) -> str:
    """The axis name itself if it can be pinned; raise UsageError otherwise."""
    if axis not in PINNABLE:
        raise UsageError(
            f"unknown axis {axis[:40]!r}", hint=nearest(axis[:40], (*PINNABLE, *BY_NAME))
        )
    return axis


def _axis_value(axis: str, word: str) -> Value:
    """Parse a word as a value of `axis`; raise UsageError if it is not legal."""
    names = {"schedule": tuple(SCHEDULES), "recompute": tuple(r.value for r in Recompute)}
    if axis in names:
        if word not in names[axis]:
            raise UsageError(
                f"{axis}={word[:40]} is no {axis}", hint=nearest(word[:40], names[axis])
            )
        return word
    if axis == "order":
        if sorted(word.split("-")) != sorted(MESH_AXES):
            raise UsageError(
                f"order={word[:60]} is not a permutation of {'-'.join(MESH_AXES)}",
                hint="innermost axis first",
            )
        return word
    minimum, maximum = 0 if axis in _FROM_ZERO else 1, _LARGEST.get(axis, MAX_DEGREE)
    if not (
        word.isascii() and word.isdigit() and len(word) <= 10 and minimum <= int(word) <= maximum
    ):
        raise UsageError(
            f"{axis}={word[:40]} is not a whole number from {minimum} to {maximum}",
            hint=f"for example {axis}={_EXAMPLES.get(axis, max(minimum, 1))}",
        )
    return int(word)


def require_searchable(space: Space, problem: Problem) -> None:
    """Raise an error if a value of `space`, such as a pinned one, cannot be searched.

    Raises:
        RuntimeModelError: the runtime does not have the value.
        UsageError: no search covers the value.
    """
    for modules in space.modules:
        under(problem, modules)
    if any(space.of("recompute_layers")) and not _has_one_layer_kind(problem.model):
        raise UsageError(
            "a number of recomputed layers is searched for models whose layers are all alike",
            hint="pin recompute=full",
        )
    _require_runnable(space, problem.runtime)


def _require_runnable(space: Space, runtime: Runtime) -> None:
    """Raise RuntimeModelError if the runtime lacks a degree, ZeRO stage or schedule of `space`."""
    largest = SimpleNamespace(**{axis: max(map(int, space.of(axis))) for axis in AXES_READ})
    for broken in unrunnable(runtime, largest):
        raise RuntimeModelError(broken.message, hint="drop the pin, or choose another runtime")
    # An option may leave fewer stages: members of the others are illegal, as long as some are left.
    if not set(space.of("zero")) & set(runtime.zero_stages):
        stages = ", ".join(map(str, space.of("zero")))
        raise RuntimeModelError(
            f"{runtime.name} has no zero{stages}",
            hint=f"stages: {', '.join(map(str, runtime.zero_stages))}",
        )
    for name in space.of("schedule"):
        if name not in runtime.schedules:
            raise RuntimeModelError(
                f"{runtime.name} has no schedule {name}",
                hint=f"schedules: {', '.join(runtime.schedules)}",
            )
