"""Conditions of a shell script that its own variables decide."""

from __future__ import annotations

import re
from typing import Final

from shardwright.launch_files.shell_expand import Values, arithmetic, expanded, words_of

_NUMBERS: Final = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_MAX_PARTS: Final = 20


def holds(text: str, values: Values) -> bool | None:
    """Whether a condition holds: ``[ "$TP" -gt 1 ]``, ``[[ $A == b && -n $C ]]``; None where files, commands, or variables without a value
    decide it.
    """
    text = re.sub(r";?\s*then\s*$", "", text.strip())
    parts = re.split(r"(&&|\|\|)", re.sub(r"\[\[?|\]\]?|\(\(|\)\)", lambda m: " " if m[0] in ("[[", "[", "]]", "]") else m[0], text))
    if len(parts) > _MAX_PARTS:
        return None
    found = _one(parts[0], values)
    for mark, part in zip(parts[1::2], parts[2::2], strict=True):
        other = _one(part, values)
        if found is None or other is None:
            return None
        found = (found and other) if mark == "&&" else (found or other)
    return found


def _one(text: str, values: Values) -> bool | None:
    counted = re.fullmatch(r"\s*\(\((.*?)([<>=!]=?)(.*)\)\)\s*", text)
    if counted:
        small, large = arithmetic(counted[1], values), arithmetic(counted[3], values)
        return None if small is None or large is None else _compared(small, counted[2], large)
    words = [" ".join(expanded(word, values, split=False)) for word in words_of(text)]
    if words[:1] == ["test"]:
        words = words[1:]
    if words[:1] == ["!"]:
        other = _one(" ".join(words_of(text.partition("!")[2])), values)
        return None if other is None else not other
    # An unset variable is nothing, where it is asked whether it is; else it would be decided elsewhere.
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "" or words[1].startswith("$")) == (words[0] == "-z")
    if len(words) != 3 or any(word.startswith(("$", "`")) for word in words):
        return {"true": True, "false": False}.get(words[0]) if len(words) == 1 else None
    left, mark, right = words
    if mark in ("=", "==", "!="):
        return (left == right) == (mark != "!=")
    if mark in _NUMBERS and all(re.fullmatch(r"-?[0-9]{1,15}", one) for one in (left, right)):
        return bool(_NUMBERS[mark](int(left), int(right)))
    return None


def _compared(left: int, mark: str, right: int) -> bool:
    return {"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right, "==": left == right, "!=": left != right}.get(
        mark, False
    )
