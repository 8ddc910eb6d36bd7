"""A training runtime is written as statements (`statements.Described`); or as another runtime and
what differs.
"""

from __future__ import annotations

from typing import Final

from shardwright.runtime.runtime import Offer, Runtime
from shardwright.runtime.statements import Described, Statement, settled

__all__ = ["IDENTITY", "Statement", "derive", "named", "read", "runtime", "settled", "stated"]

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
_RUNTIME: Final = Described(
    made=Runtime, what="runtime", identity=IDENTITY, kept=(("aliases", ()),)
)

stated: Final = _RUNTIME.stated
read: Final = _RUNTIME.read


def named(
    name: str, *, framework: str = "", version: str = "", released: str = ""
) -> dict[str, str]:
    """Who a runtime is: its catalog name, and what else is not its base's."""
    given = {"framework": framework, "version": version, "released": released}
    return {"name": name, **{key: text for key, text in given.items() if text}}


def runtime(
    identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()
) -> Runtime:
    """A framework of its own, with the options that it `offers`.

    Raises:
        ValueError: a field is not stated, or twice.
    """
    return _RUNTIME.complete({**identity, "offers": offers}, *statements)


def derive(
    base: Runtime, identity: dict[str, str], *statements: Statement, offers: tuple[Offer, ...] = ()
) -> Runtime:
    """`base` with what the statements change; their facts take the place of the base's facts on the
    same fields, `offers` that of its own.

    Raises:
        ValueError: a field is stated twice.
    """
    return _RUNTIME.derived(base, {**identity, "offers": offers}, *statements)
