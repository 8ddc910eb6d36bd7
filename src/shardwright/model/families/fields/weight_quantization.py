"""Read how a checkpoint's weights are quantized from config.json or hf_quant_config.json.

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
from shardwright.model.ir.checkpoint_number_formats import StoredFormat
from shardwright.model.ir.config_json_field_access import value_text

FIELDS: Final = ("quantization_config", "compression_config")
"""Names of the object in a ``config.json``; compressed-tensors before 0.6 wrote the second name."""
MODELOPT_FILE: Final = "hf_quant_config.json"
"""File beside ``config.json`` in which NVIDIA ModelOpt describes the quantization."""

_SMALL_GROUP: Final = 32
"""Weights that share a scale, up to which a four-bit format counts as one with groups of 32."""
_MOST_PATTERNS: Final = 20_000
_LONGEST_PATTERN: Final = 300
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
"""A repeated group: such a regular expression may take exponential time."""

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
    """Formats and quantized modules of a checkpoint, by its middle layer; None if not quantized.

    Args:
        config: the configuration, with the fields of its language model.
        layers: number of the language model's layers; the middle layer stands for all.
        source: file that the configuration came from, for errors.

    Raises:
        ModelError: the object is not an object, or names no method.
    """
    name = next((name for name in FIELDS if config.get(name) not in (None, {}, [])), "")
    if not name:
        return None
    quantization = config[name]
    if not isinstance(quantization, Mapping):
        raise ModelError(
            f"{source}: {name} is {value_text(quantization)}, not an object",
            hint="compare it with the published config.json",
        )
    method = quantization.get("quant_method")
    if method is None and (quantization.get("load_in_4bit") or quantization.get("load_in_8bit")):
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
    weights, activations = _METHODS.get(method, _no_formats)(quantization)
    quantised = {
        role: (
            not _is_excluded(quantization, role, layer=layers // 2)
            and _is_targeted(quantization, role, layer=layers // 2)
        )
        for role in _MODULES
    }
    return StoredFormat(
        method=method,
        weights=weights,
        activations=activations,
        cache=_kv_cache_format(quantization),
        head=_head_is_quantised(quantization),
        **quantised,
    )


def _head_is_quantised(quantization: Mapping[str, Any]) -> bool:
    """True if the output layer is quantized: in a group's targets, or GPTQ's ``lm_head`` is true.

    By default, methods leave the output layer in 16 bits.
    """
    if not _format_groups(quantization):
        return quantization.get("lm_head") is True
    return _is_targeted(quantization, "head", layer=0) and not _is_excluded(
        quantization, "head", layer=0
    )


def with_modelopt(config: Mapping[str, Any], modelopt: Mapping[str, Any]) -> Mapping[str, Any]:
    """`config` with the quantization of `modelopt` (hf_quant_config.json), unless it has one."""
    quantization = modelopt.get("quantization")
    if not isinstance(quantization, Mapping) or any(config.get(name) for name in FIELDS):
        return config
    return {**config, FIELDS[0]: {"quant_method": "modelopt", **quantization}}


def _fp8(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """Always fp8 weights and fp8 inputs, for blocks (``fp8``) as for rows (``fbgemm_fp8``)."""
    return "fp8", "fp8"


def _integers(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """(weights, inputs) of AWQ, GPTQ, AutoRound: int4 or int8 by bits and group; bf16 inputs."""
    return (
        _integer_format(
            quantization.get("bits", quantization.get("w_bit", 4)),
            quantization.get("group_size", quantization.get("q_group_size")),
        ),
        "bf16",
    )


def _mxfp4(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """(weights, inputs) number formats of gpt-oss: MXFP4 weights and bf16 inputs.

    `checkpoint_formats` uses fp8 inputs on devices with FP4 units.
    """
    return "mxfp4", "bf16"


def _bitsandbytes(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """(weights, inputs) of bitsandbytes: int8 rows (LLM.int8) or int4 groups (NF4).

    NF4 has a 32-bit scale for 64 weights, or an 8-bit scale with double quantization.
    """
    if quantization.get("load_in_8bit"):
        return "int8", "bf16"
    return ("int4" if quantization.get("bnb_4bit_use_double_quant") else "int4-group32"), "bf16"


def _compressed_tensors(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """(weights, inputs) of the first group with quantized weights (inputs else bf16); or empty."""
    for group in _format_groups(quantization):
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            continue
        stored = _number_format(weights)
        inputs = group.get("input_activations")
        return stored, (_number_format(inputs) if isinstance(inputs, Mapping) else "") or "bf16"
    return "", ""


def _modelopt(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """(weights, inputs) by ``quant_algo``, else by the first quantized group; else empty texts."""
    algorithm = str(quantization.get("quant_algo", "")).upper()
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
    return found or (
        _compressed_tensors(quantization) if _format_groups(quantization) else ("", "")
    )


def _no_formats(quantization: Mapping[str, Any]) -> tuple[str, str]:
    """Empty formats, for a method whose kernels are not priced."""
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
    """``int8``, ``int4``, or ``int4-group32`` for groups up to 32; empty for other widths."""
    if bits == 8:
        return "int8"
    if bits != 4:
        return ""
    small = isinstance(group, int) and 0 < group <= _SMALL_GROUP
    return "int4-group32" if small else "int4"


def _number_format(quantization: Mapping[str, Any]) -> str:
    """Number format of a compressed-tensors ``weights`` or inputs object; empty if not priced."""
    bits, kind, group = (
        quantization.get("num_bits"),
        quantization.get("type", "int"),
        quantization.get("group_size"),
    )
    if kind == "int":
        return _integer_format(bits, group)
    if kind != "float":
        return ""
    if bits == 8:
        return "fp8"
    if bits == 4:
        return "mxfp4" if group == _SMALL_GROUP else "nvfp4"
    return ""


def _kv_cache_format(quantization: Mapping[str, Any]) -> str:
    """Number format of the KV cache in a quantization section; empty if it names none."""
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return _number_format(scheme)
    algorithm = str(quantization.get("kv_cache_quant_algo") or "").lower()
    return algorithm if algorithm in ("fp8", "int8", "nvfp4") else ""


def _format_groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects in ``config_groups``, each a set of modules of one format; [] without."""
    groups = quantization.get("config_groups")
    return (
        [group for group in groups.values() if isinstance(group, Mapping)]
        if isinstance(groups, Mapping)
        else []
    )


def _is_targeted(quantization: Mapping[str, Any], role: str, *, layer: int) -> bool:
    """True if ``config_groups`` targets the role's modules, all Linear layers, or nothing."""
    targets = [
        target
        for group in _format_groups(quantization)
        for target in _listed_texts(group, "targets")
    ]
    if not targets or "Linear" in targets:
        return True
    return any(_matches(name, target) for name in _module_names(role, layer) for target in targets)


def _is_excluded(quantization: Mapping[str, Any], role: str, *, layer: int) -> bool:
    """True if a list such as ``modules_to_not_convert`` keeps the role's modules in 16 bits."""
    fields = (
        "modules_to_not_convert",
        "ignored_layers",
        "ignore",
        "exclude_modules",
        "llm_int8_skip_modules",
    )
    patterns = [pattern for field in fields for pattern in _listed_texts(quantization, field)]
    return any(
        _matches(name, pattern) for name in _module_names(role, layer) for pattern in patterns
    )


def _module_names(role: str, layer: int) -> Iterator[str]:
    """Yield module names for a role (attention, output, mlp, experts, head) in a layer."""
    if role == "head":
        yield "lm_head"
        return
    for prefix in _PREFIXES:
        for module in _MODULES[role]:
            yield f"{prefix}.{layer}.{module}"


def _matches(name: str, pattern: str) -> bool:
    """True if ``re:`` fits the name's start, a shell pattern a prefix, plain text any parts."""
    if pattern.startswith("re:"):
        expression = pattern.removeprefix("re:")
        if _REPEATED_GROUP.search(expression):
            return False
        try:
            return re.match(expression, name) is not None
        except (re.error, OverflowError, RecursionError):
            return False
    if "*" in pattern or "?" in pattern:
        return any(fnmatchcase(part, pattern) for part in _name_prefixes(name))
    name_parts, pattern_parts = name.split("."), pattern.split(".")
    return any(
        name_parts[at : at + len(pattern_parts)] == pattern_parts
        for at in range(len(name_parts) - len(pattern_parts) + 1)
    )


def _name_prefixes(name: str) -> Iterator[str]:
    """Yield a dotted module name and each of its prefixes: ``a.b.c``, ``a.b``, ``a``."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _listed_texts(quantization: Mapping[str, Any], field: str) -> list[str]:
    """Non-empty texts of a list field; long texts and those past a maximum count are dropped."""
    value = quantization.get(field)
    if not isinstance(value, list):
        return []
    return [
        text
        for text in value[:_MOST_PATTERNS]
        if isinstance(text, str) and 0 < len(text) <= _LONGEST_PATTERN
    ]
