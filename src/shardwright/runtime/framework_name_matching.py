"""Recognition of a runtime from a framework's everyday name, such as ``NeMo 25.07``."""

from __future__ import annotations

import re
from typing import Final

_FAMILIES: Final = (
    (
        re.compile(r"megatron[- ]?deepspeed|deepspeed[- ]?megatron|gpt[- ]?neox|bigscience"),
        (("", "deepspeed-2022"),),
    ),
    (re.compile(r"megatron[- ]?bridge|\bmbridge\b"), (("", "megatron-bridge"),)),
    (
        re.compile(r"megatron[- ]?(?:lm|core)?|\bm[- ]?core\b"),
        (
            *((f"0.{n}", f"megatron-core-0.{n}") for n in range(5, 13)),
            *(("0.15", "megatron-core-0.16"), ("1", "megatron-2021"), ("3", "megatron-2022")),
        ),
    ),
    (
        re.compile(r"\bnemo\b"),
        (
            ("", "nemo-24.07"),
            ("2", "nemo-24.11"),
            ("3", "nemo-24.07"),
            ("24.9", "nemo-24.11"),
            ("25.4", "nemo-25.04"),
        ),
    ),
    (
        re.compile(r"deepspeed|\bzero[- ]?infinity\b"),
        (("", "deepspeed-2021"), ("0.6", "deepspeed-0.16")),
    ),
    (
        re.compile(r"torch[- ]?titan|\bfsdp[- ]?2\b|fully_shard"),
        (("", "torchtitan-0.1"), ("0.2", "torchtitan-0.2")),
    ),
    (re.compile(r"llm[- ]?foundry|\bcomposer\b|\bfsdp1?\b|mosaicml"), (("", "fsdp1-llm-foundry"),)),
    (re.compile(r"intern(?:evo|lm)"), (("", "internevo"),)),
    (re.compile(r"nanotron"), (("", "nanotron"),)),
    (re.compile(r"pax(?:ml)?\b"), (("", "paxml"),)),
    (re.compile(r"maxtext"), (("", "maxtext"),)),
    (re.compile(r"hai[- ]?llm"), (("", "deepseek-v3"),)),
    (re.compile(r"shardwright"), (("", "shardwright"),)),
)
"""Pattern of a framework's name -> (first version, runtime), in order of versions. Megatron-LM
counted to 3 before Megatron-Core began at 0.1. NeMo counted to 2 before it took the year and month
of its container.
"""
_USUAL: Final = {
    "megatron-core-0.12": (
        *(f"megatron-core-0.{n}" for n in range(5, 13)),
        "megatron-core-0.16",
        "megatron-2021",
        "megatron-2022",
    ),
    "nemo-24.11": ("nemo-24.07", "nemo-24.11", "nemo-25.04"),
    "deepspeed-0.16": ("deepspeed-2021", "deepspeed-0.16"),
    "torchtitan-0.2": ("torchtitan-0.1", "torchtitan-0.2"),
}
"""Usual runtime of a framework named without a version -> the runtimes of that framework."""
_VERSION: Final = re.compile(
    r"(?<![0-9a-z.])(?<!zero-)(?<!zero )(?<!stage )v?([0-9]{1,2})(?:\.([0-9]{1,2}))?(?![0-9a-z])"
)


def nearest_runtime_name(words: str) -> str:
    """Runtime named in text, newest up to its version; the usual one without a version; else empty.

    The newest runtime that is not newer than the version; the oldest for older versions; without a
    version the usual runtime of the framework's bare name.
    """
    text = words.lower().replace("_", "-")
    for pattern, bases in _FAMILIES:
        match = pattern.search(text)
        if match is None:
            continue
        names = tuple(name for _, name in bases)
        version = _VERSION.search(text, match.end())
        if version is None or len(bases) == 1:
            return next((usual for usual, family in _USUAL.items() if names[0] in family), names[0])
        version_number = (int(version[1]), int(version[2] or 0))
        return next(
            (
                name
                for oldest_version, name in reversed(bases)
                if _number(oldest_version) <= version_number
            ),
            names[0],
        )
    return ""


def _number(text: str) -> tuple[int, int]:
    """Parse ``major`` or ``major.minor`` as (major, minor); ValueError for a third part."""
    major, _, minor = text.partition(".")
    return (int(major or 0), int(minor or 0))
