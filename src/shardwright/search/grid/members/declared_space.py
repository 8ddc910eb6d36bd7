"""The space of grids as data: axes and their values."""

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
from shardwright.program.problem import Problem, under
from shardwright.runtime.runtime import Options, Runtime
from shardwright.runtime.runtime_options import BY_NAME, ordered
from shardwright.search.grid.members.searched_options import (
    LADDER,
    NOTHING,
    module_ladder,
    pinned_modules,
    searched_options,
    turns_on,
    without_modules,
)
from shardwright.strategy.grid.framework_rules import AXES_READ, unrunnable
from shardwright.strategy.grid.grid import AXES as MESH_AXES
from shardwright.strategy.grid.grid import MAX_DEGREE, Grid, Recompute
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts
from shardwright.strategy.grid.model_counts import num_layers

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
"""What can be pinned: the axes, the dp that follows from them, and the layers of the first and last
stage."""

Value = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Values of each axis, in the order of AXES.

    Args:
        devices: of the cluster.
        values: of each axis. `shard` counts members of a sharding group (0 = all holders);
            `recompute_layers` goes with full recompute (0 = all).
        dp: the only data parallel degrees that count; empty = any.
        first, last: layers of the first and last pipeline rank of every member; 0 = as the rest.
        paired: schedules that only general plans run, of members of 1F1B (see
            `search.grid.paired`).
        options: values of each option of the runtime that is set; of a part that is searched at
            once, one value each.
        modules: sets of options that say which modules run again in backward (`modules`), the first
            with the fewest; those that run more again than the runtime by itself go with
            recompute=none.
        runtime_options: the runtime's own value of each option that it offers, which members have
            where the space searches no other.
        fewest: devices that a member uses at least, where its dp divides the batch; 0 = all of
            them.
        node: devices that are idle together.
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
        """Values of `axis`."""
        return dict(self.values)[axis]

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Values of `order`, each as its axes."""
        return tuple(tuple(str(order).split("-")) for order in self.of("order"))

    def rows(self) -> tuple[Space, ...]:
        """Parts of the space with one value of each option."""
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
        """(option, value) of a part with one value of each option."""
        return tuple((name, value) for name, (value,) in self.options)

    @property
    def beside_recompute(self) -> tuple[bool, ...]:
        """(sets of modules,) True if it goes with recompute=selective and full: Megatron's
        granularity is full or selective.
        """
        own = dict(self.runtime_options)
        return tuple(not turns_on(chosen, own) for chosen in self.modules)

    def option_values(self, name: str) -> tuple[str, ...]:
        """Values of an option of the runtime among the members; none where the runtime does not
        offer it.
        """
        own = dict(self.runtime_options)
        if name in LADDER:
            held = (dict(chosen).get(name, own.get(name, "")) for chosen in self.modules)
            return tuple(dict.fromkeys(value for value in held if value))
        searched = dict(self.options).get(name)
        return searched or ((own[name],) if name in own else ())

    def text(self) -> str:
        """Description of the space for a reader and for its digest."""
        axes = "; ".join(f"{axis} {{{_listed(values)}}}" for axis, values in self.values)
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
        """SHA-256 of the space and the problem's text."""
        return hashlib.sha256(f"{self.text()}\n{problem}".encode()).hexdigest()


def parts_of(problem: Problem, space: Space) -> tuple[Space, ...]:
    """The parts of `space` with one value of each option, without those whose options the runtime
    does not run together.

    Raises:
        RuntimeModelError: it runs none of them; what it says of the first.
    """
    found: list[Space] = []
    refused: list[RuntimeModelError] = []
    for part in space.rows():
        try:
            under(problem, part.chosen)
        except RuntimeModelError as error:
            refused.append(error)
        else:
            found.append(part)
    if not found:
        raise refused[0]
    return tuple(found)


def row_of(space: Space, grid: Grid) -> Space:
    """The part of `space` with the options of `grid`, one of its members."""
    chosen = dict(grid.options)
    return replace(
        space,
        options=tuple((name, (chosen.get(name, values[0]),)) for name, values in space.options),
    )


def _listed(values: tuple[Value, ...]) -> str:
    """Text of the values: one by one, or the two ends of consecutive integers."""
    counts_up = len(values) > 4 and all(
        isinstance(v, int) and v - i == values[0] for i, v in enumerate(values)
    )
    return f"{values[0]} to {values[-1]}" if counts_up else ", ".join(map(str, values))


def _alike(model: Model) -> bool:
    """True if all layers are of one kind; only then is a number of recomputed layers bounded."""
    return sum(b.is_layer for b in model.blocks) == 1


def _divisors(number: int, limit: int) -> tuple[int, ...]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple([d for d in sorted({*small, *(number // d for d in small)}) if d <= limit])


def _ladder(top: int) -> tuple[int, ...]:
    """A few counts between none and all of `top` layers."""
    return (
        tuple(sorted({max(top * part // 8, 1) for part in (1, 2, 3, 4, 5, 6, 7)}))
        if top > 1
        else ()
    )


def standard_space(problem: Problem, facts: GridFacts) -> Space:
    """The values that users of the runtime choose from: tp within an island, both orders of dp
    and pp, ZeRO as the runtime has it; on all devices, or on more than half of the nodes.
    """
    return _space(problem, facts, name="standard", wide=False)


def exhaustive_space(problem: Problem, facts: GridFacts) -> Space:
    """A wider space: tp across islands, all orders of the other axes, every number of recomputed
    layers, gathered context.
    """
    return _space(problem, facts, name="exhaustive", wide=True)


def with_options(space: Space, options: Iterable[tuple[str, tuple[str, ...]]]) -> Space:
    """`space` over values of `options` too, except those that it already has."""
    return replace(space, options=ordered({**dict(options), **dict(space.options)}.items()))


def requested(
    space: Space,
    problem: Problem,
    *,
    said: Collection[str],
    pins: Mapping[str, tuple[str, ...]],
    excludes: Mapping[str, tuple[str, ...]],
) -> Space:
    """`space` with the options that a search tries by default, less those that a request decides.

    Args:
        said: options behind the runtime's name. Each keeps its value, also where that is the
            runtime's own: sets of modules without it are no members.
        pins, excludes: see `restricted`.
    """
    whole = with_options(
        space, [option for option in searched_options(problem) if option[0] not in said]
    )
    named = {
        name: (value,) for name, value in whole.runtime_options if name in said and name in LADDER
    }
    return restricted(whole, pins={**named, **pins}, excludes=excludes)


def on_all_devices(space: Space) -> Space:
    """`space` without the members that leave devices idle."""
    return replace(space, fewest=0)


def _space(problem: Problem, facts: GridFacts, *, name: str, wide: bool) -> Space:
    runtime, devices = problem.runtime, facts.devices
    island = problem.cluster.node.island
    layers = num_layers(problem.model)
    heads = facts.heads or facts.scan_heads
    tp = _divisors(heads or devices, min(heads or devices, devices, 64 if wide else island))
    has_context = runtime.context_ring or runtime.context_gather or runtime.context_ulysses
    longest = min(devices, 64 if wide else 16, max(facts.seq_len // (256 if wide else 1024), 1))
    cp = _divisors(facts.seq_len, longest) if has_context else (1,)
    scans = any(o.scan is not None for b in problem.model.blocks for o in b.operators)
    # A teacher's chain lies beside the model's own, stage by stage, and ends in its head.
    of_teacher = {r.name for r in problem.model.runs if problem.model.blocks[r.block].is_of_teacher}
    chain = not problem.model.joins_streams
    pp = tuple(p for p in range(1, min(devices, layers + 2) + 1) if p == 1 or chain)
    chunks = tuple(v for v in range(1, layers + 3) if v <= (64 if wide else 16))
    holders = tuple(d for d in _divisors(devices, devices) if d > 1)
    inner = (
        tuple(d for d in holders if d <= (512 if wide else island))
        if runtime.hybrid_sharding
        else ()
    )
    redo = (
        (*(tuple(range(1, layers)) if wide else _ladder(layers)), 0)
        if _alike(problem.model)
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
        "shard": (0, *inner),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": redo,
        "offload": ((0, 50, 100) if wide else (0, 100)) if runtime.optimizer_offload else (0,),
    }
    fewest = devices // 2 + 1 if devices > 1 else 0
    node = problem.cluster.node.num_devices if devices > problem.cluster.node.num_devices else 1
    paired = (
        tuple(s for s in runtime.schedules if s not in SCHEDULES)
        if chain and not of_teacher
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
        runtime_options=ordered({**dict(runtime.own), **dict(runtime.options)}.items()),
    )


def _orders(*, wide: bool) -> tuple[str, ...]:
    if not wide:
        return ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    found = []
    for order in itertools.permutations(("cp", "dp", "pp")):
        place = order.index("dp")
        found.append("-".join(("tp", *order[:place], "ep", *order[place:])))
    return tuple(found)


def restricted(
    space: Space, *, pins: Mapping[str, tuple[str, ...]], excludes: Mapping[str, tuple[str, ...]]
) -> Space:
    """The members of `space` that have the pinned values and none of the excluded ones.

    An exclusion never adds a member. A pinned value that the space has not is added to its axis
    first; whether it is legal there is for the rules and the runtime to say.

    Args:
        space: with the options of the runtime that it searches.

    Raises:
        UsageError: unknown axis, a value that no grid can have, or no value is left.
    """
    for some in (pins, excludes):
        for name in some:
            if name not in BY_NAME:
                _known(name)
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
        wanted = tuple(dict.fromkeys(_typed(axis, word) for word in words))
        if axis == "dp":
            dp = tuple(int(v) for v in wanted)
        elif axis in ends:
            if len(wanted) > 1:
                raise UsageError(
                    f"{axis} takes one value, not {','.join(words)}", hint="plan once for each"
                )
            ends[axis] = int(wanted[0])
        else:
            values[axis] = wanted
    kept = tuple((axis, values[axis]) for axis in AXES)
    return replace(space, values=kept, dp=dp, first=ends["first"], last=ends["last"], paired=paired)


def _pinned_options(space: Space, pins: Mapping[str, tuple[str, ...]]) -> Space:
    modules = {name: values for name, values in pins.items() if name in LADDER}
    if modules:
        space = replace(
            space, modules=pinned_modules(space.modules, modules, own=dict(space.runtime_options))
        )
    searched = {
        **dict(space.options),
        **{name: values for name, values in pins.items() if name not in LADDER},
    }
    return replace(space, options=ordered(searched.items()))


def _without_values(space: Space, axis: str, words: tuple[str, ...]) -> Space:
    if axis in ("dp", "first", "last"):
        raise UsageError(f"{axis} can be pinned, not excluded", hint=f"for example --pin {axis}=8")
    paired = space.paired
    if axis == "schedule":
        paired = tuple(name for name in space.paired if name not in words)
        words = tuple(word for word in words if word not in space.paired)
    unwanted = {_typed(axis, word) for word in words}
    left = tuple(v for v in space.of(axis) if v not in unwanted)
    if not left:
        raise UsageError(
            f"excluding {axis}={','.join(words)} leaves no value",
            hint=f"values: {', '.join(map(str, space.of(axis)))}",
        )
    values = tuple((name, left if name == axis else found) for name, found in space.values)
    return replace(space, values=values, paired=paired)


def _without_option(space: Space, name: str, words: tuple[str, ...]) -> Space:
    """`space` without the members that have an option at one of these values; unchanged where
    none has.
    """
    present = space.option_values(name)
    left = tuple(value for value in present if value not in words)
    if left == present:
        return space
    if not left:
        raise UsageError(
            f"excluding {name}={','.join(words)} leaves no value",
            hint=f"the space has {name}={', '.join(present)}; --pin takes another value",
        )
    if name in LADDER:
        return replace(
            space,
            modules=without_modules(space.modules, name, words, own=dict(space.runtime_options)),
        )
    return replace(
        space,
        options=tuple(
            (option, left if option == name else values) for option, values in space.options
        ),
    )


def _option_values(name: str, words: Iterable[str]) -> tuple[str, ...]:
    """Values of an option of the runtime, each once."""
    values, known = tuple(dict.fromkeys(words)), BY_NAME[name].values
    wrong = next((value for value in values if value not in known), "")
    if wrong or not values:
        said = f"{name}={wrong[:40]} is not known" if wrong else f"no value of {name} is named"
        raise UsageError(said, hint=f"{name} is {' or '.join(known)}")
    return values


_EXAMPLES = {"order": "tp-cp-ep-dp-pp", "schedule": "1f1b", "recompute": "none", "offload": "100"}
_LARGEST = {"sp": 1, "gather": 1, "zero": 3, "offload": 100}
_FROM_ZERO = ("sp", "gather", "zero", "shard", "recompute_layers", "offload", "first", "last")


def _known(axis: str) -> str:
    if axis not in PINNABLE:
        raise UsageError(
            f"unknown axis {axis[:40]!r}", hint=nearest(axis[:40], (*PINNABLE, *BY_NAME))
        )
    return axis


def _typed(axis: str, word: str) -> Value:
    """The value of `axis` that a word stands for."""
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
    least, most = 0 if axis in _FROM_ZERO else 1, _LARGEST.get(axis, MAX_DEGREE)
    if not (word.isascii() and word.isdigit() and len(word) <= 10 and least <= int(word) <= most):
        raise UsageError(
            f"{axis}={word[:40]} is not a whole number from {least} to {most}",
            hint=f"for example {axis}={_EXAMPLES.get(axis, max(least, 1))}",
        )
    return int(word)


def require_searchable(space: Space, problem: Problem) -> None:
    """Raise an error if a value of `space`, such as one pinned by hand, cannot be searched.

    Raises:
        RuntimeModelError: the runtime does not have it. UsageError: it is not searched yet.
    """
    for modules in space.modules:
        under(problem, modules)
    if any(space.of("recompute_layers")) and not _alike(problem.model):
        raise UsageError(
            "a number of recomputed layers is searched for models whose layers are all alike",
            hint="pin recompute=full",
        )
    _require_runnable(space, problem.runtime)


def _require_runnable(space: Space, runtime: Runtime) -> None:
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
