"""One-line notation of a grid, such as ``tp8 sp pp16 dp128 zero1``: parser and printer.

A full line is ``tp8 sp pp16 vpp8 dp128 mbs1 zero1 recompute=none schedule=interleaved-1f1b
order=...``.

Options of the runtime stand behind the degrees as ``graphs=iteration``. Words may come in any
order, each at most once; ``tp8`` and ``tp=8`` are the same word. Words left out have their defaults
(docs/notation.md lists them); dp, where the number of devices is known, is the number of devices
over the product of the other degrees. The printer is canonical: equal grids print equal text, and
the text parses to the same grid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from shardwright.errors import StrategyError, nearest
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.parallelism_grid import AXES, MAX_DEGREE, Grid, Recompute

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
_KEYS: Final = (
    "recompute",
    "host",
    "offload",
    "schedule",
    "slices",
    "first",
    "last",
    "layers",
    "order",
)
_WORD_FORMS: Final = (*(f"{w}N" for w in _DEGREES), *_FLAGS, *(f"{k}=" for k in _KEYS))
_OPTION_WORDS: Final = tuple(f"{name}=" for name in BY_NAME)

_SHORT_WORD: Final = re.compile(r"([a-z_-]*[a-z])([0-9][0-9,]*)", re.ASCII)
_KEY_WORD: Final = re.compile(r"([^=]*)=(.*)", re.DOTALL)


def name_and_value(word: str) -> tuple[str, str]:
    """Lower-case (name, value) of a grid word: ``tp8`` is (tp, 8), a flag (sp, 1); else value "".

    ``tp=8`` and ``TP=8`` give the same; the flag ``sp`` gives ("sp", "1"); other words have an
    empty value.

    Case does not count: every name and value of the notation is in small letters.
    """
    word = word.lower() if word.isascii() else word
    if word in _FLAGS:
        return word, "1"
    match = _KEY_WORD.fullmatch(word) or _SHORT_WORD.fullmatch(word)
    return (match[1].strip(), match[2].strip()) if match else (word, "")


def is_word(word: str) -> bool:
    """True if a text is a known name of the grid notation with a value, be it legal or not."""
    name, value = name_and_value(word)
    return name in _READERS and bool(value or "=" in word)


def print_grid(grid: Grid, *, defaults: bool = True) -> str:
    """Print dp and non-default words of a grid; `defaults`: also mbs, zero, recompute and order.

    Degrees of 1, flags that are off and keys at their default are left out, except those that are
    always printed: ``dp``, ``mbs``, ``zero`` and ``recompute``; the schedule when there is a
    pipeline; the order of the axes when two or more exceed 1.

    Args:
        defaults: False to leave out these words too where they are at their defaults, but ``dp``.
    """
    words: list[str] = []
    for word, (field, default) in _DEGREES.items():
        value = getattr(grid, field)
        if (
            value != default
            or word == "dp"
            or (defaults and word in ("mbs", "zero"))
            or (word == "vpp" and value != grid_schedule(grid.schedule).chunks)
        ):
            words.append(f"{word}{value}")
        if word == "tp" and grid.sp:
            words.append("sp")
        if word == "ulysses" and grid.gather:
            words.append("cp-gather")
        if word == "vpp":
            words += [
                f"{key}={getattr(grid, key)}" for key in ("first", "last") if getattr(grid, key)
            ]
            words += [f"layers={','.join(map(str, grid.layers))}"] if grid.layers else []
    layers = f":{grid.recompute_layers}" if grid.recompute_layers else ""
    if defaults or grid.recompute is not Recompute.NONE:
        words.append(f"recompute={grid.recompute.value}{layers}")
    if grid.host:
        words.append(f"host={grid.host}")
    if grid.offload:
        words.append(f"offload={grid.offload}")
    usual = default_schedule(pp=grid.pp, vpp=grid.vpp)
    if grid.schedule != usual or (defaults and (grid.pp > 1 or grid.vpp > 1)):
        words.append(f"schedule={grid.schedule}")
    if grid.slices > 1:
        words.append(f"slices={grid.slices}")
    several = defaults and sum(getattr(grid, axis) > 1 for axis in AXES) > 1
    if several or grid.order != AXES:
        words.append(f"order={'-'.join(grid.order)}")
    words += [f"{name}={value}" for name, value in grid.options]
    return " ".join(words)


def complete_order(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Insert missing axes into an order of axes, each behind its predecessor in the default order.

    The default order, innermost first, is ``tp cp ep dp pp``.
    """
    complete = list(axes)
    for i, axis in enumerate(AXES):
        if axis not in complete:
            complete.insert(complete.index(AXES[i - 1]) + 1 if i else 0, axis)
    return tuple(complete)


def _whole_number(text: str, *, word: str, smallest: int = 0) -> int:
    """Convert digits to a whole number of at least `smallest`; StrategyError otherwise."""
    if (
        not text.isascii()
        or not text.isdigit()
        or len(text) > 10
        or not smallest <= int(text) <= MAX_DEGREE
    ):
        raise StrategyError(
            f"{word[:40]!r}: {text[:20]!r} is not a whole number of at least {smallest}",
            hint="write a degree as tp8 or tp=8",
        )
    return int(text)


def _read_recompute(text: str) -> dict[str, Any]:
    """Parse none, selective, full or full:N (N layers a chunk; 0 = none) as Grid's two fields.

    N is the number of layers of each chunk; full:0 is none.
    """
    kind, colon, layers = text.partition(":")
    if kind not in [r.value for r in Recompute] or (colon and kind != Recompute.FULL):
        raise StrategyError(
            f"recompute={text[:40]} is not known", hint="one of none, selective, full, full:N"
        )
    if not colon:
        return {"recompute": Recompute(kind), "recompute_layers": 0}
    count = _whole_number(layers, word=f"recompute={text}")
    return {"recompute": Recompute.FULL if count else Recompute.NONE, "recompute_layers": count}


def _read_order(text: str) -> dict[str, Any]:
    """Parse ``tp-dp-pp``, axes from the innermost, as Grid field `order`; inserts missing axes."""
    axes = tuple(text.split("-"))
    for axis in axes:
        if axis not in AXES:
            raise StrategyError(
                f"order={text[:40]}: {axis[:20]!r} is not an axis", hint=nearest(axis[:20], AXES)
            )
    if len(set(axes)) != len(axes):
        raise StrategyError(
            f"order={text[:60]} names an axis twice",
            hint="each of tp, cp, ep, dp, pp at most once, innermost first",
        )
    return {"order": complete_order(axes)}


def _read_offload(text: str) -> dict[str, Any]:
    """Parse ``50`` or ``50%``, percent of optimizer states on the host, as Grid field `offload`."""
    percent = _whole_number(text.removesuffix("%"), word=f"offload={text}")
    if percent > 100:
        raise StrategyError(
            f"offload={percent} is more than 100 percent",
            hint="percent of the optimizer's state that lives on the host",
        )
    return {"offload": percent}


def _read_layers(text: str) -> dict[str, Any]:
    """Parse ``8,8,7``, numbers of layers of the chunks in order, as Grid field `layers`."""
    return {
        "layers": tuple(_whole_number(count, word=f"layers={text}") for count in text.split(","))
    }


def _read_degree(text: str, *, name: str) -> dict[str, Any]:
    """Parse the digits of the degree called `name`, such as tp, as a Grid field."""
    field, smallest = _DEGREES[name]
    value = _whole_number(text, word=name, smallest=smallest)
    if field == "zero" and value > 3:
        raise StrategyError(f"zero{value} is not a ZeRO stage", hint="zero0, zero1, zero2 or zero3")
    return {field: value}


def _read_flag(text: str, *, name: str) -> dict[str, Any]:
    """Parse 1 or 0 of the flag called `name`, such as sp, as a Grid field."""
    if text not in ("0", "1"):
        raise StrategyError(
            f"{name}={text[:20]} is neither on nor off",
            hint=f"{name}, or {name}=0 to switch it off",
        )
    return {_FLAGS[name]: text == "1"}


def _read_option(text: str, *, name: str) -> dict[str, Any]:
    """{"option " + `name`: value} of a runtime option; StrategyError for a value not allowed."""
    if text not in BY_NAME[name].values:
        raise StrategyError(
            f"{name}={text[:40]} is not known",
            hint=f"{name} is {' or '.join(BY_NAME[name].values)}",
        )
    return {f"{_OPTION}{name}": text}


def _grid_arguments(fields_of_word: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Arguments of `Grid`: fields of all words joined, with runtime options in field `options`."""
    fields = {field: value for values in fields_of_word.values() for field, value in values.items()}
    options = [
        (field.removeprefix(_OPTION), fields.pop(field))
        for field in list(fields)
        if field.startswith(_OPTION)
    ]
    return {**fields, "options": in_vocabulary_order(options)} if options else fields


_OPTION: Final = "option "
_READERS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    **{name: partial(_read_degree, name=name) for name in _DEGREES},
    **{name: partial(_read_flag, name=name) for name in _FLAGS},
    "recompute": _read_recompute,
    "host": lambda text: {"host": _whole_number(text, word="host")},
    "offload": _read_offload,
    "schedule": lambda text: {"schedule": text},
    "slices": lambda text: {"slices": _whole_number(text, word="slices", smallest=1)},
    "first": lambda text: {"first": _whole_number(text, word="first")},
    "last": lambda text: {"last": _whole_number(text, word="last")},
    "layers": _read_layers,
    "order": _read_order,
    **{name: partial(_read_option, name=name) for name in BY_NAME},
}


def word_hint(word: str) -> str:
    """Hint for an unknown word: the most similar words of the grid notation.

    Words of runtime options are suggested where they are similar.
    """
    form = re.sub(r"=?[0-9]+$", "N", word[:40])
    hint = nearest(form, (*_WORD_FORMS, *_OPTION_WORDS))
    return hint if hint.startswith("did you mean") else nearest(form, _WORD_FORMS)


def _read_words(text: str) -> dict[str, dict[str, Any]]:
    """Parse a text of grid words into grid fields, by the name of the word that sets them.

    Raises:
        StrategyError: an unknown word, a word given twice, or an illegal value.
    """
    words = text.split() if len(text) <= _MAX_TEXT else []
    if not words:
        raise StrategyError(
            f"a grid is 1 to {_MAX_TEXT} characters of words, not {len(text)}",
            hint="such as 'tp8 pp4 dp2 mbs1 zero1'",
        )
    fields_of_word: dict[str, dict[str, Any]] = {}
    for word in words:
        name, value = name_and_value(word)
        if not is_word(word):
            raise StrategyError(f"unknown word {word[:40]!r} in a grid", hint=word_hint(word))
        if name in fields_of_word:
            raise StrategyError(f"{name!r} is said twice in a grid", hint="keep one of them")
        fields_of_word[name] = _READERS[name](value)
    return fields_of_word


def _remaining_dp(fields: dict[str, Any], *, devices: int) -> int:
    """Degree dp: `devices` / (tp x cp x pp), absent degrees being 1; StrategyError if not whole."""
    tp, cp, pp = (int(fields.get(name, 1)) for name in ("tp", "cp", "pp"))
    dp, remainder = divmod(devices, tp * cp * pp)
    if remainder or not dp:
        raise StrategyError(
            f"tp x cp x pp = {tp} x {cp} x {pp} = {tp * cp * pp} does not divide the {devices:,}"
            " devices, so no dp takes the rest",
            hint="other degrees; or say dp",
            rule="grid.devices",
        )
    return dp


def default_schedule(*, pp: int, vpp: int, schedules: Sequence[str] = ()) -> str:
    """Schedule of a strategy that names none: 1F1B, interleaved where a rank has several chunks.

    Args:
        schedules: schedules of the training framework. If it has no 1F1B, its pipelines have the
            first schedule that gives a rank `vpp` chunks. Empty = any.
    """
    usual = _INTERLEAVED if vpp > 1 else "1f1b"
    if pp == 1 or not schedules or "1f1b" in schedules:
        return usual
    return next((name for name in schedules if grid_schedule(name).chunks == vpp), usual)


def parse_grid(text: str, *, devices: int = 0, schedules: Sequence[str] = ()) -> Grid:
    """Parse a grid from its one-line notation; without a dp, dp fills `devices` (0 = dp is 1).

    Words left out have their defaults; ``vpp`` above 1 without a schedule means
    ``interleaved-1f1b``, and a schedule in waves without ``vpp`` has two chunks a rank.

    Args:
        schedules: see `default_schedule`.
        devices: number of devices of the grid where `text` has no dp: dp is then `devices` over the
            product of the other degrees. 0 = not known, and dp is 1.

    Raises:
        StrategyError: an unknown word, number or combination (the rules against model and cluster
            are in `grid_rules`), or the degrees do not divide the devices.
    """
    fields = _grid_arguments(_read_words(text))
    if "schedule" not in fields:
        pp, vpp = fields.get("pp", 1), fields.get("vpp", 1)
        fields["schedule"] = default_schedule(pp=pp, vpp=vpp, schedules=schedules)
    fields.setdefault("vpp", grid_schedule(fields["schedule"]).chunks)
    if devices and "dp" not in fields:
        fields["dp"] = _remaining_dp(fields, devices=devices)
    return Grid(**fields)


_COMPLETE_WORDS: Final = frozenset(("dp", "mbs", "zero", "recompute"))
_LAYER_WORDS: Final = ("first", "last", "layers")


def changed_grid(grid: Grid, text: str, *, schedules: Sequence[str] = ()) -> Grid:
    """Set a text's words (``tp4``) in a grid, refill dp; with dp, mbs, zero, recompute: a new grid.

    Where `text` has no dp, dp is as large as the grid's devices allow. Settings that depend on a
    changed axis follow: sp ends with tp, layers by number with pp and vpp, an interleaved schedule
    with vpp, a first pipeline has the default schedule. A text with dp, mbs, zero and recompute,
    as the printer writes, is a complete strategy.

    Args:
        schedules: see `default_schedule`.

    Raises:
        StrategyError: an unknown word, number or combination.
    """
    fields_of_word = _read_words(text)
    if fields_of_word.keys() >= _COMPLETE_WORDS:
        return parse_grid(text, schedules=schedules)
    fields = _grid_arguments(fields_of_word)
    if "options" in fields:
        fields["options"] = in_vocabulary_order(
            {**dict(grid.options), **dict(fields["options"])}.items()
        )
    if fields.get("tp") == 1:
        fields.setdefault("sp", False)
    if {"pp", "vpp", "schedule"} & fields.keys() and not set(_LAYER_WORDS) & fields.keys():
        fields |= {"first": 0, "last": 0, "layers": ()}
    if "schedule" in fields:
        fields.setdefault(
            "vpp",
            (
                grid.vpp
                if fields["schedule"] == _INTERLEAVED
                else grid_schedule(fields["schedule"]).chunks
            ),
        )
    elif (grid.pp == 1 or "vpp" in fields) and grid.schedule in ("1f1b", _INTERLEAVED):
        pp, vpp = fields.get("pp", grid.pp), fields.get("vpp", grid.vpp)
        fields["schedule"] = default_schedule(pp=pp, vpp=vpp, schedules=schedules)
    if "dp" not in fields:
        tp, cp, pp = (int(fields.get(name, getattr(grid, name))) for name in ("tp", "cp", "pp"))
        fields["dp"] = max(grid.devices // (tp * cp * pp), 1)
    return replace(grid, **fields)
