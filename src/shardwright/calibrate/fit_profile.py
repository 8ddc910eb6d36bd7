"""Fits of measured points to the few numbers of a profile, with the errors of the fits.

Errors are relative, so every point counts the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.dtype import Dtype
from shardwright.errors import DataError
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.profile.measured_rates import (
    AttentionPoint,
    AttentionProfile,
    CollectiveFit,
    ElementProfile,
    FitError,
    GemmPoint,
    GemmProfile,
    bus_share,
)

_EXPONENTS = (1.0, 8.0)
_STARTS = (1.3, 2.5)
_SMALLEST_S = 1e-12


def fit_error(fitted: FloatArray, measured: FloatArray) -> FitError:
    """Mean and 90th percentile of |fitted / measured - 1|."""
    relative = np.abs(fitted / measured - 1.0)
    return FitError(
        num_points=int(relative.size),
        mean=float(relative.mean()),
        p90=float(np.percentile(relative, 90)),
    )


def gemm_bytes(point: GemmPoint, dtype: Dtype) -> float:
    """Bytes of one pass over a GEMM's inputs and output; the output has at least 16 bits."""
    width = dtype.bits / 8
    return width * (point.m * point.k + point.k * point.n) + max(width, 2.0) * point.m * point.n


def fit_gemm(points: Sequence[GemmPoint], *, dtype: Dtype, sustained: float = 1.0) -> GemmProfile:
    """Fit a four-number roofline to measured GEMM seconds, by least squares of their log ratio.

        t = ((2mnk / R)^q + (bytes / W)^q)^(1/q) + t0

    Args:
        points: at least 4, all in `dtype`.
        sustained: factor of long runs, kept beside the fit.

    q is kept in 1..8 (1 = nothing overlaps, 8 = as good as the larger of the two).

    Raises:
        DataError: too few points.
    """
    if len(points) < 4:
        raise DataError(
            f"{len(points)} GEMM points do not make a fit", hint="measure 4 shapes or more"
        )
    seconds = _positive_seconds([p.seconds for p in points])
    flops = np.array([2.0 * p.m * p.n * p.k for p in points])
    traffic = np.array([gemm_bytes(p, dtype) for p in points])

    def fitted(x: FloatArray) -> FloatArray:
        """Roofline seconds for x = (log FLOP/s, log bytes/s, log launch seconds, exponent)."""
        compute, memory, q = flops / np.exp(x[0]), traffic / np.exp(x[1]), x[3]
        larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
        result: FloatArray = larger * (1.0 + (smaller / larger) ** q) ** (1.0 / q) + np.exp(x[2])
        return result

    rate, width, fastest = (
        np.log((flops / seconds).max()),
        np.log((traffic / seconds).max()),
        np.log(seconds.min()),
    )
    low = [rate - 3.0, width - 3.0, np.log(_SMALLEST_S), _EXPONENTS[0]]
    high = [rate + 1.0, width + 3.0, fastest, _EXPONENTS[1]]
    # Imported here, as scipy.optimize takes half a second, which help and refusals do not need.
    optimize = import_module("scipy.optimize")
    runs = [
        optimize.least_squares(
            lambda x: np.log(fitted(x) / seconds),
            [rate, width + shift, fastest - 2.0, q],
            bounds=(low, high),
        )
        for q in _STARTS
        for shift in (0.0, 1.0)
    ]
    best: FloatArray = min(runs, key=lambda run: float(run.cost)).x
    return GemmProfile(
        dtype=dtype,
        flops_per_second=float(np.exp(best[0])),
        bytes_per_second=float(np.exp(best[1])),
        overhead_s=float(np.exp(best[2])),
        exponent=float(best[3]),
        sustained=max(sustained, 1.0),
        error=fit_error(fitted(best), seconds),
        points=tuple(points),
    )


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, FitError]:
    """Least squares of relative errors, t = alpha + beta x size, both >= 0: (alpha, beta, errors).

    The fit minimises the squared relative errors.

    Raises:
        DataError: fewer than two sizes, or times that do not grow with them.
    """
    x, t = np.asarray(sizes, dtype=np.float64), _positive_seconds(seconds)
    if np.unique(x).size < 2:
        raise DataError(
            f"{x.size} points of one size do not make a line", hint="measure two sizes or more"
        )
    scale = float(x.max())
    (alpha, beta), _ = import_module("scipy.optimize").nnls(
        np.stack([1.0 / t, x / scale / t], axis=1), np.ones_like(t)
    )
    beta = float(beta) / scale
    if not beta > 0.0:
        raise DataError("the measured times do not grow with the size", hint="measure larger sizes")
    return float(alpha), beta, fit_error(alpha + beta * x, t)


def fit_elements(points: Sequence[tuple[int, float]]) -> ElementProfile:
    """Fit launch time and bandwidth of element-wise kernels to (bytes, seconds) points."""
    launch, beta, error = fit_line([p[0] for p in points], [p[1] for p in points])
    return ElementProfile(
        bytes_per_second=1.0 / beta, launch_s=launch, error=error, points=tuple(points)
    )


def fit_collective(
    kind: str, points: Sequence[tuple[int, float]], *, num_devices: int, reference: str
) -> CollectiveFit:
    """Fit latency and bus bandwidth of a collective to (bytes of the full buffer, seconds) points.

    Several points of one size count by their median.

    Raises:
        DataError: see `fit_line`.
    """
    sizes = sorted({size for size, _ in points})
    medians = tuple((size, float(np.median([s for x, s in points if x == size]))) for size in sizes)
    share = bus_share(kind, num_devices=num_devices)
    latency, beta, error = fit_line([share * size for size, _ in medians], [s for _, s in medians])
    largest, longest = medians[-1]
    return CollectiveFit(
        collective=kind,
        num_devices=num_devices,
        latency_s=latency,
        bus_bandwidth=1.0 / beta,
        large_bandwidth=share * largest / longest,
        error=error,
        evidence=Evidence.FITTED,
        reference=reference,
        points=medians,
    )


def fit_attention(
    generation: str, points: Sequence[AttentionPoint], *, dtype: Dtype
) -> AttentionProfile:
    """Attention profile: median forward FLOP/s by length, median backward / forward seconds.

    Raises:
        DataError: no points.
    """
    if not points:
        raise DataError("no attention was measured", hint="measure one length or more")
    forward, backward = (
        _positive_seconds([p.forward_s for p in points]),
        _positive_seconds([p.backward_s for p in points]),
    )
    flops = np.array([p.flops for p in points])
    lengths = sorted({p.length for p in points})
    curve = {
        n: float(
            np.median(
                [f / s for p, f, s in zip(points, flops, forward, strict=True) if p.length == n]
            )
        )
        for n in lengths
    }
    ratio = float(np.median(backward / forward))
    fitted = flops / np.array([curve[p.length] for p in points])
    return AttentionProfile(
        generation=generation,
        dtype=dtype,
        curve=tuple(curve.items()),
        backward_ratio=ratio,
        error=fit_error(
            np.concatenate([fitted, fitted * ratio]), np.concatenate([forward, backward])
        ),
        points=tuple(points),
    )


def _positive_seconds(seconds: Sequence[float]) -> FloatArray:
    """Measured seconds as an array; DataError if one is not a positive, finite number."""
    measured = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(measured) & (measured > 0.0)).all():
        raise DataError(
            "a measured time is not a positive number", hint="measure again, with more repetitions"
        )
    return measured
