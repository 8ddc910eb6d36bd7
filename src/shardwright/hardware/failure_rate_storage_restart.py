"""Failure rate, storage bandwidth and restart time of a job, the inputs of goodput.

Numbers that a cluster file does not state are assumed: failures as each accelerator's entry of the
catalog has them, storage of BLOOM's rate a device up to the rate that the storage of Llama 3's
cluster sustains, and ten minutes for a restart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.cluster import Cluster
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIGA, TERA

STORAGE_PER_DEVICE: Final = 0.15 * GIGA
STORAGE_AT_MOST: Final = 2.0 * TERA
STORAGE_ORIGIN: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference=(
        "0.15 GB/s a device, as BLOOM's storage gave 384 A100 (2.3 TB in 40 s; BigScience 2022),"
        " and at most 2 TB/s, what the storage of Llama 3's cluster sustains (Llama Team 2024,"
        " section 3.3.1)"
    ),
)
RESTART_S: Final = 600.0
RESTART_ORIGIN: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="10 minutes to notice, replace the node, start all ranks and load the checkpoint",
)


class SourcedNumber(NamedTuple):
    """A number in SI units, and its source."""

    value: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReliability:
    """Failure rate, storage bandwidth and restart time of a job, each with its source.

    Args:
        failures_per_hour: unexpected interruptions of the devices together.
        storage: bytes/s that they write together.
        restart_s: seconds from an interruption to training again.
    """

    failures_per_hour: SourcedNumber
    storage: SourcedNumber
    restart_s: SourcedNumber


def job_reliability(cluster: Cluster, *, devices: int) -> JobReliability:
    """Failures per hour, storage bytes/s and restart seconds of a job on `devices` devices.

    The job has the same part of every node group.
    """
    said = cluster.reliability
    part = devices / cluster.num_devices
    if said.failures_per_device_hour is not None:
        failures = SourcedNumber(said.failures_per_device_hour * devices, said.origin)
    else:
        rates = [(g.count * g.kind.num_devices * part, g.kind.accelerator) for g in cluster.groups]
        origins = {one.failures_origin for _, one in rates if one.failures_origin is not None}
        origin = Origin(
            evidence=next(
                (one.evidence for one in origins if one.evidence is Evidence.ASSUMED),
                Evidence.PUBLISHED,
            ),
            reference="; ".join(sorted(one.reference for one in origins)) or "no figure is known",
        )
        failures = SourcedNumber(
            sum(number * one.failures_per_device_hour for number, one in rates), origin
        )
    usual = SourcedNumber(min(STORAGE_PER_DEVICE * devices, STORAGE_AT_MOST), STORAGE_ORIGIN)
    return JobReliability(
        failures_per_hour=failures,
        storage=SourcedNumber(said.storage_bandwidth, said.origin)
        if said.storage_bandwidth
        else usual,
        restart_s=(
            SourcedNumber(RESTART_S, RESTART_ORIGIN)
            if said.restart_s is None
            else SourcedNumber(said.restart_s, said.origin)
        ),
    )
