"""Accelerator that a record of a cluster file describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import (
    Accelerator,
    AttentionRates,
    Evidence,
    GemmRates,
    Origin,
)
from shardwright.hardware.catalog.accelerator_from_data_sheet import accelerator_from_sheet
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.files.cluster_schema import (
    AcceleratorRecord,
    AttentionRecord,
    DtypeName,
    GemmRecord,
)
from shardwright.hardware.files.record_values import FROM_FILE, dataclass_fields, origin_of_record
from shardwright.units import scale_decimal


def _gemm(records: Mapping[DtypeName, GemmRecord]) -> tuple[GemmRates, ...]:
    """GEMM rates from the records of each dtype."""
    return tuple(
        GemmRates(
            dtype=Dtype(name),
            origin=origin_of_record(r.origin, otherwise=FROM_FILE),
            **dataclass_fields(r, GemmRates),
        )
        for name, r in records.items()
    )


def _attention(records: Mapping[str, AttentionRecord]) -> tuple[AttentionRates, ...]:
    """Attention rates from the records of each kernel generation."""
    return tuple(
        AttentionRates(
            generation=name,
            forward=tuple(sorted(r.forward.items())),
            backward=tuple(
                (int(head), int(value), fraction) for head, value, fraction in r.backward
            ),
            origin=origin_of_record(r.origin, otherwise=FROM_FILE),
            **dataclass_fields(r, AttentionRates),
        )
        for name, r in records.items()
    )


def accelerator_of_record(name: str, record: AcceleratorRecord) -> Accelerator:
    """Accelerator of a record: a changed catalog one (`like`), or without `like` a new one."""
    base = accelerator(record.like) if record.like is not None else _new_accelerator(name, record)
    peaks = dict(base.peak_flops)
    peaks.update({Dtype(n): scale_decimal(v, 12) for n, v in (record.peak_tflops or {}).items()})
    gemm = {g.dtype: g for g in base.gemm} | {g.dtype: g for g in _gemm(record.gemm or {})}
    attention = {a.generation: a for a in base.attention} | {
        a.generation: a for a in _attention(record.attention or {})
    }
    where = f"given in the cluster file, like {base.name}" if record.like else FROM_FILE.reference
    if record.failures_per_device_hour is not None:
        base = replace(
            base,
            failures_origin=(
                origin_of_record(record.failures_origin, otherwise=FROM_FILE)
                if record.failures_origin
                else None
            ),
        )
    changed = replace(
        base,
        **dataclass_fields(record, Accelerator),
        name=name,
        peak_flops=tuple(peaks.items()),
        gemm=tuple(gemm.values()),
        attention=tuple(attention.values()),
        origin=origin_of_record(
            record.origin, otherwise=Origin(evidence=Evidence.ASSUMED, reference=where)
        ),
        aliases=tuple(record.aliases or ()),
        assumed=base.assumed if record.assumed is None else tuple(record.assumed),
    )
    if record.sustained is not None:
        factor = record.sustained
        changed = replace(
            changed,
            gemm=tuple(replace(g, sustained=factor, origin=FROM_FILE) for g in changed.gemm),
        )
    return changed


def _new_accelerator(name: str, record: AcceleratorRecord) -> Accelerator:
    """Accelerator from a record without `like`; ClusterError if memory or peaks are missing."""
    if (
        record.memory_gib is None
        or record.memory_bandwidth_gigabytes_per_s is None
        or record.peak_tflops is None
    ):
        needed = "memory_gib, memory_bandwidth_gigabytes_per_s and peak_tflops"
        raise ClusterError(
            f"accelerators.{name[:60]}: needs {needed}", hint="or like: a catalog accelerator"
        )
    return accelerator_from_sheet(
        name,
        vendor=record.vendor or "unknown",
        memory_gib=record.memory_gib,
        memory_gb_per_s=record.memory_bandwidth_gigabytes_per_s,
        peaks=tuple((Dtype(n), scale_decimal(v, 12)) for n, v in record.peak_tflops.items()),
        reference=FROM_FILE.reference,
        gemm=_gemm(record.gemm or {}),
        attention=_attention(record.attention or {}),
        evidence=Evidence.ASSUMED,
    )
