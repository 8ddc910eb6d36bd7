"""Markdown of the reference of the Python API, from signatures and docstrings of public names.

A docstring has a summary, text, and sections such as ``Args:`` (CONTRIBUTING.md, Docstrings).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import shardwright

SECTION = re.compile(r"^(Args|Raises|Returns|Yields):[ \n]", flags=re.MULTILINE)
ENTRY = re.compile(r"(?:^(\w+(?:, \w+)*)|(?<=\. )(\w+Error)):\s", flags=re.MULTILINE)
"""Names at the beginning of a line, or a further error on it."""
HEAD = """\
# What can Python programs import?

For people who call the package from Python. This page is a reference.

`import shardwright` has the names of this page. Other names may change in any release."""


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring: text before the sections, and entries by section and name."""

    text: str
    sections: dict[str, list[tuple[str, str]]]


def parse_docstring(docstring: str) -> Docstring:
    """Parse a docstring."""
    text = inspect.cleandoc(docstring)
    heads = list(SECTION.finditer(text))
    sections: dict[str, list[tuple[str, str]]] = {}
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        sections[head[1]] = list(_entries(textwrap.dedent(text[head.end() : end])))
    return Docstring(text[: heads[0].start() if heads else None].strip(), sections)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Name and words of each entry of a section; one without a name is the section's text."""
    heads = list(ENTRY.finditer(text))
    if not heads:
        yield "", " ".join(text.split())
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        words = " ".join(text[head.end() : end].split())
        for name in (head[1] or head[2]).split(", "):
            yield name, words


def api_page() -> str:
    """Page of the public names: functions, then data, then errors, in the order of `__all__`."""
    names = [name for name in shardwright.__all__ if not name.startswith("__")]
    errors = [name for name in names if name.endswith("Error")]
    data = [name for name in names if name[0].isupper() and name not in errors]
    functions = [name for name in names if name not in errors and name not in data]
    groups = (("Functions", functions), ("Data", data), ("Errors", errors))
    parts = [HEAD]
    for heading, members in groups:
        parts.append(f"## {heading}")
        parts += [name_reference(name, getattr(shardwright, name)) for name in members]
    return "\n\n".join(parts) + "\n"


def name_reference(name: str, value: Any) -> str:
    """Section of one public name."""
    docstring = parse_docstring(value.__doc__ or "")
    parts = [f"### {name}", docstring.text]
    if dataclasses.is_dataclass(value):
        parts += [
            f"```python\nfrom shardwright import {name}\n```",
            _fields_table(value, docstring),
        ]
    else:
        parts += [f"```python\n{signature(value)}\n```"] if inspect.isfunction(value) else []
        parts.append(_arguments_table(docstring))
    parts += [f"It returns {words}" for _, words in docstring.sections.get("Returns", [])]
    raised = [
        f"- `{error}`: {words}" if error else f"- {words}"
        for error, words in docstring.sections.get("Raises", [])
    ]
    parts += ["It raises:\n\n" + "\n".join(raised)] if raised else []
    parts.append(_members_table(value) if inspect.isclass(value) else "")
    return "\n\n".join(part for part in parts if part)


def signature(function: Any) -> str:
    """Header of a function as its source has it, an argument a line."""
    source = textwrap.dedent(inspect.getsource(function))
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    words = [ast.unparse(ast.arguments([], [one], None, [], [], None, [])) for one in given.args]
    words += (
        [f"*{ast.unparse(given.vararg)}"] if given.vararg else ["*"] if given.kwonlyargs else []
    )
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        words.append(ast.unparse(one) + (f" = {ast.unparse(default)}" if default else ""))
    result = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    inside = "".join(f"    {word},\n" for word in words)
    return f"{definition.name}(\n{inside}){result}"


def _cell(text: str) -> str:
    """Text of a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _fields_table(kind: Any, docstring: Docstring) -> str:
    """Table of a dataclass's fields."""
    described = dict(docstring.sections.get("Args", []))
    rows = []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        words = described.get(field.name, "")
        rows.append(f"| `{field.name}` | `{_cell(str(field.type))}` | {default} | {_cell(words)} |")
    return "| field | type | default | |\n|---|---|---|---|\n" + "\n".join(rows)


def _arguments_table(docstring: Docstring) -> str:
    """Table of the arguments that a docstring describes; empty if it describes none."""
    rows = [f"| `{name}` | {_cell(words)} |" for name, words in docstring.sections.get("Args", [])]
    return "| argument | |\n|---|---|\n" + "\n".join(rows) if rows else ""


def _members_table(kind: Any) -> str:
    """Table of a class's properties and methods; empty if it has none of its own."""
    rows = []
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            shown = name if isinstance(member, property) else f"{name}()"
            summary = parse_docstring(function.__doc__).text.split("\n\n")[0]
            rows.append(f"| `{shown}` | {_cell(' '.join(summary.split()))} |")
    return "| property or method | |\n|---|---|\n" + "\n".join(rows) if rows else ""
