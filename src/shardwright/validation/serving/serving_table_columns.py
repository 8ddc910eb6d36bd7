"""Columns of tables of served configurations, with a row a configuration or a row a metric."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.serving.pivot_metric_rows_to_configurations import (
    METRIC,
    join_metric_rows,
)
from shardwright.validation.tables.csv_rows import (
    CLUSTER_FILES,
    TableForm,
    columns_of,
    read_bytes,
    table_lines,
)


class ServingMetric(StrEnum):
    """Metrics of a served configuration: TPOT, TTFT, end-to-end latency and throughput.

    Means over requests.

    Seconds for each output token after the first; seconds to the first token; seconds of a whole
    request; output tokens a second of all workers.
    """

    TPOT = "tpot"
    TTFT = "ttft"
    E2E = "e2e"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMeasurement:
    """A row of a table of served configurations; None or empty means that the source has no value.

    Args:
        line: first line of the row in the file; 1 is the header.
        source_id, source, table_or_row: where it was published.
        gpu: accelerator.
        gpu_count: devices of all workers.
        gpus_per_node, cluster: as in
            `validation.training.training_table_columns.TrainingMeasurement`.
        config: a Hugging Face config.json, its path (from the table's folder) or its text, where
            `model_name` is no model of the catalog.
        engine: engine and version, ``vLLM 0.18.0``.
        options: further options of its launch, ``token_budget=16384``.
        deployment: workers in the notation of ``serve-simulate``, ``agg 4x(tp2)``; it replaces the
            degrees.
        tp, dpa, ep, pp: degrees of each of `replicas` equal workers: tensor parallelism of
            attention, data parallelism of attention, devices that experts are spread over, stages.
        workers: prefill and decode workers as InferenceX prints them, ``1x(tp4ep4dp)+5x(tp8ep8)``.
        degrees: ``as stated``; ``product of tp and ep``: tp is printed times ep; or
            ``inconsistent``: they contradict one another.
        precision: number format of the checkpoint, ``fp8``.
        checkpoint: name under which the checkpoint is published.
        kv_precision: number format of the KV cache.
        isl, osl: tokens of the longest prompt and of the longest output.
        shortest: the shortest over the longest; 1 = all are equal.
        concurrency: requests in flight of a closed loop.
        request_rate: arrivals a second of a Poisson stream.
        requests: requests of the run.
        protocol: ``inferencex`` (lengths from 0.8, 10 x concurrency requests, the first ones all at
            once), ``fixed``, or ``maximum`` (all requests at once).
        spec_decoding: ``none``, ``mtp``, ``unknown``.
        guesses: draft tokens of speculative decoding.
        acceptance: probability that a draft token is accepted, given that those before it were.
        tpot_ms: milliseconds for each output token after the first, the mean over requests.
        ttft_ms: milliseconds to the first token, the mean over the run.
        output_tokens_per_s: output tokens a second of all workers.
        duplicate_of: row with the same measurement.
        notes: free; ``LOW QUALITY`` = leave out.
    """

    line: int
    source_id: str
    table_or_row: str
    model_name: str
    gpu: str
    engine: str
    source: str = ""
    gpu_count: int | None = None
    gpus_per_node: int | None = None
    cluster: str = ""
    config: str = ""
    options: str = ""
    deployment: str = ""
    replicas: int | None = None
    tp: int | None = None
    dpa: int | None = None
    ep: int | None = None
    pp: int | None = None
    workers: str = ""
    degrees: str = ""
    precision: str = ""
    checkpoint: str = ""
    kv_precision: str = ""
    isl: int | None = None
    osl: int | None = None
    shortest: float | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    requests: int | None = None
    protocol: str = ""
    spec_decoding: str = ""
    guesses: int | None = None
    acceptance: float | None = None
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    output_tokens_per_s: float | None = None
    duplicate_of: str = ""
    notes: str = ""


SERVING_TABLE: Final = TableForm(
    make=ServingMeasurement,
    columns=columns_of(ServingMeasurement),
    required=("source_id", "table_or_row", "model_name", "gpu", "engine"),
    metrics=tuple(ServingMetric),
    files={"config": ("",), "cluster": CLUSTER_FILES},
    rewrite=join_metric_rows,
)
_SERVING_ONLY: Final = {METRIC, "engine", "tpot_ms", "ttft_ms", "output_tokens_per_s"}


def is_serving_table(path: str | Path) -> bool:
    """True if a table's header has a column that only tables of serving have.

    Raises:
        DataError: the file cannot be read as a table.
    """
    names, _ = table_lines(read_bytes(Path(path)), source=Path(path).name or str(path))
    return not _SERVING_ONLY.isdisjoint(names)
