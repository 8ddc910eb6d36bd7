"""The `plan` command that repeats the search of a request, with other pins where wanted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from shardwright.search.grid.fate_of_grid import axis_values
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.search.search_request import HEADROOM, SEARCH_MEMORY, TOP, Choices, Request
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import GIB

_WORDS: Final = (
    ("runtime", "--runtime"),
    ("precision", "--precision"),
    ("train", "--train"),
    ("teacher", "--teacher"),
    ("gradient_wire", "--gradient-wire"),
    ("profile", "--profile"),
    ("scenarios", "--scenarios"),
)
_DEFAULTS: Final = (
    ("max_devices", "--max-devices", 0),
    ("encoder_len", "--encoder-len", 0),
    ("image_tokens", "--image-tokens", 0),
    ("expert_imbalance", "--expert-imbalance", 1.0),
    ("space", "--space", "standard"),
    ("lanes", "--lanes", 1),
    ("top", "--top", TOP),
    ("objective", "--objective", "time"),
    ("budget", "--budget", 0.0),
    ("tail", "--tail", 0.0),
)


def plan_command(request: Request, *, pins: Mapping[str, str] | None = None) -> str:
    """The command line of `plan` for a request; options at their defaults are left out.

    Args:
        pins: values that replace the request's pins of these axes.
    """
    words = ["shardwright", "plan", request.model, request.cluster]
    words += ["--seq-len", str(request.seq_len), "--global-batch", str(request.global_batch)]
    for field, flag in _WORDS:
        words += [flag, getattr(request, field)] if getattr(request, field) else []
    for field, flag, default in _DEFAULTS:
        value = getattr(request, field)
        words += [flag, f"{value:g}" if isinstance(value, float) else str(value)] * (
            value != default
        )
    words += ["--dropout"] if request.dropout else []
    words += ["--use-all"] if request.use_all else []
    words += _memory_words(request)
    replaced = {axis: (value,) for axis, value in (pins or {}).items()}
    words += _choice_words("--pin", tuple((dict(request.pins) | replaced).items()))
    words += _choice_words("--exclude", request.excludes)
    return shlex.join(words)


def _memory_words(request: Request) -> list[str]:
    """Options for reserved memory, headroom and the memory of the search."""
    words: list[str] = []
    if request.reserve_bytes:
        words += ["--memory-reserve", f"{request.reserve_bytes / GIB:.9g}"]
    if request.reserve_fraction:
        words += ["--memory-reserve", f"{100 * request.reserve_fraction:.9g}%"]
    if request.headroom != HEADROOM:
        words += ["--headroom", f"{100 * request.headroom:.9g}%"]
    if request.search_memory != SEARCH_MEMORY:
        words += ["--search-memory", f"{request.search_memory / GIB:.9g}GiB"]
    return words


def _choice_words(flag: str, choices: Choices) -> list[str]:
    """A flag with each axis and its values."""
    return [word for axis, values in choices for word in (flag, f"{axis}={','.join(values)}")]


def pins_of_grid(space: Space, grid: Grid) -> dict[str, str]:
    """Pins that leave a member of a space alone, of the axes and options with several values."""
    values = {**axis_values(grid), **({"dp": grid.dp} if space.fewest else {})}
    several = {axis for axis in AXES if len(space.of(axis)) > 1} | {"dp"}
    pins = {axis: str(value) for axis, value in values.items() if axis in several}
    own = {**dict(space.runtime_options), **dict(grid.options)}
    names = [name for name, _ in (*space.options, *space.runtime_options)]
    options = {
        name: own[name]
        for name in dict.fromkeys(names)
        if name in own and len(space.option_values(name)) > 1
    }
    return pins | options
