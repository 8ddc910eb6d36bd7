"""Registry of objects by name, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from shardwright.errors import ShardwrightError, UsageError, nearest

T = TypeVar("T")
MAX_LETTERS = 80
"""Letters of an unknown name in an error."""


def load_target(target: str) -> Any:
    """Import the object that ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Generic[T]):
    """Members of a family by name and alias, each imported on first use.

    Args:
        kind: the family in the singular, as in error messages: ``schedule``.
        targets: ``module:attribute`` of each member.
        aliases: other names, each with the name in `targets`.
        error: makes the error of an unknown name, with its message and ``hint``.
    """

    def __init__(
        self,
        kind: str,
        targets: Mapping[str, str],
        *,
        aliases: Mapping[str, str] | None = None,
        error: Callable[..., ShardwrightError] = UsageError,
    ) -> None:
        self._kind, self._error = kind, error
        self._targets, self._aliases = dict(targets), dict(aliases or {})

    @property
    def targets(self) -> Mapping[str, str]:
        """Member name -> its ``module:attribute``."""
        return MappingProxyType(self._targets)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all members, without aliases, in their order."""
        return iter(self._targets)

    def __len__(self) -> int:
        """The number of members."""
        return len(self._targets)

    def __contains__(self, name: object) -> bool:
        """True if a member has this name or alias."""
        return name in self._targets or name in self._aliases

    def name_of(self, name: str) -> str:
        """Registered name for a name or an alias; raises with the nearest names if unknown.

        Raises:
            ShardwrightError: of the class `error`; the hint has the nearest names.
        """
        if name not in self:
            raise self._error(
                f"unknown {self._kind} {name[:MAX_LETTERS]!r}",
                hint=nearest(name, (*self._targets, *self._aliases)),
            )
        return self._aliases.get(name, name)

    def load(self, name: str) -> T:
        """Import the member with a name or an alias; raises if the name is unknown."""
        member: T = load_target(self._targets[self.name_of(name)])
        return member
