"""The border: a JSON document becomes a dataclass by a strict pydantic model of it, or one clear error."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema, create_model
from pydantic.functional_validators import PlainValidator

from shardwright.errors import DataError, ShardwrightError, nearest
from shardwright.files.faces import Names, fields_of, mapped
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.json import plan_from_json

LARGEST: Final = 1e30

Count = Annotated[int, Field(ge=0, lt=2**63)]
FromOne = Annotated[int, Field(ge=1, lt=2**63)]
Number = Annotated[float, Field(ge=0, le=LARGEST)]
Signed = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(gt=1e-30, le=LARGEST)]
Factor = Annotated[float, Field(ge=1, le=LARGEST)]
_LAX = Field(strict=False)
"""JSON has lists for tuples and strings for enumerations."""
annotated: Final[Any] = Annotated
"""For types that are made while the program runs."""
_LEAVES: Final[Mapping[Any, Any]] = {
    int: Count,
    float: Number,
    Grid: Annotated[str, AfterValidator(parse_grid)],
    Plan: Annotated[Any, PlainValidator(plan_from_json), WithJsonSchema({"type": "object", "description": Plan.__doc__ or ""})],
}
T = TypeVar("T")
Limits = Mapping[Any, Mapping[str, Any]]
"""Types of a class's fields in a file that say more than the class's own."""


class Record(BaseModel):
    """An object of a file: unknown fields, strings for numbers and infinities are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclasses.dataclass(frozen=True)
class Mirror(Generic[T]):
    """The model of a dataclass.

    Args:
        names: see `faces.Names`. limits: see `Limits`. checks: of a class's field, behind its type.
    """

    kind: type[T]
    names: Names
    limits: Limits
    checks: Mapping[Any, AfterValidator] = dataclasses.field(default_factory=dict)

    @cached_property
    def adapter(self) -> TypeAdapter[T]:
        """The model, made when the first file is read."""
        return TypeAdapter(self._model(self.kind))

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        return self.adapter.json_schema()

    def read(self, document: object, *, name: str, hint: str) -> T:
        """The dataclass that a document says; `name` and `hint` are for messages.

        Raises:
            DataError: it says none; the path of the first wrong field is named. Another error of the project: by what a text of it says.
        """
        try:
            return self.adapter.validate_python(document)
        except ValidationError as error:
            raise refusal(error, document, self.schema, name=name, hint=hint) from None

    def _model(self, kind: type) -> Any:
        """`kind` as a type that pydantic reads."""
        names, limits = self.names.get(kind, {}), self.limits.get(kind, {})
        outer: dict[str, dict[str, Any]] = {"": {}}
        places: list[tuple[str, str, str]] = []
        for field, hint in fields_of(kind):
            group, _, last = names.get(field, field).rpartition(".")
            if last:
                annotation = limits[field] if field in limits else self._annotation(hint)
                if (kind, field) in self.checks:
                    annotation = annotated[annotation, self.checks[kind, field]]
                outer.setdefault(group, {})[last] = (annotation, ...)
                places.append((field, group, last))
        for group, inner in outer.items():
            if group:
                outer[""][group] = (create_model(f"{kind.__name__}.{group}", __base__=Record, **inner), ...)
        model = create_model(kind.__name__, __base__=Record, __doc__=kind.__doc__, **outer[""])

        def build(found: BaseModel) -> Any:
            given = {field: getattr(getattr(found, group) if group else found, last) for field, group, last in places}
            return kind(**{field: _pairs(value) if isinstance(value, dict) else value for field, value in given.items()})

        return annotated[model, AfterValidator(build)]

    def _annotation(self, hint: Any) -> Any:
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint in _LEAVES:
            return _LEAVES[hint]
        if origin in (types.UnionType, typing.Union):
            (some,) = (one for one in inner if one is not type(None))
            return self._annotation(some) | None
        if mapped(hint) is not None:
            return types.GenericAlias(dict, (str, Signed if mapped(hint) is float else self._annotation(mapped(hint))))
        if origin is tuple:
            return annotated[types.GenericAlias(tuple, tuple(one if one is Ellipsis else self._annotation(one) for one in inner)), _LAX]
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return annotated[hint, _LAX]
        return self._model(hint) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else hint


def _pairs(values: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Numbers with a fraction largest first, all else in the file's order."""
    largest = sorted(values.items(), key=lambda pair: (-pair[1], pair[0])) if any(isinstance(v, float) for v in values.values()) else ()
    return tuple(largest or values.items())


def body_of(document: object, *, schema: str, version: int, name: str, what: str, hint: str) -> dict[str, Any]:
    """The fields of a file's document but ``schema`` and ``version``, which say what it is.

    Raises:
        DataError: they say another thing.
    """
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise DataError(f"{name} is not a {what}: its schema is not {schema}", hint=hint)
    found = document.get("version")
    if isinstance(found, bool) or found != version:
        older = isinstance(found, int) and found < version
        raise DataError(f"{name}: version {shown(found)} is not {version}", hint=hint if older else "use the release that wrote it")
    return {field: value for field, value in document.items() if field not in ("schema", "version")}


def shown(value: object) -> str:
    """A value as a message quotes it."""
    return repr(value)[:40]


def must(holds: Callable[[Any], bool], expected: str) -> AfterValidator:
    """A validator of what a type cannot say; `expected` is what a message asks for."""

    def validate(value: Any) -> Any:
        if not holds(value):
            raise ValueError(expected)
        return value

    return AfterValidator(validate)


def refusal(error: ValidationError, document: object, schema: Mapping[str, Any], *, name: str, hint: str) -> ShardwrightError:
    """The first thing that pydantic says, in the project's words."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ShardwrightError):
        return cause
    # Tags of unions stand in a location, but not in the document.
    path: list[str | int] = []
    value: Any = document
    for part in first["loc"]:
        inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
        if part in inner:
            path.append(part)
            value = inner[part]
    last = first["loc"][-1] if first["loc"] else ""
    where = [name, *_words(path)]
    if first["type"] == "missing" and isinstance(last, str):
        return DataError(f"{': '.join([*where, last])} is missing", hint=nearest(last, value) or hint)
    if first["type"] == "extra_forbidden":
        known = _at(schema, document, path[:-1]).get("properties", {})
        return DataError(f"{': '.join(_words([name, *path[:-1]]))}: unknown field {shown(last)}", hint=nearest(str(last), known))
    expected = str(cause) if cause is not None else expectation(schema, _at(schema, document, path))
    while path and isinstance(path[-1], int) and expected.startswith(("a list", "an object", "a string")):
        path = path[:-1]
        expected, value = expectation(schema, _at(schema, document, path)), _inside(document, path)
    return DataError(f"{': '.join(_words([name, *path]))} is {shown(value)}, not {expected}", hint=hint)


def _words(path: Sequence[str | int]) -> list[str]:
    """A path for a message: the number of an item stands behind its list's name."""
    found: list[str] = []
    for part in path:
        if isinstance(part, int):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def _inside(document: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        document = document[part]
    return document


def _resolved(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any = None) -> Mapping[str, Any]:
    """The schema that a reference, one of a value that may be null, or one of several of which a constant of `value` says which, is."""
    if "$ref" in schema:
        return _resolved(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
    some = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    for one in (_resolved(root, branch) for branch in schema.get("oneOf", ())):
        constants = [(name, said["const"]) for name, said in one["properties"].items() if "const" in said]
        if isinstance(value, dict) and constants and all(value.get(name) == said for name, said in constants):
            return one
    return _resolved(root, some[0]) if len(some) == 1 else schema


def _at(root: Mapping[str, Any], document: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
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


def expectation(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What a schema asks for, in words."""
    schema = _resolved(root, schema)
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
            return f"a list of {'two' if count == 2 else count} {_kind(root, schema['prefixItems'][-1])}s"
        case "array":
            return f"a list of {_kind(root, schema.get('items', {}))}s"
        case "object":
            return "an object"
    return "another value"


def _kind(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    kind: str = _resolved(root, schema).get("type", "value")
    return {"array": "row", "integer": "number"}.get(kind, kind)
