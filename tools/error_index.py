"""Write docs/errors.md: every rule and every error, as the source says them.

    python tools/error_index.py

The source is read, not run: a message is what the call that makes the error is given, with an
ellipsis for each value in it. Where a function is handed the message or the rule, the calls of that
function stand in its place.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardwright import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "errors.md"
ANY = "…"
MADE_OF_A_RULE = ("Violation", "GridRule")
"""What becomes a StrategyError where it is broken."""
MOST = 12
"""Most forms of one message that are told apart."""
HEAD = f"""\
# What does an error message or an exit code mean?

For users, and for authors of programs that call this tool. This page is a reference.

A mistake of the user prints one line on standard error, a second line with a hint where there is \
one, and sets an exit code:

```text
$ shardwright simulate llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256 --strategy \
"tp16 dp1 mbs1"
error: tp x cp x dp x pp = 16 x 1 x 1 x 1 = 16, more than the 8 devices [grid.devices]
hint: ep folds over tp x cp x dp and does not count
$ echo $?
5
```

`--debug` adds the traceback. In Python each error is an exception with `message`, `hint` and \
`exit_code`.

`python tools/error_index.py` writes this page from the source, and a test compares both. In the \
tables `{ANY}` stands for a value.

## Exit codes

| code | error | when |
|---|---|---|
"""
RULES = """
## Rules

A strategy that breaks a rule raises `shardwright.errors.StrategyError`. Its message ends with the \
name of the rule in brackets, such as `[grid.devices]`.
The exception has the name as `rule`; its `path` is the place in the plan. The part of a name \
before the first dot is the object that the rule is about.

| rule | message | function that checks it |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """The place of a syntax node: module, classes and function around it, innermost function."""

    module: str
    names: tuple[str, ...] = ()
    function: ast.FunctionDef | None = None

    @property
    def where(self) -> str:
        """The dotted name."""
        return ".".join((self.module, *self.names))


@dataclass(slots=True)
class Source:
    """Calls by the called name, statements and imports of all modules."""

    calls: dict[str, list[tuple[ast.Call, Scope]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    modules: dict[str, ast.Module] = field(default_factory=dict)
    imports: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """An error: the class that is raised, its rule ('' = none), its message, and its place."""

    error: str
    rule: str
    message: str
    where: str


def parsed(source: Path) -> dict[str, ast.Module]:
    """Every module under `source`, by the name that it is imported by."""
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(
            ".__init__"
        ): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(source.rglob("*.py"))
    }


def read(modules: dict[str, ast.Module]) -> Source:
    """Every call of every module."""
    found = Source(modules=modules)
    for module, tree in modules.items():
        found.imports[module] = {}
        for statement in tree.body:
            _collect(statement, Scope(module), found)
    return found


def _collect(node: ast.AST, scope: Scope, found: Source) -> None:
    if isinstance(node, ast.ImportFrom):
        found.imports[scope.module] |= {
            alias.asname or alias.name: node.module or "" for alias in node.names
        }
    if isinstance(node, ast.Call):
        found.calls[_called(node)].append((node, scope))
    if isinstance(node, ast.FunctionDef):
        # what is defined inside a function has no name that can be imported
        inner = Scope(
            scope.module,
            scope.names if scope.function is not None else (*scope.names, node.name),
            node,
        )
    elif isinstance(node, ast.ClassDef):
        inner = Scope(scope.module, (*scope.names, node.name), scope.function)
    elif not scope.names and isinstance(node, ast.AnnAssign | ast.Assign):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        inner = Scope(scope.module, (target.id,)) if isinstance(target, ast.Name) else scope
    else:
        inner = scope
    for child in ast.iter_child_nodes(node):
        _collect(child, inner, found)


def _called(call: ast.Call) -> str:
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return (
        function.id
        if isinstance(function, ast.Name)
        else function.attr
        if isinstance(function, ast.Attribute)
        else ""
    )


def index(source: Source) -> list[Found]:
    """Every error that the source makes, once for each place and form of message."""
    classes = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.ShardwrightError)
    }
    found: set[Found] = set()
    for name in (*sorted(classes), *MADE_OF_A_RULE):
        for call, scope in source.calls[name]:
            if name in MADE_OF_A_RULE and _argument(call, "rule") is None:
                continue
            error = "StrategyError" if name in MADE_OF_A_RULE else name
            for rule, message, where in _forms(source, call, scope):
                # a message that begins with a colon is the part behind a reason that is there by
                # then
                if (
                    rule != ANY
                    and (rule or re.search(r"\w", message))
                    and not message.startswith(":")
                ):
                    found.add(Found(error, rule, message, where))
    found.update(_missed(call, scope) for call, scope in source.calls["Registry"])
    return sorted(found)


def _missed(call: ast.Call, scope: Scope) -> Found:
    """The error of a name that is not in a `shardwright.registry.Registry`."""
    kind, error = _argument(call, "kind", 0), _argument(call, "error")
    rule = ""
    if isinstance(error, ast.Call):
        rule = ast.literal_eval(_argument(error, "rule") or ast.Constant(""))
        error = error.args[0]
    name = error.id if isinstance(error, ast.Name) else "UsageError"
    assert isinstance(kind, ast.Constant)
    return Found(name, rule, f"unknown {kind.value!s} …", scope.where)


def _argument(call: ast.Call, name: str, place: int = -1) -> ast.expr | None:
    """The argument called `name`, or the one at `place`."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    return given if given is not None or not 0 <= place < len(call.args) else call.args[place]


def _forms(source: Source, call: ast.Call, scope: Scope) -> Iterator[tuple[str, str, str]]:
    """(rule, message, place) of a call that makes an error.

    If the function around the call receives the message as an argument, the calls of that function.
    """
    message, rule = _argument(call, "message", 0), _argument(call, "rule")
    handed = [p for p in _parameters(scope.function) if p in _names(message) | _names(rule)]
    outer = scope.function
    callers = source.calls[outer.name] if handed and outer is not None else []
    callers = [
        (c, s)
        for c, s in callers
        if outer is not None and s.function is not outer and _calls(source, c, s, outer, scope)
    ]
    if not callers or outer is None:
        yield from (
            (r, m, scope.where)
            for r, m in itertools.product(
                _rules(source, rule, scope), _texts(source, message, scope)
            )
        )
        return
    parameters = [
        a.arg for a in (*outer.args.posonlyargs, *outer.args.args) if a.arg not in ("self", "cls")
    ]
    for caller, there in callers:
        given = {
            p: _argument(caller, p, parameters.index(p) if p in parameters else -1) for p in handed
        }
        values = {
            p: _texts(source, value, there) if value is not None else [""]
            for p, value in given.items()
        }
        for chosen in itertools.islice(itertools.product(*values.values()), MOST):
            known = dict(zip(values, chosen, strict=True))
            pairs = itertools.product(
                _rules(source, rule, scope, known), _texts(source, message, scope, known)
            )
            yield from ((r, m, there.where) for r, m in pairs)


def _calls(
    source: Source, call: ast.Call, there: Scope, function: ast.FunctionDef, scope: Scope
) -> bool:
    """True if a call may call that function.

    Inner and private functions are called in their own module, other ones where they or their class
    are imported.
    """
    method = bool(function.args.args) and function.args.args[0].arg == "self"
    if isinstance(call.func, ast.Attribute) != method:
        return False
    if there.module == scope.module:
        return True
    known = source.imports[there.module]
    private = function.name[0] == "_" or scope.names[-1] != function.name
    return not private and (
        scope.module in known.values() if method else known.get(function.name) == scope.module
    )


def _parameters(function: ast.FunctionDef | None) -> list[str]:
    """Names of the arguments that are texts."""
    if function is None:
        return []
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [
        a.arg for a in arguments if isinstance(a.annotation, ast.Name) and a.annotation.id == "str"
    ]


def _names(node: ast.expr | None) -> set[str]:
    """Names that are a text of their own, or a part of a rule's name."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.JoinedStr):
        return {
            v.value.id
            for v in node.values
            if isinstance(v, ast.FormattedValue) and isinstance(v.value, ast.Name)
        }
    return set()


def _rules(
    source: Source, node: ast.expr | None, scope: Scope, known: dict[str, str] | None = None
) -> list[str]:
    return [""] if node is None else _texts(source, node, scope, known)


def _texts(
    source: Source, node: ast.expr | None, scope: Scope, known: dict[str, str] | None = None
) -> list[str]:
    """The forms that a text can have."""
    known = known or {}
    if isinstance(node, ast.Constant):
        return [" ".join(str(node.value).split(" "))] if isinstance(node.value, str) else [ANY]
    if isinstance(node, ast.Lambda):
        return _texts(source, node.body, scope, known)
    if isinstance(node, ast.IfExp):
        return list(
            dict.fromkeys(
                _texts(source, node.body, scope, known) + _texts(source, node.orelse, scope, known)
            )
        )
    if isinstance(node, ast.JoinedStr):
        return _joined(
            source,
            [v.value if isinstance(v, ast.FormattedValue) else v for v in node.values],
            scope,
            known,
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined(source, [node.left, node.right], scope, known)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        values = _assigned(source, node.value.id, scope)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        items = [
            v.elts[at]
            for v in values
            if isinstance(v, ast.Tuple) and isinstance(at, int) and at < len(v.elts)
        ]
        return [t for item in items for t in _texts(source, item, scope, known)] or [ANY]
    if isinstance(node, ast.Name):
        if node.id in known:
            return [known[node.id]]
        values, inner = (
            _assigned(source, node.id, scope),
            known | {node.id: ANY},
        )  # what is made of itself is of any form
        return list(dict.fromkeys(t for v in values for t in _texts(source, v, scope, inner)))[
            :MOST
        ] or [ANY]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known:
        named, inner = node.func.id, known | {node.func.id: ANY}
        made = [
            f
            for f in source.modules[scope.module].body
            if isinstance(f, ast.FunctionDef) and f.name == named
        ]
        returns = [(r.value, f) for f in made for r in ast.walk(f) if isinstance(r, ast.Return)]
        return [
            t
            for value, f in returns
            for t in _texts(source, value, Scope(scope.module, (), f), inner)
        ] or [ANY]
    return [ANY]


def _joined(
    source: Source, parts: list[ast.expr], scope: Scope, known: dict[str, str]
) -> list[str]:
    """Texts after each other."""
    forms = [_texts(source, part, scope, known) for part in parts]
    texts = ["".join(one) for one in itertools.islice(itertools.product(*forms), MOST)]
    return list(dict.fromkeys(re.sub(rf"{ANY}+", ANY, text) for text in texts))


def _assigned(source: Source, name: str, scope: Scope) -> list[ast.expr]:
    """What `name` is set to in the function around, or else in the module."""
    function = scope.function
    for statements in (
        list(ast.walk(function)) if function else [],
        source.modules[scope.module].body,
    ):
        values = [
            v
            for s in statements
            if isinstance(s, ast.Assign | ast.AnnAssign)
            for v in _set(s, name)
        ]
        if values or (
            function and name in {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        ):
            return values
    return []


def _set(statement: ast.Assign | ast.AnnAssign, name: str) -> Iterator[ast.expr]:
    """What a statement sets `name` to; of a tuple its own part, of two alternatives both."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id == name and statement.value is not None:
            yield statement.value
        if isinstance(target, ast.Tuple):
            place = next(
                (
                    i
                    for i, one in enumerate(target.elts)
                    if isinstance(one, ast.Name) and one.id == name
                ),
                -1,
            )
            sides = (
                [statement.value.body, statement.value.orelse]
                if isinstance(statement.value, ast.IfExp)
                else [statement.value]
            )
            yield from (
                side.elts[place]
                for side in sides
                if isinstance(side, ast.Tuple) and 0 <= place < len(side.elts)
            )


def page(found: list[Found]) -> str:
    """docs/errors.md."""
    lines = [HEAD]
    branches = sorted(
        (one for one in _branches() if one.exit_code != 1), key=lambda one: one.exit_code
    )
    lines.append(
        "| 0 | | The answer was printed. A simulated plan that does not fit is an answer too. |\n"
    )
    lines.append(
        "| 1 | `ShardwrightError` | An unexpected error, which is a bug; `--debug` prints the"
        " traceback. |\n"
    )
    for branch in branches:
        lines.append(
            f"| {branch.exit_code} | `{branch.__name__}` |"
            f" {_cell((branch.__doc__ or '').partition('Args:')[0])} |\n"
        )
    lines.append("| 130 | | The user interrupted the command. |\n")
    lines.append(RULES)
    rules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in found:
        if one.rule:
            rules[one.rule, one.message].append(one.where)
    before = ""
    for (rule, message), places in sorted(rules.items()):
        said = "" if message == ANY else _cell(message)
        said = said or "the message of the error that it passes on"
        lines.append(f"| {f'`{rule}`' if rule != before else ''} | {said} | {_places(places)} |\n")
        before = rule
    lines.append("\n## Errors without a rule\n")
    for name in [branch.__name__ for branch in branches]:
        others: dict[str, list[str]] = defaultdict(list)
        for one in found:
            if one.error == name and not one.rule:
                others[one.message].append(one.where)
        if others:
            lines.append(f"\n### {name}\n\n| message | function that raises it |\n|---|---|\n")
            lines += [
                f"| {_cell(message)} | {_places(places)} |\n"
                for message, places in sorted(others.items())
            ]
    return "".join(lines)


def _branches() -> list[type[errors.ShardwrightError]]:
    return [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.ShardwrightError)
    ]


def _cell(text: str) -> str:
    """`text` in a cell of a table."""
    return (
        " ".join(text.split())
        .replace("|", "\\|")
        .replace("<", "\\<")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )


def _places(places: list[str]) -> str:
    return ", ".join(f"`{one}`" for one in sorted(set(places)))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(index(read(parsed(SOURCE)))), encoding="utf-8")


if __name__ == "__main__":
    main()
