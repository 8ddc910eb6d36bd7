"""Catalog of serving engines by name and version; an engine's file loads on first use."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.registry import Registry
from shardwright.runtime.serving_engines.engine_options import engine_with_options
from shardwright.runtime.serving_engines.serving_engine import Engine

_VERSIONS: Final = Registry[tuple[Engine, ...]](
    "serving engine",
    {
        "vllm": "shardwright.runtime.serving_engines.vllm:VERSIONS",
        "sglang": "shardwright.runtime.serving_engines.sglang:VERSIONS",
        "tensorrt-llm": "shardwright.runtime.serving_engines.tensorrt_llm:VERSIONS",
    },
    error=RuntimeModelError,
)
_ENGINES: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
    "tensorrtllm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "trt": "tensorrt-llm",
}
DYNAMO: Final = {
    "0.8.1.post1": "1.2.0rc6.post1",
    "0.8.1.post2": "1.2.0rc6.post2",
    "0.8.1.post3": "1.2.0rc6.post3",
}
"""Tag of Dynamo's TensorRT-LLM container -> version of the engine in the container.


Source: https://docs.nvidia.com/dynamo/getting-started/support-matrix.
"""
_NAME: Final = re.compile(
    r"(?P<engine>"
    + "|".join(sorted(_ENGINES, key=len, reverse=True))
    + r")(?:[-_ ]?v?(?P<version>[0-9].*))?"
)
_VERSION_PATTERN: Final = re.compile(
    r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.([0-9]{1,4}))?(?:rc([0-9]{1,4}))?(?:\.?post([0-9]{1,4}))?"
)
MAX_TEXT: Final = 2000
Order = tuple[int, int, int, int, int]


def engine_names() -> tuple[str, ...]:
    """Names of all described engine versions, by engine family, the oldest version first."""
    return tuple(one.name for word in _VERSIONS for one in _described_versions(word))


def all_engines() -> tuple[Engine, ...]:
    """All described engine versions."""
    return tuple(one for word in _VERSIONS for one in _described_versions(word))


def load_engine(text: str) -> Engine:
    """Engine of text ``vllm-0.12 option=value``; the nearest earlier version if not described.

    Text such as ``vllm-0.12 token_budget=16384``; letter case does not matter.

    ``vllm 0.12.0``, ``trtllm-1.2.0rc6.post2`` and ``sglang`` (its newest version) are names too. A
    version that is not described is represented by the nearest described one before it, the oldest
    where there is none before; `asked` is then the version of the text.

    Raises:
        RuntimeModelError: an unknown engine (the hint has the nearest), or an option that it does
            not
            have (see `options.engine_with_options`).
    """
    words = text.lower().split() if len(text) <= MAX_TEXT else []
    name = words[0] if words else text.strip().lower()
    option_words = words[1:]
    if option_words and "=" not in option_words[0]:
        name, option_words = f"{name} {option_words[0]}", option_words[1:]
    match = _NAME.fullmatch(name)
    if match is None:
        raise RuntimeModelError(
            f"unknown serving engine {name[:80]!r}",
            hint=nearest(name, (*engine_names(), *_ENGINES)),
        )
    version = match["version"] or ""
    if version and _version_key(version) is None:
        raise RuntimeModelError(
            f"{version[:40]!r} is not a version of {_ENGINES[match['engine']]}",
            hint="such as 0.12.0 or 1.2.0rc6.post2",
        )
    return engine_with_options(
        _described_version(_ENGINES[match["engine"]], version),
        [_option_value(word, name) for word in option_words],
    )


def version_notice(engine: Engine) -> str:
    """Sentence that names the described version used for an undescribed one; empty if none is."""
    return (
        f"{engine.base or engine.name} answers for {engine.asked}, which is not described"
        if engine.asked
        else ""
    )


def _option_value(word: str, name: str) -> tuple[str, str]:
    """Split one ``option=value`` word; RuntimeModelError if it has no equals sign."""
    option, mark, value = word.partition("=")
    if not mark:
        raise RuntimeModelError(
            f"{word[:80]!r} behind {name[:80]} is not option=value",
            hint="such as token_budget=8192",
        )
    return option, value


@cache
def _described_version(family: str, version: str) -> Engine:
    """Described version equal to `version`, else nearest earlier, else oldest; newest if empty."""
    described_versions = _described_versions(family)
    if not version:
        return described_versions[-1]
    engine_version = DYNAMO.get(version, version) if family == "tensorrt-llm" else version
    exact = next(
        (
            engine
            for engine in described_versions
            if engine_version
            in {engine.version, engine.name.removeprefix(f"{family}-"), *engine.aliases}
        ),
        None,
    )
    if exact is not None:
        return exact if engine_version == version else replace(exact, asked=version)
    wanted_key = _version_key(engine_version) or (0, 0, 0, 0, 0)
    earlier = [
        engine
        for engine in described_versions
        if (_version_key(engine.version) or wanted_key) <= wanted_key
    ]
    return replace(earlier[-1] if earlier else described_versions[0], asked=version)


@cache
def _described_versions(word: str) -> tuple[Engine, ...]:
    """Described versions of an engine family, the oldest first."""
    return _VERSIONS.load(word)


def _version_key(version: str) -> Order | None:
    """Sort key of a version, such that ``1.2.0rc6.post2`` is before ``1.2.0``; None if invalid."""
    match = _VERSION_PATTERN.fullmatch(version)
    if match is None:
        return None
    major, minor, patch, candidate, post = (int(part) if part else 0 for part in match.groups())
    return (major, minor, patch, candidate if match[4] else 1 << 30, post)
