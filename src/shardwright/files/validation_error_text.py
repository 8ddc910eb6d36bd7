"""Conversion of pydantic's validation errors to the project's one-line errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import AfterValidator, ValidationError

from shardwright.errors import MAX_WORD, DataError, ShardwrightError, nearest


class ExpectedError(ValueError):
    """Raised by a validator of `require_value` where a value does not meet its condition."""


def quoted_value(value: object) -> str:
    """A value as an error message quotes it, in at most 40 characters."""
    return repr(value)[:40]


def _quoted_key(part: str) -> str:
    """Key of a mapping as a message names it: quoted and cut if it is long or unprintable."""
    return part if len(part) <= MAX_WORD and part.isprintable() else quoted_value(part)


def require_value(holds: Callable[[Any], bool], expected: str) -> AfterValidator:
    """Validator for a condition that a type cannot express; `expected` is the error's text."""

    def validate(value: Any) -> Any:
        """Return the value if the condition holds; else raise the error with the expected text."""
        if not holds(value):
            raise ExpectedError(expected)
        return value

    return AfterValidator(validate)


def document_error(
    error: ValidationError, document: object, schema: Mapping[str, Any], *, name: str, hint: str
) -> ShardwrightError:
    """Convert the first error of a validation to the project's error, with path and hint."""
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
    """Path of a document as words of a message: an item's number follows its list's name."""
    found: list[str] = []
    for part in path:
        if isinstance(part, int):
            found[-1] += f" {part}"
        else:
            found.append(_quoted_key(part))
    return found


def _value_at(document: Any, path: Sequence[str | int]) -> Any:
    """Value of a document at a path."""
    for part in path:
        document = document[part]
    return document


def _branches(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Alternatives (``anyOf``, ``oneOf``) of a JSON schema without null, references resolved."""
    return [
        _resolved(root, one)
        for one in schema.get("anyOf", schema.get("oneOf", ()))
        if one.get("type") != "null"
    ]


def _resolved(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Any = None
) -> Mapping[str, Any]:
    """JSON schema behind a reference, else the alternative of the value's form, else itself."""
    if "$ref" in schema:
        return _resolved(root, root["$defs"][schema["$ref"].rpartition("/")[2]], value)
    some = _branches(root, schema)
    return next((one for one in some if len(some) == 1 or _has_form(one, value)), schema)


def _has_form(schema: Mapping[str, Any], value: Any) -> bool:
    """True if a value has the JSON type of a schema.

    An object must have the schema's constants or, where there are none, its required fields.
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
    """JSON schema of the value at a path of a document."""
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
    """Text for the values that a JSON schema allows, such as ``a number above 0``."""
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
    """Word for the items of a list by their schema: row (array), number, or the JSON type."""
    kind: str = _resolved(root, schema).get("type", "value")
    return {"array": "row", "integer": "number"}.get(kind, kind)
