"""Splitting of shell text into words, and expansion of variables in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.arithmetic import arithmetic
from shardwright.frameworks.shell.parameter_expansion import parameter_of
from shardwright.frameworks.shell.variables_and_positional_parameters import (
    MAX_VALUE,
    Value,
    Variables,
    is_number,
    scalar_of,
    unknown_name,
)

_MAX_DEPTH: Final = 8


def words_of(text: str) -> Iterator[str]:
    """Split shell text into words, with quotation marks and variables kept.

    Brackets of arrays and of ``$(...)`` keep a word together.

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
    """Expand variables in a word to words, split at unquoted spaces; unknown ones stay ``$NAME``.

    Args:
        split: split unquoted values at spaces; False for assignments.

    The output of a command stays as ``$(...)``, and a variable without a value as ``$NAME``.
    """
    words: list[str] = []
    open_word, is_open = "", False
    for piece, quote in _quoted_pieces(word):
        if quote == "'":
            open_word, is_open = open_word + piece, True
            continue
        values = list(_parts_with_values(piece, variables, depth))
        if len(values) == 1 and isinstance(values[0], tuple) and split:
            # "${ARRAY[@]}" is as many words as it has members.
            members = (
                values[0]
                if quote
                else tuple(word for member in values[0] for word in member.split())
            )
            open_word, *rest = (open_word + members[0], *members[1:]) if members else (open_word,)
            for one in rest:
                words.append(open_word)
                open_word = one
            is_open = is_open or bool(members)
            continue
        texts = [value if isinstance(value, str) else " ".join(value) for value in values]
        _require_length(texts)
        if quote or not split:
            open_word, is_open = open_word + "".join(texts), True
            continue
        for text in texts:
            # The output of a command is unknown and counts as one word.
            open_word, is_open = (
                (open_word + text, True)
                if text.startswith("$(")
                else _split_open_word(text, open_word, is_open, words)
            )
    if open_word or is_open:
        words.append(open_word)
    _require_length(words)
    return tuple(words)


def _require_length(texts: Sequence[str]) -> None:
    """Raise DataError if texts together have more than `MAX_VALUE` characters."""
    if sum(map(len, texts)) > MAX_VALUE:
        raise DataError(
            f"a word of the script holds more than {MAX_VALUE:,} characters",
            hint="a script that starts one run",
        )


def one_word(word: str, variables: Variables) -> str:
    """Expand the variables in a word into one text, spaces kept, as in assignments."""
    return " ".join(expanded(word, variables, split=False))


def _split_open_word(
    text: str, open_word: str, is_open: bool, words: list[str]
) -> tuple[str, bool]:
    """Append complete words to `words`; return (the word still open, True if there is one).

    The result is the word that is still open, and whether there is one.
    """
    parts = text.split()
    if text[:1].isspace() and (open_word or is_open):
        words.append(open_word)
        open_word, is_open = "", False
    for number, part in enumerate(parts):
        if number:
            words.append(open_word)
            open_word = ""
        open_word, is_open = open_word + part, True
    if text[-1:].isspace() and parts:
        words.append(open_word)
        open_word, is_open = "", False
    return open_word, is_open


def _quoted_pieces(word: str) -> Iterator[tuple[str, str]]:
    """Yield (text, quotation mark around the text or empty) of each piece of a word, in order.

    An escaped letter counts as quoted by single quotation marks.

    A default value, ``${A:-"b"}``, is one piece with its variable.
    """
    current, quote, inside, n = "", "", 0, 0
    while n < len(word):
        letter = word[n]
        if (
            letter == "\\"
            and quote != "'"
            and (not quote or word[n + 1 : n + 2] in ('"', "\\", "$", "`"))
        ):
            if current:
                yield current, quote
            yield word[n + 1 : n + 2], "'"
            current, n = "", n + 2
            continue
        if letter in "'\"" and quote in ("", letter) and not inside:
            if current or quote:
                yield current, quote
            current, quote = "", "" if quote else letter
        else:
            inside += quote != "'" and word[n : n + 2] == "${"
            inside -= inside > 0 and letter == "}"
            current += letter
        n += 1
    if current:
        yield current, quote


def _parts_with_values(text: str, variables: Variables, depth: int) -> Iterator[Value]:
    """Yield the literal parts of a text and the values of its variables and arithmetic.

    An array is one part.
    """
    n, begun = 0, 0
    while n < len(text):
        if text[n] != "$" or n + 1 >= len(text):
            n += 1
            continue
        end, value = _dollar_expansion(text, n, variables, depth)
        if end == n:
            n += 1
            continue
        if n > begun:
            yield text[begun:n]
        yield value
        n = begun = end
    if begun < len(text):
        yield text[begun:]


def _dollar_expansion(text: str, n: int, variables: Variables, depth: int) -> tuple[int, Value]:
    """(index behind, value or else own text) of the expansion that starts at the ``$`` at `n`.

    An end equal to the start means that there is no expansion.
    """
    behind = text[n + 1]
    if text.startswith("$((", n):
        end = _end_of_bracket(text, n + 1, "(", ")")
        return end, _arithmetic_text(text[n + 3 : end - 2], text[n:end], variables, depth)
    if behind == "(":
        end = _end_of_bracket(text, n + 1, "(", ")")
        inner = text[n + 2 : end - 1].strip()
        if inner.startswith("expr "):
            # `expr` is the one command that computes as the shell does.
            return end, _arithmetic_text(
                inner.removeprefix("expr ").replace("\\*", "*"), text[n:end], variables, depth
            )
        return end, text[n:end]
    if behind == "[":
        end = _end_of_bracket(text, n + 1, "[", "]")
        return end, _arithmetic_text(text[n + 2 : end - 1], text[n:end], variables, depth)
    if behind == "{":
        end = _end_of_bracket(text, n + 1, "{", "}")
        if end == n + 1 or depth > _MAX_DEPTH:
            return max(end, n + 2), text[n : max(end, n + 2)]
        value = parameter_of(
            text[n + 2 : end - 1],
            variables,
            lambda word: " ".join(expanded(word, variables, split=False, depth=depth + 1)),
        )
        return end, text[n:end] if value is None else value
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
    value = scalar_of(variables, name)
    return end, unknown_name(variables, name) if value is None else value


def _arithmetic_text(inside: str, original: str, variables: Variables, depth: int) -> str:
    """Value of an arithmetic expression as text; the expression itself if it has no value."""
    if depth > _MAX_DEPTH:
        return original
    plain = "".join(
        value if isinstance(value, str) else " ".join(value)
        for value in _parts_with_values(inside, variables, depth + 1)
    )
    number = arithmetic(plain, variables)
    return original if number is None else str(number)


def _end_of_bracket(text: str, n: int, opens: str, closes: str) -> int:
    """Index behind the bracket that closes the one at `n`; the text's end if none does."""
    depth = 0
    for at in range(n, len(text)):
        depth += text[at] == opens
        depth -= text[at] == closes
        if not depth:
            return at + 1
    return len(text)
