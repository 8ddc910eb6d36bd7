"""A measured serving configuration as a problem to predict, and the values of its metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from shardwright.hardware.cluster import Cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ClosedLoop, ServingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.deployments.worker_pools import Deployment, WorkerRole
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import has_routed_experts
from shardwright.validation.serving.serving_table_columns import ServingMeasurement, ServingMetric


class Category(StrEnum):
    """The property of a configuration that its source leaves open; each category is judged apart.

    CAPACITY: the requests would fill nearly the whole KV cache, so that a few per cent of memory
    decide whether requests wait.
    """

    KNOWN = "known"
    MTP = "mtp unknown"
    DEGREES = "degrees inconsistent"
    PRECISION = "precision unknown"
    CAPACITY = "near capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingValues:
    """Measured or predicted TPOT, TTFT and throughput of a configuration; None = not known.

    Args:
        tpot_s: seconds for each output token after the first.
        ttft_s: seconds to the first token.
        tokens_per_s: output tokens a second of all workers.
        cache_load: tokens that all requests in flight would hold, over those that fit (on the rank
            with the least room); 0 = not known.
        endless_ttft_s: seconds to the first token with an endless KV cache; None = not predicted.
    """

    tpot_s: float | None
    ttft_s: float | None
    tokens_per_s: float | None
    cache_load: float = 0.0
    endless_ttft_s: float | None = None

    def metric_value(self, metric: str, *, outputs: float) -> float | None:
        """TPOT, TTFT, tokens/s, or for E2E the seconds TTFT + (outputs - 1) x TPOT; None if absent.

        Args:
            outputs: mean number of output tokens of a request.
        """
        if metric != ServingMetric.E2E:
            values = {"tpot": self.tpot_s, "ttft": self.ttft_s, "throughput": self.tokens_per_s}
            return values[metric]
        if self.ttft_s is None or self.tpot_s is None:
            return None
        return self.ttft_s + (outputs - 1) * self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A measured serving configuration, ready to predict.

    Args:
        measurement: the row as published.
        engine: the engine with its options, not yet on its devices.
        version: engine and version as the row gives them, ``sglang 0.5.9``; the engine alone where
            it gives no version.
        values: measured values.
        category: the part that the source leaves open.
        assumptions: settings that the row lacks and how they are known, one line each.
    """

    measurement: ServingMeasurement
    model: Model
    cluster: Cluster
    job: ServingJob
    engine: Engine
    version: str
    deployment: Deployment
    values: ServingValues
    category: Category = Category.KNOWN
    assumptions: tuple[str, ...] = ()

    @property
    def ran(self) -> bool:
        """True: tables of serving have no failures."""
        return True

    @property
    def is_speculative(self) -> bool:
        """True if the engine decodes speculatively, with draft tokens."""
        return self.job.speculation is not None

    @property
    def is_disaggregated(self) -> bool:
        """True if prefill and decode run on separate workers."""
        return any(pool.role is WorkerRole.DECODE for pool in self.deployment.pools)

    @property
    def mean_outputs(self) -> float:
        """Mean number of output tokens of a request; 1 for a job without lengths."""
        return self.job.lengths.outputs.mean if self.job.lengths else 1.0

    @property
    def concurrency(self) -> int:
        """Number of requests in flight of a closed loop, else 0."""
        return self.job.arrivals.concurrency if isinstance(self.job.arrivals, ClosedLoop) else 0

    def measured(self, metric: str) -> float | None:
        """Measured TPOT, TTFT or end-to-end seconds, or tokens/s; None if not measured."""
        return self.values.metric_value(metric, outputs=self.mean_outputs)

    def predicted(self, prediction: ServingValues, metric: str) -> float | None:
        """Predicted TPOT, TTFT or end-to-end seconds, or tokens/s; None = not in the prediction."""
        return prediction.metric_value(metric, outputs=self.mean_outputs)

    def run_cells(self) -> dict[str, Any]:
        """Name -> 1 or 0: routed experts, disaggregation, speculative decoding of the run."""
        return {
            "routed_experts": int(has_routed_experts(self.model)),
            "disaggregated": int(self.is_disaggregated),
            "speculative": int(self.is_speculative),
        }
