"""Read rotary positions from config.json: base fields, rotated share, context extension."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log, sqrt
from typing import Any, Final

from shardwright.model.blocks.read_sliding_windows_from_config import FULL, SLIDING
from shardwright.model.ir.config_json_field_access import MAX_HEAD_DIM, Fields
from shardwright.model.ir.numerical_constants import (
    DynamicRotary,
    Longer,
    LongerRotary,
    LongRotary,
    ProportionalRotary,
    TextRotary,
    YarnRotary,
)

COMPUTED: Final = ("default", "llama3", "linear", "yarn", "dynamic", "longrope")
"""Kinds of rotary positions."""
BY_LENGTH: Final = ("dynamic", "longrope")
"""Kinds of rotary positions that depend on the sequence length."""
ORIGINAL: Final = "original_max_position_embeddings"
MAX_TOKENS: Final = 1e12
MAX_FACTOR: Final = 1e6


def rotary_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``rope_scaling`` or ``rope_parameters``; if kept by layer type, those of full attention."""
    written = _rotary_section(config)
    return (
        _fields_of_layer_type(written, FULL)
        if any(isinstance(value, dict) for value in written.values())
        else written
    )


def local_rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary fields of layers with a window, where written by layer type; else empty."""
    return _fields_of_layer_type(_rotary_section(config), SLIDING)


def _rotary_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``rope_scaling`` or else ``rope_parameters`` of a configuration; empty without either."""
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return found if isinstance(found, dict) else {}


def _fields_of_layer_type(rope: Mapping[str, Any], layer_type: str) -> Mapping[str, Any]:
    """The rotary fields written for one layer type (``full_attention`` ..); empty if none are."""
    found = rope.get(layer_type)
    return found if isinstance(found, dict) else {}


def rotary_kind(rope: Mapping[str, Any]) -> str:
    """Kind of rotary positions, ``default`` if none; LongRoPE's first spellings are translated."""
    kind = str(rope.get("rope_type") or rope.get("type") or COMPUTED[0])[:40]
    return "longrope" if kind == "su" or (kind == "yarn" and "short_factor" in rope) else kind


def number_or_none(value: object) -> float | None:
    """A JSON value as a float (infinite if too large); None if it is not a number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def rotary_share(config: Mapping[str, Any], *, usual: float = 1.0) -> float:
    """Share of a head's elements with rotary positions; `usual` if not written."""
    written = (
        rotary_settings(config).get("partial_rotary_factor"),
        config.get("partial_rotary_factor"),
        config.get("rotary_pct"),
    )
    return next((share for one in written if (share := number_or_none(one))), usual)


def rotary_extension(config: Mapping[str, Any], *, source: str) -> Longer | None:
    """The extension of rotary positions to longer contexts; None for none, or an unsupported one.

    Raises:
        ModelError: a number is missing or out of range.
    """
    rope = rotary_settings(config)
    fields = Fields(dict(rope), f"{source}: rope_scaling")
    match rotary_kind(rope):
        case "linear":
            return LongerRotary(factor=_extension_factor(fields))
        case "llama3":
            return _llama3(fields)
        case "dynamic":
            return DynamicRotary(factor=_extension_factor(fields), trained=_context(config, source))
        case "yarn":
            return _yarn(
                fields,
                trained=_original_context(config, fields, source),
                context=number_or_none(config.get("max_position_embeddings")),
            )
        case "proportional":
            share = fields.number("partial_rotary_factor", minimum=0.0, maximum=1.0, default=1.0)
            return ProportionalRotary(share=share, factor=_extension_factor(fields, default=1.0))
        case "longrope":
            return _longrope(
                fields, trained=_original_context(config, fields, source), config=config
            )
    return None


def text_image_rotary(
    config: Mapping[str, Any], *, usual: tuple[int, ...], source: str
) -> TextRotary | None:
    """M-RoPE pairs by row and by column: ``mrope_section``, else `usual`; None if `usual` is empty.

    `usual` holds if ``mrope_section`` is not written.

    Raises:
        ModelError: ``mrope_section`` is not three numbers.
    """
    if not usual:
        return None
    fields = Fields(dict(rotary_settings(config)), f"{source}: rope_scaling")
    sections = (
        fields.integers("mrope_section", maximum=MAX_HEAD_DIM)
        if fields.present("mrope_section")
        else usual
    )
    if len(sections) != 3:
        fields.fail("mrope_section must list three numbers", hint="for example [24, 20, 20]")
    return TextRotary(rows=sections[1], columns=sections[2])


def latent_score_factor(config: Mapping[str, Any], *, longer: Longer | None) -> float:
    """Factor of latent attention's scores besides 1 / sqrt(head width), by YaRN; 1.0 without.

    (0.1 ``mscale_all_dim`` ln(factor) + 1)^2, as the classes of DeepSeek-V2 and V3 in Transformers
    apply the temperature of YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.4) to whole heads.
    """
    everywhere = number_or_none(rotary_settings(config).get("mscale_all_dim"))
    if not isinstance(longer, YarnRotary) or not everywhere or not config.get("kv_lora_rank"):
        return 1.0
    return _yarn_temperature(longer.factor, everywhere) ** 2


def _extension_factor(fields: Fields, *, default: float | None = None) -> float:
    """Factor by which a rotary extension lengthens the context."""
    return fields.number("factor", minimum=1.0, maximum=MAX_FACTOR, default=default)


def _context(config: Mapping[str, Any], source: str) -> float:
    """Longest context in tokens (``max_position_embeddings``); ModelError if not written."""
    return Fields(dict(config), source).number(
        "max_position_embeddings", minimum=1.0, maximum=MAX_TOKENS
    )


def _original_context(config: Mapping[str, Any], fields: Fields, source: str) -> float:
    """Context before extension: ``original_max_position_embeddings``, else the whole context."""
    if config.get(ORIGINAL) is not None:
        return Fields(dict(config), source).number(ORIGINAL, minimum=1.0, maximum=MAX_TOKENS)
    if fields.present(ORIGINAL):
        return fields.number(ORIGINAL, minimum=1.0, maximum=MAX_TOKENS)
    return _context(config, source)


def _llama3(fields: Fields) -> LongerRotary:
    """Read Llama 3's rotary extension: factor, trained context, low and high frequency factors."""
    factor = _extension_factor(fields)
    low, high = (
        fields.number(f"{name}_freq_factor", minimum=1e-3, maximum=MAX_FACTOR)
        for name in ("low", "high")
    )
    trained = fields.number(ORIGINAL, minimum=1.0, maximum=MAX_TOKENS)
    if low >= high:
        fields.fail(
            f"low_freq_factor {low:g} is not below high_freq_factor {high:g}",
            hint="see the published configuration",
        )
    return LongerRotary(factor=factor, trained=trained, low=low, high=high)


def _yarn_temperature(factor: float, weight: float = 1.0) -> float:
    """YaRN's attention temperature 0.1 weight ln(factor) + 1 (Peng et al. 2023, section 3.4)."""
    return 0.1 * weight * log(factor) + 1.0


def _yarn(fields: Fields, *, trained: float, context: float | None) -> YarnRotary:
    """Read YaRN's rotary extension: factor, beta bounds and attention scale, with defaults."""
    factor = _extension_factor(fields, default=max((context or trained) / trained, 1.0))
    of, everywhere = (
        number_or_none(fields.mapping.get(name)) for name in ("mscale", "mscale_all_dim")
    )
    usual = (
        _yarn_temperature(factor, of) / _yarn_temperature(factor, everywhere)
        if of and everywhere
        else _yarn_temperature(factor)
    )
    fast = fields.number("beta_fast", minimum=1e-3, maximum=MAX_FACTOR, default=32.0)
    slow = fields.number("beta_slow", minimum=1e-3, maximum=MAX_FACTOR, default=1.0)
    if slow >= fast:
        fields.fail(
            f"beta_slow {slow:g} is not below beta_fast {fast:g}",
            hint="see the published configuration",
        )
    scale = fields.number("attention_factor", minimum=1e-3, maximum=1e3, default=usual)
    return YarnRotary(
        factor=factor,
        trained=trained,
        fast=fast,
        slow=slow,
        scale=scale,
        whole=fields.flag("truncate", default=True),
    )


def _longrope(fields: Fields, *, trained: float, config: Mapping[str, Any]) -> LongRotary | None:
    """Read LongRoPE's short and long factors and scale; None unless each rotated pair has one.

    The default scale is sqrt(1 + ln(factor) / ln(trained)).
    """
    short, long = (
        _valid_factors(fields.mapping.get(f"{name}_factor")) for name in ("short", "long")
    )
    if not len(short) == len(long) == _rotated_pairs(config, fields.source):
        return None
    factor = _extension_factor(
        fields,
        default=max(
            (number_or_none(config.get("max_position_embeddings")) or trained) / trained, 1.0
        ),
    )
    usual = sqrt(1 + log(factor) / log(trained)) if factor > 1.0 and trained > 1.0 else 1.0
    scale = fields.number("attention_factor", minimum=1e-3, maximum=1e3, default=usual)
    return LongRotary(short=short, long=long, trained=trained, scale=scale)


def _valid_factors(listed: object) -> tuple[float, ...]:
    """Numbers of a list from 1e-6 to 1e6 (LongRoPE factors); others are dropped."""
    numbers = (
        [number_or_none(number) for number in listed] if isinstance(listed, (list, tuple)) else []
    )
    return tuple(
        number
        for number in numbers
        if number is not None and 1 / MAX_FACTOR <= number <= MAX_FACTOR
    )


def _rotated_pairs(config: Mapping[str, Any], source: str) -> int:
    """Number of pairs of elements of a head that rotary positions rotate."""
    fields = Fields(dict(config), source)
    own = "qk_rope_head_dim" if config.get("kv_lora_rank") else "head_dim"
    width = fields.optional_integer(own, maximum=MAX_HEAD_DIM) or fields.hidden() // fields.heads()
    return int(width * min(rotary_share(config), 1.0)) // 2
