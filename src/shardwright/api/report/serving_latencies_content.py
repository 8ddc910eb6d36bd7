"""Contents of the report's view of a serving result."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import Final

import numpy as np

from shardwright.api.report.ratio_or_zero import ratio
from shardwright.api.simulate_deployment import serve_simulate
from shardwright.arrays import FloatArray
from shardwright.errors import InfeasibleError
from shardwright.files.comparison_advice_serving_document_classes import (
    StoredPool,
    StoredServing,
    StoredSpread,
)
from shardwright.report.page.view_data_types.latency_percentiles import LatencyRow
from shardwright.report.page.view_data_types.line_chart_data import (
    ChartAxis,
    ChartSeries,
    LineChart,
    round_ticks_of_ratios,
)
from shardwright.report.page.view_data_types.serving_latencies import (
    IterationPart,
    OtherLoad,
    PoolMemory,
    ServingLatencies,
)
from shardwright.serving.simulation.latency_and_throughput_metrics import Latencies
from shardwright.serving.unparsed_simulation_inputs import ServingRequest

POSITIONS: Final = (0.01, *(round(0.05 * k, 2) for k in range(1, 20)), 0.99, 1.0)
"""Shares of the requests at which the chart has a point."""
LOAD: Final = 2
"""Ratio of the other load's requests in flight to those of this one."""
_NAMES: Final = ("time to first token", "time of each further token", "time of a request")


def serving_latencies(saved: StoredServing) -> ServingLatencies:
    """Latencies, throughput and memory of a serving result, and the same under another load.

    The simulation is repeated for the latencies of single requests, which the file does not hold.
    """
    again = serve_simulate(saved.request)
    return replace(latencies_of_requests(saved, again.latencies), other=_other_load(saved))


def latencies_of_requests(saved: StoredServing, latencies: Latencies) -> ServingLatencies:
    """Latencies, throughput and memory of a serving result whose single requests are known."""
    metrics, request = saved.metrics, saved.request
    total_s = sum(seconds for _, seconds in saved.seconds_by_part)
    spreads = zip(_NAMES, (metrics.ttft, metrics.tpot, metrics.e2e), strict=True)
    return ServingLatencies(
        model=request.model,
        cluster=request.cluster,
        engine=saved.engine,
        deployment=saved.deployment,
        devices=saved.devices,
        requests=metrics.num_requests,
        refused=metrics.num_refused,
        tokens_per_s=metrics.tokens_per_second,
        tokens_per_s_per_device=metrics.per_device,
        tokens_per_s_per_user=metrics.per_user,
        requests_per_s=metrics.requests_per_second,
        concurrency=metrics.concurrency,
        queue=metrics.queue,
        kept=metrics.kept,
        slo=request.slo,
        joules_per_token=saved.joules_per_token,
        latencies=tuple(_latency(name, spread) for name, spread in spreads),
        chart=_chart(latencies),
        parts=tuple(
            IterationPart(name=name, seconds=seconds, share=ratio(seconds, total_s))
            for name, seconds in saved.seconds_by_part
            if seconds
        ),
        pools=tuple(map(_pool, saved.pools)),
        other=None,
    )


def _latency(name: str, spread: StoredSpread) -> LatencyRow:
    """A row of the table of latencies."""
    return LatencyRow(
        name=name, mean_s=spread.mean, p50_s=spread.p50, p90_s=spread.p90, p99_s=spread.p99
    )


def _chart(latencies: Latencies) -> LineChart | None:
    """Seconds that a share of the requests does not exceed, by nearest rank; None of no requests.

    The vertical axis is logarithmic, as latencies of tokens and of requests differ by hundreds.
    """
    arrays = (latencies.ttft_s, latencies.tpot_s, latencies.e2e_s)
    series = tuple(
        ChartSeries(name=name, values=_at_positions(values))
        for name, values in zip(_NAMES, arrays, strict=True)
        if len(values) and float(values.min()) > 0.0
    )
    if not series:
        return None
    heights = [value for one in series for value in one.values if value is not None]
    return LineChart(
        x=ChartAxis(
            name="share of the requests",
            form="whole_percent",
            ticks=(0.0, 0.25, 0.5, 0.75, 1.0),
            values=POSITIONS,
        ),
        y=ChartAxis(
            name="at most", form="seconds", ticks=round_ticks_of_ratios(heights), logarithmic=True
        ),
        series=series,
    )


def _at_positions(values: FloatArray) -> tuple[float, ...]:
    """Nearest-rank percentiles of values at `POSITIONS`."""
    ordered = np.sort(values)
    ranks = [max(int(np.ceil(share * len(ordered) - 1e-9)) - 1, 0) for share in POSITIONS]
    return tuple(float(ordered[rank]) for rank in ranks)


def _pool(pool: StoredPool) -> PoolMemory:
    """Memory of a device of a worker pool by use, in bytes and as shares of its capacity."""
    memory = pool.memory
    used = memory.cache * pool.cache_used
    parts = (memory.weights, memory.activations, memory.others, used, memory.cache - used)
    return PoolMemory(
        role=pool.role,
        workers=pool.count,
        weights=memory.weights,
        activations=memory.activations,
        others=memory.others,
        cache=memory.cache,
        cache_used=pool.cache_used,
        capacity=memory.capacity,
        shares=tuple(ratio(part, memory.capacity) for part in parts),
    )


def _other_load(saved: StoredServing) -> OtherLoad | None:
    """The deployment at twice the concurrency (half if it misses targets); None if unfit.

    None without a closed loop, or if the other load cannot be served.
    """
    here, request = saved.metrics, saved.request
    if not request.concurrency:
        return None
    more = request.concurrency * LOAD if here.promised else request.concurrency // LOAD
    if not more:
        return None
    other = replace(request, concurrency=more)
    try:
        there = serve_simulate(other).metrics
    except InfeasibleError:
        return None
    token_s = there.tpot.mean if np.isfinite(there.tpot.mean) else None
    return OtherLoad(
        concurrency=more,
        tokens_per_s=there.tokens_per_second,
        gain=ratio(there.tokens_per_second - here.tokens_per_second, here.tokens_per_second),
        token_s=token_s,
        slower=None if token_s is None or not here.tpot.mean else token_s / here.tpot.mean - 1.0,
        command=serving_command(other),
    )


def serving_command(request: ServingRequest) -> str:
    """The command line of `serve-simulate` for a request, without defaults."""
    words = ["shardwright", "serve-simulate", request.model, request.cluster]
    for field in fields(ServingRequest):
        value = getattr(request, field.name)
        if field.name not in ("model", "cluster") and value != field.default:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{field.name.replace('_', '-')}", text]
    return shlex.join(words)
