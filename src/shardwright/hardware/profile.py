"""Measured tables of one device: kernel times and collective curves, and what ships with the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwright.dtype import Dtype
from shardwright.errors import DataError
from shardwright.hardware.device import Evidence, Origin
from shardwright.hardware.nccl_fits import NCCL_FITS
from shardwright.units import GIGA

_ORIGIN: Final = Origin(evidence=Evidence.FITTED, reference="alpha-beta fit of the NCCL tables of aiconfigurator-core 0.12.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPoint:
    """One measured GEMM: (m, n, k) in elements, seconds."""

    dtype: Dtype
    m: int
    n: int
    k: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """t = latency_s + bus bytes / bus_bandwidth for one collective over `num_devices` devices of an island.

    Bus bytes are (n-1)/n of the full buffer, twice that for all_reduce.

    Args:
        latency_s: of a whole collective, not of a hop. bus_bandwidth, large_bandwidth: bytes/s, of the fit and at 512 MiB.
        error: mean relative error of the fit.
    """

    collective: str
    num_devices: int
    latency_s: float
    bus_bandwidth: float
    large_bandwidth: float
    error: float
    origin: Origin

    def seconds(self, volume: float) -> float:
        """Seconds for a full buffer of `volume` bytes."""
        passes = 2 if self.collective == "all_reduce" else 1
        share = passes * (self.num_devices - 1) / self.num_devices
        return self.latency_s + share * volume / self.bus_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measurements of one accelerator in one kind of node."""

    accelerator: str
    gemm: tuple[GemmPoint, ...] = ()
    collectives: tuple[CollectiveFit, ...] = ()

    def collective(self, kind: str, *, num_devices: int) -> CollectiveFit | None:
        """The fit of `kind` over `num_devices` devices; None where it was not measured."""
        return next((c for c in self.collectives if c.collective == kind and c.num_devices == num_devices), None)


def profiled_names() -> tuple[str, ...]:
    """Accelerators with measured collectives, sorted."""
    return tuple(sorted({row[0] for row in NCCL_FITS}))


def shipped_profile(accelerator_name: str) -> Profile:
    """What ships with the package about the accelerator of that catalog name; an error where nothing does."""
    fits = tuple(
        CollectiveFit(
            collective=kind,
            num_devices=devices,
            latency_s=round(latency_us * 1e-6, 12),
            bus_bandwidth=bus * GIGA,
            large_bandwidth=large * GIGA,
            error=error,
            origin=_ORIGIN,
        )
        for name, kind, devices, latency_us, bus, large, error in NCCL_FITS
        if name == accelerator_name
    )
    if not fits:
        raise DataError(f"no measured profile of {accelerator_name[:60]!r}", hint="known: " + ", ".join(profiled_names()))
    return Profile(accelerator=accelerator_name, collectives=fits)
