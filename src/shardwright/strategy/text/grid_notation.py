"""The grid's one-line notation, both ways: ``tp8 sp pp16 vpp8 dp128 mbs1 zero1 recompute=none schedule=interleaved-1f1b order=...``.

Words may come in any order, each at most once. What is left out has its default (docs/notation.md lists them).
The printer is canonical: equal grids print equal text, and the text parses to the same grid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from shardwright.errors import StrategyError, nearest
from shardwright.strategy.grid.axes import AXES, MAX_DEGREE, Grid, Recompute
from shardwright.strategy.grid.schedules import grid_schedule

_MAX_TEXT: Final = 1000
_INTERLEAVED: Final = "interleaved-1f1b"

# word -> (field, smallest value); printed in this order
_DEGREES: Final[dict[str, tuple[str, int]]] = {
    "tp": ("tp", 1),
    "cp": ("cp", 1),
    "ulysses": ("ulysses", 1),
    "ep": ("ep", 1),
    "etp": ("etp", 1),
    "pp": ("pp", 1),
    "vpp": ("vpp", 1),
    "dp": ("dp", 1),
    "mbs": ("microbatch", 1),
    "zero": ("zero", 0),
    "shard": ("shard", 0),
}
_FLAGS: Final = {"sp": "sp", "cp-gather": "gather"}
_KEYS: Final = ("recompute", "offload", "schedule", "slices", "first", "last", "layers", "order")
_WORDS: Final = (*(f"{w}N" for w in _DEGREES), *_FLAGS, *(f"{k}=" for k in _KEYS))

_DEGREE_WORD: Final = re.compile(r"([a-z]+)([0-9]+)", re.ASCII)
_KEY_WORD: Final = re.compile(r"([^=]*)=(.*)", re.DOTALL)


def print_grid(grid: Grid) -> str:
    """The canonical text of a grid.

    Degrees of 1, flags that are off and keys at their default are left out, but for what a reader always wants to see: ``mbs``,
    ``zero`` and ``recompute``; the schedule when there is a pipeline; the order of the axes when two or more exceed 1.
    """
    words: list[str] = []
    for word, (field, default) in _DEGREES.items():
        value = getattr(grid, field)
        if value != default or word in ("mbs", "zero") or (word == "vpp" and value != grid_schedule(grid.schedule).chunks):
            words.append(f"{word}{value}")
        if word == "tp" and grid.sp:
            words.append("sp")
        if word == "ulysses" and grid.gather:
            words.append("cp-gather")
        if word == "vpp":
            words += [f"{key}={getattr(grid, key)}" for key in ("first", "last") if getattr(grid, key)]
            words += [f"layers={','.join(map(str, grid.layers))}"] if grid.layers else []
    if grid.devices == 1:
        words.insert(0, "dp1")
    layers = f":{grid.recompute_layers}" if grid.recompute_layers else ""
    words.append(f"recompute={grid.recompute.value}{layers}")
    if grid.offload:
        words.append(f"offload={grid.offload}")
    if grid.pp > 1 or grid.vpp > 1 or grid.schedule != "1f1b":
        words.append(f"schedule={grid.schedule}")
    if grid.slices > 1:
        words.append(f"slices={grid.slices}")
    if sum(getattr(grid, axis) > 1 for axis in AXES) > 1 or grid.order != AXES:
        words.append(f"order={'-'.join(grid.order)}")
    return " ".join(words)


def complete_order(axes: tuple[str, ...]) -> tuple[str, ...]:
    """All five axes, innermost first: those not named take their place behind the axis they follow by default (``tp cp ep dp pp``)."""
    result = list(axes)
    for i, axis in enumerate(AXES):
        if axis not in result:
            result.insert(result.index(AXES[i - 1]) + 1 if i else 0, axis)
    return tuple(result)


def _number(text: str, *, word: str, smallest: int = 0) -> int:
    """A count written in digits."""
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not smallest <= int(text) <= MAX_DEGREE:
        raise StrategyError(
            f"{word[:40]!r}: {text[:20]!r} is not a whole number of at least {smallest}", hint="write a degree as tp8, a key as first=9"
        )
    return int(text)


def _recompute(text: str) -> dict[str, Any]:
    """``none``, ``selective``, ``full`` or ``full:N`` (N layers of each chunk; full:0 is none)."""
    kind, colon, layers = text.partition(":")
    if kind not in [r.value for r in Recompute] or (colon and kind != Recompute.FULL):
        raise StrategyError(f"recompute={text[:40]} is not known", hint="one of none, selective, full, full:N")
    if not colon:
        return {"recompute": Recompute(kind)}
    count = _number(layers, word=f"recompute={text}")
    return {"recompute": Recompute.FULL if count else Recompute.NONE, "recompute_layers": count}


def _order(text: str) -> dict[str, Any]:
    """Axes from innermost to outermost; those left out take their default place."""
    axes = tuple(text.split("-"))
    for axis in axes:
        if axis not in AXES:
            raise StrategyError(f"order={text[:40]}: {axis[:20]!r} is not an axis", hint=nearest(axis[:20], AXES))
    if len(set(axes)) != len(axes):
        raise StrategyError(f"order={text[:60]} names an axis twice", hint="each of tp, cp, ep, dp, pp at most once, innermost first")
    return {"order": complete_order(axes)}


def _offload(text: str) -> dict[str, Any]:
    percent = _number(text.removesuffix("%"), word=f"offload={text}")
    if percent > 100:
        raise StrategyError(f"offload={percent} is more than 100 percent", hint="percent of the optimizer's state that lives on the host")
    return {"offload": percent}


def _layers(text: str) -> dict[str, Any]:
    """Layers of every chunk, in order."""
    return {"layers": tuple(_number(count, word=f"layers={text}") for count in text.split(","))}


_READERS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "recompute": _recompute,
    "offload": _offload,
    "schedule": lambda text: {"schedule": text},
    "slices": lambda text: {"slices": _number(text, word=f"slices={text}", smallest=1)},
    "first": lambda text: {"first": _number(text, word=f"first={text}")},
    "last": lambda text: {"last": _number(text, word=f"last={text}")},
    "layers": _layers,
    "order": _order,
}


def _read_word(word: str) -> tuple[str, dict[str, Any]]:
    """(name of the word, fields it sets)."""
    if word in _FLAGS:
        return word, {_FLAGS[word]: True}
    keyed = _KEY_WORD.fullmatch(word)
    if keyed:
        key, value = keyed.groups()
        if key not in _READERS:
            raise StrategyError(f"unknown key {key[:40]!r} in a grid", hint=nearest(key[:40], _KEYS))
        return key, _READERS[key](value)
    degree = _DEGREE_WORD.fullmatch(word)
    if degree and degree[1] in _DEGREES:
        field, smallest = _DEGREES[degree[1]]
        value = _number(degree[2], word=word, smallest=smallest)
        if field == "zero" and value > 3:
            raise StrategyError(f"zero{value} is not a ZeRO stage", hint="zero0, zero1, zero2 or zero3")
        return degree[1], {field: value}
    raise StrategyError(f"unknown word {word[:40]!r} in a grid", hint=nearest(re.sub(r"[0-9]+$", "N", word[:40]), _WORDS))


def parse_grid(text: str) -> Grid:
    """The grid that `text` says; any order of words, each at most once.

    Left out words have their defaults; ``vpp`` above 1 without a schedule means ``interleaved-1f1b``, and a schedule in waves without
    ``vpp`` has two chunks a rank.

    Raises:
        StrategyError: a word, number or combination that has no meaning (the rules against model and cluster are in `grid_rules`).
    """
    words = text.split() if len(text) <= _MAX_TEXT else ["x"]
    if len(text) > _MAX_TEXT or not words:
        raise StrategyError(f"a grid is 1 to {_MAX_TEXT} characters of words, not {len(text)}", hint="such as 'tp8 pp4 dp2 mbs1 zero1'")
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for word in words:
        name, values = _read_word(word)
        if name in seen:
            raise StrategyError(f"{name!r} is said twice in a grid", hint="keep one of them")
        seen.add(name)
        fields |= values
    if fields.get("vpp", 1) > 1 and "schedule" not in fields:
        fields["schedule"] = _INTERLEAVED
    fields.setdefault("vpp", grid_schedule(fields.get("schedule", "")).chunks)
    return Grid(**fields)
