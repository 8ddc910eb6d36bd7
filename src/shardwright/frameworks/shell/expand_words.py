"""Words of a shell script with the values of their variables in their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.arithmetic import arithmetic
from shardwright.frameworks.shell.parameters import parameter_of
from shardwright.frameworks.shell.variables import (
    MAX_VALUE,
    Value,
    Variables,
    is_number,
    scalar_of,
    unknown_name,
)

_MAX_DEPTH: Final = 8


def words_of(text: str) -> Iterator[str]:
    """Words as they stand, quotation marks and variables kept; brackets of arrays and of ``$(...)``
    hold a word together.

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
        raise DataError(
            f"a quotation of the script does not end: {text[:40]}", hint="the whole script"
        )
    if word:
        yield "".join(word)


def expanded(
    word: str, variables: Variables, *, split: bool = True, depth: int = 0
) -> tuple[str, ...]:
    """A word with its variables in their places: several, where what stands outside of quotation
    marks has spaces.

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
        values = list(_values(piece, variables, depth))
        if len(values) == 1 and isinstance(values[0], tuple) and split:
            # "${ARRAY[@]}" is as many words as it has members.
            members = (
                values[0] if quote else tuple(one for member in values[0] for one in member.split())
            )
            now, *rest = (now + members[0], *members[1:]) if members else (now,)
            for one in rest:
                found.append(now)
                now = one
            is_open = is_open or bool(members)
            continue
        texts = [value if isinstance(value, str) else " ".join(value) for value in values]
        if sum(map(len, texts)) > MAX_VALUE:
            raise DataError(
                f"a word of the script holds more than {MAX_VALUE:,} characters",
                hint="a script that starts one run",
            )
        if quote or not split:
            now, is_open = now + "".join(texts), True
            continue
        for text in texts:
            # What a command would print is not known: it stands for one word.
            now, is_open = (
                (now + text, True) if text.startswith("$(") else _apart(text, now, is_open, found)
            )
    if now or is_open:
        found.append(now)
    if sum(map(len, found)) > MAX_VALUE:
        raise DataError(
            f"a word of the script holds more than {MAX_VALUE:,} characters",
            hint="a script that starts one run",
        )
    return tuple(found)


def one_word(word: str, variables: Variables) -> str:
    """A word with its variables in their places, as an assignment or a condition has it: one,
    whatever spaces it has.
    """
    return " ".join(expanded(word, variables, split=False))


def _apart(text: str, now: str, is_open: bool, found: list[str]) -> tuple[str, bool]:
    """A text outside of quotation marks, taken apart at its spaces: words that end go to `found`;
    the word that is open, and whether.
    """
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
    return now, is_open


def _pieces(word: str) -> Iterator[tuple[str, str]]:
    """(text, quotation mark around it) of a word, in order; an escaped letter is as in single
    quotation marks.

    What a variable stands for otherwise, ``${A:-"b"}``, is one text with it.
    """
    now, quote, inside, n = "", "", 0, 0
    while n < len(word):
        letter = word[n]
        if (
            letter == "\\"
            and quote != "'"
            and (not quote or word[n + 1 : n + 2] in ('"', "\\", "$", "`"))
        ):
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


def _values(text: str, variables: Variables, depth: int) -> Iterator[Value]:
    """The parts of a text: what stands there, and the values of variables and of arithmetic; an
    array is one part.
    """
    n, begun = 0, 0
    while n < len(text):
        if text[n] != "$" or n + 1 >= len(text):
            n += 1
            continue
        end, value = _dollar(text, n, variables, depth)
        if end == n:
            n += 1
            continue
        if n > begun:
            yield text[begun:n]
        yield value
        n = begun = end
    if begun < len(text):
        yield text[begun:]


def _dollar(text: str, n: int, variables: Variables, depth: int) -> tuple[int, Value]:
    """The end and the value of the expansion that begins at a ``$``; an end equal to the beginning
    means that it is no variable.
    """
    behind = text[n + 1]
    if text.startswith("$((", n):
        end = _closing(text, n + 1, "(", ")")
        return end, _counted(text[n + 3 : end - 2], text[n:end], variables, depth)
    if behind == "(":
        end = _closing(text, n + 1, "(", ")")
        inner = text[n + 2 : end - 1].strip()
        if inner.startswith("expr "):
            # The one command that counts as the shell does.
            return end, _counted(
                inner.removeprefix("expr ").replace("\\*", "*"), text[n:end], variables, depth
            )
        return end, text[n:end]
    if behind == "[":
        end = _closing(text, n + 1, "[", "]")
        return end, _counted(text[n + 2 : end - 1], text[n:end], variables, depth)
    if behind == "{":
        end = _closing(text, n + 1, "{", "}")
        if end == n + 1 or depth > _MAX_DEPTH:
            return max(end, n + 2), text[n : max(end, n + 2)]
        found = parameter_of(
            text[n + 2 : end - 1],
            variables,
            lambda word: " ".join(expanded(word, variables, split=False, depth=depth + 1)),
        )
        return end, text[n:end] if found is None else found
    end = n + 1
    if is_number(behind) or behind in "@*#":
        end += 1
    else:
        while end < len(text) and (
            text[end] == "_" or (text[end].isascii() and text[end].isalnum())
        ):
            end += 1
    name = text[n + 1 : end]
    if not name:
        return n, ""
    found = scalar_of(variables, name)
    return end, unknown_name(variables, name) if found is None else found


def _counted(inside: str, whole: str, variables: Variables, depth: int) -> str:
    """The number of an expression; where it is none, the expression as it stands."""
    if depth > _MAX_DEPTH:
        return whole
    plain = "".join(
        value if isinstance(value, str) else " ".join(value)
        for value in _values(inside, variables, depth + 1)
    )
    found = arithmetic(plain, variables)
    return whole if found is None else str(found)


def _closing(text: str, n: int, opens: str, closes: str) -> int:
    """Behind the bracket that ends the one at `n`; the end of the text where none does."""
    depth = 0
    for at in range(n, len(text)):
        depth += text[at] == opens
        depth -= text[at] == closes
        if not depth:
            return at + 1
    return len(text)
