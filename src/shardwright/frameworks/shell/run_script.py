"""Interpreter of launch shell scripts: commands and files, without running any command.

Variables, arrays, conditions, loops, cases, functions and here-documents are followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.conditions import holds, matches
from shardwright.frameworks.shell.expand_words import expanded, one_word, words_of
from shardwright.frameworks.shell.interpret_script_commands import (
    MAX_STATEMENTS,
    run_command,
    run_text,
)
from shardwright.frameworks.shell.interpreter_state import (
    Script,
    ScriptState,
    Sources,
    assigned_names,
    tell,
)
from shardwright.frameworks.shell.parse_control_flow import Case, Function, If, Loop, Node, Simple
from shardwright.frameworks.shell.variables_and_positional_parameters import (
    assign,
    value_of,
    variables_of,
)

MAX_SCRIPT: Final = 1_000_000
_MAX_TURNS: Final = 1_000
_DIRECTIVE: Final = re.compile(
    r"#SBATCH\s+(?:--(nodes|ntasks|ntasks-per-node|gpus-per-node|job-name)[= ]\s*|-(N|n|J)\s*)(\S+)"
)
_OF_SLURM: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS",),
    "n": ("SLURM_NTASKS",),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "job-name": ("SLURM_JOB_NAME",),
    "J": ("SLURM_JOB_NAME",),
}
"""Directive of a batch script -> variables that SLURM sets by it."""


def read_script(text: str, *, given: Mapping[str, str], sources: Sources | None = None) -> Script:
    """Read a shell script's commands with their variables expanded; nothing is run.

    Args:
        given: values of variables, which the script cannot change; a number is a positional
            parameter.
        sources: function from a file's name to the text of scripts that the script reads.

    A variable that nothing sets stays as ``$NAME`` in the words that need it. Words of pipes and
    lists are commands of their own.

    Raises:
        DataError: the script is too long, or a quotation, a here-document or a condition does not
            end.
    """
    if len(text) > MAX_SCRIPT:
        raise DataError(f"a script of {len(text):,} characters", hint=f"at most {MAX_SCRIPT:,}")
    state = ScriptState(
        variables=variables_of(given), sources=sources or (lambda _: None), run=_run_nodes
    )
    for long, short, value in _DIRECTIVE.findall(text):
        for name in _OF_SLURM[long or short]:
            state.variables.values.setdefault(name, value)
    run_text(state, text)
    values = state.variables.values
    environment = {
        **state.prefixed,
        **{
            name: value if isinstance(value, str) else " ".join(value)
            for name, value in values.items()
        },
    }
    return Script(
        commands=tuple(state.commands),
        files=tuple(state.files.items()),
        written=state.written,
        missing=state.missing,
        left_out=tuple(dict.fromkeys(state.left_out)),
        environment=tuple(environment.items()),
    )


def _run_nodes(state: ScriptState, nodes: Sequence[Node]) -> None:
    """Run nodes in order until a statement leaves the block (break, return, exit)."""
    for node in nodes:
        if state.leaving:
            return
        state.steps += 1
        if state.steps > MAX_STATEMENTS:
            raise DataError(
                f"a script of more than {MAX_STATEMENTS:,} statements",
                hint="the script that starts the training alone",
            )
        if isinstance(node, Simple):
            if _is_reached(state, node.statement.joint, node.statement.text, node.statement.line):
                run_command(state, node.statement)
        elif isinstance(node, If):
            if _is_reached(state, node.joint, "if", node.line, [node]):
                _run_if(state, node)
        elif isinstance(node, Loop):
            if _is_reached(state, node.joint, _loop_word(node), node.line, [node]):
                _run_loop(state, node)
        elif isinstance(node, Case):
            if _is_reached(state, node.joint, "case", node.line, [node]):
                _run_case(state, node)
        elif isinstance(node, Function):
            state.functions[node.name] = node
        elif _is_reached(state, node.joint, "{ ... }", node.line, [node]):
            _run_nodes(state, node.body)


def _is_reached(
    state: ScriptState, joint: str, text: str, line: int, block: Sequence[Node] = ()
) -> bool:
    """True if the last result lets the statement behind `joint` run; False, noted, if unknown."""
    if joint not in ("&&", "||"):
        return True
    if state.held is None:
        tell(state, line, text, "what decides about it is not known here", block)
        return False
    return state.held == (joint == "&&")


def _run_if(state: ScriptState, node: If) -> None:
    """Run the first part of an `if` whose condition holds; note an undecidable condition."""
    for condition, body in node.parts:
        condition_holds = True if condition is None else holds(condition, state.variables)
        if condition_holds is None:
            rest = [child for _, part_body in node.parts for child in part_body]
            tell(
                state,
                node.line,
                f"if {condition}",
                "the condition is not known here, no part was followed",
                rest,
            )
            return
        if condition_holds:
            _run_nodes(state, body)
            break
    _set_unset_variables_empty(state, [child for _, part_body in node.parts for child in part_body])


def _set_unset_variables_empty(state: ScriptState, nodes: Sequence[Node]) -> None:
    """Set to the empty text the variables that these nodes assign and that have no value.

    They are the script's own variables, so the environment does not set them.
    """
    for name in assigned_names(nodes):
        if value_of(state.variables, name) is None:
            assign(state.variables, name, "")


def _run_loop(state: ScriptState, node: Loop) -> None:
    """Run a loop over known words or with a decidable condition; note other loops."""
    if node.name:
        if node.name.startswith("(("):
            tell(
                state,
                node.line,
                f"for {node.name} {node.text}",
                "a counting loop is not followed",
                node.body,
            )
            return
        words = [piece for word in words_of(node.text) for piece in expanded(word, state.variables)]
        if any("$(" in word or "`" in word or word.startswith("$") for word in words):
            tell(
                state,
                node.line,
                f"for {node.name} in {node.text}",
                "what it goes over is not known here",
                node.body,
            )
            return
        for word in words[:_MAX_TURNS]:
            assign(state.variables, node.name, word)
            if not _run_body_once(state, node.body):
                break
        return
    if node.text in ("true", ":") and not node.until:
        tell(state, node.line, f"while {node.text}", "a loop without an end is followed once")
        _run_body_once(state, node.body)
        return
    for turn in range(_MAX_TURNS + 1):
        condition_holds = holds(node.text, state.variables)
        if condition_holds is None or turn == _MAX_TURNS:
            why = (
                "the condition is not known here"
                if condition_holds is None
                else f"more than {_MAX_TURNS:,} turns"
            )
            tell(
                state,
                node.line,
                f"{_loop_word(node)} {node.text}",
                f"{why}, it was not followed",
                node.body,
            )
            return
        if condition_holds == node.until or not _run_body_once(state, node.body):
            return


def _loop_word(loop: Loop) -> str:
    """Shell word that begins a loop: ``for``, ``while`` or ``until``."""
    return "for" if loop.name else "until" if loop.until else "while"


def _run_body_once(state: ScriptState, body: Sequence[Node]) -> bool:
    """Run a loop's body once; True if the loop continues (no break, return or exit)."""
    _run_nodes(state, body)
    left, state.leaving = (
        state.leaving,
        "" if state.leaving in ("break", "continue") else state.leaving,
    )
    return left in ("", "continue")


def _run_case(state: ScriptState, node: Case) -> None:
    """Run the first part of a `case` whose pattern matches; note an unknown word."""
    word = one_word(node.word, state.variables)
    if "$" in word or "`" in word:
        bodies = [child for _, body in node.parts for child in body]
        tell(
            state,
            node.line,
            f"case {node.word}",
            "the word is not known here, no part was followed",
            bodies,
        )
        return
    for patterns, body in node.parts:
        if any(matches(word, one_word(pattern, state.variables)) for pattern in patterns):
            _run_nodes(state, body)
            break
    _set_unset_variables_empty(state, [child for _, body in node.parts for child in body])
