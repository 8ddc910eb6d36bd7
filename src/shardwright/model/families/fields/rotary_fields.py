"""Rotary positions of a Hugging Face configuration: share of a head, and extension to longer
contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log, sqrt
from typing import Any, Final

from shardwright.model.blocks.attention_windows import FULL, SLIDING
from shardwright.model.ir.config_fields import MAX_HEAD_DIM, Fields
from shardwright.model.ir.operator_constants import (
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
"""Those that differ with the length of a sequence."""
ORIGINAL: Final = "original_max_position_embeddings"
MAX_TOKENS: Final = 1e12
MAX_FACTOR: Final = 1e6


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of rotary positions in either spelling; where they differ by type of layer, of those
    that see all keys.
    """
    found = _written(config)
    return (
        _of_layers(found, FULL)
        if any(isinstance(value, dict) for value in found.values())
        else found
    )


def local_rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary fields of layers with a window, where they are written separately."""
    return _of_layers(_written(config), SLIDING)


def _written(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return found if isinstance(found, dict) else {}


def _of_layers(rope: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = rope.get(kind)
    return found if isinstance(found, dict) else {}


def kind_of(rope: Mapping[str, Any]) -> str:
    """The kind's name; LongRoPE's first ones were ``su`` and ``yarn``."""
    kind = str(rope.get("rope_type") or rope.get("type") or COMPUTED[0])[:40]
    return "longrope" if kind == "su" or (kind == "yarn" and "short_factor" in rope) else kind


def number_of(value: object) -> float | None:
    """A number that was written, infinite where it is larger than any float; None for none, and for
    what is no number.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def share_of(config: Mapping[str, Any], *, usual: float = 1.0) -> float:
    """The part of a head's width that is turned; `usual` where it is not written."""
    written = (
        rope_of(config).get("partial_rotary_factor"),
        config.get("partial_rotary_factor"),
        config.get("rotary_pct"),
    )
    return next((share for one in written if (share := number_of(one))), usual)


def longer_of(config: Mapping[str, Any], *, source: str) -> Longer | None:
    """The extension of rotary positions to longer contexts; None = none, or one that is not
    computed.

    Raises:
        ModelError: a number lacks, or is none that it can be.
    """
    rope = rope_of(config)
    fields = Fields(dict(rope), f"{source}: rope_scaling")
    match kind_of(rope):
        case "linear":
            return LongerRotary(factor=_factor(fields))
        case "llama3":
            return _llama3(fields)
        case "dynamic":
            return DynamicRotary(factor=_factor(fields), trained=_context(config, source))
        case "yarn":
            return _yarn(
                fields,
                trained=_trained(config, fields, source),
                context=number_of(config.get("max_position_embeddings")),
            )
        case "proportional":
            share = fields.number("partial_rotary_factor", minimum=0.0, maximum=1.0, default=1.0)
            return ProportionalRotary(share=share, factor=_factor(fields, default=1.0))
        case "longrope":
            return _long(fields, trained=_trained(config, fields, source), config=config)
    return None


def text_turns(
    config: Mapping[str, Any], *, usual: tuple[int, ...], source: str
) -> TextRotary | None:
    """The rotation of pairs by time, row and column in a text with images; `usual` where
    ``mrope_section`` is not written, () = none.

    Raises:
        ModelError: that is not three numbers.
    """
    if not usual:
        return None
    fields = Fields(dict(rope_of(config)), f"{source}: rope_scaling")
    sections = (
        fields.integers("mrope_section", maximum=MAX_HEAD_DIM)
        if fields.present("mrope_section")
        else usual
    )
    if len(sections) != 3:
        fields.fail("mrope_section must list three numbers", hint="for example [24, 20, 20]")
    return TextRotary(rows=sections[1], columns=sections[2])


def latent_score_factor(config: Mapping[str, Any], *, longer: Longer | None) -> float:
    """The factor of latent attention's scores beside one over the root of a head's width.

    (0.1 ``mscale_all_dim`` ln(factor) + 1)^2, as the classes of DeepSeek-V2 and V3 in Transformers
    apply the temperature of YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.4) to whole heads.
    """
    everywhere = number_of(rope_of(config).get("mscale_all_dim"))
    if not isinstance(longer, YarnRotary) or not everywhere or not config.get("kv_lora_rank"):
        return 1.0
    return _longer_by(longer.factor, everywhere) ** 2


def _factor(fields: Fields, *, default: float | None = None) -> float:
    return fields.number("factor", minimum=1.0, maximum=MAX_FACTOR, default=default)


def _context(config: Mapping[str, Any], source: str) -> float:
    return Fields(dict(config), source).number(
        "max_position_embeddings", minimum=1.0, maximum=MAX_TOKENS
    )


def _trained(config: Mapping[str, Any], fields: Fields, source: str) -> float:
    """Positions of the first training: of the model, of its rotary positions, or its context."""
    if config.get(ORIGINAL) is not None:
        return Fields(dict(config), source).number(ORIGINAL, minimum=1.0, maximum=MAX_TOKENS)
    if fields.present(ORIGINAL):
        return fields.number(ORIGINAL, minimum=1.0, maximum=MAX_TOKENS)
    return _context(config, source)


def _llama3(fields: Fields) -> LongerRotary:
    factor = _factor(fields)
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


def _longer_by(factor: float, weight: float = 1.0) -> float:
    """0.1 weight ln(factor) + 1 (Peng et al. 2023, section 3.4)."""
    return 0.1 * weight * log(factor) + 1.0


def _yarn(fields: Fields, *, trained: float, context: float | None) -> YarnRotary:
    factor = _factor(fields, default=max((context or trained) / trained, 1.0))
    of, everywhere = (number_of(fields.mapping.get(name)) for name in ("mscale", "mscale_all_dim"))
    usual = (
        _longer_by(factor, of) / _longer_by(factor, everywhere)
        if of and everywhere
        else _longer_by(factor)
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


def _long(fields: Fields, *, trained: float, config: Mapping[str, Any]) -> LongRotary | None:
    """Factors of every pair, and sqrt(1 + ln(factor) / ln(trained)) as scale where none is written;
    None: some pair has no factor.
    """
    short, long = (_factors(fields.mapping.get(f"{name}_factor")) for name in ("short", "long"))
    if not len(short) == len(long) == _pairs(config, fields.source):
        return None
    factor = _factor(
        fields,
        default=max((number_of(config.get("max_position_embeddings")) or trained) / trained, 1.0),
    )
    usual = sqrt(1 + log(factor) / log(trained)) if factor > 1.0 and trained > 1.0 else 1.0
    scale = fields.number("attention_factor", minimum=1e-3, maximum=1e3, default=usual)
    return LongRotary(short=short, long=long, trained=trained, scale=scale)


def _factors(listed: object) -> tuple[float, ...]:
    """The elements of a list that may be factors."""
    numbers = [number_of(one) for one in listed] if isinstance(listed, (list, tuple)) else []
    return tuple(one for one in numbers if one is not None and 1 / MAX_FACTOR <= one <= MAX_FACTOR)


def _pairs(config: Mapping[str, Any], source: str) -> int:
    """Pairs of turned elements a head."""
    fields = Fields(dict(config), source)
    own = "qk_rope_head_dim" if config.get("kv_lora_rank") else "head_dim"
    width = fields.optional_integer(own, maximum=MAX_HEAD_DIM) or fields.hidden() // fields.heads()
    return int(width * min(share_of(config), 1.0)) // 2
