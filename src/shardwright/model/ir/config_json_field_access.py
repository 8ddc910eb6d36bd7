"""Typed access to the fields of a config.json: values are checked, errors name the field.

A `Fields` wraps one JSON object. A getter takes the spellings of a field (new ones first); the
first that is there and not null is read, and two spellings that disagree are an error. A getter
without `default` is for a field that must be there; builders give a `default` only where the
Hugging Face configuration class of that family documents it, and say so. Every name that is asked
for is noted in a `FieldRecord`, so that what was written and never asked for can be told
(`model.families.fields.find_config_fields_no_builder_read`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, NoReturn, TypeVar

from shardwright.errors import ModelError, nearest
from shardwright.lazily_compiled_dataclass import dataclass

T = TypeVar("T", bool, str)

MAX_LAYERS: Final = 10_000
MAX_HIDDEN: Final = 2**20
MAX_FFN: Final = 2**23
MAX_HEADS: Final = 2**15
MAX_HEAD_DIM: Final = 2**16
MAX_EXPERTS: Final = 2**15
MAX_VOCAB: Final = 2**25
MAX_CONTEXT: Final = 2**32


def value_text(value: object) -> str:
    """Text of a JSON value for errors: at most 60 characters; objects and lists only by kind."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """Record of the fields of a configuration that have been read; the only part that changes.

    Args:
        objects: path -> every object that was read.
        names: every name that was read, with its path, present or not.
        builders: path -> builder that read the object there and the objects inside it.
    """

    objects: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    builders: dict[str, str] = field(default_factory=dict)

    def read_by(self, name: str) -> tuple[str, str]:
        """(path, builder) of the innermost object around a field that has its own builder."""
        path = max((path for path in self.builders if name.startswith(path)), key=len)
        return path, self.builders[path]

    def unread(self) -> dict[str, Any]:
        """Name (with path) -> value of the fields that nothing has read."""
        pairs = (
            (f"{path}{name}", value)
            for path, mapping in self.objects.items()
            for name, value in mapping.items()
        )
        return {name: value for name, value in pairs if name not in self.names}


@dataclass(frozen=True, slots=True)
class Fields:
    """Access to one object of a configuration, with a record of the fields that are read.

    Args:
        mapping: the object, keys to JSON values.
        source: file or name it came from; errors begin with it.
        path: place of the object in the file (``text_config.``); empty at the top.
        reading: record of the fields read in the whole configuration.
    """

    mapping: Mapping[str, Any]
    source: str
    path: str = ""
    reading: FieldRecord = field(default_factory=FieldRecord, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.reading.objects.setdefault(self.path, self.mapping)

    def fail(self, message: str, *, hint: str = "") -> NoReturn:
        """Raise `ModelError` with the source file before the message."""
        raise ModelError(f"{self.source}: {message}", hint=hint)

    def unsupported(self, feature: str, *, hint: str = "") -> NoReturn:
        """Raise `ModelError` for a feature that this package does not model."""
        self.fail(
            f"{feature} is not supported",
            hint=hint or "the graph would be a guess; see the list of supported architectures",
        )

    def present(self, *names: str) -> bool:
        """True if one of these fields is in the file and not null; all then count as read."""
        self.mark_read(*names)
        return any(self.mapping.get(name) is not None for name in names)

    def written(self, name: str) -> bool:
        """True if the field is in the file, even if it is null."""
        self.mark_read(name)
        return name in self.mapping

    def mark_read(self, *names: str) -> None:
        """Count fields as read, so that they are not reported as unknown."""
        self.reading.names.update(f"{self.path}{name}" for name in names)

    def replaced(self, name: str, value: Any) -> Fields:
        """Copy of the fields with another value of field `name`."""
        return Fields({**self.mapping, name: value}, self.source, self.path, self.reading)

    def inner(self, mapping: Mapping[str, Any], path: str) -> Fields:
        """Fields of a nested object `mapping`, whose path in this object is `path`."""
        return Fields(mapping, self.source, f"{self.path}{path}.", self.reading)

    def find(self, *names: str) -> tuple[str, Any]:
        """(path, value) of the first non-null spelling, None without; ModelError on conflict."""
        self.mark_read(*names)
        written = [
            (name, self.mapping[name]) for name in names if self.mapping.get(name) is not None
        ]
        if not written:
            return self.path + names[0], None
        for name, value in written[1:]:
            if value != written[0][1]:
                self.fail(
                    f"{self.path}{written[0][0]} is {value_text(written[0][1])} but"
                    f" {self.path}{name} is {value_text(value)}",
                    hint="they are two spellings of one field: keep one",
                )
        return self.path + written[0][0], written[0][1]

    def missing(self, *names: str) -> NoReturn:
        """Raise `ModelError` for a required field; the first of `names` is asked for."""
        others = f" (also read as {', '.join(names[1:])})" if len(names) > 1 else ""
        keys = [key for key in map(str, self.mapping) if key not in names]
        near = nearest(names[0], keys) if keys else ""
        hint = (
            near
            if near.startswith("did you mean")
            else f"add {self.path}{names[0]} to the configuration"
        )
        self.fail(f"field {self.path}{names[0]}{others} is missing", hint=hint)

    def integer(
        self, *names: str, minimum: int = 1, maximum: int = MAX_CONTEXT, default: int | None = None
    ) -> int:
        """Read a whole number within the limits; `default` if absent or null, else ModelError."""
        value = self.optional_integer(*names, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            self.missing(*names)
        return default

    def optional_integer(
        self, *names: str, minimum: int = 1, maximum: int = MAX_CONTEXT
    ) -> int | None:
        """Read a whole number, or None if absent or null; ModelError outside the limits."""
        name, value = self.find(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(
                f"{name} must be a whole number, not {value_text(value)}",
                hint=f"give an integer from {minimum} to {maximum}",
            )
        if not minimum <= value <= maximum:
            self.fail(
                f"{name} = {value_text(value)} is out of range",
                hint=f"give an integer from {minimum} to {maximum}",
            )
        return value

    def number(
        self, *names: str, minimum: float, maximum: float, default: float | None = None
    ) -> float:
        """Read a finite number within the limits; `default` if absent or null, else ModelError."""
        name, value = self.find(*names)
        if value is None:
            if default is None:
                self.missing(*names)
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(
                f"{name} must be a number, not {value_text(value)}",
                hint=f"give a number from {minimum:g} to {maximum:g}",
            )
        if not (minimum <= value <= maximum) or not math.isfinite(value):
            self.fail(
                f"{name} = {value_text(value)} is out of range",
                hint=f"give a number from {minimum:g} to {maximum:g}",
            )
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """Read true or false; with a `default`, null is False; without one, null is an error."""
        null = any(self.written(name) for name in names)
        return self._typed_value(
            bool, "true or false", names, False if null and default is not None else default
        )

    def string(self, *names: str, default: str | None = None) -> str:
        """Read a text; `default` if absent or null, ModelError if there is no default."""
        return self._typed_value(str, "a text", names, default)

    def _typed_value(
        self, kind: type[T], words: str, names: tuple[str, ...], default: T | None
    ) -> T:
        """Read a value of type `kind`; `default` if absent or null, ModelError for another type."""
        name, value = self.find(*names)
        if value is None:
            if default is None:
                self.missing(*names)
            return default
        if not isinstance(value, kind):
            self.fail(f"{name} must be {words}, not {value_text(value)}")
        return value

    def strings(self, *names: str) -> tuple[str, ...]:
        """Read a list of texts; empty if the field is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            self.fail(f"{name} must be a list of texts, not {value_text(value)}")
        return tuple(value)

    def integers(
        self, *names: str, minimum: int = 0, maximum: int = MAX_CONTEXT
    ) -> tuple[int, ...]:
        """Read a list of whole numbers; empty if the field is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return ()
        whole = isinstance(value, (list, tuple)) and all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        )
        if not whole or not all(minimum <= item <= maximum for item in value):
            self.fail(
                f"{name} must be a list of integers from {minimum} to {maximum}, not"
                f" {value_text(value)}"
            )
        return tuple(value)

    def switches(self, name: str, *, layers: int) -> tuple[bool, ...]:
        """Read a list of 0 and 1, one entry for each of `layers` layers, as booleans."""
        values = self.integers(name, maximum=1)
        if len(values) != layers:
            self.fail(
                f"{self.path}{name} must list {layers} zeros and ones",
                hint="one entry for each layer",
            )
        return tuple(bool(v) for v in values)

    def section(self, *names: str) -> Fields:
        """Fields of a required nested object, under the first spelling that is written."""
        inner = self.optional_section(*names)
        if inner is None:
            self.missing(*names)
        return inner

    def optional_section(self, *names: str) -> Fields | None:
        """Fields of a nested object, or None if it is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(f"{name} must be an object, not {value_text(value)}")
        return Fields(value, self.source, f"{name}.", self.reading)

    def choice(self, *names: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """Read a text out of a closed list; another text is an unsupported feature."""
        value = self.string(*names, default=default)
        if value not in allowed:
            self.fail(
                f"{self.path}{names[0]} = {value_text(value)} is not supported",
                hint=f"supported: {', '.join(allowed)}",
            )
        return value

    # Fields that nearly every decoder has, with their spellings.

    def layers(self) -> int:
        """Number of decoder layers, from ``num_hidden_layers`` or its other spellings."""
        return self.integer(
            "num_hidden_layers", "n_layer", "n_layers", "num_layers", maximum=MAX_LAYERS
        )

    def hidden(self) -> int:
        """Width of the residual stream in elements, from ``hidden_size`` or its other spellings."""
        return self.integer("hidden_size", "n_embd", "n_embed", "d_model", maximum=MAX_HIDDEN)

    def vocab(self) -> int:
        """Vocabulary size: rows of the token embedding."""
        return self.integer("vocab_size", maximum=MAX_VOCAB)

    def context(self) -> int:
        """Longest context in tokens (``max_position_embeddings`` ..); 0 if not written."""
        return self.integer(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0
        )

    def heads(self) -> int:
        """Number of query heads."""
        return self.integer("num_attention_heads", "n_head", "n_heads", maximum=MAX_HEADS)

    def kv_heads(self, *names: str, default: int | None = None) -> int:
        """Number of KV heads, a divisor of the query heads; with `default`, null means as many."""
        spellings = names or ("num_key_value_heads",)
        heads = self.heads()
        default = (
            heads
            if default is not None and any(self.written(name) for name in spellings)
            else default
        )
        kv_heads = self.integer(*spellings, maximum=MAX_HEADS, default=default)
        if heads % kv_heads:
            self.fail(
                f"{self.path}{spellings[0]} = {kv_heads} does not divide the {heads} query heads",
                hint="choose a divisor of them",
            )
        return kv_heads

    def head_dim(self, *, default: int | None = None) -> int:
        """Width of a head: the field, else `default`, else hidden / heads (which must be whole).

        `default` is for a field that is not written.
        """
        width = self.optional_integer("head_dim", maximum=MAX_HEAD_DIM)
        if width is not None:
            return width
        return (
            default
            if default is not None and not self.written("head_dim")
            else self.even_head_dim()
        )

    def even_head_dim(self) -> int:
        """Width hidden / heads of a head; raises if it is not whole."""
        hidden, heads = self.hidden(), self.heads()
        if hidden % heads:
            self.fail(
                f"{self.path}hidden_size = {hidden} is not a multiple of the {heads} query heads",
                hint="give head_dim, or a hidden size that the heads divide",
            )
        return hidden // heads

    def ffn(self, *names: str, default: int | None = None) -> int:
        """Inner width of a feed-forward, from ``intermediate_size`` or the fields `names`."""
        return self.integer(*(names or ("intermediate_size",)), maximum=MAX_FFN, default=default)

    def layer_types(
        self, *, layers: int, allowed: tuple[str, ...], name: str = "layer_types"
    ) -> tuple[str, ...]:
        """Read one kind for each layer out of `allowed`; empty if the field is absent."""
        kinds = self.strings(name)
        if kinds and len(kinds) != layers:
            self.fail(
                f"{self.path}{name} lists {len(kinds)} layers of {layers}",
                hint="give one entry for each layer",
            )
        for kind in kinds:
            if kind not in allowed:
                self.fail(
                    f"{self.path}{name} has {value_text(kind)}, which is not supported",
                    hint=f"supported: {', '.join(allowed)}",
                )
        return kinds
