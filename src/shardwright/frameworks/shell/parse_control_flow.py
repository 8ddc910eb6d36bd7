"""Parser of a shell script's structure: conditions, loops, cases and functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.expand_words import words_of
from shardwright.frameworks.shell.split_statements import Statement
from shardwright.lazily_compiled_dataclass import dataclass

MAX_NESTED: Final = 40
_FUNCTION: Final = re.compile(
    r"(?:function\s+)?([A-Za-z_][A-Za-z0-9_:-]*)\s*\(\s*\)\s*(.*)|function\s+([A-Za-z_][A-Za-z0-9_:-]*)\s*(.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """A single command or assignment."""

    statement: Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class If:
    """An `if`: parts with a condition and a body each; the condition of `else` is None."""

    parts: tuple[tuple[str | None, tuple[Node, ...]], ...]
    line: int
    joint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop: ``for NAME in WORDS``, or ``while CONDITION`` where the name is empty.

    `until`: the loop ends where the condition holds.
    """

    name: str
    text: str
    body: tuple[Node, ...]
    line: int
    until: bool = False
    joint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A `case`: a word, and parts with patterns and a body each."""

    word: str
    parts: tuple[tuple[tuple[str, ...], tuple[Node, ...]], ...]
    line: int
    joint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function definition."""

    name: str
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of commands ``{ ... }``."""

    body: tuple[Node, ...]
    line: int
    joint: str = ""


Node = Simple | If | Loop | Case | Function | Group


@dataclass(slots=True)
class _Reader:
    """Queue of the statements that are still to be parsed, the next one at the end."""

    rest: list[Statement]

    def peek(self) -> str:
        """First word of the next statement, which is not taken; empty if none is left."""
        return _first_word(self.rest[-1].text) if self.rest else ""

    def take_statement(self) -> Statement:
        """Take and return the next statement."""
        return self.rest.pop()

    def take_word(self) -> Statement:
        """Return the next statement, taking only its first word; the rest stays as a statement."""
        statement = self.rest.pop()
        word = _first_word(statement.text)
        behind = statement.text[len(word) :].lstrip()
        if behind:
            self.rest.append(
                Statement(
                    text=behind,
                    line=statement.line,
                    here=statement.here,
                    here_is_text=statement.here_is_text,
                )
            )
        return statement


def structure_of(statements: Sequence[Statement]) -> tuple[Node, ...]:
    """Parse statements into the nodes of a script.

    Raises:
        DataError: an `if`, a loop, a case or a function does not end, or ends without having begun.
    """
    reader = _Reader(rest=list(reversed(statements)))
    nodes = _block(reader, frozenset(), 0)
    if reader.rest:
        statement = reader.take_statement()
        raise DataError(
            f"line {statement.line} of the script: `{_first_word(statement.text)}` belongs to no"
            " `if`, loop or case",
            hint="the whole script",
        )
    return nodes


def _first_word(text: str) -> str:
    """First word of a text; empty if the text has none."""
    return text.split(None, 1)[0] if text.split(None, 1) else ""


def _block(reader: _Reader, ends: frozenset[str], depth: int) -> tuple[Node, ...]:
    """Parse nodes up to a word in `ends` or another word that ends blocks, which is not taken."""
    if depth > MAX_NESTED:
        raise DataError(
            f"a script nested deeper than {MAX_NESTED}",
            hint="the script that starts the training alone",
        )
    nodes: list[Node] = []
    while reader.rest:
        head = reader.peek()
        if head in ends or head in ("fi", "done", "esac", "}", "then", "do", "elif", "else"):
            break
        if ";;" in ends and reader.rest[-1].joint == ";;":
            break
        nodes.append(_parse_node(reader, depth))
    return tuple(nodes)


def _parse_node(reader: _Reader, depth: int) -> Node:
    """Parse the next node: a command, condition, loop, case, function or group."""
    statement = reader.rest[-1]
    head = reader.peek()
    function = _FUNCTION.fullmatch(statement.text)
    if head == "if":
        return _parse_if(reader, depth)
    if head in ("while", "until"):
        return _parse_while(reader, depth)
    if head in ("for", "select"):
        return _parse_for(reader, depth)
    if head == "case":
        return _parse_case(reader, depth)
    if function is not None:
        return _parse_function(reader, function, depth)
    if head == "{":
        reader.take_word()
        body = _block(reader, frozenset({"}"}), depth + 1)
        _take_end_word(reader, "}", statement.line, "{")
        return Group(body=body, line=statement.line, joint=statement.joint)
    return Simple(statement=reader.take_statement())


def _take_end_word(reader: _Reader, word: str, line: int, opened: str) -> None:
    """Take the statement that starts with a node's end word; DataError if another comes."""
    if reader.peek() != word:
        raise DataError(
            f"line {line}: `{opened}` of the script does not end", hint="the whole script"
        )
    reader.take_statement()


def _parse_if(reader: _Reader, depth: int) -> If:
    """Parse an `if` with its `elif` and `else` parts."""
    statement = reader.take_statement()
    parts: list[tuple[str | None, tuple[Node, ...]]] = []
    condition: str | None = statement.text[len("if") :].strip()
    while True:
        condition = (
            _take_condition(reader, condition, "then", statement.line, "if")
            if condition is not None
            else None
        )
        parts.append((condition, _block(reader, frozenset({"elif", "else", "fi"}), depth + 1)))
        head = reader.peek()
        if head == "elif" and condition is not None:
            condition = reader.take_statement().text[len("elif") :].strip()
        elif head == "else" and condition is not None:
            reader.take_word()
            condition = None
        else:
            break
    _take_end_word(reader, "fi", statement.line, "if")
    return If(parts=tuple(parts), line=statement.line, joint=statement.joint)


def _take_condition(reader: _Reader, condition: str, word: str, line: int, opened: str) -> str:
    """Take a condition's commands up to and with `word`; return the last, which decides."""
    while reader.rest and reader.peek() != word:
        condition = reader.take_statement().text
    if not reader.rest:
        raise DataError(
            f"line {line}: an `{opened}` of the script does not end", hint="the whole script"
        )
    reader.take_word()
    return condition


def _parse_while(reader: _Reader, depth: int) -> Loop:
    """Parse a `while` or `until` loop."""
    statement = reader.take_statement()
    head = _first_word(statement.text)
    condition = _take_condition(
        reader, statement.text[len(head) :].strip(), "do", statement.line, head
    )
    body = _block(reader, frozenset({"done"}), depth + 1)
    _take_end_word(reader, "done", statement.line, head)
    return Loop(
        name="",
        text=condition,
        body=body,
        line=statement.line,
        until=head == "until",
        joint=statement.joint,
    )


def _parse_for(reader: _Reader, depth: int) -> Loop:
    """Parse a `for` or `select` loop."""
    statement = reader.take_statement()
    head, _, rest = statement.text.partition(" ")
    name, _, words = rest.strip().partition(" ")
    _take_condition(reader, "", "do", statement.line, head)
    body = _block(reader, frozenset({"done"}), depth + 1)
    _take_end_word(reader, "done", statement.line, head)
    words = words.strip()
    return Loop(
        name=name,
        text=words[len("in") :].strip() if words.startswith("in") else '"$@"',
        body=body,
        line=statement.line,
        joint=statement.joint,
    )


def _parse_case(reader: _Reader, depth: int) -> Case:
    """Parse a `case` with its patterns and bodies."""
    statement = reader.take_statement()
    words = list(words_of(statement.text))
    if len(words) < 3 or words[2] != "in":
        raise DataError(
            f"line {statement.line}: `case` of the script has no `in`", hint="case WORD in"
        )
    behind = statement.text.partition(" in")[2].strip() if len(words) > 3 else ""
    if behind:
        reader.rest.append(Statement(text=behind, line=statement.line, here=statement.here))
    parts: list[tuple[tuple[str, ...], tuple[Node, ...]]] = []
    while reader.rest and reader.peek() != "esac":
        patterns = _patterns(reader, statement.line)
        body = _block(reader, frozenset({"esac", ";;"}), depth + 1)
        if patterns:
            parts.append((patterns, body))
    _take_end_word(reader, "esac", statement.line, "case")
    return Case(word=words[1], parts=tuple(parts), line=statement.line, joint=statement.joint)


def _patterns(reader: _Reader, line: int) -> tuple[str, ...]:
    """Read the patterns of a case up to ``)``; the text behind it is the next statement."""
    patterns: list[str] = []
    while reader.rest:
        statement = reader.take_statement()
        text, closed, behind = statement.text.partition(")")
        if text.strip():
            patterns += [pattern.strip() for pattern in text.strip().removeprefix("(").split("|")]
        if closed:
            if behind.strip():
                reader.rest.append(
                    Statement(
                        text=behind.strip(),
                        line=statement.line,
                        here=statement.here,
                        here_is_text=statement.here_is_text,
                    )
                )
            return tuple(patterns)
        if statement.text.strip() and not (reader.rest and reader.rest[-1].joint == "|"):
            raise DataError(
                f"line {line}: a pattern of `case` of the script does not end",
                hint="PATTERN) COMMANDS ;;",
            )
        if not statement.text.strip() and reader.peek() == "esac":
            return ()
    raise DataError(f"line {line}: `case` of the script does not end", hint="the whole script")


def _parse_function(reader: _Reader, match: re.Match[str], depth: int) -> Function:
    """Parse a function definition with its body."""
    statement = reader.take_statement()
    name, behind = match[1] or match[3], (match[2] if match[1] else match[4]) or ""
    if behind.strip():
        reader.rest.append(Statement(text=behind.strip(), line=statement.line, here=statement.here))
    if reader.peek() != "{":
        raise DataError(
            f"line {statement.line}: function {name[:40]} of the script has no body",
            hint="NAME() { COMMANDS; }",
        )
    reader.take_word()
    body = _block(reader, frozenset({"}"}), depth + 1)
    _take_end_word(reader, "}", statement.line, name[:40])
    return Function(name=name, body=body, line=statement.line)
