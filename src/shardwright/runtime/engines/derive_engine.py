"""Constructors of serving engines from statements (`runtime.statements`), or from another version
and the differences.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.runtime.engines.engine import Engine, Setting
from shardwright.runtime.statements import FactSchema, Statement

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
_ENGINE: Final = FactSchema(
    made=Engine,
    what="engine",
    identity=IDENTITY,
    kept=(("aliases", ()), ("options", ()), ("base", ""), ("asked", "")),
)

stated: Final = _ENGINE.stated
read: Final = _ENGINE.read


def named(name: str, version: str, *, engine: str = "", released: str = "") -> dict[str, Any]:
    """Identity fields of an engine: its catalog name and version, and those that differ from its
    base's.
    """
    return {
        "name": name,
        "version": version,
        "released": released,
        **({"engine": engine} if engine else {}),
    }


def engine(
    identity: dict[str, Any], *statements: Statement, settings: tuple[Setting, ...]
) -> Engine:
    """An engine built from statements alone, with its options.

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
    """`base` with the changes of the statements, and with `settings` in place of its settings of
    the same options.

    Raises:
        ValueError: a field is stated twice.
    """
    replaced = {setting.option for setting in settings}
    base_settings = tuple(setting for setting in base.settings if setting.option not in replaced)
    return _ENGINE.derived(base, {**identity, "settings": (*base_settings, *settings)}, *statements)
