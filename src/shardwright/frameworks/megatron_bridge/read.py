"""Reader of Megatron-Bridge's overrides and files."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.framework_detection import (
    FileKind,
    Signature,
)
from shardwright.frameworks.megatron.argument_names_of_core_fields import (
    FIELD_NAMES,
    OF_RECIPES,
    attention_backend,
    without_section,
)
from shardwright.frameworks.megatron.read import Dialect, dialect_reader
from shardwright.frameworks.megatron_bridge.settings import (
    DTYPES,
    FIELD_VALUES,
    RECIPES,
    RENAMED_FIELDS,
    SETTINGS,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import (
    name_set,
    names,
)

_BRIDGE_SECTIONS: Final = names(
    "model. train. ddp. optimizer. dataset. comm-overlap. dist."
    " mixed-precision. rerun-state-machine."
)


_FIELDS: Final = {
    field.replace("_", "-"): argument
    for argument, fields in RENAMED_FIELDS.items()
    for field in fields
}
"""Field of Megatron-Bridge -> Megatron-LM's argument of another name."""


_SWITCHES: Final = {
    field.replace("_", "-"): (argument, value.lower())
    for argument, fields in FIELD_VALUES.items()
    for field, value in fields
    if value in ("True", "False") and "gated" not in field
}
"""Field -> Megatron-LM's switch, and the value of the field at which the switch is on."""


_GATES: Final = {"f.silu": "swiglu", "squared-relu": "squared-relu", "squared_relu": "squared-relu"}


_FORMATS: Final = {python: word for word, python in DTYPES.items()}
_PRECISIONS: Final = {recipe: word for word, recipe in RECIPES.items()}


_BRIDGE_REST: Final = names("checkpoint. scheduler. logger. rng. tokenizer. validation. profiling.")
"""Sections that change neither time nor memory."""


def megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) pairs of a Bridge override; () if ignored, never None.

    The fields are those that exports write (`megatron_bridge.settings`).
    """
    name = name.removeprefix("config.").replace("commoverlapconfig.", "comm-overlap.")
    if name in _SWITCHES:
        argument, on = _SWITCHES[name]
        return ((argument, str(value.lower() == on).lower()),)
    value = _FORMATS.get(value, value)
    if name in _FIELDS:
        return ((_FIELDS[name], value),)
    if name == "mixed-precision":
        formats = (
            (("fp8-format", "hybrid"), ("fp8-recipe", _PRECISIONS.get(value, "delayed")))
            if "fp8" in value
            else ()
        )
        return ("fp16" if value.startswith("fp16") else "bf16", "true"), *formats
    if name == "model.attention-backend":
        return attention_backend(value)
    if name == "model.activation-func":
        return ((_GATES[value.lower()], "true"),) if value.lower() in _GATES else ()
    short = without_section(name, _BRIDGE_SECTIONS)
    if name in ("model.gated-linear-unit", "comm-overlap.overlap-p2p-comm") or name.startswith(
        _BRIDGE_REST
    ):
        return ()
    if name.startswith("env-vars."):
        return ((short.removeprefix("env-vars."), value),)
    return ((FIELD_NAMES.get(short, short), value),) if FIELD_NAMES.get(short, short) else ()


BRIDGE: Final = dialect_reader(
    Dialect(
        framework="megatron-bridge",
        arguments_of=megatron_arguments,
        defaults=MappingProxyType(
            {
                "attention-dropout": "0",
                "hidden-dropout": "0",
                "bf16": "true",
                "use-distributed-optimizer": "true",
                "overlap-grad-reduce": "true",
            }
        ),
        own_defaults=True,
    ),
    runtime="megatron-bridge",
    settings=SETTINGS,
    signature=Signature(
        kinds=frozenset({FileKind.YAML, FileKind.PYTHON, FileKind.COMMAND}),
        own=name_set(
            "train.global-batch-size train.micro-batch-size ddp.* comm-overlap.*"
            " commoverlapconfig.*"
        )
        | {"config.train.micro-batch-size", "config.model.tensor-model-parallel-size"},
        shared=OF_RECIPES,
    ),
    target="megatron-bridge",
)
