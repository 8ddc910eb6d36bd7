"""A serving engine is written as statements (`runtime.statements`); or as another version and what
differs.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.runtime.engines.engine import Engine, Setting
from shardwright.runtime.statements import Described, Statement

IDENTITY: Final = (
    "name",
    "engine",
    "version",
    "released",
    "facts",
    "settings",
    "options",
    "base",
    "asked",
    "aliases",
)
_ENGINE: Final = Described(
    made=Engine,
    what="engine",
    identity=IDENTITY,
    kept=(("aliases", ()), ("options", ()), ("base", ""), ("asked", "")),
)

stated: Final = _ENGINE.stated
read: Final = _ENGINE.read


def named(name: str, version: str, *, engine: str = "", released: str = "") -> dict[str, Any]:
    """Who an engine is: its catalog name and version, and what else is not its base's."""
    return {
        "name": name,
        "version": version,
        "released": released,
        **({"engine": engine} if engine else {}),
    }


def engine(
    identity: dict[str, Any], *statements: Statement, settings: tuple[Setting, ...]
) -> Engine:
    """An engine of its own, with the options that it has.

    Raises:
        ValueError: a field is not stated, or twice.
    """
    return _ENGINE.complete({**identity, "settings": settings}, *statements)


def derive(
    base: Engine,
    identity: dict[str, Any],
    *statements: Statement,
    settings: tuple[Setting, ...] = (),
) -> Engine:
    """`base` with what the statements change, and with `settings` in place of its own of the same
    options.

    Raises:
        ValueError: a field is stated twice.
    """
    fresh = {setting.option for setting in settings}
    kept = tuple(setting for setting in base.settings if setting.option not in fresh)
    return _ENGINE.derived(base, {**identity, "settings": (*kept, *settings)}, *statements)
