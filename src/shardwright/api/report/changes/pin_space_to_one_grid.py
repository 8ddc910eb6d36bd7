"""Pins that leave one member of a space alone."""

from __future__ import annotations

from shardwright.search.grid.fate_of_grid import axis_values
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.search.search_request import Choices
from shardwright.strategy.grid.parallelism_grid import Grid


def pins_of_grid(space: Space, grid: Grid, *, pins: Choices = ()) -> Choices:
    """Pins of the axes and options of a space with several values, to those of its member `grid`.

    Args:
        pins: pins of the request, which stay where the space has one value.
    """
    values = {**axis_values(grid), **({"dp": grid.dp} if space.fewest else {})}
    several = {axis for axis in AXES if len(space.of(axis)) > 1} | {"dp"}
    of_axes = {axis: (str(value),) for axis, value in values.items() if axis in several}
    own = {**dict(space.runtime_options), **dict(grid.options)}
    names = [name for name, _ in (*space.options, *space.runtime_options)]
    of_options = {
        name: (own[name],)
        for name in dict.fromkeys(names)
        if name in own and len(space.option_values(name)) > 1
    }
    return tuple({**dict(pins), **of_axes, **of_options}.items())
