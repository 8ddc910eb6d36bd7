"""Pinned and excluded values of a request, for the stages of mixed plans.

Tensor parallel degrees, microbatch sizes, ZeRO stages and options of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import BY_NAME
from shardwright.search.grid.members.pinned_and_excluded_values import PINNABLE

FREE: Final = ("tp", "mbs")
"""Stage axes whose values are searched; for models with experts also ep."""
ZERO: Final = ("1", "2", "3")
"""ZeRO stages that lanes may have."""
FIXED: Final[Mapping[str, str]] = {"schedule": "1f1b", "cp": "1", "ep": "1", "etp": "1", "vpp": "1"}
"""Axes with one value in all mixed pipelines.

A pin that has this value among others leaves the others to the grids of a pool alone.
"""

Words = tuple[tuple[str, tuple[str, ...]], ...]
"""(axis, values) pairs of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedValues:
    """Values that a request pins or excludes for stages of mixed plans.

    Args:
        pins, excludes: the request's words, by axis; grids of a pool alone take them too.
        tp, ep, mbs: pinned values, () = all.
        without_tp, without_ep, without_mbs: excluded ones.
        zero: ZeRO stages that lanes may have.
        said: options behind the runtime's name, which keep their value.
    """

    pins: Words = ()
    excludes: Words = ()
    tp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    mbs: tuple[int, ...] = ()
    without_tp: tuple[int, ...] = ()
    without_ep: tuple[int, ...] = ()
    without_mbs: tuple[int, ...] = ()
    zero: tuple[int, ...] = (1, 2, 3)
    said: tuple[str, ...] = ()

    def has_zero(self, zero: int) -> bool:
        """True if lanes of this ZeRO stage are allowed."""
        return zero in self.zero

    def has(self, *, tp: int, ep: int) -> bool:
        """True if stages of these tensor and expert parallel degrees are allowed."""
        not_excluded = (not self.tp or tp in self.tp) and (not self.ep or ep in self.ep)
        return not_excluded and tp not in self.without_tp and ep not in self.without_ep

    def sizes(self, usual: tuple[int, ...]) -> tuple[int, ...]:
        """Allowed microbatch sizes, ascending: the pinned sizes, else the usual ones."""
        return tuple(sorted(b for b in self.mbs or usual if b not in self.without_mbs))

    @property
    def options(self) -> Options:
        """(name, first pinned value) of each pinned option of the runtime."""
        return tuple((name, values[0]) for name, values in self.pins if name in BY_NAME)

    def text(self) -> str:
        """Describe the pinned and excluded values; empty = none."""
        said = [f"{axis}={','.join(values)}" for axis, values in self.pins]
        return ", ".join(
            [*said, *(f"not {axis}={','.join(values)}" for axis, values in self.excludes)]
        )


def pinned_values_of(
    pins: Words, excludes: Words, *, pipelines: bool = True, experts: bool = False
) -> PinnedValues:
    """Read the pinned and excluded values of a request for a mixed search.

    Args:
        pipelines: pipelines of the model are searched (`stage_tables.why_no_pipelines`); else any
            axis can be pinned.
        experts: the model has experts.

    Raises:
        UsageError: an axis that mixed plans do not have, or a value that none of them can have.
    """
    if not pipelines:
        return PinnedValues(pins=tuple(sorted(pins)), excludes=tuple(sorted(excludes)))
    free = (*FREE, "ep") if experts else FREE
    for some, kept in ((pins, True), (excludes, False)):
        for axis, values in some:
            _require_axis(axis)
            if axis in FIXED and axis not in free and (FIXED[axis] in values) != kept:
                said = f"all pipelines of a mixed cluster have {axis}={FIXED[axis]}"
                raise UsageError(said, hint=f"leave {axis} free, or plan each kind of device alone")
    zero = _zero_stages_left(dict(pins).get("zero", ZERO), dict(excludes).get("zero", ()))
    pinned, excluded = (
        {axis: _degrees(axis, words) for axis, words in some if axis in free}
        for some in (pins, excludes)
    )
    return PinnedValues(
        pins=tuple(sorted(pins)),
        excludes=tuple(sorted(excludes)),
        tp=pinned.get("tp", ()),
        ep=pinned.get("ep", ()),
        mbs=pinned.get("mbs", ()),
        without_tp=excluded.get("tp", ()),
        without_ep=excluded.get("ep", ()),
        without_mbs=excluded.get("mbs", ()),
        zero=zero,
    )


def _zero_stages_left(pinned: tuple[str, ...], excluded: tuple[str, ...]) -> tuple[int, ...]:
    """ZeRO stages that pins and excludes leave; raises if there are none."""
    left = tuple(int(zero) for zero in ZERO if zero in pinned and zero not in excluded)
    if not left:
        raise UsageError(
            f"all pipelines of a mixed cluster have zero={','.join(ZERO)}",
            hint="leave one of them, or plan each kind of device alone",
        )
    return left


def _require_axis(axis: str) -> None:
    """Raise a usage error for an axis that mixed plans do not have."""
    known = (*FREE, "zero", *FIXED, *BY_NAME)
    if axis in known:
        return
    if axis in PINNABLE:
        raise UsageError(
            f"{axis} cannot be pinned or excluded on a mixed cluster",
            hint=f"{', '.join(FREE)} and options of the runtime can be",
        )
    raise UsageError(f"unknown axis {axis[:40]!r}", hint=nearest(axis[:40], known))


def _degrees(axis: str, words: tuple[str, ...]) -> tuple[int, ...]:
    """Distinct whole numbers from 1 of an axis, in the request's order; raises for other words."""
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) >= 1):
            raise UsageError(
                f"{axis}={word[:40]} is not a whole number from 1", hint=f"for example {axis}=1"
            )
    return tuple(dict.fromkeys(map(int, words)))
