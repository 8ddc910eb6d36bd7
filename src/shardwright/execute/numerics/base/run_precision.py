"""Number formats of a run: those of the job, or one format for all tensors."""

from __future__ import annotations

import torch

from shardwright.dtype import Dtype
from shardwright.errors import StrategyError
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass

FORMATS = {Dtype.FP32: torch.float32, Dtype.TF32: torch.float32, Dtype.BF16: torch.bfloat16}
"""Formats that are executed. TF32 is a format of matrix products inside the accelerator; tensors
have float32.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrecision:
    """Number format of each kind of tensor in a run.

    Args:
        compute: activations, their gradients (also in communication), and weights in matrix
            products.
        parameter: the working copy of parameters.
        gradient: sums of weight gradients over microbatches.
        wire: gradients in communication between devices.
        states: first and second moments of the optimizer.
        master: the optimizer's copy of parameters; None = the optimizer updates the working copy.
    """

    compute: torch.dtype
    parameter: torch.dtype
    gradient: torch.dtype
    wire: torch.dtype
    states: tuple[torch.dtype, torch.dtype]
    master: torch.dtype | None = None

    @property
    def statistics(self) -> torch.dtype:
        """The format of losses, norms and softmax: at least float32."""
        return self.compute if self.compute.itemsize >= 4 else torch.float32


def uniform_precision(dtype: torch.dtype) -> RunPrecision:
    """One format for all tensors, and no master copy."""
    return RunPrecision(
        compute=dtype, parameter=dtype, gradient=dtype, wire=dtype, states=(dtype, dtype)
    )


EXACT = uniform_precision(torch.float64)
"""The precision of proofs: float64 everywhere."""


def precision_of(job: TrainingJob, *, gradient: Dtype = Dtype.FP32) -> RunPrecision:
    """RunPrecision of a job; `gradient`: format of accumulation; StrategyError if not executed.

    Args:
        gradient: format in which gradients are added over microbatches: a runtime's
            `gradient_dtype`.

    Raises:
        StrategyError: execute.precision for a format that is not executed: FP8 and FP4, FP16 (its
            loss needs scaling), or products in another format than the activations.

    Leaves out: products in a parameter's own format; weights are cast to the format of the
    activations.
    """
    formats = {
        "compute": job.compute,
        "activation": job.activation,
        "parameter": job.parameter,
        "gradient": gradient,
        "gradient wire": job.gradient_wire or gradient,
        **{f"optimizer state {i}": state for i, state in enumerate(job.optimizer.states)},
        **({"master copy": job.optimizer.master} if job.optimizer.master else {}),
    }
    for name, dtype in formats.items():
        if dtype not in FORMATS:
            raise _not_executed(f"{name} in {dtype.value}", "choose bf16 or fp32 for the run")
    if FORMATS[job.compute] != FORMATS[job.activation]:
        raise _not_executed(
            f"compute in {job.compute.value} over activations in {job.activation.value}",
            "choose one format for both",
        )
    first_moment, second_moment = (*job.optimizer.states, *job.optimizer.states)[:2] or (
        Dtype.FP32,
        Dtype.FP32,
    )
    return RunPrecision(
        compute=FORMATS[job.compute],
        parameter=FORMATS[job.parameter],
        gradient=FORMATS[gradient],
        wire=FORMATS[job.gradient_wire or gradient],
        states=(FORMATS[first_moment], FORMATS[second_moment]),
        master=FORMATS[job.optimizer.master] if job.optimizer.master else None,
    )


def _not_executed(format_use: str, hint: str) -> StrategyError:
    """StrategyError (rule ``execute.precision``) for a number format that runs do not support."""
    return StrategyError(f"{format_use} is not executed", hint=hint, rule="execute.precision")
