"""Words of a shell script, and the variables in them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.errors import DataError

Values = Mapping[str, str | tuple[str, ...]]
"""Variable -> its value; of an array its members."""
MAX_VALUE: Final = 1_000_000
"""Characters of a variable, or of a word with its variables in their places."""
_MAX_DEPTH: Final = 8
_NAMED: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:\[[@*]\])?(?:(:?[-=])([^{}]*))?\}|([A-Za-z_][A-Za-z0-9_]*|[0-9@*]))")
_COUNTED: Final = re.compile(r"\$\(\((.*?)\)\)|\$\[(.*?)\]", re.DOTALL)
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MAX_NUMBER: Final = 10**15


def words_of(text: str) -> Iterator[str]:
    """Words as they stand, quotation marks and variables kept; brackets of arrays and of ``$(...)`` hold a word together.

    Raises:
        DataError: a quotation does not end.
    """
    word: list[str] = []
    quote, depth, n = "", 0, 0
    while n < len(text):
        letter = text[n]
        if letter == "\\" and quote != "'":
            word.append(text[n : n + 2])
            n += 2
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "({" and (letter == "(" or text[n - 1 : n] == "$"):
            depth += 1
        elif letter in ")}":
            depth = max(depth - 1, 0)
        elif letter.isspace() and not depth:
            if word:
                yield "".join(word)
            word = []
            n += 1
            continue
        word.append(letter)
        n += 1
    if quote:
        raise DataError(f"a quotation of the script does not end: {text[:40]}", hint="the whole script")
    if word:
        yield "".join(word)


def expanded(word: str, values: Values, *, split: bool = True) -> tuple[str, ...]:
    """A word with its variables in their places: several, where what stands outside of quotation marks has spaces.

    Args:
        split: outside of quotation marks; an assignment keeps its value whole.

    What a command would print stays as ``$(...)``, and a variable without a value as ``$NAME``.
    """
    found: list[str] = []
    now, is_open = "", False
    for piece, quote in _pieces(word):
        if quote == "'":
            now, is_open = now + piece, True
            continue
        members = _members(piece, values)
        if members is not None and split:
            # "${ARRAY[@]}" is as many words as it has members.
            pieces = members if quote else tuple(one for member in members for one in member.split())
            now, *rest = (now + pieces[0], *pieces[1:]) if pieces else (now,)
            for one in rest:
                found.append(now)
                now = one
            is_open = is_open or bool(pieces)
            continue
        text = _filled(piece, values, 0)
        if quote or not split:
            now, is_open = now + text, True
            continue
        parts = text.split()
        if text[:1].isspace() and (now or is_open):
            found.append(now)
            now, is_open = "", False
        for number, part in enumerate(parts):
            if number:
                found.append(now)
                now = ""
            now, is_open = now + part, True
        if text[-1:].isspace() and parts:
            found.append(now)
            now, is_open = "", False
    if now or is_open:
        found.append(now)
    if sum(map(len, found)) > MAX_VALUE:
        raise DataError(f"a word of the script holds more than {MAX_VALUE:,} characters", hint="a script that starts one run")
    return tuple(found)


def arithmetic(text: str, values: Values) -> int | None:
    """The whole number of an expression of numbers, variables, ``+ - * / %``; None where it is another, or a variable has no number."""
    plain = _NAMED.sub(lambda m: m[1] or m[4], text).strip()
    if len(plain) > 200:
        return None
    try:
        return _count(ast.parse(plain, mode="eval").body, values, 0)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _count(node: ast.expr, values: Values, depth: int) -> int:
    if depth > 50:
        raise ValueError(depth)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        found = int(str(values[node.id])) if isinstance(values.get(node.id), str) else int("none")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = -_count(node.operand, values, depth + 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        found = _OPERATORS[type(node.op)](_count(node.left, values, depth + 1), _count(node.right, values, depth + 1))
    else:
        raise ValueError(type(node))
    if abs(found) > _MAX_NUMBER:
        raise ValueError(found)
    return found


def _pieces(word: str) -> Iterator[tuple[str, str]]:
    """(text, quotation mark around it) of a word, in order; an escaped letter is as in single quotation marks.

    What a variable stands for otherwise, ``${A:-"b"}``, is one text with it.
    """
    now, quote, inside, n = "", "", 0, 0
    while n < len(word):
        letter = word[n]
        if letter == "\\" and quote != "'" and (not quote or word[n + 1 : n + 2] in ('"', "\\", "$", "`")):
            if now:
                yield now, quote
            yield word[n + 1 : n + 2], "'"
            now, n = "", n + 2
            continue
        if letter in "'\"" and quote in ("", letter) and not inside:
            if now or quote:
                yield now, quote
            now, quote = "", "" if quote else letter
        else:
            inside += quote != "'" and word[n : n + 2] == "${"
            inside -= inside > 0 and letter == "}"
            now += letter
        n += 1
    if now:
        yield now, quote


def _members(piece: str, values: Values) -> tuple[str, ...] | None:
    """The members, where a piece is one array and nothing else."""
    whole = _NAMED.fullmatch(piece)
    found = values.get(whole[1] or whole[4]) if whole else None
    return found if isinstance(found, tuple) else None


def _filled(text: str, values: Values, depth: int) -> str:
    def number(match: re.Match[str]) -> str:
        found = arithmetic(_filled(match[1] or match[2] or "", values, depth + 1), values)
        return match[0] if found is None else str(found)

    def variable(match: re.Match[str]) -> str:
        name = match[1] or match[4]
        found = values.get(name)
        if not found and match[2]:
            return "".join(_filled(piece, values, depth + 1) for piece, _ in _pieces(match[3])) if depth < _MAX_DEPTH else match[0]
        if found is None:
            return match[0]
        return found if isinstance(found, str) else " ".join(found)

    made = _NAMED.sub(variable, _COUNTED.sub(number, text))
    if len(made) > MAX_VALUE:
        raise DataError(f"a word of the script holds more than {MAX_VALUE:,} characters", hint="a script that starts one run")
    return made
