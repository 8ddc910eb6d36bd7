"""A measured configuration of serving as a problem to predict, or the reason why it is none."""

from __future__ import annotations

from enum import StrEnum

from shardwright.hardware.cluster import Cluster
from shardwright.job.serving import ClosedLoop, ServingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.engines.engine import Engine
from shardwright.serving.deployments.workers import Deployment, Role
from shardwright.validation.serving.measured_rows import ServingMeasurement
from shardwright.validation.tables.measured_run import SkipReason


class Metric(StrEnum):
    """What is judged: seconds a token behind the first, to the first one, and of a whole answer, in
    the mean of requests; tokens a second.
    """

    TPOT = "tpot"
    TTFT = "ttft"
    E2E = "e2e"
    THROUGHPUT = "throughput"


class Doubt(StrEnum):
    """What of a configuration its source leaves open; such rows are judged in columns of their
    own.
    """

    NONE = "known"
    MTP = "mtp unknown"
    DEGREES = "degrees inconsistent"
    PRECISION = "precision unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCase:
    """One measured configuration, ready to predict.

    Args:
        measurement: the row as published.
        engine: with its options, not yet on its devices.
        version: as the row says it, ``sglang 0.5.9``; the engine alone where it says none.
        tpot_s, ttft_s, tokens_per_s: as measured; None = were not. guessed: tokens were guessed
            ahead.
        doubt: the first that holds.
        assumptions: what the row does not say and how it is known, one line each.
    """

    measurement: ServingMeasurement
    model: Model
    cluster: Cluster
    job: ServingJob
    engine: Engine
    version: str
    deployment: Deployment
    tpot_s: float | None
    ttft_s: float | None
    tokens_per_s: float | None
    doubt: Doubt = Doubt.NONE
    assumptions: tuple[str, ...] = ()

    @property
    def guessed(self) -> bool:
        """Whether tokens are guessed ahead."""
        return self.job.speculation is not None

    @property
    def disaggregated(self) -> bool:
        """Whether prompts and answers have workers of their own."""
        return any(pool.role is Role.DECODE for pool in self.deployment.pools)

    @property
    def mean_outputs(self) -> float:
        """Tokens of an answer in the mean."""
        return self.job.lengths.outputs.mean if self.job.lengths else 1.0

    @property
    def concurrency(self) -> int:
        """Requests in flight of a closed loop, else 0."""
        return self.job.arrivals.concurrency if isinstance(self.job.arrivals, ClosedLoop) else 0

    def measured(self, metric: Metric) -> float | None:
        """Seconds, or tokens a second; None where it was not measured. A whole answer takes TTFT +
        (tokens - 1) x TPOT.
        """
        return metric_value(
            metric,
            ttft_s=self.ttft_s,
            tpot_s=self.tpot_s,
            tokens_per_s=self.tokens_per_s,
            outputs=self.mean_outputs,
        )


def metric_value(
    metric: Metric,
    *,
    ttft_s: float | None,
    tpot_s: float | None,
    tokens_per_s: float | None,
    outputs: float,
) -> float | None:
    """One metric of those that are at hand; `outputs`: tokens of an answer in the mean."""
    if metric is Metric.TPOT:
        return tpot_s
    if metric is Metric.TTFT:
        return ttft_s
    if metric is Metric.THROUGHPUT:
        return tokens_per_s
    return None if ttft_s is None or tpot_s is None else ttft_s + (outputs - 1) * tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSkip:
    """A row that is not judged. `detail`: the field or word in question."""

    measurement: ServingMeasurement
    reason: SkipReason
    detail: str = ""
