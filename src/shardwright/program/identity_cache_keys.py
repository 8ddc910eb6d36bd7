"""Keys that compare values by identity, for caches."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Same(Generic[T]):
    """A cache key that equals only keys of the same object.

    Comparing the contents would take longer than the cache saves.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


def one_of_equals(value: H) -> H:
    """The first object equal to `value` passed lately, so that equal values share an identity.

    Caches by identity then serve all equals.
    """
    first_object: H = _first_of_equals(value)  # type: ignore[assignment]
    return first_object


@lru_cache(maxsize=256)
def _first_of_equals(value: Hashable) -> Hashable:
    """The first of equal values that was passed lately (an LRU cache of values)."""
    return value
