"""Build a model from a Hugging Face ``config.json``; every fault is a `ModelError`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.errors import ModelError, nearest
from shardwright.model.families.family_registry import ARCHITECTURES, REGISTRY, TEXT_CONFIGS
from shardwright.model.families.fields.find_config_fields_no_builder_read import unread_fields
from shardwright.model.families.fields.weight_quantization import (
    MODELOPT_FILE,
    stored_format,
    with_modelopt,
)
from shardwright.model.families.find_uncomputed_config_settings import differences
from shardwright.model.families.numerical_settings import settings_of_fields
from shardwright.model.ir.config_json_field_access import Fields, value_text
from shardwright.model.ir.model_graph import Model
from shardwright.registry import load_target

Builder = Callable[[Fields], Model]

TEXT_ALONE: Final = (
    "pad_token_id",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
)
"""Fields that a language model's class reads only in its own section."""
MAX_FILE_BYTES: Final = 2**24
MAX_PARAMETERS: Final = 10**17


def known_architectures() -> tuple[str, ...]:
    """Every supported architecture and model_type, sorted."""
    return tuple(sorted(REGISTRY))


def load_config(path: str | Path) -> Model:
    """Build the model of a Hugging Face ``config.json`` file; ModelError for every fault.

    Raises:
        ModelError: the file does not exist, is not a JSON object, or is refused by
        `model_from_config`.
    """
    file = Path(path)
    config: Mapping[str, Any] = _read_object(file)
    beside = file.with_name(MODELOPT_FILE)
    if file.name == "config.json" and beside.is_file():
        config = with_modelopt(config, _read_object(beside))
    return model_from_config(config, name=_model_name(file), source=str(file))


def _read_object(path: Path) -> dict[str, Any]:
    """Read a file's JSON object; ModelError if it is missing, too large or no object."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a readable path"
        raise ModelError(
            f"{path}: {reason}", hint="give a catalog name or the path of a config.json"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise ModelError(
            f"{path}: larger than {MAX_FILE_BYTES} bytes", hint="a config.json has some kilobytes"
        )
    return parse_config(content, source=str(path))


def parse_config(content: bytes, *, source: str) -> dict[str, Any]:
    """Parse a JSON object from UTF-8 bytes; raises ModelError with the place of a fault."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelError(f"{source}: not UTF-8 text", hint="give a config.json") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
        what = (
            "the file is empty"
            if not content.strip()
            else "the file is cut off"
            if cut
            else "not valid JSON"
        )
        place = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ModelError(
            f"{source}: {what} ({place})", hint="give a complete config.json"
        ) from None
    except (ValueError, RecursionError):
        raise ModelError(
            f"{source}: not usable JSON (a number too long or nesting too deep)",
            hint="give a config.json",
        ) from None
    if not isinstance(value, dict):
        raise ModelError(
            f"{source}: the top of the file is {value_text(value)}, not an object",
            hint="give a Hugging Face config.json",
        )
    return value


def model_from_config(mapping: Mapping[str, Any], *, name: str, source: str = "") -> Model:
    """Build the model that a Hugging Face configuration describes; ModelError for a fault in it.

    Args:
        mapping: the configuration, old or new spellings.
        name: name of the model.
        source: file of the configuration, for errors; `name` if empty.

    The builder is found by ``architectures[0]``, or by ``model_type`` when no architecture is
    written.

    Raises:
        ModelError: unknown architecture, missing or absurd field, unsupported feature, a field of
            another family or a misspelt one (each named).
    """
    fields = Fields(mapping, source or name)
    try:
        model = replace(build_architecture(architecture_name(fields), fields), name=name)
    except ModelError:
        raise
    except (ValueError, OverflowError) as error:
        # The types verify themselves at birth: a combination of fields that no getter refuses ends
        # here.
        hint = "compare them with the published configuration"
        raise ModelError(
            f"{fields.source}: the fields do not fit together: {error}", hint=hint
        ) from None
    if model.num_parameters > MAX_PARAMETERS:
        fields.fail(
            f"the fields describe {model.num_parameters:.3g} parameters",
            hint="check layers, hidden size, experts, vocabulary",
        )
    text = language_config(mapping)
    layers = sum(run.count for run in model.runs if model.blocks[run.block].is_layer)
    return replace(
        model,
        unread=unread_fields(fields),
        settings=settings_of_fields(text, model=model, source=fields.source),
        differs=differences(text, model=model),
        stored=stored_format(text, layers=layers, source=fields.source),
    )


def language_config(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's section, completed by top-level fields; all fields if it has none."""
    nested: Iterator[dict[str, Any]] = (
        mapping[name] for name in TEXT_CONFIGS if isinstance(mapping.get(name), dict)
    )
    section = next(nested, None)
    if section is None:
        return mapping
    return {**{name: value for name, value in mapping.items() if name not in TEXT_ALONE}, **section}


def architecture_name(fields: Fields) -> str:
    """``architectures[0]``, or ``model_type`` if none is written; ModelError for several."""
    names = fields.strings("architectures")
    if len(names) > 1:
        fields.fail(f"architectures lists {len(names)} names", hint="keep the one to plan")
    return names[0] if names else fields.string("model_type")


def build_architecture(key: str, fields: Fields) -> Model:
    """Build the model of an architecture or ``model_type``; ModelError if it is not supported."""
    target = REGISTRY.get(key)
    if target is None:
        nested = fields.present(*TEXT_CONFIGS)
        hint = (
            "its text_config alone may be one that is"
            if nested
            else _similar_architecture_hint(key)
        )
        raise ModelError(
            f"{fields.source}: architecture {value_text(key)} is not supported", hint=hint
        )
    fields.reading.builders[fields.path] = target
    builder: Builder = load_target(target)
    model = builder(fields)
    return replace(model, architecture=model.architecture or ARCHITECTURES[target])


def _similar_architecture_hint(key: str) -> str:
    """Hint with the known architecture most similar to `key`, in its own spelling."""
    spelled = {known.lower(): known for known in known_architectures()}
    hint = nearest(key[:100], spelled)
    return re.sub(r"\w+", lambda word: spelled.get(word[0], word[0]), hint)


def _model_name(path: Path) -> str:
    """Name for the model of a file: the folder of a ``config.json``, else the file's stem."""
    return path.resolve().parent.name or path.stem if path.name == "config.json" else path.stem
