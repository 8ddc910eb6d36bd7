"""Fits find again the numbers that made the points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.dtype import Dtype
from shardwright.errors import DataError
from shardwright.hardware.profile.measured_rates import AttentionPoint, GemmPoint, bus_share

pytest.importorskip("scipy", reason="fits need scipy")

from shardwright.calibrate.fit_profile import (
    fit_attention,
    fit_collective,
    fit_elements,
    fit_gemm,
    fit_line,
    gemm_bytes,
)
from tests.tiers import examples

SHAPES = [(m, n, k) for m in (1, 64, 512, 4096) for n in (512, 4096) for k in (512, 4096)]


def _points(
    rate: float, width: float, overhead: float, q: float, *, scale: float = 1.0
) -> list[GemmPoint]:
    points = []
    for m, n, k in SHAPES:
        bare = GemmPoint(m=m, n=n, k=k, seconds=1.0)
        compute, memory = 2.0 * m * n * k / rate, gemm_bytes(bare, Dtype.BF16) / width
        seconds = (compute**q + memory**q) ** (1 / q) + overhead
        points.append(GemmPoint(m=m, n=n, k=k, seconds=scale * seconds))
    return points


@pytest.mark.parametrize(
    ("rate", "width", "overhead", "q"),
    [(700e12, 2.5e12, 4e-6, 2.5), (60e9, 10e9, 2e-6, 1.5), (20e12, 1e12, 1e-6, 4.0)],
)
def test_gemm_numbers_are_found_again(rate: float, width: float, overhead: float, q: float) -> None:
    fit = fit_gemm(_points(rate, width, overhead, q), dtype=Dtype.BF16, sustained=0.9)
    assert fit.error.p90 < 0.01
    assert fit.flops_per_second == pytest.approx(rate, rel=0.02)
    assert fit.bytes_per_second == pytest.approx(width, rel=0.05)
    assert fit.sustained == 1.0
    assert fit.error.num_points == len(SHAPES)


@examples(25)
@given(scale=st.floats(1e-2, 1e2))
def test_gemm_fit_is_homogeneous(scale: float) -> None:
    one, other = (
        fit_gemm(_points(100e12, 1e12, 3e-6, 2.0, scale=s), dtype=Dtype.BF16) for s in (1.0, scale)
    )
    assert other.flops_per_second * scale == pytest.approx(one.flops_per_second, rel=1e-3)
    assert other.bytes_per_second * scale == pytest.approx(one.bytes_per_second, rel=1e-2)


@examples(25, 500)
@given(alpha=st.floats(1e-7, 1e-3), beta=st.floats(1e-13, 1e-8))
def test_lines_are_found_again(alpha: float, beta: float) -> None:
    sizes = [2.0**i for i in range(10, 30, 2)]
    found_alpha, found_beta, error = fit_line(sizes, [alpha + beta * s for s in sizes])
    assert found_beta == pytest.approx(beta, rel=1e-3)
    assert found_alpha == pytest.approx(alpha, rel=1e-3, abs=1e-9)
    assert error.p90 < 1e-6


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "send"])
def test_collectives(kind: str) -> None:
    share = bus_share(kind, num_devices=8)
    points = [(2**i, 20e-6 + share * 2**i / 100e9) for i in range(10, 30)]
    late = [(size, 10 * seconds) for size, seconds in points[:3]]
    fit = fit_collective(kind, [*points, *points, *late], num_devices=8, reference="r")
    assert fit.latency_s == pytest.approx(20e-6, rel=1e-6)
    assert fit.bus_bandwidth == pytest.approx(100e9, rel=1e-6)
    assert fit.large_bandwidth < fit.bus_bandwidth
    assert fit.latency_s + share * 2**20 / fit.bus_bandwidth == pytest.approx(dict(points)[2**20])
    assert [size for size, _ in fit.points] == [size for size, _ in points]


def test_elements_and_attention() -> None:
    elements = fit_elements([(size, 3e-6 + size / 2e12) for size in (1000, 10**6, 10**9)])
    assert (elements.launch_s, elements.bytes_per_second) == (
        pytest.approx(3e-6),
        pytest.approx(2e12),
    )

    def point(length: int, heads: int, rate: float) -> AttentionPoint:
        bare = AttentionPoint(
            batch=1, heads=heads, head_dim=64, length=length, forward_s=1.0, backward_s=1.0
        )
        forward = bare.flops / rate
        return AttentionPoint(
            batch=1,
            heads=heads,
            head_dim=64,
            length=length,
            forward_s=forward,
            backward_s=2.5 * forward,
        )

    fit = fit_attention(
        "flash-2",
        [point(2048, 8, 200e12), point(1024, 8, 90e12), point(1024, 4, 110e12)],
        dtype=Dtype.BF16,
    )
    assert fit.curve == ((1024, pytest.approx(100e12)), (2048, pytest.approx(200e12)))
    assert fit.backward_ratio == pytest.approx(2.5)
    assert 0.05 < fit.error.mean < 0.08


def test_points_that_make_no_fit() -> None:
    with pytest.raises(DataError, match="do not make a fit"):
        fit_gemm(_points(1e12, 1e12, 1e-6, 2.0)[:3], dtype=Dtype.BF16)
    with pytest.raises(DataError, match="one size"):
        fit_line([1.0, 1.0], [1.0, 2.0])
    with pytest.raises(DataError, match="do not grow"):
        fit_line([1.0, 1000.0], [2.0, 1.0])
    with pytest.raises(DataError, match="not a positive number"):
        fit_line([1.0, 2.0], [0.0, 1.0])
    with pytest.raises(DataError, match="no attention"):
        fit_attention("flash-2", [], dtype=Dtype.BF16)
