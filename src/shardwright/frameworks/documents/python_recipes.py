"""Settings that a function of a Python file makes, found without running the file.

Recipes and registries of some frameworks are such functions.

The module follows assignments, calls of the file's own functions with their arguments, and
conditions on known values.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import dotted, named_value, tree_of
from shardwright.lazy_dataclass import dataclass

MAX_DEPTH: Final = 20
MAX_STEPS: Final = 20_000
RECIPE: Final = "recipe"
"""Setting for a recipe of the framework's own from which a launch begins."""
CHOICES: Final = ("recipe", "config", "factory")
"""Names by which the user says which function it is: ``--set recipe=NAME``, or a command's
argument."""
_PREFERRED: Final = ("pretrain_recipe",)
_BASES: Final = ("_recipe", "_config", "_pretrain_common", "_sft_common", "_peft_common")
_WRAPPERS: Final = (["run", "Config"], ["run", "Partial"])
"""Calls that make what their first argument names."""
_UNKNOWN: Final = object()
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[..., object]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_KEPT: Final = frozenset({"model.flavor"})
_MAX_NUMBER: Final = 10**15
Function = ast.FunctionDef
Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class _CallByName:
    """Result of a call that is not followed, known only by its name."""

    text: str
    begins: bool = False


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
    """Settings made by the one function of a Python file that builds a configuration.

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
    """Follow a file's chosen function, or its module-level statements, and return the settings."""
    functions = {node.name: node for node in tree.body if isinstance(node, Function)}
    makers = [
        name_of_function
        for name_of_function, node in functions.items()
        if _builds_configuration(node)
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if len(makers) < 2 and not any(
        _base(node, {}) or dotted(node.func) in _WRAPPERS for node in calls
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
        chosen = _launched_function(tree, makers, functions, name)
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


def _builds_configuration(node: Function) -> bool:
    """True if a function sets attributes or passes keywords, and returns a value."""
    returns = any(
        isinstance(child, ast.Return) and child.value is not None for child in ast.walk(node)
    )
    sets = any(
        (
            isinstance(child, ast.Assign)
            and any(isinstance(target, ast.Attribute) for target in child.targets)
        )
        or (isinstance(child, ast.Call) and child.keywords)
        for child in ast.walk(node)
    )
    return returns and sets


def _launched_function(
    tree: ast.Module, makers: Sequence[str], functions: Mapping[str, Function], name: str
) -> str:
    """Name of the function that a file runs, or that no other calls; empty = module code."""
    outside = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    calls = [child for node in outside for child in ast.walk(node) if isinstance(child, ast.Call)]
    if any(
        _base(call, {}) or (isinstance(call.func, ast.Name) and call.func.id in makers)
        for call in calls
    ):
        return ""
    run = [
        child.id
        for node in outside
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and child.id in makers and isinstance(child.ctx, ast.Load)
    ]
    if run:
        return run[0] if len(set(run)) == 1 else _raise_ambiguous(name, run)
    called = {
        child.id
        for maker in makers
        for child in ast.walk(functions[maker])
        if isinstance(child, ast.Name) and child.id != maker
    }
    roots = [maker for maker in makers if maker not in called and not maker.startswith("_")]
    preferred = [maker for maker in roots if maker in _PREFERRED]
    if len(roots) == 1 or preferred:
        return (preferred or roots)[0]
    return _raise_ambiguous(name, roots or makers)


def _raise_ambiguous(name: str, functions: Sequence[str]) -> str:
    """Raise DataError with the functions from which the user must choose."""
    raise DataError(
        f"{name[:60]} has {len(set(functions))} configurations:"
        f" {', '.join(dict.fromkeys(functions))[:200]}",
        hint=f"--set {RECIPE}=NAME says which of them is launched",
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
            constant = _value(value, constants, 0)
            if constant is not _UNKNOWN:
                constants[target.id] = constant
    return constants


def _imports(tree: ast.Module) -> dict[str, str]:
    """Module of each imported name."""
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
        known[name] = _value(default, state.constants, 0)
    for argument, default_of in zip(
        function.args.kwonlyargs, function.args.kw_defaults, strict=True
    ):
        known[argument.arg] = (
            _UNKNOWN if default_of is None else _value(default_of, state.constants, 0)
        )
    for name in names:
        known.setdefault(name, _UNKNOWN)
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
    """Follow statements in order; True if one of them returned."""
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
    """Follow the branch of an `if` whose condition is known; True if the branch returned.

    An unknown condition adds a note.
    """
    condition = _value(node.test, known, 0)
    if condition is _UNKNOWN:
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
    """Record an assignment to a name, or to an attribute of the configuration."""
    target = (
        node.targets[0]
        if isinstance(node, ast.Assign) and len(node.targets) == 1
        else getattr(node, "target", None)
    )
    value = getattr(node, "value", None)
    if not isinstance(value, ast.expr) or isinstance(node, ast.AugAssign):
        return
    if isinstance(target, ast.Name):
        assigned = _value(value, known, 0)
        called = named_value(value) if isinstance(value, ast.Call) else None
        if assigned is _UNKNOWN and called:
            is_followed = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in state.functions
            )
            begins = is_followed or (
                isinstance(value, ast.Call) and (_is_base(dotted(value.func)) or _wraps(value))
            )
            assigned = _CallByName(_argument(value, known) or called, begins=begins)
        known[target.id] = assigned
    elif isinstance(target, ast.Attribute) and (parts := dotted(target)):
        target_value = known.get(parts[0])
        # What is set on a part that has a name of its own is told under that name.
        part = isinstance(target_value, _CallByName) and not target_value.begins
        _set(state, ".".join(parts if part else parts[1:]), value, known)


def _set(state: _Traversal, name: str, value: ast.expr, known: Values) -> None:
    """Record a setting with the value of an expression; None removes the setting."""
    name = name.replace("_", "-").lower()
    setting_value = _value(value, known, 0)
    if setting_value is None:
        # Nothing is what the framework has where nobody sets it.
        state.settings.pop(name, None)
    elif isinstance(setting_value, _CallByName):
        state.settings[name] = setting_value.text
    elif setting_value is not _UNKNOWN:
        state.settings[name] = _text(setting_value)
    elif (called := _argument(value, known) or named_value(value)) is not None:
        state.settings[name] = called


def _argument(node: ast.expr, known: Values) -> str:
    """The single text argument of a call, also where a variable holds the text; empty if none."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        argument = _value(node.args[0], known, 0)
        return (
            argument
            if isinstance(argument, str)
            else argument.text
            if isinstance(argument, _CallByName)
            else ""
        )
    return ""


def _text(value: object) -> str:
    """Text of a value: lower case for booleans, words for lists."""
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
    if base := _base(node, state.imported):
        state.settings.setdefault(RECIPE, base)
    if (
        called[-1:] == ["model_registry"]
        and node.args
        and (flavor := _value(node.args[0], known, 0)) is not _UNKNOWN
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
    """True if a call builds a configuration from its first argument."""
    return dotted(node.func) in _WRAPPERS or dotted(node.func)[-1:] == ["ConfigContainer"]


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression of a node: itself, or a keyword's value."""
    if isinstance(node, ast.expr):
        yield node
    elif isinstance(node, ast.keyword):
        yield node.value


def _class_of(node: ast.Call, called: Sequence[str]) -> str:
    """Class that a call creates: ``Strategy`` for ``run.Config(Strategy, ...)``."""
    if not called:
        return ""
    if called in _WRAPPERS and node.args:
        return (dotted(node.args[0]) or [""])[-1]
    return called[-1]


def _is_base(called: Sequence[str]) -> bool:
    """True if the called name is a recipe of the framework."""
    return (
        bool(called)
        and called[-1].endswith(_BASES)
        and not called[-1].startswith(("get_", "default_"))
        and "quant" not in called[-1]
    )


def _base(node: ast.Call, imported: Mapping[str, str]) -> str:
    """Recipe of the framework that a call starts from, as ``module.function``; empty if none."""
    called = dotted(node.func)
    if not _is_base(called):
        return ""
    module = called[-2] if len(called) > 1 else imported.get(called[0], "").rpartition(".")[2]
    return f"{module}.{called[-1]}" if module else ""


def _bound(function: Function, node: ast.Call, known: Values) -> Values:
    """Values of a call's arguments by parameter name."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    bound: Values = {
        name: _value(value, known, 0) for name, value in zip(names, node.args, strict=False)
    }
    return bound | {
        keyword.arg: _value(keyword.value, known, 0) for keyword in node.keywords if keyword.arg
    }


def _value(node: ast.expr, known: Mapping[str, object], depth: int) -> object:
    """Evaluate an expression of constants and known names; `_UNKNOWN` if that is not possible."""
    if depth > MAX_DEPTH:
        return _UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | bool | None) else _UNKNOWN
    if isinstance(node, ast.Name):
        return known.get(node.id, _UNKNOWN)
    if isinstance(node, ast.List | ast.Tuple):
        elements = [_value(element, known, depth + 1) for element in node.elts[:1000]]
        return (
            _UNKNOWN
            if any(one is _UNKNOWN or isinstance(one, _CallByName) for one in elements)
            else elements
        )
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, known, depth + 1)
        if isinstance(node.op, ast.Not):
            return _UNKNOWN if inner is _UNKNOWN else not inner
        return (
            -inner if isinstance(node.op, ast.USub) and isinstance(inner, int | float) else _UNKNOWN
        )
    if isinstance(node, ast.IfExp):
        held = _value(node.test, known, depth + 1)
        return (
            _UNKNOWN
            if held is _UNKNOWN
            else _value(node.body if held else node.orelse, known, depth + 1)
        )
    if isinstance(node, ast.BoolOp):
        return _either(
            [_value(operand, known, depth + 1) for operand in node.values],
            both=isinstance(node.op, ast.And),
        )
    if isinstance(node, ast.BinOp | ast.Compare):
        return _computed(node, known, depth)
    return _UNKNOWN


def _either(values: Sequence[object], *, both: bool) -> object:
    """Value of ``a and b`` or ``a or b``; a deciding operand counts beside unknown ones."""
    if any(operand is not _UNKNOWN and bool(operand) != both for operand in values):
        return not both
    return _UNKNOWN if any(operand is _UNKNOWN for operand in values) else both


def _computed(node: ast.BinOp | ast.Compare, known: Mapping[str, object], depth: int) -> object:
    """Evaluate a binary operation or a comparison; `_UNKNOWN` if that is not possible."""
    if isinstance(node, ast.Compare) and len(node.ops) != 1:
        return _UNKNOWN
    right_node = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
    left, right = _value(node.left, known, depth + 1), _value(right_node, known, depth + 1)
    if left is _UNKNOWN or right is _UNKNOWN:
        return _UNKNOWN
    try:
        if isinstance(node, ast.Compare):
            kind = type(node.ops[0])
            if kind in (ast.In, ast.NotIn):
                return (left in right) == (kind is ast.In)  # type: ignore[operator]
            compare: Callable[[object, object], object] = _COMPARED[kind]
            return compare(left, right)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return _UNKNOWN
        result = _OPERATORS[type(node.op)](left, right)
        return result if abs(result) <= _MAX_NUMBER else _UNKNOWN
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return _UNKNOWN
