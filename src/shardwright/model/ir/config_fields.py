"""Typed reading of a configuration: every value is checked, every error names the field.

A `Fields` wraps one JSON object. A getter takes the spellings of a field (new ones first); the
first that is there and not null is read, and two spellings that disagree are an error. A getter
without `default` is for a field that must be there; builders give a `default` only where the
Hugging Face configuration class of that family documents it, and say so. Every name that is asked
for is noted in a `Reading`, so that what was written and never asked for can be told
(`model.families.unread`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, NoReturn, TypeVar

from shardwright.errors import ModelError, nearest
from shardwright.lazy_dataclass import dataclass

T = TypeVar("T", bool, str)

MAX_LAYERS: Final = 10_000
MAX_HIDDEN: Final = 2**20
MAX_FFN: Final = 2**23
MAX_HEADS: Final = 2**15
MAX_HEAD_DIM: Final = 2**16
MAX_EXPERTS: Final = 2**15
MAX_VOCAB: Final = 2**25
MAX_CONTEXT: Final = 2**32


def shown(value: object) -> str:
    """A value as an error may print it: short, one line, whatever it is."""
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
class Reading:
    """The fields of a configuration that have been read so far; the only part that changes.

    Args:
        objects: every object that was entered, by its path.
        names: every name that was asked for, with its path, there or not.
        builders: which builder read the object at a path and what is in it, where no other did.
    """

    objects: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    builders: dict[str, str] = field(default_factory=dict)

    def read_by(self, name: str) -> tuple[str, str]:
        """The path of the innermost object with a builder of its own that a name is in, and that
        builder.
        """
        path = max((path for path in self.builders if name.startswith(path)), key=len)
        return path, self.builders[path]

    def unread(self) -> dict[str, Any]:
        """Names (with paths) of the entered objects that nothing asked for, with their values."""
        pairs = (
            (f"{path}{name}", value)
            for path, mapping in self.objects.items()
            for name, value in mapping.items()
        )
        return {name: value for name, value in pairs if name not in self.names}


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a configuration.

    Args:
        mapping: the object, keys to JSON values.
        source: file or name it came from; errors begin with it.
        path: where the object lies inside the file (``text_config.``); empty at the top.
        reading: what has been asked of the whole configuration.
    """

    mapping: Mapping[str, Any]
    source: str
    path: str = ""
    reading: Reading = field(default_factory=Reading, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.reading.objects.setdefault(self.path, self.mapping)

    def fail(self, message: str, *, hint: str = "") -> NoReturn:
        """Raise a `ModelError` that begins with the source."""
        raise ModelError(f"{self.source}: {message}", hint=hint)

    def unsupported(self, feature: str, *, hint: str = "") -> NoReturn:
        """Raise for a feature that this package has no graph for."""
        self.fail(
            f"{feature} is not supported",
            hint=hint or "the graph would be a guess; see the list of supported architectures",
        )

    def present(self, *names: str) -> bool:
        """True if one of the spellings is there and not null."""
        self.aside(*names)
        return any(self.mapping.get(name) is not None for name in names)

    def written(self, name: str) -> bool:
        """True if the field is there, null or not."""
        self.aside(name)
        return name in self.mapping

    def aside(self, *names: str) -> None:
        """Note that these names are known here, and that their values change nothing."""
        self.reading.names.update(f"{self.path}{name}" for name in names)

    def replaced(self, name: str, value: Any) -> Fields:
        """The same object with another value of a field."""
        return Fields({**self.mapping, name: value}, self.source, self.path, self.reading)

    def inner(self, mapping: Mapping[str, Any], path: str) -> Fields:
        """An object inside this one, at `path` from here."""
        return Fields(mapping, self.source, f"{self.path}{path}.", self.reading)

    def find(self, *names: str) -> tuple[str, Any]:
        """Name (with path) and value of the first spelling that is there; value None if none is."""
        self.aside(*names)
        found = [(name, self.mapping[name]) for name in names if self.mapping.get(name) is not None]
        if not found:
            return self.path + names[0], None
        for name, value in found[1:]:
            if value != found[0][1]:
                self.fail(
                    f"{self.path}{found[0][0]} is {shown(found[0][1])} but {self.path}{name} is"
                    f" {shown(value)}",
                    hint="they are two spellings of one field: keep one",
                )
        return self.path + found[0][0], found[0][1]

    def missing(self, *names: str) -> NoReturn:
        """Raise for a field that must be there."""
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
        """A whole number within [minimum, maximum]; `default` when the field is absent or null."""
        value = self.optional_integer(*names, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            self.missing(*names)
        return default

    def optional_integer(
        self, *names: str, minimum: int = 1, maximum: int = MAX_CONTEXT
    ) -> int | None:
        """A whole number, or None when the field is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(
                f"{name} must be a whole number, not {shown(value)}",
                hint=f"give an integer from {minimum} to {maximum}",
            )
        if not minimum <= value <= maximum:
            self.fail(
                f"{name} = {shown(value)} is out of range",
                hint=f"give an integer from {minimum} to {maximum}",
            )
        return value

    def number(
        self, *names: str, minimum: float, maximum: float, default: float | None = None
    ) -> float:
        """A finite number within [minimum, maximum]."""
        name, value = self.find(*names)
        if value is None:
            if default is None:
                self.missing(*names)
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(
                f"{name} must be a number, not {shown(value)}",
                hint=f"give a number from {minimum:g} to {maximum:g}",
            )
        if not (minimum <= value <= maximum) or not math.isfinite(value):
            self.fail(
                f"{name} = {shown(value)} is out of range",
                hint=f"give a number from {minimum:g} to {maximum:g}",
            )
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """True or false; null is false, `default` is for a field that is not written."""
        null = any(self.written(name) for name in names)
        return self._of(
            bool, "true or false", names, False if null and default is not None else default
        )

    def string(self, *names: str, default: str | None = None) -> str:
        """A text."""
        return self._of(str, "a text", names, default)

    def _of(self, kind: type[T], words: str, names: tuple[str, ...], default: T | None) -> T:
        name, value = self.find(*names)
        if value is None:
            if default is None:
                self.missing(*names)
            return default
        if not isinstance(value, kind):
            self.fail(f"{name} must be {words}, not {shown(value)}")
        return value

    def strings(self, *names: str) -> tuple[str, ...]:
        """A list of texts; empty when the field is absent."""
        name, value = self.find(*names)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            self.fail(f"{name} must be a list of texts, not {shown(value)}")
        return tuple(value)

    def integers(
        self, *names: str, minimum: int = 0, maximum: int = MAX_CONTEXT
    ) -> tuple[int, ...]:
        """A list of whole numbers; empty when the field is absent."""
        name, value = self.find(*names)
        if value is None:
            return ()
        whole = isinstance(value, (list, tuple)) and all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        )
        if not whole or not all(minimum <= item <= maximum for item in value):
            self.fail(
                f"{name} must be a list of integers from {minimum} to {maximum}, not {shown(value)}"
            )
        return tuple(value)

    def switches(self, name: str, *, layers: int) -> tuple[bool, ...]:
        """A list of one 0 or 1 for each layer."""
        values = self.integers(name, maximum=1)
        if len(values) != layers:
            self.fail(
                f"{self.path}{name} must list {layers} zeros and ones",
                hint="one entry for each layer",
            )
        return tuple(bool(v) for v in values)

    def section(self, *names: str) -> Fields:
        """A nested object that must be there."""
        inner = self.optional_section(*names)
        if inner is None:
            self.missing(*names)
        return inner

    def optional_section(self, *names: str) -> Fields | None:
        """A nested object, or None when the field is absent or null."""
        name, value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(f"{name} must be an object, not {shown(value)}")
        return Fields(value, self.source, f"{name}.", self.reading)

    def choice(self, *names: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """A text out of a closed list; any other names an unsupported feature."""
        value = self.string(*names, default=default)
        if value not in allowed:
            self.fail(
                f"{self.path}{names[0]} = {shown(value)} is not supported",
                hint=f"supported: {', '.join(allowed)}",
            )
        return value

    # Fields that nearly every decoder has, with their spellings.

    def layers(self) -> int:
        """Number of decoder layers."""
        return self.integer(
            "num_hidden_layers", "n_layer", "n_layers", "num_layers", maximum=MAX_LAYERS
        )

    def hidden(self) -> int:
        """Width of the residual stream in elements."""
        return self.integer("hidden_size", "n_embd", "n_embed", "d_model", maximum=MAX_HIDDEN)

    def vocab(self) -> int:
        """Rows of the embedding."""
        return self.integer("vocab_size", maximum=MAX_VOCAB)

    def context(self) -> int:
        """Longest context in tokens; 0 when the configuration does not say."""
        return self.integer(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0
        )

    def heads(self) -> int:
        """Number of query heads."""
        return self.integer("num_attention_heads", "n_head", "n_heads", maximum=MAX_HEADS)

    def kv_heads(self, *names: str, default: int | None = None) -> int:
        """Number of key/value heads; must divide the query heads. Null is as many as those."""
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
        """Width of a head: the field, else (where it is not written) `default`, else hidden / heads
        (which must be whole).
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
        """hidden / heads, an error if it is not whole."""
        hidden, heads = self.hidden(), self.heads()
        if hidden % heads:
            self.fail(
                f"{self.path}hidden_size = {hidden} is not a multiple of the {heads} query heads",
                hint="give head_dim, or a hidden size that the heads divide",
            )
        return hidden // heads

    def ffn(self, *names: str, default: int | None = None) -> int:
        """Inner width of a feed-forward in elements."""
        return self.integer(*(names or ("intermediate_size",)), maximum=MAX_FFN, default=default)

    def layer_types(
        self, *, layers: int, allowed: tuple[str, ...], name: str = "layer_types"
    ) -> tuple[str, ...]:
        """One kind per layer out of `allowed`; empty when the field is absent."""
        kinds = self.strings(name)
        if kinds and len(kinds) != layers:
            self.fail(
                f"{self.path}{name} lists {len(kinds)} layers of {layers}",
                hint="give one entry for each layer",
            )
        for kind in kinds:
            if kind not in allowed:
                self.fail(
                    f"{self.path}{name} has {shown(kind)}, which is not supported",
                    hint=f"supported: {', '.join(allowed)}",
                )
        return kinds
