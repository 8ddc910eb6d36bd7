"""Serving engines by name and version: a file for each engine, loaded when one of its versions is
asked for.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.registry import Registry
from shardwright.runtime.engines.engine import Engine
from shardwright.runtime.engines.options import with_options

_VERSIONS: Final = Registry[tuple[Engine, ...]](
    "serving engine",
    {
        "vllm": "shardwright.runtime.engines.vllm:VERSIONS",
        "sglang": "shardwright.runtime.engines.sglang:VERSIONS",
        "tensorrt-llm": "shardwright.runtime.engines.tensorrt_llm:VERSIONS",
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
"""Tags of Dynamo's TensorRT-LLM container that stand where an engine's version should: the version
that they hold.

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
    """Names of all described versions, an engine's in the order of its versions."""
    return tuple(one.name for word in _VERSIONS for one in _versions(word))


def all_engines() -> tuple[Engine, ...]:
    """All described versions."""
    return tuple(one for word in _VERSIONS for one in _versions(word))


def engine_called(text: str) -> Engine:
    """The engine of a name (letter case does not matter) with the options behind it: ``vllm-0.12
    token_budget=16384``.

    ``vllm 0.12.0``, ``trtllm-1.2.0rc6.post2`` and ``sglang`` (its newest version) are names too. A
    version that is not described is answered for by the nearest described one before it, the oldest
    where there is none before; `asked` then says which was meant.

    Raises:
        RuntimeModelError: there is no such engine; the hint names the nearest. Or an option is none
        of it, as `options.with_options` says.
    """
    words = text.lower().split() if len(text) <= MAX_TEXT else []
    name = words[0] if words else text.strip().lower()
    rest = words[1:]
    if rest and "=" not in rest[0]:
        name, rest = f"{name} {rest[0]}", rest[1:]
    found = _NAME.fullmatch(name)
    if found is None:
        raise RuntimeModelError(
            f"unknown serving engine {name[:80]!r}",
            hint=nearest(name, (*engine_names(), *_ENGINES)),
        )
    version = found["version"] or ""
    if version and _order(version) is None:
        raise RuntimeModelError(
            f"{version[:40]!r} is not a version of {_ENGINES[found['engine']]}",
            hint="such as 0.12.0 or 1.2.0rc6.post2",
        )
    return with_options(
        _version(_ENGINES[found["engine"]], version), [_pair(word, name) for word in rest]
    )


def notice(engine: Engine) -> str:
    """That it answers for a version that is not described; empty where it does not."""
    return (
        f"{engine.base or engine.name} answers for {engine.asked}, which is not described"
        if engine.asked
        else ""
    )


def _pair(word: str, name: str) -> tuple[str, str]:
    option, mark, value = word.partition("=")
    if not mark:
        raise RuntimeModelError(
            f"{word[:80]!r} behind {name[:80]} is not option=value",
            hint="such as token_budget=8192",
        )
    return option, value


@cache
def _version(word: str, version: str) -> Engine:
    """The engine's described version that is `version`, or answers for it."""
    known = _versions(word)
    if not version:
        return known[-1]
    meant = DYNAMO.get(version, version) if word == "tensorrt-llm" else version
    exact = next(
        (
            one
            for one in known
            if meant in {one.version, one.name.removeprefix(f"{word}-"), *one.aliases}
        ),
        None,
    )
    if exact is not None:
        return exact if meant == version else replace(exact, asked=version)
    said = _order(meant) or (0, 0, 0, 0, 0)
    earlier = [one for one in known if (_order(one.version) or said) <= said]
    return replace(earlier[-1] if earlier else known[0], asked=version)


@cache
def _versions(word: str) -> tuple[Engine, ...]:
    """Described versions of an engine, the oldest first."""
    return _VERSIONS.load(word)


def _order(version: str) -> Order | None:
    """Where a version stands among others: ``1.2.0rc6.post2`` is before ``1.2.0``. None: it is no
    version.
    """
    found = _VERSION_PATTERN.fullmatch(version)
    if found is None:
        return None
    major, minor, patch, candidate, post = (int(part) if part else 0 for part in found.groups())
    return (major, minor, patch, candidate if found[4] else 1 << 30, post)
