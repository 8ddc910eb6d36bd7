"""Profile files: what `calibrate -o` writes, read again, strictly.

Seconds, bytes, bytes/s and FLOP/s, floats to nine digits, no clock value but the day that the caller gave: the same profile is the same
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.errors import DataError
from shardwright.hardware.device import Evidence, Origin
from shardwright.hardware.profile import (
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
from shardwright.report.fields import Fields, shown

SCHEMA: Final = "shardwright.profile"
VERSION: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024**2
_HINT: Final = "write the file again with `shardwright calibrate -o FILE`"
_MAX_NAME: Final = 64


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile file; `json_face.to_text` makes its text."""
    elements, host, method = profile.elements, profile.host, profile.method
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "accelerator": profile.accelerator,
        "memory_bytes": profile.memory_bytes,
        "gemm": [_gemm_document(g) for g in profile.gemm],
        "attention": [_attention_document(a) for a in profile.attention],
        "elements": None
        if elements is None
        else {
            "bytes_per_second": elements.bytes_per_second,
            "launch_s": elements.launch_s,
            "error": _error_document(elements.error),
            "points": [list(p) for p in elements.points],
        },
        "collectives": [_collective_document(c) for c in profile.collectives],
        "kernels": [{"kind": k.kind, "seconds": k.seconds, "calls": k.calls} for k in profile.kernels],
        "host": None
        if host is None
        else {
            "num_devices": host.num_devices,
            "num_cores": host.num_cores,
            "memory_bytes": host.memory_bytes,
            "to_device_bytes_per_second": host.to_device,
            "from_device_bytes_per_second": host.from_device,
        },
        "method": None
        if method is None
        else {
            "device_name": method.device_name,
            "date": method.date,
            "libraries": [list(pair) for pair in method.libraries],
            "repetitions": method.repetitions,
            "warm_up": method.warm_up,
            "threads": method.threads,
            "sustained_s": method.sustained_s,
            "notes": list(method.notes),
        },
    }


def _error_document(error: FitError) -> dict[str, Any]:
    return {"num_points": error.num_points, "mean": error.mean, "p90": error.p90}


def _gemm_document(gemm: GemmProfile) -> dict[str, Any]:
    return {
        "dtype": gemm.dtype.value,
        "flops_per_second": gemm.flops_per_second,
        "bytes_per_second": gemm.bytes_per_second,
        "overhead_s": gemm.overhead_s,
        "exponent": gemm.exponent,
        "sustained": gemm.sustained,
        "error": _error_document(gemm.error),
        "points": [[p.m, p.n, p.k, p.seconds] for p in gemm.points],
    }


def _attention_document(attention: AttentionProfile) -> dict[str, Any]:
    return {
        "generation": attention.generation,
        "dtype": attention.dtype.value,
        "curve": [list(pair) for pair in attention.curve],
        "backward_ratio": attention.backward_ratio,
        "error": _error_document(attention.error),
        "points": [[p.batch, p.heads, p.head_dim, p.length, p.forward_s, p.backward_s] for p in attention.points],
    }


def _collective_document(fit: CollectiveFit) -> dict[str, Any]:
    return {
        "collective": fit.collective,
        "num_devices": fit.num_devices,
        "latency_s": fit.latency_s,
        "bus_bytes_per_second": fit.bus_bandwidth,
        "large_bytes_per_second": fit.large_bandwidth,
        "error": {"num_points": len(fit.points), "mean": fit.error, "p90": fit.p90_error},
        "evidence": fit.origin.evidence.value,
        "reference": fit.origin.reference,
        "points": [list(pair) for pair in fit.points],
    }


def read_profile(path: Path) -> Profile:
    """The profile file at `path`.

    Raises:
        DataError: it cannot be read, is no profile, or is of another version.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="is it a profile?")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(f"cannot read profile {path}: {reason}", hint="`shardwright calibrate -o FILE` writes one") from error
    return parse_profile(text, name=str(path))


def parse_profile(text: str, *, name: str = "profile") -> Profile:
    """The profile with this text; `name` is for messages.

    Raises:
        DataError: it is no profile, or is of another version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{name} is not JSON{where}", hint=_HINT) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DataError(f"{name} is not a profile: its schema is not {SCHEMA}", hint=_HINT)
    if isinstance(document.get("version"), bool) or document.get("version") != VERSION:
        raise DataError(f"{name}: version {shown(document.get('version'))} is not {VERSION}", hint="use the release that wrote it")
    top = Fields(document, path=name, hint=_HINT)
    return Profile(
        accelerator=_name(top, "accelerator"),
        memory_bytes=top.integer("memory_bytes"),
        gemm=_distinct(top, "gemm", [_gemm(f) for f in top.sections("gemm")], key="dtype"),
        attention=_distinct(top, "attention", [_attention(f) for f in top.sections("attention")], key="generation"),
        elements=None if top.value("elements") is None else _elements(top.section("elements")),
        collectives=_distinct(
            top, "collectives", [_collective(f) for f in top.sections("collectives")], key="collective", and_key="num_devices"
        ),
        kernels=tuple(
            KernelShare(kind=_name(f, "kind"), seconds=f.number("seconds"), calls=f.integer("calls")) for f in top.sections("kernels")
        ),
        host=None if top.value("host") is None else _host(top.section("host")),
        method=None if top.value("method") is None else _method(top.section("method")),
    )


def _distinct(top: Fields, name: str, rows: Sequence[Any], *, key: str, and_key: str = "") -> tuple[Any, ...]:
    keys = [(getattr(row, key), getattr(row, and_key) if and_key else None) for row in rows]
    again = next((k for place, k in enumerate(keys) if k in keys[:place]), None)
    if again is not None:
        raise top.wrong(name, f"a list with each {key} once", str(again[0]))
    return tuple(rows)


def _name(fields: Fields, name: str) -> str:
    text = fields.text(name)
    if not 0 < len(text) <= _MAX_NAME or not text.isprintable() or text != text.strip():
        raise fields.wrong(name, f"a name of 1 to {_MAX_NAME} characters", text)
    return text


def _line(fields: Fields, name: str) -> str:
    return " ".join(fields.text(name).split())


def _positive(fields: Fields, name: str) -> float:
    value = fields.number(name)
    if not value > 1e-30:
        raise fields.wrong(name, "a number above 0", fields.value(name))
    return value


def _at_least_one(fields: Fields, name: str) -> float:
    value = fields.number(name)
    if value < 1.0:
        raise fields.wrong(name, "a number of at least 1", fields.value(name))
    return value


def _rows(fields: Fields, name: str, *, counts: int, numbers: int) -> tuple[tuple[Any, ...], ...]:
    """A list of rows, each of `counts` whole numbers from 1 and then `numbers` numbers above 0."""
    value = fields.value(name)
    if not isinstance(value, list):
        raise fields.wrong(name, "a list of rows", value)
    rows = []
    for place, row in enumerate(value):
        if not isinstance(row, list) or len(row) != counts + numbers:
            raise fields.wrong(name, f"a list of rows of {counts + numbers} numbers", row)
        cells = Fields({str(i): cell for i, cell in enumerate(row)}, path=f"{name} row {place}", hint=_HINT)
        whole = [cells.integer(str(i), smallest=1) for i in range(counts)]
        rows.append((*whole, *(_positive(cells, str(i)) for i in range(counts, counts + numbers))))
    return tuple(rows)


def _dtype(fields: Fields) -> Dtype:
    text = fields.text("dtype")
    if text not in tuple(Dtype):
        raise fields.wrong("dtype", " or ".join(Dtype), text)
    return Dtype(text)


def _error(fields: Fields) -> FitError:
    section = fields.section("error")
    return FitError(num_points=section.integer("num_points"), mean=section.number("mean"), p90=section.number("p90"))


def _gemm(fields: Fields) -> GemmProfile:
    dtype = _dtype(fields)
    return GemmProfile(
        dtype=dtype,
        flops_per_second=_positive(fields, "flops_per_second"),
        bytes_per_second=_positive(fields, "bytes_per_second"),
        overhead_s=fields.number("overhead_s"),
        exponent=_at_least_one(fields, "exponent"),
        sustained=_at_least_one(fields, "sustained"),
        error=_error(fields),
        points=tuple(GemmPoint(dtype=dtype, m=m, n=n, k=k, seconds=s) for m, n, k, s in _rows(fields, "points", counts=3, numbers=1)),
    )


def _attention(fields: Fields) -> AttentionProfile:
    curve = _rows(fields, "curve", counts=1, numbers=1)
    lengths = [length for length, _ in curve]
    if not lengths or lengths != sorted(set(lengths)):
        raise fields.wrong("curve", "rows of rising lengths", lengths)
    return AttentionProfile(
        generation=_name(fields, "generation"),
        dtype=_dtype(fields),
        curve=curve,
        backward_ratio=_positive(fields, "backward_ratio"),
        error=_error(fields),
        points=tuple(
            AttentionPoint(batch=b, heads=h, head_dim=d, length=s, forward_s=f, backward_s=r)
            for b, h, d, s, f, r in _rows(fields, "points", counts=4, numbers=2)
        ),
    )


def _elements(fields: Fields) -> ElementProfile:
    return ElementProfile(
        bytes_per_second=_positive(fields, "bytes_per_second"),
        launch_s=fields.number("launch_s"),
        error=_error(fields),
        points=_rows(fields, "points", counts=1, numbers=1),
    )


def _collective(fields: Fields) -> CollectiveFit:
    evidence = fields.text("evidence")
    if evidence not in tuple(Evidence):
        raise fields.wrong("evidence", " or ".join(Evidence), evidence)
    error = _error(fields)
    return CollectiveFit(
        collective=_name(fields, "collective"),
        num_devices=fields.integer("num_devices", smallest=2),
        latency_s=fields.number("latency_s"),
        bus_bandwidth=_positive(fields, "bus_bytes_per_second"),
        large_bandwidth=_positive(fields, "large_bytes_per_second"),
        error=error.mean,
        p90_error=error.p90,
        origin=Origin(evidence=Evidence(evidence), reference=_line(fields, "reference")),
        points=_rows(fields, "points", counts=1, numbers=1),
    )


def _host(fields: Fields) -> HostFacts:
    return HostFacts(
        num_devices=fields.integer("num_devices", smallest=1),
        num_cores=fields.integer("num_cores"),
        memory_bytes=fields.integer("memory_bytes"),
        to_device=fields.number("to_device_bytes_per_second"),
        from_device=fields.number("from_device_bytes_per_second"),
    )


def _method(fields: Fields) -> Method:
    libraries = fields.value("libraries")
    if not isinstance(libraries, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(word, str) for word in pair) for pair in libraries
    ):
        raise fields.wrong("libraries", "a list of pairs of name and version", libraries)
    return Method(
        device_name=_line(fields, "device_name"),
        date=_line(fields, "date"),
        libraries=tuple((name, version) for name, version in libraries),
        repetitions=fields.integer("repetitions"),
        warm_up=fields.integer("warm_up"),
        threads=fields.integer("threads"),
        sustained_s=fields.number("sustained_s"),
        notes=fields.texts("notes"),
    )
