"""Bytes of gradients and parameters on the wire, an element and a bucket."""

from __future__ import annotations

from typing import NamedTuple

from shardwright.job.training_job import TrainingJob
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Scaling


def gradient_bytes(job: TrainingJob, runtime: Runtime) -> int:
    """Bytes a gradient element on the wire: job's wire format, or runtime's, or gradient dtype."""
    return (job.gradient_wire or runtime.gradient_wire or runtime.gradient_dtype).bits // 8


class SumSizes(NamedTuple):
    """Bytes of gradients and parameters on the wire, and how they are grouped.

    Args:
        wire, stored, narrow: bytes of a gradient on the wire, of a parameter, and of a parameter
            that a recipe of 8 or 4 bits quantises.
        bucket: bytes; smaller layers share a bucket's time.
        gathered: bytes that ZeRO-3 joins matrices up to (0 = a layer, or a bucket).
        listed: it moves each matrix alone, as a list.
        apart: sums over replicas have a stream of their own.
    """

    wire: int
    stored: int
    narrow: float
    bucket: int
    gathered: int
    listed: bool
    apart: bool


def sum_sizes(job: TrainingJob, runtime: Runtime) -> SumSizes:
    """Bytes an element on the wire, bucket bytes, and form of a job's reductions and gathers."""
    return SumSizes(
        wire=gradient_bytes(job, runtime),
        stored=job.parameter.bits // 8,
        narrow=gathered_bytes(job, runtime),
        bucket=runtime.bucket_bytes,
        gathered=runtime.gather_bucket_bytes,
        listed=runtime.listed_collectives,
        apart=runtime.sums_replicas_apart,
    )


def gathered_bytes(job: TrainingJob, runtime: Runtime) -> float:
    """Bytes a gathered parameter on the wire: 1 if cast to 8 bits (not MX or rowwise), else stored.

    One where the runtime gathers it so and each element has one form, under a scale a tensor or 128
    x 128 elements. MX needs two, along rows and along columns: its gather is of 16 bits, into the
    gradients' buffer, and each member quantises both. In 4 bits parameters are gathered in their
    stored format.

    Source: Megatron-Core, core/distributed/distributed_data_parallel.py at 0e9fcc1d297d
    (`start_param_sync`: "cast from bf16 to MXFP8 during copy"); Megatron-Bridge,
    training/mixed_precision.py ("fp4_param_gather not supported"); torchtitan, docs/float8.md. All
    read.
    """
    stored = job.parameter.bits / 8
    one_form = runtime.scaling in (
        Scaling.DELAYED,
        Scaling.CURRENT,
        Scaling.BLOCKWISE,
    )
    return (
        min(stored, 1.0)
        if runtime.gathers_narrow and one_form and job.compute.bits == 8
        else stored
    )
