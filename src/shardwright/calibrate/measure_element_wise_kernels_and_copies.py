"""Measurement of memory-bound kernels, launch time, and copies between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from shardwright.calibrate.kernel_timing import Timer
from shardwright.units import KIB, MIB

_BYTES: Final = {
    "cpu": tuple(96 * MIB * 2**i for i in range(3)),
    "cuda": tuple(MIB * 4**i for i in range(6)),
}
_SMALL: Final = {"cpu": (1 * KIB, 4 * KIB), "cuda": (1 * KIB, 16 * KIB, 64 * KIB)}
_COPY_BYTES: Final = 64 * MIB


def element_sizes(device: str, *, tiny: bool = False) -> tuple[int, ...]:
    """Bytes of traffic to measure: small ones for the launch time, and arrays beyond caches."""
    return (1 * KIB, 64 * KIB, 1 * MIB) if tiny else (*_SMALL[device], *_BYTES[device])


def measure_elements(
    timer: Timer, *, sizes: tuple[int, ...], step: Callable[[], None] = lambda: None
) -> tuple[tuple[int, float], ...]:
    """Measure c = a + b in fp32: (bytes of traffic, seconds) for each size.

    Traffic is two reads and a write.
    """
    points = []
    for size in sizes:
        count = max(size // 12, 1)
        a, b, c = (torch.ones(count, device=timer.device) for _ in range(3))
        points.append((12 * count, timer.seconds(lambda a=a, b=b, c=c: torch.add(a, b, out=c))))  # type: ignore[misc]
        step()
    return tuple(points)


def measure_copies(timer: Timer) -> tuple[float, float]:
    """Measure bytes/s from pinned host memory to the device and back; zeros on a processor."""
    if timer.device != "cuda":
        return 0.0, 0.0
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    to_device = timer.seconds(lambda: device.copy_(host, non_blocking=True))
    from_device = timer.seconds(lambda: host.copy_(device, non_blocking=True))
    return _COPY_BYTES / to_device, _COPY_BYTES / from_device
