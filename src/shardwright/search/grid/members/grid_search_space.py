"""The space of grids that a search covers: its axes, and the values of each axis."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.errors import RuntimeModelError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order
from shardwright.search.grid.members.default_runtime_and_recompute_options import (
    LADDER,
    NOTHING,
    turns_on,
)
from shardwright.strategy.grid.parallelism_grid import Grid

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
            `search.grid.search_overlapped_and_two_lane_schedules`).
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
        """Split the space into parts, one for each combination of the runtime options' values."""
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
        """(module sets,) True if the set may go with recompute=selective and full, not only none.

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
        """Canonical text of the space, for a person and for the digest; never parsed."""
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
        """SHA-256, in hexadecimal, of the space's text and of the problem's text `problem`."""
        return hashlib.sha256(f"{self.text()}\n{problem}".encode()).hexdigest()


def supported_option_parts(problem: Problem, space: Space) -> tuple[Space, ...]:
    """Subspaces, one for each supported combination of runtime option values; error if none is.

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


def option_part_of_grid(space: Space, grid: Grid) -> Space:
    """The part of `space` with the options of `grid`, and the first value of any it omits."""
    chosen = dict(grid.options)
    return replace(
        space,
        options=tuple((name, (chosen.get(name, values[0]),)) for name, values in space.options),
    )


def _values_text(values: tuple[Value, ...]) -> str:
    """Text of axis values: a list, or `first to last` for more than four consecutive integers."""
    counts_up = len(values) > 4 and all(
        isinstance(v, int) and v - i == values[0] for i, v in enumerate(values)
    )
    return f"{values[0]} to {values[-1]}" if counts_up else ", ".join(map(str, values))


def with_options(space: Space, options: Iterable[tuple[str, tuple[str, ...]]]) -> Space:
    """Add values of runtime `options` to the space; the space's own values take precedence."""
    return replace(
        space, options=in_vocabulary_order({**dict(options), **dict(space.options)}.items())
    )


def on_all_devices(space: Space) -> Space:
    """Remove the members that leave devices idle from the space."""
    return replace(space, fewest=0)


def where_options_differ(columns: Mapping[str, IntArray], part: Space, first: Space) -> BoolArray:
    """(rows,) True where every option in which two parts differ has an effect on the mesh.

    Elsewhere both parts have the same plans.
    """
    changed_options = [
        BY_NAME[name] for name, value in part.chosen if (name, value) not in first.chosen
    ]
    differs = np.ones(len(columns["tp"]), dtype=np.bool_)
    for option in changed_options:
        differs &= (
            np.any([columns[axis] > 1 for axis in option.along], axis=0) if option.along else True
        )
    return differs
