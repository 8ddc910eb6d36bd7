"""Restriction of a space of grids to pinned values, without excluded values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace

from shardwright.errors import RuntimeModelError, UsageError, nearest
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order
from shardwright.schedules.schedule_registry import SCHEDULES as EVERY_SCHEDULE
from shardwright.search.grid.members.default_runtime_and_recompute_options import (
    LADDER,
    has_one_layer_kind,
    pinned_modules,
    searched_options,
    without_modules,
)
from shardwright.search.grid.members.grid_search_space import AXES, Space, Value, with_options
from shardwright.strategy.grid.grid_rules import SCHEDULES
from shardwright.strategy.grid.parallelism_grid import AXES as MESH_AXES
from shardwright.strategy.grid.parallelism_grid import MAX_DEGREE, Recompute
from shardwright.strategy.grid.runtime_rules import AXES_READ, unrunnable


def requested(
    space: Space,
    problem: Problem,
    *,
    said: Collection[str],
    pins: Mapping[str, tuple[str, ...]],
    excludes: Mapping[str, tuple[str, ...]],
) -> Space:
    """Add to `space` the default searched options but those in `said`, then pin and exclude.

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


def restricted(
    space: Space, *, pins: Mapping[str, tuple[str, ...]], excludes: Mapping[str, tuple[str, ...]]
) -> Space:
    """Replace pinned values of `space`, also by values new to it, then remove the excluded ones.

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
    """Remove the members with a runtime option at one of `words`; UsageError if none is left."""
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
        if axis == "schedule" and word in EVERY_SCHEDULE and word not in names[axis]:
            raise UsageError(
                f"a pin names one of the schedules {', '.join(names[axis])}, not {word}",
                hint=f'`shardwright simulate --strategy "pp4 schedule={word}"` predicts it',
            )
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
    if any(space.of("recompute_layers")) and not has_one_layer_kind(problem.model):
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


PINNABLE = (*AXES, "dp", "first", "last")
"""Names that can be pinned: the axes, the dp that follows from them, and the layers of the first
and the last stage."""
