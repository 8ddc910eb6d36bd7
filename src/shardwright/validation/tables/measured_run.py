"""A measured run as a problem to predict, or the reason why it is none."""

from __future__ import annotations

from enum import StrEnum

from shardwright.hardware.cluster import Cluster
from shardwright.job.training import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.strategy.grid.axes import Grid
from shardwright.validation.tables.measured_rows import Measurement, MemoryKind


class SkipReason(StrEnum):
    """Why a row is not judged; the list is closed."""

    LOW_QUALITY = "low-quality"
    INCOMPLETE_CONFIGURATION = "incomplete-configuration"
    INCONSISTENT_CONFIGURATION = "inconsistent-configuration"
    UNKNOWN_ACCELERATOR = "unknown-accelerator"
    UNSUPPORTED_MODEL = "unsupported-model"
    UNSUPPORTED_RUNTIME = "unsupported-runtime"
    UNSUPPORTED_STRATEGY = "unsupported-strategy"
    MIXED_CLUSTER = "mixed-cluster"
    FINE_TUNING = "fine-tuning"
    NO_MEASUREMENT = "no-measurement"
    AMBIGUOUS_FAILURE = "ambiguous-failure"
    DUPLICATE = "duplicate"


class MeasuredKind(StrEnum):
    """Where a row's seconds come from."""

    ITERATION_TIME = "iteration-time"
    TOKENS_PER_SECOND = "tokens-per-second"
    TFLOPS_FORMULA = "tflops-formula"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured run, ready to predict.

    Args:
        measurement: the row as published. model, cluster, job, runtime (a name), grid: the problem
            and the strategy that ran.
        measured_s: seconds a step by measured_kind; None if only memory was measured.
        memory_bytes: by memory_kind; None if it was not measured.
        ran: False for a configuration that did not fit.
        laboratory: group of sources that may share configurations, the first set of folds.
        assumptions: what the row does not say and facts or the runtime's documented default fill,
            one line each.
    """

    measurement: Measurement
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A row that is not judged. `detail`: the field or word in question."""

    measurement: Measurement
    reason: SkipReason
    detail: str = ""
