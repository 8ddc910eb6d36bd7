"""A profile with every field, for tests."""

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.profile.measured_rates import (
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

ERROR = FitError(num_points=1, mean=0.05, p90=0.1)


def collective(kind: str, *, num_devices: int, latency_s: float, bandwidth: float) -> CollectiveFit:
    return CollectiveFit(
        collective=kind,
        num_devices=num_devices,
        latency_s=latency_s,
        bus_bandwidth=0.9 * bandwidth,
        large_bandwidth=bandwidth,
        error=FitError(num_points=2, mean=0.1, p90=0.2),
        evidence=Evidence.FITTED,
        reference="a test",
        points=((1024, 1e-5), (2**20, 2e-5)),
    )


def profile(accelerator: str = "h100-sxm", *, dtype: Dtype = Dtype.BF16) -> Profile:
    return Profile(
        accelerator=accelerator,
        memory_bytes=80 * 10**9,
        gemm=(
            GemmProfile(
                dtype=dtype,
                flops_per_second=500e12,
                bytes_per_second=2e12,
                overhead_s=5e-6,
                exponent=2.0,
                sustained=1.25,
                error=ERROR,
                points=(GemmPoint(m=4096, n=4096, k=4096, seconds=2.0 * 4096**3 / 600e12),),
            ),
        ),
        attention=(
            AttentionProfile(
                generation="flash-2",
                dtype=dtype,
                curve=((1024, 100e12), (4096, 300e12)),
                backward_ratio=2.5,
                error=ERROR,
                points=(
                    AttentionPoint(
                        batch=1,
                        heads=8,
                        head_dim=64,
                        length=1024,
                        forward_s=1e-4,
                        backward_s=2.5e-4,
                    ),
                ),
            ),
        ),
        elements=ElementProfile(
            bytes_per_second=2.5e12,
            launch_s=4e-6,
            error=ERROR,
            points=((1024, 4e-6), (2**30, 5e-4)),
        ),
        collectives=(
            collective("all_reduce", num_devices=8, latency_s=28e-6, bandwidth=400e9),
            collective("all_gather", num_devices=8, latency_s=14e-6, bandwidth=300e9),
            collective("reduce_scatter", num_devices=8, latency_s=14e-6, bandwidth=320e9),
            collective("all_gather", num_devices=16, latency_s=14 * 2e-6 + 20e-6, bandwidth=200e9),
        ),
        kernels=(KernelShare(kind="gemm", seconds=1.5, calls=10),),
        host=HostFacts(
            num_devices=8, num_cores=96, memory_bytes=10**12, to_device=50e9, from_device=40e9
        ),
        method=Method(
            device_name="Some Device",
            date="2026-11-21",
            libraries=(("torch", "2.13.0"), ("cuda", "13")),
            repetitions=5,
            warm_up=2,
            threads=0,
            sustained_s=5.0,
            notes=("a note",),
        ),
    )
