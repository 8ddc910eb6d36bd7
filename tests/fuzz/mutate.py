"""Inputs made from valid ones: changed characters, numbers, lines, words of other samples and, in
JSON, fields and values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

MAX_CHARACTERS: Final = 200_000
NUMBERS: Final = (
    *(
        "0",
        "-1",
        "1",
        "7",
        "1e308",
        "1e309",
        "nan",
        "inf",
        "-inf",
        "NaN",
        "Infinity",
        "1e-300",
        "-0.0",
        "0.1",
        "1e17",
        "1_000",
        "1,000",
    ),
    *(
        "9" * 17,
        "9" * 19,
        "9" * 400,
        "1" + "0" * 5000,
        "0x10",
        "1e",
        "٣",
        "²",
        "4294967296",
        str(2**62),
        str(2**63),
        str(2**64),
    ),
)
ODD: Final = (
    "\x00",
    "\n",
    "\r",
    "\t",
    "\x1b[31m",
    "\x85",
    "\u2028",
    "\ud800",
    "\udfff",
    "\ufeff",
    "é",
    "e\u0301",
    "𝟙",
    "‮",
    "\u200b",
    "\U0010ffff",
)
MARKS: Final = tuple("{}[]()<>:;,.=+-*/|&%#!?@$^~`'\"\\_ ")
VALUES: Final = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63,
    10**17,
    10**400,
    1e308,
    1e-300,
    0.5,
    "",
    "x",
    "\ud800",
    "nan",
    [],
    {},
    [[]],
    [None],
    {"": 0},
)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"\w+|\W")


def mutated(samples: Sequence[str], random: Random) -> str:
    """One to four changes of one of the samples, drawn by `random`; at most `MAX_CHARACTERS`
    long."""
    text = random.choice(samples)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        text = random.choice(_CHANGES)(text, samples, random)[:MAX_CHARACTERS]
    return text


def _flipped(text: str, samples: Sequence[str], random: Random) -> str:
    """A character is another one."""
    at = random.randrange(len(text) + 1)
    new = random.choice(
        (
            random.choice(ODD),
            random.choice(MARKS),
            chr(random.randrange(32, 127)),
            chr(random.randrange(0xD800)),
        )
    )
    return text[:at] + new + text[at + random.randrange(2) :]


def _cut(text: str, samples: Sequence[str], random: Random) -> str:
    """A stretch lacks; or all behind a place."""
    low = random.randrange(len(text) + 1)
    high = random.choice((low + random.randrange(1, 12), len(text)))
    return text[:low] + text[high:]


def _doubled(text: str, samples: Sequence[str], random: Random) -> str:
    """A stretch or a line stands there several times."""
    low = random.randrange(len(text) + 1)
    part = text[low : low + random.randrange(1, 40)]
    return text[:low] + part * random.choice((2, 2, 3, 300)) + text[low:]


def _renumbered(text: str, samples: Sequence[str], random: Random) -> str:
    """A number is another one."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text + random.choice(NUMBERS)
    chosen = random.choice(found)
    return text[: chosen.start()] + random.choice(NUMBERS) + text[chosen.end() :]


def _spliced(text: str, samples: Sequence[str], random: Random) -> str:
    """A stretch of one sample stands in the midst of another."""
    other = random.choice(samples)
    low, at = random.randrange(len(other) + 1), random.randrange(len(text) + 1)
    return (
        text[:at]
        + other[low : low + random.choice((5, 50, len(other)))]
        + text[at + random.choice((0, 0, 5, 50)) :]
    )


def _reworded(text: str, samples: Sequence[str], random: Random) -> str:
    """A word is one of another place."""
    words = _WORD.findall(text)
    if not words:
        return random.choice(MARKS)
    words[random.randrange(len(words))] = random.choice(
        _WORD.findall(random.choice(samples)) or [""]
    )
    return "".join(words)


def _reordered(text: str, samples: Sequence[str], random: Random) -> str:
    """Two lines, or two words of a line, have changed places."""
    mark = "\n" if text.count("\n") > 1 else " "
    parts = text.split(mark)
    i, j = random.randrange(len(parts)), random.randrange(len(parts))
    parts[i], parts[j] = parts[j], parts[i]
    return mark.join(parts)


def _deep(text: str, samples: Sequence[str], random: Random) -> str:
    """Brackets within brackets, deeper than anybody writes."""
    low, high = random.choice(("[]", "{}", "()", "<>", "''"))
    depth = random.choice((3, 60, 3000))
    at = random.randrange(len(text) + 1)
    return (
        text[:at]
        + low * depth
        + random.choice(("", "1", "a"))
        + high * random.choice((depth, depth - 1))
        + text[at:]
    )


def _other_value(text: str, samples: Sequence[str], random: Random) -> str:
    """Of a JSON text: a value is another, a field lacks, has another name, or one more stands
    beside it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _reworded(text, samples, random)
    places = list(_places(document))
    if not places:
        return json.dumps(random.choice(VALUES))
    holder, key = random.choice(places)
    with suppress(ValueError, RecursionError, OverflowError):
        _change(holder, key, places, random)
        return json.dumps(document)
    return text


def _change(holder: Any, key: Any, places: Sequence[tuple[Any, Any]], random: Random) -> None:
    """Another value, no field, another name or one more, in place."""
    change = random.randrange(6)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[random.choice((str(key)[:-1], str(key) + "s", "x", ""))] = holder.pop(key)
    elif change == 2 and isinstance(holder, list):
        holder.insert(key, random.choice((*VALUES, holder[key])))
    elif change == 3 and isinstance(holder[key], int | float):
        holder[key] = random.choice(
            (holder[key] * 10**9, -holder[key], holder[key] + 1, holder[key] / 3, str(holder[key]))
        )
    elif change == 4:
        other, name = random.choice(places)
        holder[key] = other[name]
    else:
        holder[key] = random.choice(VALUES)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (list or object, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for key in (
            range(len(holder))
            if isinstance(holder, list)
            else list(holder)
            if isinstance(holder, dict)
            else ()
        ):
            found.append((holder, key))
            waiting.append(holder[key])
    return found


Change = Callable[[str, Sequence[str], Random], str]
_CHANGES: Final[tuple[Change, ...]] = (
    _flipped,
    _flipped,
    _cut,
    _doubled,
    _renumbered,
    _renumbered,
    _spliced,
    _reworded,
    _reworded,
    _reordered,
    _deep,
    _other_value,
    _other_value,
    _other_value,
)
