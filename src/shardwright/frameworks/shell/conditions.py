"""Evaluation of conditions in a shell script, as far as its variables decide them."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.shell.arithmetic import arithmetic
from shardwright.frameworks.shell.expand_words import one_word, words_of
from shardwright.frameworks.shell.variables_and_positional_parameters import Variables, value_of

_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = MappingProxyType(
    {
        "-eq": operator.eq,
        "-ne": operator.ne,
        "-lt": operator.lt,
        "-le": operator.le,
        "-gt": operator.gt,
        "-ge": operator.ge,
    }
)
_TESTS: Final = {"[[": "]]", "[": "]", "test": ""}
_AND: Final = ("&&", "-a")
_OR: Final = ("||", "-o")
_MAX_WORDS: Final = 200


def holds(text: str, variables: Variables) -> bool | None:
    """Evaluate a condition such as ``[ "$TP" -gt 1 ] && [ "$PP" = 1 ]``; None if undecidable.

    Files, commands and variables without a value cannot be decided. ``[[ $A == b && -n $C ]]`` is a
    condition too.
    """
    words = list(words_of(text))
    if len(words) > _MAX_WORDS:
        return None
    parts, marks = _split_at_marks(words, ("&&", "||"))
    result = _command_result(parts[0], variables)
    for mark, part in zip(marks, parts[1:], strict=True):
        part_result = _command_result(part, variables)
        result = _and(result, part_result) if mark == "&&" else _or(result, part_result)
    return result


def matches(value: str, pattern: str) -> bool:
    """True if a value matches a shell pattern with ``*``, ``?`` and ``[...]``."""
    return fnmatch.fnmatchcase(value[:500], pattern[:500])


def _split_at_marks(words: Sequence[str], at: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Split words at marks outside ``[[ ... ]]``: (parts, the marks between them)."""
    parts: list[list[str]] = [[]]
    marks: list[str] = []
    depth = 0
    for word in words:
        depth += (word == "[[") - (word == "]]")
        if not depth and word in at:
            marks.append(word)
            parts.append([])
        else:
            parts[-1].append(word)
    return parts, marks


def _and(left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `and` of two results, in which None is unknown."""
    return (
        False
        if left is False or right is False
        else None
        if left is None or right is None
        else True
    )


def _or(left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `or` of two results, in which None is unknown."""
    return (
        True if left is True or right is True else None if left is None or right is None else False
    )


def _command_result(words: Sequence[str], variables: Variables) -> bool | None:
    """Evaluate one command of a condition as true or false; None if it cannot be decided."""
    if words[:1] == ["!"]:
        result = _command_result(words[1:], variables)
        return None if result is None else not result
    if len(words) == 1:
        if words[0].startswith("((") and words[0].endswith("))"):
            number = arithmetic(_with_variables_expanded(words[0][2:-2], variables), variables)
            return None if number is None else number != 0
        return {"true": True, ":": True, "false": False}.get(words[0])
    if not words or words[0] not in _TESTS:
        return None
    inside = list(words[1:])
    if _TESTS[words[0]] and inside[-1:] == [_TESTS[words[0]]]:
        inside.pop()
    return _test_result(inside, variables, patterns=words[0] == "[[")


def _with_variables_expanded(text: str, variables: Variables) -> str:
    """Text with its variables expanded, words joined by single spaces."""
    return " ".join(one_word(word, variables) for word in words_of(text))


def _test_result(words: Sequence[str], variables: Variables, *, patterns: bool) -> bool | None:
    """Evaluate the test between brackets; None if a part that decides is unknown."""
    result: bool | None = False
    for alternative in _split_after_first_word(words, _OR):
        conjunction: bool | None = True
        for part in _split_after_first_word(alternative, _AND):
            conjunction = _and(conjunction, _comparison_result(part, variables, patterns=patterns))
        result = _or(result, conjunction)
    return result


def _split_after_first_word(words: Sequence[str], at: Sequence[str]) -> list[list[str]]:
    """Split words at marks, where a mark as the first word is an ordinary word."""
    parts: list[list[str]] = [[]]
    for number, word in enumerate(words):
        # A mark where a value stands, as in `-a = -a`, is one all the same: no script has that.
        if word in at and number:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _comparison_result(
    words: Sequence[str], variables: Variables, *, patterns: bool
) -> bool | None:
    """Evaluate one comparison or test of a value; None if it cannot be decided."""
    if words[:1] == ["!"]:
        result = _comparison_result(words[1:], variables, patterns=patterns)
        return None if result is None else not result
    if len(words) == 2 and words[0] == "-v":
        return bool(value_of(variables, words[1]))
    values = [one_word(word, variables) for word in words]
    # An unset variable is nothing, where it is asked whether it is; else it would be decided
    # elsewhere.
    if len(words) == 1 or (len(words) == 2 and words[0] in ("-z", "-n")):
        is_set = values[-1] != "" and not _is_unresolved(values[-1])
        return is_set if words[0] != "-z" or len(words) == 1 else not is_set
    if len(words) != 3 or any(_is_unresolved(value) for value in (values[0], values[2])):
        return None
    left, mark, right = values[0], words[1], values[2]
    if mark in ("=", "==", "!="):
        same = (
            matches(left, right)
            if patterns and not words[2].startswith(('"', "'"))
            else left == right
        )
        return same == (mark != "!=")
    if mark in _NUMBERS and all(re.fullmatch(r"-?[0-9]{1,15}", one) for one in (left, right)):
        return bool(_NUMBERS[mark](int(left), int(right)))
    if patterns and mark in ("<", ">"):
        return left < right if mark == "<" else left > right
    return None


def _is_unresolved(value: str) -> bool:
    """True if a value still has ``$`` or a backtick: a variable or command that is not known."""
    return "$" in value or "`" in value
