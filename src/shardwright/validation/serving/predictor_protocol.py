"""What predicts a served configuration: a function of the case and the constants, passed in."""

from __future__ import annotations

from typing import Protocol

from shardwright.hardware.catalog.serving_constants import ServingConstants
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.serving.measured_deployment import Metric, ServingCase, metric_value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPrediction:
    """What a configuration is predicted to do, in the mean of its requests.

    Args:
        tpot_s, ttft_s: seconds a token behind the first, and to the first.
        tokens_per_s: of answers, of all workers.
        cache_load: tokens that all requests in flight would hold over those that fit (of the rank
            with the least room); 0 = not known.
        endless_ttft_s: to the first token if the cache were endless; None = not asked for
            (`serving.predict`).
    """

    tpot_s: float
    ttft_s: float
    tokens_per_s: float
    cache_load: float = 0.0
    endless_ttft_s: float | None = None

    def of(self, metric: Metric, *, outputs: float) -> float | None:
        """One metric; `outputs`: tokens of an answer in the mean."""
        return metric_value(
            metric,
            ttft_s=self.ttft_s,
            tpot_s=self.tpot_s,
            tokens_per_s=self.tokens_per_s,
            outputs=outputs,
        )


class ServingEvaluator(Protocol):
    """Predicts a case under constants.

    Raises:
        InfeasibleError: it does not fit. StrategyError, ModelError, ClusterError,
        RuntimeModelError: it cannot be expressed.
    """

    def __call__(self, case: ServingCase, constants: ServingConstants, /) -> ServingPrediction: ...  # noqa: D102 - see the class
