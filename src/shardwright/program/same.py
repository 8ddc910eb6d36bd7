"""Values that are known by what they are, not by what is in them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Same(Generic[T]):
    """A value that equals only itself, where comparing all that is in it takes longer than what is
    kept for it saves.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


def one_of_equals(value: H) -> H:
    """The first of equal values that was asked for lately: what is kept for a value by what it is
    then serves all its equals.
    """
    known: H = _known(value)  # type: ignore[assignment]
    return known


@lru_cache(maxsize=256)
def _known(value: Hashable) -> Hashable:
    return value
