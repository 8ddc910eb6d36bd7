"""Interpreter of a shell script's commands and assignments, one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.arithmetic import arithmetic
from shardwright.frameworks.shell.conditions import holds
from shardwright.frameworks.shell.expand_words import expanded, one_word, words_of
from shardwright.frameworks.shell.interpreter_state import ASSIGNED, ScriptState, tell
from shardwright.frameworks.shell.parameter_expansion import parameter_of
from shardwright.frameworks.shell.parse_control_flow import structure_of
from shardwright.frameworks.shell.split_statements import (
    Statement,
    statements_of,
    without_here_document_mark,
)
from shardwright.frameworks.shell.variables_and_positional_parameters import (
    Variables,
    assign,
    positionals_of_call,
    shift,
    value_of,
)

MAX_STATEMENTS: Final = 20_000
_MAX_CALLS: Final = 8
_COUNTED: Final = re.compile(
    r"\(\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*(\+\+|--|[-+*/%]?=(?!=))(.*)\)\)", re.DOTALL
)
_TARGET: Final = re.compile(r"(?<![0-9&<])(>>?)\s*([^\s>&]+)")
_EXPORTING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_READING: Final = frozenset({"read", "mapfile", "readarray", "getopts"})
_LEAVING: Final = frozenset({"exit", "return", "break", "continue"})


def run_text(state: ScriptState, text: str) -> None:
    """Interpret a shell text's statements: change `state`, record commands, start nothing."""
    statements: list[Statement] = []
    for statement in statements_of(text):
        statements.append(statement)
        if len(statements) > MAX_STATEMENTS:
            raise DataError(
                f"a script of more than {MAX_STATEMENTS:,} statements",
                hint="the script that starts the training alone",
            )
    state.run(state, structure_of(statements))


def run_command(state: ScriptState, statement: Statement) -> None:
    """Run a statement: assignment, subshell, builtin, command, or test (its result is kept)."""
    counted = _COUNTED.fullmatch(statement.text)
    if counted is not None:
        _run_arithmetic(state, counted[1], counted[2], counted[3])
        return
    if (
        statement.text.startswith("(")
        and statement.text.endswith(")")
        and not statement.text.startswith("((")
    ):
        _run_in_subshell(state, statement.text[1:-1])
        return
    words = list(words_of(statement.text))
    head = words[0] if words else ""
    state.held = (
        holds(statement.text, state.variables)
        if head in ("[", "[[", "test", "!", "true", "false") or head.startswith("((")
        else True
    )
    if head in ("[", "[[", "test", "true", "false") or head.startswith("(("):
        return
    is_exported = head in _EXPORTING
    while words and words[0] in _EXPORTING:
        words = [word for word in words[1:] if not re.fullmatch(r"[-+][a-zA-Z]+", word)]
    assigned = [ASSIGNED.fullmatch(word) for word in words]
    if is_exported or (words and all(assigned)):
        for match in assigned:
            if match is not None:
                _run_assignment(state.variables, match)
        return
    while words and (prefix := ASSIGNED.fullmatch(words[0])) and not prefix[2]:
        state.prefixed[prefix[1]] = one_word(prefix[4], state.variables)
        words.pop(0)
    if not _run_builtin(state, statement, words):
        _record_command(state, statement, words)


def _run_builtin(state: ScriptState, statement: Statement, words: list[str]) -> bool:
    """Run a shell builtin (export, shift, set, ...); False if the command is none."""
    head = words[0] if words else ""
    if head == ":":
        for word in words[1:]:
            expanded(word, state.variables)
    elif head in _LEAVING:
        state.leaving = head
    elif head == "shift":
        number = one_word(words[1], state.variables) if len(words) > 1 else "1"
        shift(
            state.variables,
            int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 1,
        )
    elif head == "set":
        if "--" in words:
            words_after = [
                piece
                for word in words[words.index("--") + 1 :]
                for piece in expanded(word, state.variables)
            ]
            state.variables.positional = positionals_of_call(tuple(words_after))
    elif head == "unset":
        for word in words[1:]:
            state.variables.values.pop(word, None)
    elif head == "let" and len(words) > 1:
        counted = _COUNTED.fullmatch(f"(({' '.join(words[1:])}))".replace('"', ""))
        if counted is not None:
            _run_arithmetic(state, counted[1], counted[2], counted[3])
    elif head in _READING:
        tell(state, statement.line, statement.text, "what it reads is not known here")
    else:
        return head == ""
    return True


def _run_arithmetic(state: ScriptState, name: str, mark: str, text: str) -> None:
    """Run ``((NAME += EXPRESSION))``: set the variable, or unset it if the value is unknown."""
    before = value_of(state.variables, name)
    text = "1" if mark in ("++", "--") else one_word(text, state.variables)
    expression = (
        text
        if mark == "="
        else f"({before if isinstance(before, str) and before else 0}) {mark[0]} ({text})"
    )
    number = arithmetic(expression, state.variables)
    if number is None:
        state.variables.values.pop(name, None)
    else:
        assign(state.variables, name, str(number))


def _record_command(state: ScriptState, statement: Statement, words: list[str]) -> None:
    """Record a command's expanded words or written file; follow called functions and scripts."""
    expanded_words = [
        piece
        for word in words
        for piece in expanded(without_here_document_mark(word), state.variables)
    ]
    head = PurePosixPath(expanded_words[0]).name if expanded_words else ""
    target = (
        _TARGET.search(" ".join(expanded_words))
        if statement.here is not None or ">" in statement.text
        else None
    )
    body = (
        None
        if statement.here is None
        else statement.here
        if statement.here_is_text
        else _expanded_here_document(statement.here, state.variables)
    )
    if statement.joint == "|" and head == "tee" and state.piped:
        body = state.piped
    state.piped = ""
    if body is not None:
        name = (
            target[2]
            if target
            else next(
                (word for word in expanded_words[1:] if head == "tee" and not word.startswith("-")),
                "",
            )
        )
        if name:
            state.files[name] = body
        else:
            state.piped = body
        return
    if head in ("echo", "printf") and target is not None:
        _record_echoed_file(state, expanded_words, target)
        return
    if target is not None and head:
        state.written[target[2]] = head
    if (
        expanded_words
        and (
            expanded_words[0] in ("source", ".")
            or head in ("bash", "sh", "eval")
            or expanded_words[0] in state.functions
        )
        and _run_called_script(state, statement, expanded_words)
    ):
        return
    at = next(
        (
            n
            for n, word in enumerate(expanded_words[:-2])
            if PurePosixPath(word).name in ("bash", "sh") and expanded_words[n + 1] in ("-c", "-lc")
        ),
        -1,
    )
    if at >= 0 and _run_bash_text(state, expanded_words[:at], expanded_words[at + 2]):
        return
    if expanded_words:
        state.commands.append(tuple(expanded_words))


def _record_echoed_file(state: ScriptState, words: Sequence[str], target: re.Match[str]) -> None:
    """Record the file that `echo` or `printf` writes by redirection."""
    end = next((n for n, word in enumerate(words) if word.startswith((">", "1>"))), len(words))
    text = " ".join(word for word in words[1:end] if word not in ("-e", "-n", "-E")) + "\n"
    state.files[target[2]] = (state.files.get(target[2], "") if target[1] == ">>" else "") + text


def _run_called_script(state: ScriptState, statement: Statement, command: Sequence[str]) -> bool:
    """Run a function, script or `eval` that a command starts; False if it starts none of these."""
    if state.depth >= _MAX_CALLS:
        tell(
            state,
            statement.line,
            statement.text,
            f"more than {_MAX_CALLS} calls inside each other are not followed",
        )
        return True
    if command[0] in state.functions:
        _run_with_positionals(
            state,
            tuple(command[1:]),
            lambda: state.run(state, state.functions[command[0]].body),
            ends="return",
        )
        return True
    if command[0] == "eval":
        _run_with_positionals(state, None, lambda: run_text(state, " ".join(command[1:])), ends="")
        return True
    script = next((n for n, word in enumerate(command) if n and not word.startswith("-")), 0)
    if not script or "-c" in command[1:script] or "-lc" in command[1:script]:
        return False
    name = command[script]
    text = state.files.get(name) or state.sources(name)
    if text is None:
        state.missing[name] = statement.line
        return command[0] in ("source", ".")
    words = tuple(command[script + 1 :])
    if command[0] in ("source", "."):
        _run_with_positionals(state, words or None, lambda: run_text(state, text), ends="return")
    else:
        _run_in_subshell(state, text, words)
    return True


def _run_with_positionals(
    state: ScriptState, words: tuple[str, ...] | None, run: Callable[[], None], *, ends: str
) -> None:
    """Call `run` with positional parameters (None: current); `ends` or return leaves only `run`."""
    before = state.variables.positional
    if words is not None:
        state.variables.positional = positionals_of_call(words)
    state.depth += 1
    run()
    state.depth -= 1
    if words is not None:
        state.variables.positional = before
    if state.leaving == ends or state.leaving == "return":
        state.leaving = ""


def _run_in_subshell(state: ScriptState, text: str, words: tuple[str, ...] | None = None) -> None:
    """Run a text, whose assignments are undone afterwards; nothing if calls are nested too deep."""
    values = dict(state.variables.values)
    if state.depth < _MAX_CALLS:
        _run_with_positionals(state, words, lambda: run_text(state, text), ends="exit")
    state.variables.values = values


def _run_bash_text(state: ScriptState, before: Sequence[str], text: str) -> bool:
    """Run the text of ``bash -c`` behind prefix words; False if the text cannot be parsed."""
    number = len(state.commands)
    try:
        _run_in_subshell(state, text)
    except DataError:
        del state.commands[number:]
        return False
    state.commands[number:] = [(*before, *command) for command in state.commands[number:]]
    return True


def _expanded_here_document(text: str, variables: Variables) -> str:
    """Text of a here-document with variables expanded; quotation marks are literal."""
    return "".join(
        "".join(expanded(f'"{piece}"', variables)) if piece != '"' else '"'
        for piece in re.split('(")', text)
        if piece
    )


def _run_assignment(variables: Variables, match: re.Match[str]) -> None:
    """Run an assignment to a variable, an array or an array's element."""
    name, index, more, text = match.groups()
    if index is not None:
        item_name = f"{name}[{one_word(index, variables)}]"
        present = (
            parameter_of(item_name, variables, lambda word: one_word(word, variables))
            if more
            else None
        )
        start = present if isinstance(present, str) else ""
        assign(variables, item_name, start + one_word(text, variables))
        return
    before = value_of(variables, name) or ""
    if text.startswith("(") and text.endswith(")"):
        made = tuple(piece for word in words_of(text[1:-1]) for piece in expanded(word, variables))
        named = [re.fullmatch(r"\[([^\[\]]+)\]=(.*)", statement, re.DOTALL) for statement in made]
        for item in named:
            if item is not None:
                assign(variables, f"{name}[{item[1]}]", item[2])
        made = tuple(statement for statement, item in zip(made, named, strict=True) if item is None)
        assign(
            variables,
            name,
            (*((before,) if isinstance(before, str) and before else tuple(before)), *made)
            if more
            else made,
        )
        return
    statement = one_word(text, variables)
    assign(
        variables,
        name,
        (before if isinstance(before, str) else " ".join(before)) + statement
        if more
        else statement,
    )
