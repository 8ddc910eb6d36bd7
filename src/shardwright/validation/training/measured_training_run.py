"""A measured training run as a problem to predict, with its measured step time and memory."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Any

from shardwright.hardware.cluster import Cluster
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.validation.training.training_table_columns import (
    MemoryKind,
    TrainingMeasurement,
    TrainingMetric,
)


class MeasuredKind(StrEnum):
    """Quantity from which a row's seconds a step are computed."""

    ITERATION_TIME = "iteration-time"
    TOKENS_PER_SECOND = "tokens-per-second"
    TFLOPS_FORMULA = "tflops-formula"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A measured training run, ready to predict.

    Args:
        measurement: the row as published.
        runtime: name of a runtime, with its options.
        grid: the strategy that ran.
        measured_s: seconds a step, by measured_kind; None if only memory was measured.
        memory_bytes: bytes, by memory_kind; None if memory was not measured.
        ran: False for a configuration that ran out of memory.
        laboratory: group of sources that may share configurations; one fold holds them out.
        assumptions: settings that the row lacks, one line each: from facts, implied by other cells,
            or the runtime's documented default.
    """

    measurement: TrainingMeasurement
    model: Model
    cluster: Cluster
    job: TrainingJob
    runtime: str
    grid: Grid
    measured_kind: MeasuredKind
    measured_s: float | None
    memory_kind: MemoryKind
    memory_bytes: int | None
    ran: bool
    laboratory: str
    assumptions: tuple[str, ...] = ()

    def measured(self, metric: str) -> float | None:
        """Measured seconds a step, or for MEMORY the bytes; None if not measured."""
        return self.memory_bytes if metric == TrainingMetric.MEMORY else self.measured_s

    def predicted(self, prediction: Prediction, metric: str) -> float | None:
        """Predicted seconds a step, or for MEMORY the bytes as measured; None = not measured."""
        if metric == TrainingMetric.MEMORY:
            return predicted_memory(prediction, kind=self.memory_kind)
        return prediction.step_time_s

    def run_cells(self) -> dict[str, Any]:
        """Name -> value of the run's degrees, microbatches and runtime, for selectors."""
        grid = self.grid
        names = ("tp", "cp", "pp", "dp", "ep", "zero", "shard")
        return {
            **{name: getattr(grid, name) for name in names},
            "micro_batch": grid.microbatch,
            "microbatches": self.job.global_batch / (grid.dp * grid.microbatch),
            "runtime": self.runtime,
        }


def identity_of(run: TrainingRun) -> Hashable:
    """Cache key (model, cluster, job, runtime, grid): runs with equal keys share a prediction."""
    return run.model, run.cluster, run.job, run.runtime, run.grid


def predicted_memory(prediction: Prediction, *, kind: MemoryKind) -> int | None:
    """Predicted bytes (allocated, reserved) of first, last or worst stage by `kind`; or None."""
    if kind is MemoryKind.NONE:
        return None
    if kind is MemoryKind.RESERVED_WORST:
        return max(
            (stage.allocator_bytes for stage in prediction.stages),
            default=prediction.reserved_bytes,
        )
    if kind is MemoryKind.ALLOCATED_WORST or not prediction.stages:
        return prediction.allocated_bytes
    stages = sorted(prediction.stages, key=lambda stage: stage.rank)
    return stages[0 if kind is MemoryKind.ALLOCATED_FIRST_STAGE else -1].allocated
