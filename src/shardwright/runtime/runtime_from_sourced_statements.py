"""Constructors of training runtimes, from statements alone or from a base runtime and changes.

See `build_from_sourced_statements.FactSchema`.
"""

from __future__ import annotations

from typing import Final

from shardwright.runtime.build_from_sourced_statements import FactSchema, Statement, collected_facts
from shardwright.runtime.framework_description import Offer, Runtime

__all__ = [
    "IDENTITY",
    "Statement",
    "derive",
    "identity_fields",
    "read",
    "runtime",
    "collected_facts",
    "stated",
]

IDENTITY: Final = (
    "name",
    "framework",
    "version",
    "released",
    "facts",
    "offers",
    "own",
    "options",
    "base",
    "aliases",
)
_RUNTIME: Final = FactSchema(
    made=Runtime, what="runtime", identity=IDENTITY, kept=(("aliases", ()),)
)

stated: Final = _RUNTIME.stated
read: Final = _RUNTIME.read


def identity_fields(
    name: str, *, framework: str = "", version: str = "", released: str = ""
) -> dict[str, str]:
    """Identity fields of a runtime: its catalog name, and the given non-empty fields."""
    given = {"framework": framework, "version": version, "released": released}
    return {"name": name, **{key: text for key, text in given.items() if text}}


def runtime(
    identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()
) -> Runtime:
    """Build a runtime with `offers` from statements; ValueError unless each field is stated once.

    Raises:
        ValueError: a field is not stated, or twice.
    """
    return _RUNTIME.complete({**identity, "offers": offers}, *statements)


def derive(
    base: Runtime, identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()
) -> Runtime:
    """Copy a base runtime; replace stated fields with their facts, and all its `offers`.

    The statements' facts replace the base's facts on the same fields.

    Raises:
        ValueError: a field is stated twice.
    """
    return _RUNTIME.derived(base, {**identity, "offers": offers}, *statements)
