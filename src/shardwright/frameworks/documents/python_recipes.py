"""Settings that a function of a Python file makes, found without running the file.

Recipes and registries of some frameworks are such functions.

The module follows assignments, calls of the file's own functions with their arguments, and
conditions on known values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import dotted, named_value, tree_of
from shardwright.frameworks.documents.evaluate_constant_python_expressions import (
    MAX_DEPTH,
    UNKNOWN,
    CallByName,
    Values,
    value_of,
)
from shardwright.frameworks.documents.find_launched_recipe_function import (
    RECIPE,
    Function,
    builds_configuration,
    framework_recipe,
    is_framework_recipe,
    launched_function,
)
from shardwright.lazily_compiled_dataclass import dataclass

MAX_STEPS: Final = 20_000
CHOICES: Final = ("recipe", "config", "factory")
"""Names by which the user says which function it is: ``--set recipe=NAME``, or a command's
argument."""
_WRAPPERS: Final = (["run", "Config"], ["run", "Partial"])
"""Calls that make what their first argument names."""
_KEPT: Final = frozenset({"model.flavor"})


@dataclass(slots=True)
class _Traversal:
    """State of the traversal: functions, constants, settings found and notes.

    `imported` maps a name to the module that it comes from.
    """

    functions: Mapping[str, Function]
    constants: Values
    imported: Mapping[str, str]
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSettings:
    """Settings that a Python function makes, and notes on calls that were not followed.

    Names are dotted, in lower case with dashes. `function` is the function's name.
    """

    settings: Mapping[str, str]
    notes: tuple[str, ...] = ()
    function: str = ""


def settings_of_recipe(text: str, name: str, *, given: Mapping[str, str]) -> RecipeSettings | None:
    """Settings made by the function of a Python file that builds a configuration; None if none.

    None if the file has no such functions.

    Args:
        name: of the file, for errors.
        given: values from the user; one of `CHOICES` is the function's name.

    Raises:
        DataError: the file is no Python, the function is not there, or there are several functions
            and
        none is named.
    """
    try:
        return _followed(tree_of(text, name), name, given=given)
    except RecursionError:
        raise DataError(
            f"{name[:60]}: expressions nested too deep", hint="a recipe of the framework"
        ) from None


def _followed(tree: ast.Module, name: str, *, given: Mapping[str, str]) -> RecipeSettings | None:
    """Settings of a file's chosen function or module-level code; None if the file is no recipe."""
    functions = {node.name: node for node in tree.body if isinstance(node, Function)}
    makers = [
        name_of_function
        for name_of_function, node in functions.items()
        if builds_configuration(node)
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if len(makers) < 2 and not any(
        framework_recipe(node, {}) or dotted(node.func) in _WRAPPERS for node in calls
    ):
        return None
    state = _Traversal(functions=functions, constants=_constants(tree), imported=_imports(tree))
    chosen = next((given[choice] for choice in CHOICES if choice in given), "")
    if chosen:
        if chosen not in functions:
            raise DataError(
                f"{name[:60]} has no function {chosen[:60]}",
                hint=f"--set {RECIPE}= one of {', '.join(makers)[:200]}",
            )
    else:
        chosen = launched_function(tree, makers, functions, name)
    if chosen:
        _call(state, functions[chosen], {}, 0)
        more = [maker for maker in makers if maker != chosen]
        if more:
            state.notes.append(
                f"{chosen} was read; --set {RECIPE}=NAME reads another function of {name[:60]}"
            )
    else:
        _block(state, tree.body, dict(state.constants), 0)
    return RecipeSettings(
        settings=state.settings, notes=tuple(dict.fromkeys(state.notes)), function=chosen
    )


def _constants(tree: ast.Module) -> Values:
    """Values of module-level names that are constant expressions."""
    constants: Values = {}
    for node in tree.body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            else getattr(node, "target", None)
        )
        value = getattr(node, "value", None)
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(target, ast.Name)
            and isinstance(value, ast.expr)
        ):
            constant = value_of(value, constants, 0)
            if constant is not UNKNOWN:
                constants[target.id] = constant
    return constants


def _imports(tree: ast.Module) -> dict[str, str]:
    """Imported name -> module that the name is from, of ``from`` imports only."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _call(state: _Traversal, function: Function, arguments: Values, depth: int) -> None:
    """Follow a function of the file with these arguments and add its settings to the state."""
    if depth > MAX_DEPTH:
        raise DataError(
            f"functions that call each other more than {MAX_DEPTH} deep",
            hint="a recipe of the framework",
        )
    known = dict(state.constants)
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    for name, default in zip(
        names[len(names) - len(function.args.defaults) :], function.args.defaults, strict=True
    ):
        known[name] = value_of(default, state.constants, 0)
    for argument, default_of in zip(
        function.args.kwonlyargs, function.args.kw_defaults, strict=True
    ):
        known[argument.arg] = (
            UNKNOWN if default_of is None else value_of(default_of, state.constants, 0)
        )
    for name in names:
        known.setdefault(name, UNKNOWN)
    known |= arguments
    _block(state, function.body, known, depth + 1)


def _count_step(state: _Traversal) -> None:
    """Count a step of the traversal; DataError after `MAX_STEPS`."""
    state.steps += 1
    if state.steps > MAX_STEPS:
        raise DataError(
            f"a Python file of more than {MAX_STEPS:,} steps", hint="the file of the recipe alone"
        )


def _block(state: _Traversal, body: Sequence[ast.stmt], known: Values, depth: int) -> bool:
    """Follow statements in order, without loops and `try`; True if one of them returned."""
    for node in body:
        _count_step(state)
        if isinstance(node, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.If):
            if _branch(state, node, known, depth):
                return True
        elif isinstance(node, ast.With):
            if _block(state, node.body, known, depth):
                return True
        elif isinstance(node, ast.For | ast.While | ast.Try):
            if any(
                isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
                for child in ast.walk(node)
            ):
                state.notes.append(
                    f"not followed: line {node.lineno}, a loop or `try` that sets something"
                )
        else:
            for expression in (
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.expr) and _is_read(child)
            ):
                _collect(state, expression, known, depth)
            _assign(state, node, known)
            if isinstance(node, ast.Return):
                return True
    return False


def _is_read(node: ast.expr) -> bool:
    """True if an expression is read and not assigned to."""
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Store)


def _branch(state: _Traversal, node: ast.If, known: Values, depth: int) -> bool:
    """Follow the branch of an `if` if its condition is known; True if that branch returned.

    An unknown condition adds a note.
    """
    condition = value_of(node.test, known, 0)
    if condition is UNKNOWN:
        main = ast.unparse(node.test)
        if main.startswith("__name__"):
            return _block(state, node.body, known, depth)
        sets = any(
            isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
            for child in ast.walk(node)
        )
        if sets or any(isinstance(child, ast.Call) and child.keywords for child in ast.walk(node)):
            state.notes.append(f"not followed: if {main[:60]}, which is not known here")
        return False
    return _block(state, node.body if condition else node.orelse, known, depth)


def _assign(state: _Traversal, node: ast.stmt, known: Values) -> None:
    """Record an assignment: to a name in `known`, to an attribute in the state's settings."""
    target = (
        node.targets[0]
        if isinstance(node, ast.Assign) and len(node.targets) == 1
        else getattr(node, "target", None)
    )
    value = getattr(node, "value", None)
    if not isinstance(value, ast.expr) or isinstance(node, ast.AugAssign):
        return
    if isinstance(target, ast.Name):
        assigned = value_of(value, known, 0)
        called = named_value(value) if isinstance(value, ast.Call) else None
        if assigned is UNKNOWN and called:
            is_followed = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in state.functions
            )
            begins = is_followed or (
                isinstance(value, ast.Call)
                and (is_framework_recipe(dotted(value.func)) or _wraps(value))
            )
            assigned = CallByName(_argument(value, known) or called, begins=begins)
        known[target.id] = assigned
    elif isinstance(target, ast.Attribute) and (parts := dotted(target)):
        target_value = known.get(parts[0])
        # What is set on a part that has a name of its own is told under that name.
        part = isinstance(target_value, CallByName) and not target_value.begins
        _set(state, ".".join(parts if part else parts[1:]), value, known)


def _set(state: _Traversal, name: str, value: ast.expr, known: Values) -> None:
    """Record a setting with the value of an expression; None removes the setting."""
    name = name.replace("_", "-").lower()
    setting_value = value_of(value, known, 0)
    if setting_value is None:
        # Nothing is what the framework has where nobody sets it.
        state.settings.pop(name, None)
    elif isinstance(setting_value, CallByName):
        state.settings[name] = setting_value.text
    elif setting_value is not UNKNOWN:
        state.settings[name] = _text(setting_value)
    elif (called := _argument(value, known) or named_value(value)) is not None:
        state.settings[name] = called


def _argument(node: ast.expr, known: Values) -> str:
    """The single text argument of a call, also where a variable holds the text; empty if none."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        argument = value_of(node.args[0], known, 0)
        return (
            argument
            if isinstance(argument, str)
            else argument.text
            if isinstance(argument, CallByName)
            else ""
        )
    return ""


def _text(value: object) -> str:
    """Text of a setting's value: booleans in lower case, items of lists joined by spaces."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _collect(state: _Traversal, node: ast.expr, known: Values, depth: int) -> None:
    """Add the settings of all calls inside an expression to the state, the outermost last."""
    _count_step(state)
    if depth > 4 * MAX_DEPTH:
        raise DataError("expressions nested too deep", hint="a recipe of the framework")
    if isinstance(node, ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        for inner in _expressions(child):
            _collect(state, inner, known, depth + 1)
    if not isinstance(node, ast.Call):
        return
    called = dotted(node.func)
    if len(called) == 1 and called[0] in state.functions:
        _call(
            state,
            state.functions[called[0]],
            _bound(state.functions[called[0]], node, known),
            depth + 1,
        )
        return
    if base := framework_recipe(node, state.imported):
        state.settings.setdefault(RECIPE, base)
    if (
        called[-1:] == ["model_registry"]
        and node.args
        and (flavor := value_of(node.args[0], known, 0)) is not UNKNOWN
    ):
        state.settings["model.flavor"] = _text(flavor)
    made = _class_of(node, called)
    if made and called[-1:] != ["Config"]:
        # A new one has nothing of an earlier one.
        start = f"{made}.".replace("_", "-").lower()
        for name in [
            setting
            for setting in state.settings
            if setting.startswith(start) and setting not in _KEPT
        ]:
            del state.settings[name]
    if made and called in _WRAPPERS and not node.keywords:
        # A part with nothing but its defaults is there all the same.
        state.settings.setdefault(made.replace("_", "-").lower(), "true")
    for keyword in node.keywords if made else ():
        if keyword.arg:
            _set(state, f"{made}.{keyword.arg}", keyword.value, known)


def _wraps(node: ast.Call) -> bool:
    """True if a call is of ``run.Config``, ``run.Partial`` or a ``ConfigContainer``."""
    return dotted(node.func) in _WRAPPERS or dotted(node.func)[-1:] == ["ConfigContainer"]


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression of a node: itself, or a keyword's value."""
    if isinstance(node, ast.expr):
        yield node
    elif isinstance(node, ast.keyword):
        yield node.value


def _class_of(node: ast.Call, called: Sequence[str]) -> str:
    """Name of the class that a call creates (``S`` of ``run.Config(S, ...)``); empty if none."""
    if not called:
        return ""
    if called in _WRAPPERS and node.args:
        return (dotted(node.args[0]) or [""])[-1]
    return called[-1]


def _bound(function: Function, node: ast.Call, known: Values) -> Values:
    """Parameter name -> value of a call's argument, `UNKNOWN` where it cannot be evaluated."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    bound: Values = {
        name: value_of(value, known, 0) for name, value in zip(names, node.args, strict=False)
    }
    return bound | {
        keyword.arg: value_of(keyword.value, known, 0) for keyword in node.keywords if keyword.arg
    }
