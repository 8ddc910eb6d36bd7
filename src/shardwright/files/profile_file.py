"""Profile files: what `calibrate -o` writes, read again, strictly.

Seconds, bytes, bytes/s and FLOP/s, no clock value but the day that the caller gave: the same profile is the same bytes.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, Field

from shardwright.files.border import Factor, FromOne, Mirror, Number, Positive, annotated, body_of, must
from shardwright.files.faces import Names, fields_of, filed
from shardwright.files.text import decoded, read_text
from shardwright.hardware.device import Evidence, Origin
from shardwright.hardware.profile.profile import (
    AttentionPoint,
    AttentionProfile,
    CollectiveFit,
    ElementProfile,
    FitError,
    GemmPoint,
    GemmProfile,
    HostFacts,
    KernelShare,
    Method,
    Profile,
)

T = TypeVar("T")
SCHEMA: Final = "shardwright.profile"
VERSION: Final = 1
_HINT: Final = "write the file again with `shardwright calibrate -o FILE`"
_MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGemm(GemmProfile):
    """A `GemmProfile` whose points are (m, n, k, seconds)."""

    points: tuple[tuple[int, int, int, float], ...]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttention(AttentionProfile):
    """An `AttentionProfile` whose points are (batch, heads, head dim, length, forward seconds, backward seconds)."""

    points: tuple[tuple[int, int, int, int, float, float], ...]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCollective:
    """A `CollectiveFit`, its error beside the number of its points, its origin as two words."""

    collective: str
    num_devices: int
    latency_s: float
    bus_bytes_per_second: float
    large_bytes_per_second: float
    error: FitError
    evidence: Evidence
    reference: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile(Profile):
    """A `Profile` as its file has it."""

    gemm: tuple[StoredGemm, ...] = ()
    attention: tuple[StoredAttention, ...] = ()
    collectives: tuple[StoredCollective, ...] = ()  # type: ignore[assignment]


def _rows(counts: int, numbers: int) -> Any:
    """Rows of whole numbers from 1 and then numbers above 0."""
    row = annotated[types.GenericAlias(tuple, (FromOne,) * counts + (Positive,) * numbers), Field(strict=False)]
    return annotated[types.GenericAlias(tuple, (row, ...)), Field(strict=False)]


def _once(*keys: str) -> Callable[[Any], bool]:
    """Whether no two rows have the same keys."""
    return lambda rows: len({tuple(getattr(row, key) for key in keys) for row in rows}) == len(rows)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text.isprintable() and text == text.strip()


def _rises(curve: Any) -> bool:
    lengths = [length for length, _ in curve]
    return bool(lengths) and lengths == sorted(set(lengths))


_NAME: Final = Annotated[str, must(_is_name, f"a name of 1 to {_MAX_NAME} characters")]
_LINE: Final = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
_NAMES: Final[Names] = {HostFacts: {"to_device": "to_device_bytes_per_second", "from_device": "from_device_bytes_per_second"}}
_RATES: Final = {"flops_per_second": Positive, "bytes_per_second": Positive, "exponent": Factor, "sustained": Factor}
_LIMITS: Final = {
    StoredGemm: {**_RATES, "points": _rows(3, 1)},
    StoredAttention: {
        "generation": _NAME,
        "curve": annotated[_rows(1, 1), must(_rises, "rows of rising lengths")],
        "backward_ratio": Positive,
        "points": _rows(4, 2),
    },
    ElementProfile: {"bytes_per_second": Positive, "points": _rows(1, 1)},
    StoredCollective: {
        "collective": _NAME,
        "num_devices": Annotated[int, Field(ge=2, lt=2**63)],
        "bus_bytes_per_second": Positive,
        "large_bytes_per_second": Positive,
        "reference": _LINE,
        "points": _rows(1, 1),
    },
    KernelShare: {"kind": _NAME},
    HostFacts: {"num_devices": FromOne, "to_device": Number, "from_device": Number},
    Method: {"device_name": _LINE, "date": _LINE},
    StoredProfile: {"accelerator": _NAME},
}
_CHECKS: Final = {
    (StoredProfile, "gemm"): must(_once("dtype"), "a list with each dtype once"),
    (StoredProfile, "attention"): must(_once("generation"), "a list with each generation once"),
    (StoredProfile, "collectives"): must(_once("collective", "num_devices"), "a list with each collective once"),
}
PROFILE: Final = Mirror(kind=StoredProfile, names=_NAMES, limits=_LIMITS, checks=_CHECKS)


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile file; `files.text.to_text` makes its text."""
    stored = _as(
        StoredProfile,
        profile,
        gemm=tuple(_as(StoredGemm, g, points=tuple((p.m, p.n, p.k, p.seconds) for p in g.points)) for g in profile.gemm),
        attention=tuple(_as(StoredAttention, a, points=tuple(map(astuple, a.points))) for a in profile.attention),
        collectives=tuple(
            _as(
                StoredCollective,
                c,
                bus_bytes_per_second=c.bus_bandwidth,
                large_bytes_per_second=c.large_bandwidth,
                error=FitError(num_points=len(c.points), mean=c.error, p90=c.p90_error),
                evidence=c.origin.evidence,
                reference=c.origin.reference,
            )
            for c in profile.collectives
        ),
    )
    return {"schema": SCHEMA, "version": VERSION, **filed(stored, names=_NAMES)}


def read_profile(path: Path) -> Profile:
    """The profile file at `path`.

    Raises:
        DataError: it cannot be read, is no profile, or is of another version.
    """
    return parse_profile(read_text(path, what="profile", hint="`shardwright calibrate -o FILE` writes one"), name=str(path))


def parse_profile(text: str, *, name: str = "profile") -> Profile:
    """The profile with this text; `name` is for messages.

    Raises:
        DataError: it is no profile, or is of another version.
    """
    document = decoded(text, name=name, hint=_HINT)
    body = body_of(document, schema=SCHEMA, version=VERSION, name=name, what="profile", hint=_HINT)
    found = PROFILE.read(body, name=name, hint=_HINT)
    return _as(
        Profile,
        found,
        gemm=tuple(
            _as(GemmProfile, g, points=tuple(GemmPoint(dtype=g.dtype, m=m, n=n, k=k, seconds=s) for m, n, k, s in g.points))
            for g in found.gemm
        ),
        attention=tuple(
            _as(
                AttentionProfile,
                a,
                points=tuple(
                    AttentionPoint(batch=b, heads=h, head_dim=d, length=s, forward_s=f, backward_s=r) for b, h, d, s, f, r in a.points
                ),
            )
            for a in found.attention
        ),
        collectives=tuple(
            _as(
                CollectiveFit,
                c,
                bus_bandwidth=c.bus_bytes_per_second,
                large_bandwidth=c.large_bytes_per_second,
                error=c.error.mean,
                p90_error=c.error.p90,
                origin=Origin(evidence=c.evidence, reference=c.reference),
            )
            for c in found.collectives
        ),
    )


def _as(kind: Callable[..., T], value: Any, **changed: Any) -> T:
    """The fields of `value` as another class, some of them changed."""
    names = [field for field, _ in fields_of(kind)]
    return kind(**{name: changed[name] if name in changed else getattr(value, name) for name in names})
