"""Strict reader and writer of profile files, which `calibrate -o` writes.

Seconds, bytes, bytes/s and FLOP/s, no clock value but the day that the caller gave: the same
profile is the same bytes.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from shardwright.files.canonical_json import parse_json, read_text
from shardwright.files.dataclass_to_json import Names, to_json_value
from shardwright.files.strict_pydantic_models_of_dataclasses import (
    DocumentModel,
    Factor,
    FromOne,
    Number,
    Positive,
    annotated,
    document_body,
)
from shardwright.files.validation_error_text import require_value
from shardwright.hardware.profile.measured_rates import (
    AttentionPoint,
    AttentionProfile,
    CollectiveFit,
    ElementProfile,
    GemmPoint,
    GemmProfile,
    HostFacts,
    KernelShare,
    Method,
    Profile,
)

SCHEMA: Final = "shardwright.profile"
VERSION: Final = 1
_HINT: Final = "write the file again with `shardwright calibrate -o FILE`"
_MAX_NAME: Final = 64


def _rows_type(counts: int, numbers: int) -> Any:
    """pydantic type of a list of rows: `counts` whole numbers from 1, then `numbers` above 0."""
    row = annotated[
        types.GenericAlias(tuple, (FromOne,) * counts + (Positive,) * numbers), Field(strict=False)
    ]
    return annotated[types.GenericAlias(tuple, (row, ...)), Field(strict=False)]


def _points_type(kind: Callable[..., Any], counts: int, numbers: int) -> Any:
    """pydantic type of a list of rows as `_rows_type`, which become named tuples `kind`."""
    return annotated[
        _rows_type(counts, numbers), AfterValidator(lambda rows: tuple(kind(*row) for row in rows))
    ]


def _has_unique(*keys: str) -> Callable[[Any], bool]:
    """Condition for a validator: no two rows have the same values of the attributes `keys`."""
    return lambda rows: len({tuple(getattr(row, key) for key in keys) for row in rows}) == len(rows)


def _is_name(text: str) -> bool:
    """True if a text is a printable name of 1 to 64 characters."""
    return 0 < len(text) <= _MAX_NAME and text.isprintable() and text == text.strip()


def _has_rising_lengths(curve: Any) -> bool:
    """True if a curve has points and their lengths increase."""
    lengths = [length for length, _ in curve]
    return bool(lengths) and lengths == sorted(set(lengths))


_NAME: Final = Annotated[str, require_value(_is_name, f"a name of 1 to {_MAX_NAME} characters")]
_LINE: Final = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
_NAMES: Final[Names] = {
    CollectiveFit: {
        "bus_bandwidth": "bus_bytes_per_second",
        "large_bandwidth": "large_bytes_per_second",
    },
    HostFacts: {
        "to_device": "to_device_bytes_per_second",
        "from_device": "from_device_bytes_per_second",
    },
}
_RATES: Final = {
    "flops_per_second": Positive,
    "bytes_per_second": Positive,
    "exponent": Factor,
    "sustained": Factor,
}
_LIMITS: Final = {
    GemmProfile: {**_RATES, "points": _points_type(GemmPoint, 3, 1)},
    AttentionProfile: {
        "generation": _NAME,
        "curve": annotated[
            _rows_type(1, 1), require_value(_has_rising_lengths, "rows of rising lengths")
        ],
        "backward_ratio": Positive,
        "points": _points_type(AttentionPoint, 4, 2),
    },
    ElementProfile: {"bytes_per_second": Positive, "points": _rows_type(1, 1)},
    CollectiveFit: {
        "collective": _NAME,
        "num_devices": Annotated[int, Field(ge=2, lt=2**63)],
        "bus_bandwidth": Positive,
        "large_bandwidth": Positive,
        "reference": _LINE,
        "points": _rows_type(1, 1),
    },
    KernelShare: {"kind": _NAME},
    HostFacts: {"num_devices": FromOne, "to_device": Number, "from_device": Number},
    Method: {"device_name": _LINE, "date": _LINE},
    Profile: {"accelerator": _NAME},
}
_CHECKS: Final = {
    (Profile, "gemm"): require_value(_has_unique("dtype"), "a list with each dtype once"),
    (Profile, "attention"): require_value(
        _has_unique("generation"), "a list with each generation once"
    ),
    (Profile, "collectives"): require_value(
        _has_unique("collective", "num_devices"), "a list with each collective once"
    ),
}
PROFILE: Final = DocumentModel(kind=Profile, names=_NAMES, limits=_LIMITS, checks=_CHECKS)


def profile_document(profile: Profile) -> dict[str, Any]:
    """JSON document of a profile file; `canonical_json.to_text` makes its text."""
    return {"schema": SCHEMA, "version": VERSION, **to_json_value(profile, names=_NAMES)}


def read_profile(path: Path) -> Profile:
    """Read a profile file; DataError if it is unreadable, no profile, or of another version."""
    return parse_profile(
        read_text(path, what="profile", hint="`shardwright calibrate -o FILE` writes one"),
        name=str(path),
    )


def parse_profile(text: str, *, name: str = "profile") -> Profile:
    """Parse the text of a profile file; `name` is for messages.

    Raises:
        DataError: the text is no profile, or is of another version.
    """
    document = parse_json(text, name=name, hint=_HINT)
    body = document_body(
        document, schema=SCHEMA, version=VERSION, name=name, what="profile", hint=_HINT
    )
    return PROFILE.read(body, name=name, hint=_HINT)
