"""Read how a checkpoint's weights are quantised, from ``quantization_config`` or
``hf_quant_config.json``.

Methods and their fields: Hugging Face Transformers 5.24, ``utils/quantization_config.py``;
compressed-tensors 0.11, ``quantization/quant_config.py`` and ``quant_args.py``; NVIDIA ModelOpt
0.33, ``export/quant_utils.py`` (``hf_quant_config.json``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from shardwright.errors import ModelError
from shardwright.model.ir.config_fields import shown
from shardwright.model.ir.stored_format import StoredFormat

FIELDS: Final = ("quantization_config", "compression_config")
"""Names of the object in a ``config.json``; compressed-tensors wrote the second one before release
0.6."""
MODELOPT_FILE: Final = "hf_quant_config.json"
"""File beside ``config.json`` in which NVIDIA ModelOpt says how it quantised the weights."""

_SMALL_GROUP: Final = 32
"""Weights that share a scale, up to which a four-bit format counts as one with groups of 32."""
_MOST_PATTERNS: Final = 20_000
_LONGEST_PATTERN: Final = 300
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
"""A repeated group: such a regular expression may take exponential time, and names of modules need
none."""

_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("self_attn.q_proj", "self_attn.q_a_proj", "self_attn.qkv_proj", "attention.wq"),
    "output": ("self_attn.o_proj", "attention.wo"),
    "mlp": (
        "mlp.up_proj",
        "mlp.gate_up_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_expert.up_proj",
        "feed_forward.up_proj",
    ),
    "experts": (
        "mlp.experts.0.up_proj",
        "block_sparse_moe.experts.0.w1",
        "feed_forward.experts.up_proj",
        "mlp.experts.gate_up_proj",
    ),
}
"""For each class of layers, names of modules that Transformers' classes give them, behind the
layer's own prefix."""
_PREFIXES: Final = ("model.layers", "model.language_model.layers", "language_model.model.layers")

_Read = Callable[[Mapping[str, Any]], tuple[str, str]]


def stored_format(config: Mapping[str, Any], *, layers: int, source: str) -> StoredFormat | None:
    """The number format of a checkpoint's weights; None if the configuration does not quantise
    them.

    Args:
        config: the configuration, with the fields of its language model.
        layers: of the language model; the layer in the middle stands for all of them.
        source: file that the configuration came from, for errors.

    Raises:
        ModelError: the object is none, or says no method.
    """
    name = next((name for name in FIELDS if config.get(name) not in (None, {}, [])), "")
    if not name:
        return None
    said = config[name]
    if not isinstance(said, Mapping):
        raise ModelError(
            f"{source}: {name} is {shown(said)}, not an object",
            hint="compare it with the published config.json",
        )
    method = said.get("quant_method")
    if method is None and (said.get("load_in_4bit") or said.get("load_in_8bit")):
        method = "bitsandbytes"
    if not isinstance(method, str) or not method:
        raise ModelError(
            f"{source}: {name} says no quant_method",
            hint=(
                "add it (fp8, awq, gptq, compressed-tensors, ..), or remove the object for weights"
                " in 16 bits"
            ),
        )
    method = method.lower()
    weights, activations = _METHODS.get(method, _unpriced)(said)
    quantised = {
        klass: (
            not _is_excluded(said, klass, layer=layers // 2)
            and _is_targeted(said, klass, layer=layers // 2)
        )
        for klass in _MODULES
    }
    return StoredFormat(
        method=method,
        weights=weights,
        activations=activations,
        cache=_cache(said),
        head=_head_is_quantised(said),
        **quantised,
    )


def _head_is_quantised(said: Mapping[str, Any]) -> bool:
    """Methods leave the output layer in 16 bits unless they say otherwise: a group of layers that
    has it, or GPTQ's ``lm_head``.
    """
    if not _groups(said):
        return said.get("lm_head") is True
    return _is_targeted(said, "head", layer=0) and not _is_excluded(said, "head", layer=0)


def with_modelopt(config: Mapping[str, Any], beside: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with what ModelOpt's file beside it says,
    where it has no such object itself.
    """
    said = beside.get("quantization")
    if not isinstance(said, Mapping) or any(config.get(name) for name in FIELDS):
        return config
    return {**config, FIELDS[0]: {"quant_method": "modelopt", **said}}


def _fp8(said: Mapping[str, Any]) -> tuple[str, str]:
    """Of DeepSeek's and Qwen's blocks of 128 x 128 (``fp8``), and of rows (``fbgemm_fp8``)."""
    return "fp8", "fp8"


def _integers(said: Mapping[str, Any]) -> tuple[str, str]:
    """Of AWQ, GPTQ and AutoRound: integer weights, inputs in 16 bits."""
    return (
        _integer_format(
            said.get("bits", said.get("w_bit", 4)), said.get("group_size", said.get("q_group_size"))
        ),
        "bf16",
    )


def _mxfp4(said: Mapping[str, Any]) -> tuple[str, str]:
    """gpt-oss: MXFP4 weights, bf16 inputs (`checkpoint_formats` makes them fp8 where there are FP4
    units).
    """
    return "mxfp4", "bf16"


def _bitsandbytes(said: Mapping[str, Any]) -> tuple[str, str]:
    """NF4 has a 32-bit scale for 64 weights, or an 8-bit one where the scales are quantised again;
    LLM.int8 has rows.
    """
    if said.get("load_in_8bit"):
        return "int8", "bf16"
    return ("int4" if said.get("bnb_4bit_use_double_quant") else "int4-group32"), "bf16"


def _compressed_tensors(said: Mapping[str, Any]) -> tuple[str, str]:
    """Weight and activation format of the first group with quantised weights; bf16 if it quantises
    no activations.
    """
    for group in _groups(said):
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            continue
        stored = _number_format(weights)
        inputs = group.get("input_activations")
        return stored, (_number_format(inputs) if isinstance(inputs, Mapping) else "") or "bf16"
    return "", ""


def _modelopt(said: Mapping[str, Any]) -> tuple[str, str]:
    """By ``quant_algo``; ``MIXED_PRECISION`` says a format for each layer and is not priced."""
    algorithm = str(said.get("quant_algo", "")).upper()
    found = {
        "FP8": ("fp8", "fp8"),
        "FP8_PB_WO": ("fp8", "fp8"),
        "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"),
        "NVFP4": ("nvfp4", "nvfp4"),
        "NVFP4_AWQ": ("nvfp4", "nvfp4"),
        "W4A16_AWQ": ("int4", "bf16"),
        "W4A8_AWQ": ("int4", "fp8"),
        "W8A16": ("int8", "bf16"),
        "W8A8_SQ_PER_CHANNEL": ("int8", "int8"),
        "INT8_SQ": ("int8", "int8"),
    }.get(algorithm)
    return found or (_compressed_tensors(said) if _groups(said) else ("", ""))


def _unpriced(said: Mapping[str, Any]) -> tuple[str, str]:
    """A method of which no kernel is priced."""
    return "", ""


_METHODS: Final[Mapping[str, _Read]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _integers,
    "gptq": _integers,
    "auto-round": _integers,
    "intel/auto-round": _integers,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}


def _integer_format(bits: object, group: object) -> str:
    """``int4``, ``int4-group32`` or ``int8``; empty for other widths."""
    if bits == 8:
        return "int8"
    if bits != 4:
        return ""
    small = isinstance(group, int) and 0 < group <= _SMALL_GROUP
    return "int4-group32" if small else "int4"


def _number_format(said: Mapping[str, Any]) -> str:
    """The format of compressed-tensors' arguments of a tensor; empty for one that is not priced."""
    bits, kind, group = said.get("num_bits"), said.get("type", "int"), said.get("group_size")
    if kind == "int":
        return _integer_format(bits, group)
    if kind != "float":
        return ""
    if bits == 8:
        return "fp8"
    if bits == 4:
        return "mxfp4" if group == _SMALL_GROUP else "nvfp4"
    return ""


def _cache(said: Mapping[str, Any]) -> str:
    """Format of keys and values, where the object says one."""
    scheme = said.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return _number_format(scheme)
    algorithm = str(said.get("kv_cache_quant_algo") or "").lower()
    return algorithm if algorithm in ("fp8", "int8", "nvfp4") else ""


def _groups(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of layers that compressed-tensors and ModelOpt give a format each."""
    groups = said.get("config_groups")
    return (
        [group for group in groups.values() if isinstance(group, Mapping)]
        if isinstance(groups, Mapping)
        else []
    )


def _is_targeted(said: Mapping[str, Any], klass: str, *, layer: int) -> bool:
    """True if a group of layers has the class among its targets; all classes are where there are no
    groups.
    """
    targets = [target for group in _groups(said) for target in _texts(group, "targets")]
    if not targets or "Linear" in targets:
        return True
    return any(_matches(name, target) for name in _names(klass, layer) for target in targets)


def _is_excluded(said: Mapping[str, Any], klass: str, *, layer: int) -> bool:
    """True if the modules of a class are listed among those that stay in 16 bits."""
    fields = (
        "modules_to_not_convert",
        "ignored_layers",
        "ignore",
        "exclude_modules",
        "llm_int8_skip_modules",
    )
    patterns = [pattern for field in fields for pattern in _texts(said, field)]
    return any(_matches(name, pattern) for name in _names(klass, layer) for pattern in patterns)


def _names(klass: str, layer: int) -> Iterator[str]:
    """Names that a class's modules may have in a layer."""
    if klass == "head":
        yield "lm_head"
        return
    for prefix in _PREFIXES:
        for module in _MODULES[klass]:
            yield f"{prefix}.{layer}.{module}"


def _matches(name: str, pattern: str) -> bool:
    """True if a pattern (``re:`` and a regular expression, a shell pattern, or a part of the name)
    names a module or one that holds it.
    """
    if pattern.startswith("re:"):
        expression = pattern.removeprefix("re:")
        if _REPEATED_GROUP.search(expression):
            return False
        try:
            return re.match(expression, name) is not None
        except (re.error, OverflowError, RecursionError):
            return False
    if "*" in pattern or "?" in pattern:
        return any(fnmatchcase(part, pattern) for part in _holders(name))
    own, wanted = name.split("."), pattern.split(".")
    return any(own[at : at + len(wanted)] == wanted for at in range(len(own) - len(wanted) + 1))


def _holders(name: str) -> Iterator[str]:
    """A module's name, and the names of the modules that hold it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _texts(said: Mapping[str, Any], field: str) -> list[str]:
    """The short texts of a list field, as many as a configuration has reason to list."""
    value = said.get(field)
    if not isinstance(value, list):
        return []
    return [
        one
        for one in value[:_MOST_PATTERNS]
        if isinstance(one, str) and 0 < len(one) <= _LONGEST_PATTERN
    ]
