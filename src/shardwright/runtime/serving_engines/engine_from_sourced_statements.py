"""Constructors of serving engines, from statements alone or from a base version and changes.

See `runtime.build_from_sourced_statements`.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.runtime.build_from_sourced_statements import FactSchema, Statement
from shardwright.runtime.serving_engines.serving_engine import Engine, EngineSetting

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


def identity_fields(
    name: str, version: str, *, engine: str = "", released: str = ""
) -> dict[str, Any]:
    """Identity fields of a serving engine: catalog name, version, release month, engine family."""
    return {
        "name": name,
        "version": version,
        "released": released,
        **({"engine": engine} if engine else {}),
    }


def engine(
    identity: dict[str, Any], *statements: Statement, settings: tuple[EngineSetting, ...]
) -> Engine:
    """Build a serving engine with its options; ValueError unless each field is stated once.

    Raises:
        ValueError: a field is not stated, or twice.
    """
    return _ENGINE.complete({**identity, "settings": settings}, *statements)


def derive(
    base: Engine,
    identity: dict[str, Any],
    *statements: Statement,
    settings: tuple[EngineSetting, ...] = (),
) -> Engine:
    """Copy a base engine; statements replace fields, `settings` the settings of the same options.

    `settings` replace the base's settings of the same options.

    Raises:
        ValueError: a field is stated twice.
    """
    replaced = {setting.option for setting in settings}
    base_settings = tuple(setting for setting in base.settings if setting.option not in replaced)
    return _ENGINE.derived(base, {**identity, "settings": (*base_settings, *settings)}, *statements)
