"""Contents of the report's answer card from a stored plan or simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardwright.api.training_run_days_and_dollars import with_training_cost
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.report.page.view_data_types.predicted_step_cost_memory_proof import (
    AnswerCard,
    Proof,
    TrainingRunCost,
)
from shardwright.search.comparison_row import Compared
from shardwright.search.optimality_certificate import Certificate, claim
from shardwright.search.simulated_strategy import strategy_text
from shardwright.simulator.prediction import Prediction
from shardwright.units import GIGA, MEGA

INTERVAL_SHARE: Final = 0.8
"""Fraction of comparable runs that are expected inside a prediction's interval."""
_SECONDS_PER_DAY: Final = 86400.0


def answer_card(
    saved: StoredSimulation, *, tokens: float = 0.0, prices: Mapping[str, float] | None = None
) -> AnswerCard:
    """The answer card of a stored plan or simulation.

    Args:
        tokens: tokens of the training run; 0 = not given.
        prices: dollars a device-hour, beside those of the cluster and the catalog.
    """
    request = saved.request
    cost = with_training_cost(saved.simulation, tokens=tokens, prices=prices or {})
    return replace(
        prediction_card(saved.prediction),
        cluster=request.cluster,
        runtime=saved.runtime,
        strategy=strategy_text(saved.simulation),
        sequences=request.global_batch,
        sequence_tokens=request.seq_len,
        usd_per_million_tokens=None if cost.usd_per_token is None else cost.usd_per_token * MEGA,
        run=_training_run(cost) if tokens else None,
        proof=_proof(saved.certificate) if isinstance(saved, StoredPlan) else None,
    )


def prediction_card(prediction: Prediction) -> AnswerCard:
    """The answer card of a prediction alone: without strategy and batch, which it does not hold."""
    spending = prediction.spending
    dollars = None if spending is None else spending.usd_per_billion_tokens
    return AnswerCard(
        model=prediction.model.name,
        parameters=prediction.model.parameters,
        cluster=prediction.cluster,
        runtime=None,
        strategy=None,
        devices=prediction.devices,
        sequences=None,
        sequence_tokens=None,
        step_s=prediction.step_time_s,
        interval_s=prediction.interval_s,
        interval_share=INTERVAL_SHARE,
        tokens_per_s=prediction.tokens_per_s,
        tokens_per_s_per_device=prediction.tokens_per_s_per_device,
        mfu=prediction.mfu_causal,
        usd_per_million_tokens=None if dollars is None else dollars * MEGA / GIGA,
        reserved_bytes=prediction.reserved_bytes,
        capacity_bytes=prediction.capacity_bytes,
        memory_share=prediction.reserved_bytes / prediction.capacity_bytes,
        fits=prediction.fits,
        run=None,
        proof=None,
    )


def _training_run(cost: Compared) -> TrainingRunCost:
    """Days and dollars of the training run."""
    return TrainingRunCost(tokens=cost.tokens, days=cost.seconds / _SECONDS_PER_DAY, usd=cost.usd)


def _proof(certificate: Certificate) -> Proof:
    """Claim and counts of a certificate."""
    return Proof(
        claim=claim(optimal=certificate.optimal, lower_bound_s=certificate.lower_bound_s),
        optimal=certificate.optimal,
        lower_bound_s=certificate.lower_bound_s,
        gap=certificate.gap,
        strategies=certificate.strategies,
        infeasible=certificate.infeasible,
        bounded=certificate.bounded_b0 + certificate.bounded_b1,
        simulated=certificate.simulated,
        space=certificate.space,
        digest=certificate.digest,
    )
