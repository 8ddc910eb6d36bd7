"""A deployment under traffic: as a screen, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from math import isfinite, isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Words
from shardwright.report.table_style import plain_table
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.serving.simulation.mean_estimate import MeanEstimate
from shardwright.serving.simulation.serving_answer import PoolAnswer, ServingAnswer
from shardwright.serving.simulation.user_metrics import Metrics, MetricSpread
from shardwright.serving.step_times.iteration_seconds import PARTS
from shardwright.units import (
    format_bytes,
    format_count,
    format_parameters,
    format_percent,
    format_seconds,
)


def serving_document(answer: ServingAnswer) -> dict[str, Any]:
    """The document that ``serve-simulate --json`` prints: seconds, bytes and counts."""
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
                "role": one.pool.role.value,
                "count": one.pool.count,
                "memory": asdict(one.memory),
                "cache_used": one.cache_used,
            }
            for one in answer.pools
        ],
        "joules_per_token": answer.joules_per_token,
        "notes": list(answer.notes),
    }


def estimate_document(found: MeanEstimate) -> dict[str, float]:
    """The document that ``serve-simulate --estimate --json`` prints: seconds, and requests and
    tokens a second.
    """
    return {field.name: float(getattr(found, field.name)[0]) for field in fields(found)}


def render_estimate(found: MeanEstimate) -> RenderableType:
    """The same as lines."""
    seen = estimate_document(found)
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
        Words(
            Text(
                f"{seen['decoding']:.4g} requests of a rank decode, {_seconds(seen['iteration_s'])}"
                " an iteration",
                style="dim",
            )
        ),
    )


def _seconds(value: float) -> str:
    return format_seconds(value) if isfinite(value) else "without end"


def render_serving(answer: ServingAnswer) -> RenderableType:
    """The head, times by percentile, where an iteration's time goes, and memory by pool."""
    seen = answer.metrics
    return Group(
        Words(Text.assemble((_head(answer), "bold"))),
        Words(Text(_rates(answer)), hanging=2),
        *(Words(Text(line), hanging=2) for line in _waits(answer)),
        Text(),
        plain_table(
            ("", "mean", "p50", "p90", "p99"),
            [_times(*row) for row in _spreads(seen)],
            right=(1, 2, 3, 4),
            whole=(0,),
        ),
        Text(),
        plain_table(("time of iterations", "share"), list(_shares(answer)), right=(1,), whole=(0,)),
        Text(),
        plain_table(
            ("pool", "weights", "iteration", "cache", "tokens in it", "used at most"),
            [_memory(one) for one in answer.pools],
            right=(1, 2, 3, 4, 5),
            whole=(0,),
        ),
        *(Words(Text(note, style="dim"), hanging=2) for note in answer.notes),
    )


def _head(answer: ServingAnswer) -> str:
    model, cluster = answer.problem.model, answer.problem.cluster
    return (
        f"{model.name or model.architecture} ({format_parameters(model.num_parameters)}) on"
        f" {cluster.expression} with {answer.engine}: {print_deployment(answer.deployment)}"
    )


def _rates(answer: ServingAnswer) -> str:
    seen = answer.metrics
    energy = (
        ""
        if answer.joules_per_token is None
        else f"; at most {answer.joules_per_token:.3g} J a token at the devices' power limits"
    )
    return (
        f"{format_count(seen.tokens_per_second)} tokens/s of answers,"
        f" {format_count(seen.per_device)} a device, {_number(seen.per_user)} a user;"
        f" {format_count(seen.requests_per_second)} requests/s{energy}"
    )


def _waits(answer: ServingAnswer) -> Iterator[str]:
    """Lines on the waiting time of requests, refused requests, and the latency objectives."""
    seen, served = answer.metrics, answer.served
    if seen.queue >= 0.5:
        waits = format_seconds(served.waiting_s)
        yield (
            f"{format_count(seen.queue)} requests wait for admission in the mean, {waits} each:"
            f" {_full(answer)}"
        )
    else:
        yield f"No queue: {format_count(seen.concurrency)} requests run in the mean"
    lost = int(served.preempted.sum())
    if lost:
        yield f"{lost:,} times a request lost its cache to others and was computed anew"
    if seen.num_refused:
        yield f"{seen.num_refused:,} requests are longer than the cache and were refused"
    promise = answer.problem.job.promise
    if promise.ttft_s or promise.tpot_s or promise.e2e_s:
        kept = "kept" if seen.promised else "not kept"
        shares = (
            f"{format_percent(seen.kept)} of the requests in time ({format_percent(promise.share)}"
            " promised)"
        )
        yield f"Promise {kept}: {shares}, {format_count(seen.goodput)} requests/s of those"


def _full(answer: ServingAnswer) -> str:
    if max(one.cache_used for one in answer.pools) > 0.95:
        return "the cache is full"
    return "all places of running requests are taken, or prompts take the iterations' tokens"


def _spreads(seen: Metrics) -> tuple[tuple[str, MetricSpread], ...]:
    return (
        ("time to first token", seen.ttft),
        ("time of each further token", seen.tpot),
        ("time of a request", seen.e2e),
    )


def _times(name: str, of: MetricSpread) -> tuple[str, ...]:
    return (
        name,
        *(
            format_seconds(value) if not isnan(value) else "-"
            for value in (of.mean, of.p50, of.p90, of.p99)
        ),
    )


def _shares(answer: ServingAnswer) -> Iterator[tuple[str, str]]:
    whole = float(answer.served.by_part.sum())
    for name, seconds in zip(PARTS, answer.served.by_part.tolist(), strict=True):
        if seconds:
            yield name, format_percent(seconds / whole)


def _memory(one: PoolAnswer) -> tuple[str, ...]:
    memory = one.memory
    return (
        f"{one.pool.role.value} {one.pool.count}x{one.pool.worker.devices}",
        format_bytes(memory.weights),
        format_bytes(memory.activations + memory.others),
        format_bytes(memory.cache),
        f"{memory.tokens:,}",
        format_percent(one.cache_used),
    )


def _number(value: float) -> str:
    return "-" if isnan(value) else format_count(value)
