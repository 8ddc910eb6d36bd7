"""Shell scripts as far as launch scripts go: variables, arrays, simple conditions, here-documents; no command is ever run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final

from shardwright.errors import DataError
from shardwright.launch_files.shell_expand import MAX_VALUE, Values, expanded, words_of
from shardwright.launch_files.shell_test import holds
from shardwright.lazy_dataclass import dataclass

MAX_SCRIPT: Final = 1_000_000
MAX_STATEMENTS: Final = 20_000
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_HERE: Final = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_TARGET: Final = re.compile(r">>?\s*(\S+)")
_FUNCTION: Final = re.compile(r"(?:function\s+)?[A-Za-z_][A-Za-z0-9_-]*\s*\(\)\s*\{?|function\s+[A-Za-z_][A-Za-z0-9_-]*\s*\{?")
_EXPORTING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_OPENS: Final = frozenset({"for", "while", "until", "case", "select"})
_CLOSES: Final = frozenset({"done", "esac"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script would start.

    Args:
        commands: words of each, variables in their places. files: text of each here-document that goes into a file, by its name.
        left_out: what was not followed, with its line: loops, functions, conditions that are not known here.
        environment: values of variables at the end.
    """

    commands: tuple[tuple[str, ...], ...]
    files: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _State:
    """What is known while a script is read; `held`: whether what stood before ``&&`` or ``||`` did, None = not known."""

    values: dict[str, str | tuple[str, ...]]
    fixed: frozenset[str]
    commands: list[tuple[str, ...]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    held: bool | None = True
    open: list[_Branch] = field(default_factory=list)


@dataclass(slots=True)
class _Branch:
    """A condition that is open: whether its present part is followed, and whether a later one may be."""

    follows: bool
    undecided: bool


def read_script(text: str, *, given: Mapping[str, str]) -> Script:
    """The commands of a script with its variables in their places.

    Args:
        given: values of variables that stand whatever the script says of them.

    A variable that nothing sets stays as ``$NAME`` in the words that need it. Words of pipes and lists are commands of their own.

    Raises:
        DataError: it is too long, or a quotation, a here-document or a condition does not end.
    """
    if len(text) > MAX_SCRIPT:
        raise DataError(f"a script of {len(text):,} characters", hint=f"at most {MAX_SCRIPT:,}")
    state = _State(values=dict(given), fixed=frozenset(given))
    skipped = 0
    for number, (line, joint, here) in enumerate(_statements(text)):
        if number >= MAX_STATEMENTS:
            raise DataError(f"a script of more than {MAX_STATEMENTS:,} statements", hint="the script that starts the training alone")
        words = line.split(None, 1)
        head = words[0] if words else ""
        if head in _CLOSES or (skipped and head == "}"):
            skipped = max(skipped - 1, 0)
        elif head in _OPENS or _FUNCTION.fullmatch(line):
            skipped += 1
            if skipped == 1:
                state.left_out.append(f"{' '.join(line.split())[:60]}: loops, cases and functions are not followed")
        elif not skipped and _goes_on(state, line, joint):
            _statement(state, line, here)
    if state.open:
        raise DataError("an `if` of the script does not end", hint="the whole script")
    environment = tuple((name, value if isinstance(value, str) else " ".join(value)) for name, value in state.values.items())
    return Script(commands=tuple(state.commands), files=tuple(state.files.items()), left_out=tuple(state.left_out), environment=environment)


def _goes_on(state: _State, line: str, joint: str) -> bool:
    """Whether a statement behind ``&&`` or ``||`` is reached."""
    if not joint:
        return True
    if state.held is None:
        state.left_out.append(f"{' '.join(line.split())[:60]}: what decides about it is not known here")
        return False
    return state.held == (joint == "&&")


def _statement(state: _State, line: str, here: str | None) -> None:
    head, _, rest = line.partition(" ")
    if head in ("then", "do") and rest:
        _statement(state, rest.strip(), here)
    elif head in ("if", "elif", "else", "fi"):
        _condition(state, head, rest.strip())
    elif all(branch.follows for branch in state.open) and head not in ("then", "do", "{", "}"):
        _simple(state, line, here)


def _condition(state: _State, head: str, rest: str) -> None:
    if head == "if":
        known = holds(rest, state.values) if all(branch.follows for branch in state.open) else False
        if known is None:
            state.left_out.append(f"if {rest[:60]}: the condition is not known here, neither part was followed")
        state.open.append(_Branch(follows=bool(known), undecided=known is False))
        return
    if not state.open:
        raise DataError(f"`{head}` of the script belongs to no `if`", hint="the whole script")
    branch = state.open[-1]
    if head == "fi":
        state.open.pop()
    elif not branch.undecided:
        branch.follows = False
    elif head == "else":
        branch.follows, branch.undecided = True, False
        if rest:
            _statement(state, rest, None)
    else:
        known = holds(rest, state.values)
        branch.follows, branch.undecided = bool(known), known is False


def _simple(state: _State, line: str, here: str | None) -> None:
    """An assignment, a command, or a condition that decides about the next."""
    words = list(words_of(line))
    state.held = holds(line, state.values) if words and words[0] in ("[", "[[", "test") else True
    if words and words[0] in ("[", "[[", "test"):
        return
    while words and words[0] in _EXPORTING:
        words = [word for word in words[1:] if not re.fullmatch(r"-[a-zA-Z]+", word)]
    assigned = [_ASSIGNED.fullmatch(word) for word in words]
    if words and all(assigned):
        for one in assigned:
            if one is not None and one[1] not in state.fixed:
                _assign(state.values, one[1], one[3], more=bool(one[2]))
        return
    while words and _ASSIGNED.fullmatch(words[0]):
        words.pop(0)
    found = [piece for word in words for piece in expanded(word, state.values)]
    if here is not None:
        target = _TARGET.search(_HERE.sub("", " ".join(found)))
        if target:
            state.files[target[1]] = _filled(here, state.values)
        return
    if found:
        state.commands.append(tuple(found))


def _filled(text: str, values: Values) -> str:
    """A here-document with its variables in their places; quotation marks are letters there."""
    return "".join("".join(expanded(f'"{piece}"', values)) if piece != '"' else '"' for piece in re.split('(")', text) if piece)


def _assign(values: dict[str, str | tuple[str, ...]], name: str, text: str, *, more: bool) -> None:
    before = values.get(name, "")
    if text.startswith("(") and text.endswith(")"):
        made: str | tuple[str, ...] = tuple(piece for word in words_of(text[1:-1]) for piece in expanded(word, values))
        if more:
            made = (*((before,) if isinstance(before, str) and before else tuple(before)), *made)
    else:
        one = " ".join(expanded(text, values, split=False))
        made = (" ".join(before) if isinstance(before, tuple) else before) + one if more else one
    if sum(map(len, made)) > MAX_VALUE:
        raise DataError(f"variable {name[:40]} of the script holds more than {MAX_VALUE:,} characters", hint="a script that starts one run")
    values[name] = made


def _statements(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Statements in order, comments left out, lines that go on joined; ``&&`` or ``||`` before each, and its here-document."""
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        pieces, at = _logical(lines, at)
        for piece, joint in pieces:
            here = _HERE.search(piece)
            body = None
            if here is not None and "<<<" not in piece:
                end = next((n for n in range(at, len(lines)) if lines[n].strip() == here[2]), None)
                if end is None:
                    raise DataError(f"the here-document {here[2][:40]} of the script does not end", hint=f"a line {here[2][:40]}")
                body, at = "\n".join(lines[at:end]) + "\n", end + 1
            if piece.strip():
                # A space that is escaped is no end of a line.
                yield re.sub(r"(?<!\\)\s+$", "", piece.lstrip()), joint, body


def _logical(lines: list[str], at: int) -> tuple[list[tuple[str, str]], int]:
    """The statements of the lines from `at` on until none is open any more, each with what joins it; and the line behind them."""
    pieces: list[tuple[str, str]] = []
    joint = ""
    now: list[str] = []
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
                now.append(line[n : n + 2])
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
                depth -= depth > 0 and (letter == ")" or "${" in "".join(now[-200:]))
            elif not depth and letter in ";|&":
                double = line[n : n + 2] in (";;", "&&", "||")
                # `2>&1` and `&>` send output somewhere; they end nothing.
                if not (letter == "&" and (line[n - 1 : n] == ">" or line[n + 1 : n + 2] == ">")) and not (letter != ";" and _in_test(now)):
                    pieces.append(("".join(now), joint))
                    now, joint = [], line[n : n + 2] if line[n : n + 2] in ("&&", "||") else ""
                    n += 1 + double
                    continue
            now.append(letter)
            n += 1
        if goes_on:
            now.append(" ")
        elif quote or depth:
            now.append("\n" if quote else " ")
        else:
            break
    if quote or depth:
        raise DataError(f"line {begun + 1} of the script: {'a quotation' if quote else 'a bracket'} does not end", hint="the whole script")
    return [*pieces, ("".join(now), joint)], at


def _in_test(now: list[str]) -> bool:
    """Inside ``if [ ... ] && [ ... ]``, whose marks belong to the condition."""
    return "".join(now).split(None, 1)[:1] in (["if"], ["elif"])
