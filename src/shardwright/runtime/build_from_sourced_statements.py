"""Builders of frozen descriptions from statements, each a source link and the fields it settles."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Fact

Statement: TypeAlias = tuple[tuple[Fact, Any], ...]
Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSchema(Generic[Thing]):
    """Builder of instances of a dataclass whose every field value comes with a source link.

    Args:
        made: the dataclass; it has a field `facts`, and its fields of type bool are switches.
        what: the dataclass's name in error messages.
        identity: fields that no statement settles, such as the instance's name.
        kept: identity fields that a derived instance does not take from its base, with their empty
            values.
    """

    made: type[Thing]
    what: str
    identity: tuple[str, ...]
    kept: tuple[tuple[str, Any], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """{name: field} of the dataclass without identity fields; statements must settle each."""
        return _settled_fields(self.made, tuple(self.identity))  # type: ignore[arg-type]

    @property
    def off(self) -> dict[str, Any]:
        """{field: value that means off}: False for switches, or a default of 0, None or empty."""
        return _off_values(self.made, tuple(self.identity))  # type: ignore[arg-type]

    @property
    def switches(self) -> set[str]:
        """Names of the boolean fields."""
        return {name for name, value in self.off.items() if value is False}

    def stated(
        self,
        link: str,
        *,
        on: str = "",
        off: str = "",
        checked: bool = False,
        note: str = "",
        **values: Any,
    ) -> Statement:
        """(fact, value) pairs with one link; `on`, `off`: spaced field names; ValueError if wrong.

        Args:
            link: the source.
            on: names of switches that are true, with spaces between.
            off: names of fields that are off, with spaces between: False, 0, None, ``none`` or
                empty. A field whose default is something else has its value written out.
            checked, note: as in `Fact`; `read` is the same for a source that was read.
            values: values of other fields.

        ``stated("https://…/layers.py", on="sequence_parallel", off="capture", gather_prefetch=1)``
        makes three facts with True, ``Capture.NONE`` and 1.

        Raises:
            ValueError: no such field, or it cannot be on or off (a mistake in a file of facts, not
                a user's).
        """
        empty = self.off
        wrong = sorted(
            {*on.split()} - self.switches | {*off.split()} - {*empty} | {*values} - {*self.settings}
        )
        if wrong:
            raise ValueError(f"{link} cannot state {', '.join(wrong)} so")
        pairs = [
            *((name, True) for name in on.split()),
            *((name, empty[name]) for name in off.split()),
            *values.items(),
        ]
        return tuple(
            [
                (Fact(field=name, link=link, checked=checked, note=note), value)
                for name, value in pairs
            ]
        )

    def read(
        self, link: str, *, on: str = "", off: str = "", note: str = "", **values: Any
    ) -> Statement:
        """`stated` for a source that was read: facts with `checked` set."""
        return self.stated(link, on=on, off=off, checked=True, note=note, **values)

    def complete(self, identity: dict[str, Any], *statements: Statement) -> Thing:
        """Build an instance from statements alone; ValueError unless every field is stated once.

        Raises:
            ValueError: a field is not stated, or twice.
        """
        values, facts = collected_facts(f"{self.what} {identity['name']}", statements)
        missing = [name for name in self.settings if name not in values]
        if missing:
            raise ValueError(f"{self.what} {identity['name']}: no fact for {', '.join(missing)}")
        make: Any = self.made
        new: Thing = make(facts=facts, **identity, **values)
        return new

    def derived(self, base: Any, identity: dict[str, Any], *statements: Statement) -> Thing:
        """Copy `base` with the statements' values and facts; ValueError if one is stated twice.

        Raises:
            ValueError: a field is stated twice.
        """
        values, facts = collected_facts(f"{self.what} {identity['name']}", statements)
        base_facts = tuple(fact for fact in base.facts if fact.field not in values)
        new: Thing = replace(
            base, facts=(*base_facts, *facts), **{**dict(self.kept), **identity}, **values
        )
        return new


def collected_facts(
    who: str, statements: tuple[Statement, ...]
) -> tuple[dict[str, Any], tuple[Fact, ...]]:
    """Merge statements into ({field: value}, facts); `who` names their owner in errors.

    Raises:
        ValueError: a field is stated twice.
    """
    pairs = [pair for statement in statements for pair in statement]
    names = [fact.field for fact, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{who}: stated twice: {', '.join(twice)}")
    return {fact.field: value for fact, value in pairs}, tuple(fact for fact, _ in pairs)


@cache
def _settled_fields(made: type, identity: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a dataclass except the identity fields, by name; cached."""
    return {field.name: field for field in fields(made) if field.name not in identity}


@cache
def _off_values(made: type, identity: tuple[str, ...]) -> dict[str, Any]:
    """{field: value when off}: False for switches; for others a default of 0, None or empty."""
    off: dict[str, Any] = {}
    for name, field in _settled_fields(made, identity).items():
        if field.type == "bool":
            off[name] = False
        elif field.default in (0, None, "none", "", ()):
            off[name] = field.default
    return off
