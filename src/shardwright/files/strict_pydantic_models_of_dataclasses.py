"""Strict conversion of JSON documents to dataclasses, by pydantic models made from the fields.

A wrong document gives one clear error.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)

from shardwright.errors import DataError
from shardwright.files.dataclass_to_json import Names, default_of, mapping_value_type, typed_fields
from shardwright.files.plan_json_form import SPARSE, VERSION, PlanDocument, document_to_plan
from shardwright.files.validation_error_text import document_error, quoted_value, require_value
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Stage
from shardwright.strategy.text.grid_notation import parse_grid

LARGEST: Final = 1e30

Count = Annotated[int, Field(ge=0, lt=2**63)]
Members = Annotated[int, Field(ge=0)]
"""Number of members of a space; joint spaces have more than any machine word counts."""
FromOne = Annotated[int, Field(ge=1, lt=2**63)]
Number = Annotated[float, Field(ge=0, le=LARGEST)]
Signed = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(gt=1e-30, le=LARGEST)]
Factor = Annotated[float, Field(ge=1, le=LARGEST)]
_LAX = Field(strict=False)
"""JSON has lists for tuples and strings for enumerations."""
annotated: Final[Any] = Annotated
"""For types that are made at run time."""
_LEAVES: Final[Mapping[Any, Any]] = {
    int: Count,
    float: Number,
    Grid: Annotated[str, AfterValidator(parse_grid)],
}
_OF_PLANS: Final[Mapping[Any, Mapping[str, Any]]] = {
    PlanDocument: {
        "version": Annotated[
            Count,
            require_value(
                lambda version: version == VERSION, f"{VERSION}, which this release reads"
            ),
        ]
    },
    Stage: {"placements": Count},
}
T = TypeVar("T")
Limits = Mapping[Any, Mapping[str, Any]]
"""Types of a class's fields in a file that are stricter than the class's own."""


class Record(BaseModel):
    """Base of objects in a file: unknown fields, numbers as text and infinities are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclasses.dataclass(frozen=True)
class DocumentModel(Generic[T]):
    """Strict pydantic model of a dataclass, made when the first file is read.

    Args:
        names: see `dataclass_schemas.Names`.
        limits: see `Limits`.
        checks: validators of a class's field, after its type.
        sparse: further classes whose fields have their defaults where a document leaves them out.
    """

    kind: type[T]
    names: Names
    limits: Limits
    checks: Mapping[Any, AfterValidator] = dataclasses.field(default_factory=dict)
    sparse: frozenset[type] = frozenset()
    _models: dict[type, Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def annotation(self) -> Any:
        """pydantic type of a document, for a field of a larger model; its value is the dataclass.

        Made on first use.
        """
        return self._annotation(self.kind)

    @cached_property
    def adapter(self) -> TypeAdapter[T]:
        """pydantic adapter of the model, made on first use."""
        return TypeAdapter(self.annotation)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the model."""
        return self.adapter.json_schema()

    def read(self, document: object, *, name: str, hint: str) -> T:
        """Validate a JSON document strictly and convert it to the dataclass; DataError with path.

        Args:
            name, hint: of the file, for messages.

        Raises:
            DataError: the document does not match; the path of the first wrong field is named.
                Another error of the project: from the text of a field.
        """
        try:
            return self.adapter.validate_python(document)
        except ValidationError as error:
            raise document_error(error, document, self.schema, name=name, hint=hint) from None

    def _model(self, kind: type) -> Any:
        """pydantic type that validates an object and builds `kind`; a ForwardRef inside itself."""
        if kind in self._models:
            return self._models[kind]
        # By its own name pydantic finds the model without the validator that builds the dataclass.
        inside = f"Built{kind.__name__}"
        self._models[kind] = typing.ForwardRef(inside)
        names, limits = self.names.get(kind, {}), self.limits.get(kind, _OF_PLANS.get(kind, {}))
        outer: dict[str, dict[str, Any]] = {"": {}}
        places: list[tuple[str, str, str]] = []
        for field, hint in typed_fields(kind):
            group, _, last = names.get(field, field).rpartition(".")
            if last:
                annotation = limits[field] if field in limits else self._annotation(hint)
                if (kind, field) in self.checks:
                    annotation = annotated[annotation, self.checks[kind, field]]
                outer.setdefault(group, {})[last] = (
                    annotation,
                    default_of(kind, field) if kind in SPARSE or kind in self.sparse else ...,
                )
                places.append((field, group, last))
        for group, inner in outer.items():
            if group:
                outer[""][group] = (
                    create_model(f"{kind.__name__}.{group}", __base__=Record, **inner),
                    ...,
                )
        described = _unwrapped_paragraphs(kind.__doc__ or "")
        model = create_model(kind.__name__, __base__=Record, __doc__=described, **outer[""])

        def build(found: BaseModel) -> Any:
            """Build the dataclass from the validated pydantic model, ungrouping nested fields."""
            given = {
                field: getattr(getattr(found, group) if group else found, last)
                for field, group, last in places
            }
            return kind(
                **{
                    field: _mapping_pairs(value) if isinstance(value, dict) else value
                    for field, value in given.items()
                }
            )

        self._models[kind] = annotated[model, AfterValidator(build)]
        model.model_rebuild(_types_namespace={inside: self._models[kind]})
        return self._models[kind]

    def _annotation(self, hint: Any) -> Any:
        """pydantic type of a field's type hint: strict leaf, dataclass, union, pairs or tuple."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint in _LEAVES:
            return _LEAVES[hint]
        if origin in (types.UnionType, typing.Union):
            some = [one for one in inner if one is not type(None)]
            if len(some) == 1:
                return typing.Union.__getitem__((self._annotation(some[0]), None))
            tagged = tuple(annotated[self._annotation(one), Tag(str(one))] for one in inner)
            return annotated[typing.Union.__getitem__(tagged), _form_discriminator(inner)]
        if hint is Plan:
            return annotated[self._model(PlanDocument), AfterValidator(document_to_plan)]
        if mapping_value_type(hint) is not None:
            return types.GenericAlias(
                dict,
                (
                    str,
                    Signed
                    if mapping_value_type(hint) is float
                    else self._annotation(mapping_value_type(hint)),
                ),
            )
        if origin is tuple:
            return annotated[
                types.GenericAlias(
                    tuple, tuple(one if one is Ellipsis else self._annotation(one) for one in inner)
                ),
                _LAX,
            ]
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return annotated[hint, _LAX]
        return (
            self._model(hint) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else hint
        )


def _form_discriminator(kinds: tuple[Any, ...]) -> Discriminator:
    """Discriminator that picks the first type of a union whose JSON form a value has.

    Of classes, the first whose fields without a default are all present.
    """

    def has_form(kind: Any, value: object) -> bool:
        """True if a value has the JSON type of `kind`, or for a dataclass all required fields."""
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return isinstance(value, dict) and all(
                name in value or default_of(kind, name) is not ... for name, _ in typed_fields(kind)
            )
        return type(value) is (list if typing.get_origin(kind) is tuple else kind)

    return Discriminator(
        lambda value: next((str(kind) for kind in kinds if has_form(kind, value)), None)
    )


def _mapping_pairs(values: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Pairs of an object: largest absolute value first if any is a float, else in file order."""
    largest = (
        sorted(values.items(), key=lambda pair: (-abs(pair[1]), pair[0]))
        if any(isinstance(v, float) for v in values.values())
        else ()
    )
    return tuple(largest or values.items())


def document_body(
    document: object, *, schema: str, version: int, name: str, what: str, hint: str
) -> dict[str, Any]:
    """Fields without ``schema`` and ``version``; DataError if these are not the given ones.

    Raises:
        DataError: they name another kind of file or version.
    """
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise DataError(f"{name} is not a {what}: its schema is not {schema}", hint=hint)
    found = document.get("version")
    if isinstance(found, bool) or found != version:
        older = isinstance(found, int) and found < version
        raise DataError(
            f"{name}: version {quoted_value(found)} is not {version}",
            hint=hint if older else "use the release that wrote it",
        )
    return {field: value for field, value in document.items() if field not in ("schema", "version")}


def _unwrapped_paragraphs(docstring: str) -> str:
    """Docstring with each paragraph on one line, so that line breaks do not change a schema."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
