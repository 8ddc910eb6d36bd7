"""Contents of a notebook's card of a serving simulation."""

from __future__ import annotations

from math import isfinite

from shardwright.report.page.contents.latency_percentiles import LatencyRow
from shardwright.report.page.contents.serving_card import ServingCard
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.serving.simulation.latency_and_throughput_metrics import MetricSpread
from shardwright.serving.simulation.serving_answer import ServingAnswer


def serving_card(answer: ServingAnswer) -> ServingCard:
    """The card of a deployment under traffic."""
    metrics, model, targets = answer.metrics, answer.problem.model, answer.request.slo
    return ServingCard(
        model=model.name or model.architecture,
        parameters=model.num_parameters,
        cluster=answer.request.cluster,
        engine=answer.engine,
        deployment=print_deployment(answer.deployment),
        devices=answer.deployment.devices,
        requests=metrics.num_requests,
        refused=metrics.num_refused,
        requests_per_s=metrics.requests_per_second,
        tokens_per_s=metrics.tokens_per_second,
        tokens_per_s_per_device=metrics.per_device,
        tokens_per_s_per_user=_finite(metrics.per_user),
        concurrency=metrics.concurrency,
        queue=metrics.queue,
        kept_share=metrics.kept if targets else None,
        target_share=answer.problem.job.promise.share if targets else None,
        targets=targets,
        cache_share=max(pool.cache_used for pool in answer.pools),
        joules_per_token=answer.joules_per_token,
        latencies=(
            _latency("time to first token", metrics.ttft),
            _latency("time of each further token", metrics.tpot),
            _latency("time of a request", metrics.e2e),
        ),
    )


def _latency(name: str, spread: MetricSpread) -> LatencyRow:
    """Row of one latency."""
    return LatencyRow(
        name=name,
        mean_s=_finite(spread.mean),
        p50_s=_finite(spread.p50),
        p90_s=_finite(spread.p90),
        p99_s=_finite(spread.p99),
    )


def _finite(value: float) -> float | None:
    """The value, or None for nan and infinity, which JSON cannot hold."""
    return value if isfinite(value) else None
