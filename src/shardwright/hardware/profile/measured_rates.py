"""Measured tables of one accelerator in one kind of node: kernel rates and collective curves.

A profile holds achieved rates (FLOP/s, bytes/s), not shares of a peak;
`hardware.profile.apply_profile` divides them by the accelerator's peaks.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Evidence
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Relative errors |fit / measured - 1| of a fit: their mean and 90th percentile."""

    num_points: int
    mean: float
    p90: float


class GemmPoint(NamedTuple):
    """One measured GEMM: (m, n, k) in elements, seconds."""

    m: int
    n: int
    k: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProfile:
    """Fitted roofline of GEMMs in one dtype (four numbers), and the measured points.

        t = ((2mnk / R)^q + (bytes / W)^q)^(1/q) + t0

    Args:
        flops_per_second: R.
        bytes_per_second: W.
        overhead_s: t0.
        exponent: q.
        sustained: seconds of a GEMM in a run of seconds over its short measurement, >= 1.
        points: (m, n, k, seconds).
    """

    dtype: Dtype
    flops_per_second: float
    bytes_per_second: float
    overhead_s: float
    exponent: float
    sustained: float
    error: FitError
    points: tuple[GemmPoint, ...]


class AttentionPoint(NamedTuple):
    """One measured causal attention: its shape, and seconds of forward and backward.

    `batch` x `heads` heads of `head_dim` over `length` tokens.
    """

    batch: int
    heads: int
    head_dim: int
    length: int
    forward_s: float
    backward_s: float

    @property
    def flops(self) -> float:
        """FLOPs of the attention core's forward pass under the causal mask.

        2 x batch x heads x length x (length + 1) / 2 x 2 head_dim.
        """
        return 2.0 * self.batch * self.heads * self.length * (self.length + 1) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProfile:
    """Measured rates of fused attention of one kernel generation.

    Args:
        generation: ``flash-2``, ``cudnn`` ... as in `AttentionRates`.
        dtype: in which it was measured.
        curve: (tokens, FLOP/s of the forward under the causal mask), lengths rising.
        backward_ratio: backward seconds over forward seconds.
        error: of the curve and the ratio against all points, forward and backward.
        points: (batch, heads, head dim, length, forward seconds, backward seconds).
    """

    generation: str
    dtype: Dtype
    curve: tuple[tuple[int, float], ...]
    backward_ratio: float
    error: FitError
    points: tuple[AttentionPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProfile:
    """Fit of element-wise kernels: t = launch_s + traffic / bytes_per_second.

    `points` are (bytes of traffic, seconds).
    """

    bytes_per_second: float
    launch_s: float
    error: FitError
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """Fit of one collective's seconds: t = latency_s + bus bytes / bus_bandwidth.

    Over `num_devices` devices of an island. Bus bytes are (n-1)/n of the full buffer, twice that
    for all_reduce.

    Args:
        latency_s: of a whole collective, not of a hop.
        bus_bandwidth, large_bandwidth: bytes/s, of the fit and at the largest message measured.
        evidence, reference: kind of evidence for the fit, and its source.
        points: (bytes of the full buffer, seconds), rising.
    """

    collective: str
    num_devices: int
    latency_s: float
    bus_bandwidth: float
    large_bandwidth: float
    error: FitError
    evidence: Evidence
    reference: str
    points: tuple[tuple[int, float], ...]


def bus_share(collective: str, *, num_devices: int) -> float:
    """Bytes over one device's link for each byte of the full buffer: bus over algorithm bandwidth.

    2 (n-1)/n for all_reduce, 1 for broadcast and send, else (n-1)/n. Source: nccl-tests,
    doc/PERFORMANCE.md (bus bandwidth).
    """
    if collective in ("broadcast", "send"):
        return 1.0
    passes = 2 if collective == "all_reduce" else 1
    return passes * (num_devices - 1) / num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """Seconds and number of the kernels of one class in an imported trace.

    Classes are ``gemm``, ``attention``, ``nccl``, ``elementwise``, ``memcpy`` and ``other``.
    """

    kind: str
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Host of the measured accelerators: devices, cores, memory and copy rates.

    Args:
        num_devices: accelerators (or ranks that share the processor).
        num_cores, memory_bytes: of the host.
        to_device, from_device: bytes/s of copies from and to pinned memory; 0.0 = not measured.
    """

    num_devices: int
    num_cores: int
    memory_bytes: int
    to_device: float = 0.0
    from_device: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Conditions of a profile's measurement: device, date, libraries, repetitions and notes.

    Args:
        device_name: name in the driver or the operating system.
        date: ISO day, as the caller gave it.
        libraries: (name, version) pairs, torch first.
        repetitions, warm_up: runs of each kernel whose median counts, and runs before them.
        threads: processor threads of one device; 0 = not a processor.
        sustained_s: seconds of each long run; 0.0 = none.
        notes: measurements that were not possible, and why; files that were imported.
    """

    device_name: str
    date: str
    libraries: tuple[tuple[str, str], ...] = ()
    repetitions: int = 0
    warm_up: int = 0
    threads: int = 0
    sustained_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured rates of one accelerator in one kind of node; empty where not measured.

    Numbers that were not measured stay as the catalog has them.

    Args:
        accelerator: a catalog name, or a new one.
        memory_bytes: memory that a program may allocate on one device; 0 = not measured.
        kernels: time of each kernel class in an imported trace; nothing is priced from it.
    """

    accelerator: str
    memory_bytes: int = 0
    gemm: tuple[GemmProfile, ...] = ()
    attention: tuple[AttentionProfile, ...] = ()
    elements: ElementProfile | None = None
    collectives: tuple[CollectiveFit, ...] = ()
    kernels: tuple[KernelShare, ...] = ()
    host: HostFacts | None = None
    method: Method | None = None

    @property
    def reference(self) -> str:
        """Source text of a profile's numbers: accelerator, device name, day, library."""
        if self.method is None:
            return f"profile of {self.accelerator}"
        library = " ".join(self.method.libraries[0]) if self.method.libraries else ""
        parts = (
            f"profile of {self.accelerator} ({self.method.device_name})",
            self.method.date,
            library,
        )
        return ", ".join(part for part in parts if part)
