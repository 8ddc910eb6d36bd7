"""The `serve-simulate` screen: a deployment under traffic; and its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from math import isfinite, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.serving.simulation.closed_form_mean_estimate import MeanEstimate
from shardwright.serving.simulation.latency_and_throughput_metrics import Metrics, MetricSpread
from shardwright.serving.simulation.serving_answer import PoolAnswer, ServingAnswer
from shardwright.serving.step_times.iteration_seconds import PARTS
from shardwright.units import (
    format_bytes,
    format_count,
    format_parameters,
    format_percent,
    format_seconds,
)


def serving_document(answer: ServingAnswer) -> dict[str, Any]:
    """JSON document of ``serve-simulate --json``: seconds, bytes and counts."""
    return {
        "request": asdict(answer.request),
        "engine": answer.engine,
        "deployment": print_deployment(answer.deployment),
        "devices": answer.deployment.devices,
        "metrics": asdict(answer.metrics),
        "iterations": answer.served.iterations,
        "seconds_by_part": dict(zip(PARTS, answer.served.by_part.tolist(), strict=True)),
        "pools": [
            {
                "role": pool_answer.pool.role.value,
                "count": pool_answer.pool.count,
                "memory": asdict(pool_answer.memory),
                "cache_used": pool_answer.cache_used,
            }
            for pool_answer in answer.pools
        ],
        "joules_per_token": answer.joules_per_token,
        "notes": list(answer.notes),
    }


def estimate_document(mean_field: MeanEstimate) -> dict[str, float]:
    """JSON document of ``serve-simulate --estimate --json``: seconds and rates a second."""
    return {field.name: float(getattr(mean_field, field.name)[0]) for field in fields(mean_field)}


def render_estimate(mean_field: MeanEstimate) -> RenderableType:
    """Screen of ``serve-simulate --estimate``: rates and latencies in the mean."""
    seen = estimate_document(mean_field)
    return Group(
        Text(
            f"In the mean: {format_count(seen['tokens_per_second'])} tokens/s,"
            f" {format_count(seen['requests_per_second'])} requests/s"
        ),
        Text(
            f"time to first token {_seconds(seen['ttft_s'])}, of each further one"
            f" {_seconds(seen['tpot_s'])}"
        ),
        Text(f"time of a request {_seconds(seen['e2e_s'])}"),
        WrappedText(
            Text(
                f"{seen['decoding']:.4g} requests of a rank decode, {_seconds(seen['iteration_s'])}"
                " an iteration",
                style="dim",
            )
        ),
    )


def _seconds(value: float) -> str:
    """Seconds as text, or "without end" for infinity."""
    return format_seconds(value) if isfinite(value) else "without end"


def render_serving(answer: ServingAnswer) -> RenderableType:
    """Screen of a deployment: rates, latencies, shares of iteration time, memory by worker pool."""
    metrics = answer.metrics
    return Group(
        WrappedText(Text.assemble((_title_line(answer), "bold"))),
        WrappedText(Text(_rates_text(answer)), hanging=2),
        *(WrappedText(Text(line), hanging=2) for line in _wait_lines(answer)),
        Text(),
        plain_table(
            ("", "mean", "p50", "p90", "p99"),
            [_latency_cells(*row) for row in _latency_spreads(metrics)],
            right=(1, 2, 3, 4),
            whole=(0,),
        ),
        Text(),
        plain_table(
            ("time of iterations", "share"), list(_iteration_shares(answer)), right=(1,), whole=(0,)
        ),
        Text(),
        plain_table(
            ("pool", "weights", "iteration", "cache", "tokens in it", "used at most"),
            [_memory_cells(one) for one in answer.pools],
            right=(1, 2, 3, 4, 5),
            whole=(0,),
        ),
        *(WrappedText(Text(note, style="dim"), hanging=2) for note in answer.notes),
    )


def _title_line(answer: ServingAnswer) -> str:
    """Title line: model, cluster, engine and deployment."""
    model, cluster = answer.problem.model, answer.problem.cluster
    return (
        f"{model.name or model.architecture} ({format_parameters(model.num_parameters)}) on"
        f" {cluster.expression} with {answer.engine}: {print_deployment(answer.deployment)}"
    )


def _rates_text(answer: ServingAnswer) -> str:
    """Sentence of tokens a second (total, a device, a user), requests a second and energy."""
    metrics = answer.metrics
    energy = (
        ""
        if answer.joules_per_token is None
        else f"; at most {answer.joules_per_token:.3g} J a token at the devices' power limits"
    )
    return (
        f"{format_count(metrics.tokens_per_second)} tokens/s of answers,"
        f" {format_count(metrics.per_device)} a device, {_count_text(metrics.per_user)} a user;"
        f" {format_count(metrics.requests_per_second)} requests/s{energy}"
    )


def _wait_lines(answer: ServingAnswer) -> Iterator[str]:
    """Yield lines on the queue, lost caches, refused requests, and the promised latency, if any."""
    seen, served = answer.metrics, answer.served
    if seen.queue >= 0.5:
        waits = format_seconds(served.waiting_s)
        yield (
            f"{format_count(seen.queue)} requests wait for admission in the mean, {waits} each:"
            f" {_bottleneck_text(answer)}"
        )
    else:
        yield f"No queue: {format_count(seen.concurrency)} requests run in the mean"
    preempted = int(served.preempted.sum())
    if preempted:
        yield f"{preempted:,} times a request lost its cache to others and was computed anew"
    if seen.num_refused:
        yield f"{seen.num_refused:,} requests are longer than the cache and were refused"
    slo = answer.problem.job.promise
    if slo.ttft_s or slo.tpot_s or slo.e2e_s:
        outcome = "kept" if seen.promised else "not kept"
        shares = (
            f"{format_percent(seen.kept)} of the requests in time ({format_percent(slo.share)}"
            " promised)"
        )
        yield f"Promise {outcome}: {shares}, {format_count(seen.goodput)} requests/s of those"


def _bottleneck_text(answer: ServingAnswer) -> str:
    """Phrase on what requests wait for: cache over 95 % full, else places and prompt tokens."""
    if max(pool.cache_used for pool in answer.pools) > 0.95:
        return "the cache is full"
    return "all places of running requests are taken, or prompts take the iterations' tokens"


def _latency_spreads(metrics: Metrics) -> tuple[tuple[str, MetricSpread], ...]:
    """(label, distribution in s) of time to first token, each further token, whole request."""
    return (
        ("time to first token", metrics.ttft),
        ("time of each further token", metrics.tpot),
        ("time of a request", metrics.e2e),
    )


def _latency_cells(name: str, spread: MetricSpread) -> tuple[str, ...]:
    """Cells of a latency: name, then mean, p50, p90 and p99, or dashes."""
    return (
        name,
        *(
            format_seconds(value) if not isnan(value) else "-"
            for value in (spread.mean, spread.p50, spread.p90, spread.p99)
        ),
    )


def _iteration_shares(answer: ServingAnswer) -> Iterator[tuple[str, str]]:
    """Yield (part of an iteration, percent of all iterations' time), without parts of 0."""
    total_s = float(answer.served.by_part.sum())
    for name, seconds in zip(PARTS, answer.served.by_part.tolist(), strict=True):
        if seconds:
            yield name, format_percent(seconds / total_s)


def _memory_cells(pool_answer: PoolAnswer) -> tuple[str, ...]:
    """Cells of a pool: bytes of weights, activations with others, cache; cache tokens; use."""
    memory = pool_answer.memory
    return (
        f"{pool_answer.pool.role.value} {pool_answer.pool.count}x{pool_answer.pool.worker.devices}",
        format_bytes(memory.weights),
        format_bytes(memory.activations + memory.others),
        format_bytes(memory.cache),
        f"{memory.tokens:,}",
        format_percent(pool_answer.cache_used),
    )


def _count_text(value: float) -> str:
    """Format a count, or a dash if it is NaN."""
    return "-" if isnan(value) else format_count(value)
