"""Values of a cluster file's records in SI units: origins, bandwidths, fields and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.files.cluster_schema import LinkRecord, OriginRecord, YamlRecord
from shardwright.hardware.link_and_network_tier import Link
from shardwright.units import BITS_PER_BYTE, GIB, scale_decimal

FROM_FILE = Origin(evidence=Evidence.ASSUMED, reference="given in the cluster file")


_UNITS: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "_gib": ("_bytes", lambda value: round(value * GIB)),
    "_us": ("_s", lambda value: scale_decimal(value, -6)),
    "_bandwidth_gigabytes_per_s": ("_bandwidth", lambda value: scale_decimal(value, 9)),
    "_gigabytes_per_s": ("_bandwidth", lambda value: scale_decimal(value, 9)),
}
"""Suffix of a key -> suffix of the field, and the conversion of its value to SI units."""


def origin_of_record(record: OriginRecord | None, *, otherwise: Origin) -> Origin:
    """Origin that a record states, else `otherwise`."""
    return (
        Origin(evidence=Evidence(record.evidence), reference=record.reference)
        if record
        else otherwise
    )


def bytes_per_s(gigabits: float | None, gigabytes: float | None, *, path: str) -> float | None:
    """Convert 10^9 bits/s or 10^9 bytes/s to bytes/s; None if neither is set, both are an error."""
    if gigabits is not None and gigabytes is not None:
        raise ClusterError(
            f"{path}: bandwidth is given twice", hint="either _gbps (bits) or _gigabytes_per_s"
        )
    if gigabits is not None:
        return scale_decimal(gigabits, 9) / BITS_PER_BYTE
    return None if gigabytes is None else scale_decimal(gigabytes, 9)


def dataclass_fields(record: YamlRecord, kind: Any) -> dict[str, Any]:
    """Convert a record's scalar values to those fields that `kind` has, in SI units by key suffix.

    The unit is the suffix of the key.
    """
    given: dict[str, Any] = {}
    for key, value in record:
        if isinstance(value, int | float | str):
            ending = next((e for e in _UNITS if key.endswith(e)), "")
            name, convert = _UNITS.get(ending, ("", lambda plain: plain))
            given[key.removesuffix(ending) + name] = convert(value)
    return {name: given[name] for name in kind.__dataclass_fields__ if name in given}


def link_of_record(record: LinkRecord | None, base: Link, *, path: str) -> Link:
    """`base` with the values that a link's record sets."""
    if record is None:
        return base
    outward = bytes_per_s(record.bandwidth_gbps, record.bandwidth_gigabytes_per_s, path=path)
    inward = bytes_per_s(
        record.reverse_bandwidth_gbps, record.reverse_bandwidth_gigabytes_per_s, path=path
    )
    kept = base.reverse_bandwidth if outward is None else 0.0
    given = dataclass_fields(record, Link) | {
        "reverse_bandwidth": kept if inward is None else inward
    }
    return replace(
        base,
        **given,
        bandwidth=base.bandwidth if outward is None else outward,
        origin=origin_of_record(record.origin, otherwise=FROM_FILE),
    )
