"""Splitting of a shell script into statements, with their here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass

_HERE: Final = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_WITH_CONDITIONS: Final = re.compile(r"(?:(?:then|do|else|\{)\s+)*(?:if|elif|while|until)\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A command of a shell script, or a part of a compound command.

    Args:
        text: text without comments, with continued lines joined.
        line: line on which the statement begins.
        joint: mark before the statement: ``&&``, ``||``, ``|``, ``;;`` or nothing.
        here: text of the here-document; None = there is none.
        here_is_text: variables in the here-document are not expanded.
    """

    text: str
    line: int
    joint: str = ""
    here: str | None = None
    here_is_text: bool = False


def statements_of(text: str) -> Iterator[Statement]:
    """Split a shell script into statements, in order.

    Raises:
        DataError: a quotation, a bracket or a here-document does not end.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        begun = at + 1
        pieces, at = _statements_of_lines(lines, at)
        for piece, joint in pieces:
            here = _HERE.search(piece)
            body = None
            if here is not None:
                end = next((n for n in range(at, len(lines)) if lines[n].strip() == here[3]), None)
                if end is None:
                    raise DataError(
                        f"the here-document {here[3][:40]} of the script does not end",
                        hint=f"a line {here[3][:40]}",
                    )
                body_lines = (
                    [line.lstrip("\t") for line in lines[at:end]] if here[1] else lines[at:end]
                )
                body, at = "\n".join(body_lines) + "\n", end + 1
            # A space that is escaped is no end of a line.
            stripped = re.sub(r"(?<!\\)\s+$", "", piece.lstrip())
            if stripped or joint == ";;":
                is_text = here is not None and bool(here[2])
                yield Statement(
                    text=stripped, line=begun, joint=joint, here=body, here_is_text=is_text
                )


def without_here_document_mark(text: str) -> str:
    """Statement's text without the mark of a here-document (``<<EOF``)."""
    return _HERE.sub("", text)


def _statements_of_lines(lines: list[str], at: int) -> tuple[list[tuple[str, str]], int]:
    """([(statement's text, mark before it)] up to a line's end, next line's index) from line `at`.

    Each has the mark before it. The second result is the next line's index.
    """
    pieces: list[tuple[str, str]] = []
    joint = ""
    current: list[str] = []
    quote, depth, begun = "", 0, at
    while at < len(lines):
        line, at = lines[at], at + 1
        n, goes_on = 0, False
        while n < len(line):
            letter = line[n]
            if letter == "\\" and quote != "'":
                if n + 1 == len(line):
                    goes_on = True
                    break
                current.append(line[n : n + 2])
                n += 2
                continue
            if quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"`":
                quote = letter
            elif letter == "#" and (n == 0 or line[n - 1] in " \t;"):
                break
            elif letter in "({":
                depth += letter == "(" or line[n - 1 : n] == "$"
            elif letter in ")}":
                depth -= depth > 0 and (letter == ")" or "${" in "".join(current[-200:]))
            elif not depth and letter in ";|&" and not _is_inside_statement(current, line, n):
                mark = line[n : n + 2] if line[n : n + 2] in (";;", "&&", "||") else letter
                pieces.append(("".join(current), joint))
                current, joint = [], mark if mark in (";;", "&&", "||", "|") else ""
                n += len(mark)
                continue
            current.append(letter)
            n += 1
        if goes_on:
            current.append(" ")
        elif quote or depth:
            # A list or a subshell in brackets keeps its line breaks.
            current.append("\n")
        elif joint in ("&&", "||", "|") and not "".join(current).strip() and at < len(lines):
            # A list goes on behind its mark.
            continue
        else:
            break
    if quote or depth:
        raise DataError(
            f"line {begun + 1} of the script: {'a quotation' if quote else 'a bracket'} does"
            " not end",
            hint="the whole script",
        )
    return [*pieces, ("".join(current), joint)], at


def _is_inside_statement(now: list[str], line: str, n: int) -> bool:
    """True if the separator at index `n` is part of a redirection or a condition."""
    letter = line[n]
    if letter == "&" and (line[n - 1 : n] == ">" or line[n + 1 : n + 2] == ">"):
        return True
    if letter == ";":
        return False
    before = "".join(now)
    opened = before.count("[[ ") - before.count(" ]]")
    return opened > 0 or bool(_WITH_CONDITIONS.match(before.lstrip()))
