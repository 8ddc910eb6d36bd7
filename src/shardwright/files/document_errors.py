"""What a document is refused for, in the project's words: the first thing that pydantic says, and
what the schema asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import AfterValidator, ValidationError

from shardwright.errors import DataError, ShardwrightError, nearest


class ExpectedError(ValueError):
    """A value is not what a validator of `require_value` asks for."""


def quoted_value(value: object) -> str:
    """A value as a message quotes it."""
    return repr(value)[:40]


def require_value(holds: Callable[[Any], bool], expected: str) -> AfterValidator:
    """A validator of what a type cannot say; `expected` is what a message asks for."""

    def validate(value: Any) -> Any:
        if not holds(value):
            raise ExpectedError(expected)
        return value

    return AfterValidator(validate)


def document_error(
    error: ValidationError, document: object, schema: Mapping[str, Any], *, name: str, hint: str
) -> ShardwrightError:
    """The first thing that pydantic says, in the project's words."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ShardwrightError):
        return cause
    # Tags of unions stand in a location, but not in the document.
    path: list[str | int] = []
    value: Any = document
    for part in first["loc"]:
        inner = (
            value
            if isinstance(value, dict)
            else dict(enumerate(value))
            if isinstance(value, list)
            else {}
        )
        if part in inner:
            path.append(part)
            value = inner[part]
    last = first["loc"][-1] if first["loc"] else ""
    where = [name, *_path_words(path)]
    if first["type"] == "missing" and isinstance(last, str):
        return DataError(
            f"{': '.join([*where, last])} is missing", hint=nearest(last, value) or hint
        )
    if first["type"] == "extra_forbidden":
        known = _schema_at(schema, document, path[:-1]).get("properties", {})
        return DataError(
            f"{': '.join(_path_words([name, *path[:-1]]))}: unknown field {quoted_value(last)}",
            hint=nearest(str(last), known),
        )
    if first["type"].startswith("recursion"):
        return DataError(
            f"{': '.join(_path_words([name, *path[:4]]))} is nested too deep", hint=hint
        )
    if cause is not None and not isinstance(cause, ExpectedError):
        return DataError(f"{': '.join(where)}: {cause}", hint=hint)
    expected = (
        str(cause)
        if cause is not None
        else expected_value_text(schema, _schema_at(schema, document, path))
    )
    while (
        path
        and isinstance(path[-1], int)
        and expected.startswith(("a list", "an object", "a string"))
        and " or " not in expected
    ):
        path = path[:-1]
        expected, value = (
            expected_value_text(schema, _schema_at(schema, document, path)),
            _value_at(document, path),
        )
    return DataError(
        f"{': '.join(_path_words([name, *path]))} is {quoted_value(value)}, not {expected}",
        hint=hint,
    )


def _path_words(path: Sequence[str | int]) -> list[str]:
    """A path for a message: the number of an item stands behind its list's name."""
    found: list[str] = []
    for part in path:
        if isinstance(part, int):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def _value_at(document: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        document = document[part]
    return document


def _branches(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a value of a schema may be, but for null."""
    return [
        _resolved(root, one)
        for one in schema.get("anyOf", schema.get("oneOf", ()))
        if one.get("type") != "null"
    ]


def _resolved(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Any = None
) -> Mapping[str, Any]:
    """The schema that a reference, one of a value that may be null, or the one of several that a
    value has the form of, is.
    """
    if "$ref" in schema:
        return _resolved(root, root["$defs"][schema["$ref"].rpartition("/")[2]], value)
    some = _branches(root, schema)
    return next((one for one in some if len(some) == 1 or _has_form(one, value)), schema)


def _has_form(schema: Mapping[str, Any], value: Any) -> bool:
    """A value is of the JSON type of a schema; an object has its constants or, where there are
    none, the fields that must be there.
    """
    if not isinstance(value, dict) or schema.get("type") != "object":
        return isinstance(
            value, {"array": list, "integer": int, "string": str}.get(schema.get("type", ""), ())
        )
    constants = {
        name: said["const"]
        for name, said in schema.get("properties", {}).items()
        if "const" in said
    }
    return (
        constants.items() <= value.items()
        if constants
        else value.keys() >= set(schema.get("required", ()))
    )


def _schema_at(
    root: Mapping[str, Any], document: Any, path: Sequence[str | int]
) -> Mapping[str, Any]:
    """The schema of what stands at a path of a document."""
    schema = _resolved(root, root)
    for part in path:
        document = document[part]
        if isinstance(part, int):
            fixed = schema.get("prefixItems", ())
            schema = fixed[part] if part < len(fixed) else schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(part, schema.get("additionalProperties", {}))
        schema = _resolved(root, schema, document)
    return schema


def expected_value_text(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What a schema asks for, in words."""
    schema = _resolved(root, schema)
    if some := _branches(root, schema):
        return " or ".join(
            f"{expected_value_text(root, one)}{' of ' * ('required' in one)}"
            f"{' and '.join(one.get('required', ()))}"
            for one in some
        )
    least: float = schema.get("minimum", 0)
    match schema.get("type"):
        case "integer":
            return f"a whole number of at least {least}"
        case "number" if "exclusiveMinimum" in schema:
            return "a number above 0"
        case "number":
            return f"a number of at least {least:g}" if least >= 0 else "a number"
        case "boolean":
            return "true or false"
        case "string":
            return " or ".join(map(str, schema["enum"])) if "enum" in schema else "a string"
        case "array" if "prefixItems" in schema:
            count = len(schema["prefixItems"])
            return (
                f"a list of {'two' if count == 2 else count}"
                f" {_item_word(root, schema['prefixItems'][-1])}s"
            )
        case "array":
            return f"a list of {_item_word(root, schema.get('items', {}))}s"
        case "object":
            return "an object"
    return "another value"


def _item_word(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    kind: str = _resolved(root, schema).get("type", "value")
    return {"array": "row", "integer": "number"}.get(kind, kind)
