"""Tables of measured serving: CSV files with a row a configuration, or with a row a metric, as
published collections have them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.validation.serving.join_metric_rows import METRIC, metric_rows
from shardwright.validation.tables.csv_rows import (
    Form,
    columns_of,
    parse_rows,
    read_bytes,
    table_lines,
)
from shardwright.validation.tables.measured_rows import FILES

REQUIRED: Final = ("source_id", "table_or_row", "model_name", "gpu", "engine")
MEASURED: Final = ("tpot_ms", "ttft_ms", "output_tokens_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMeasurement:
    """One configuration that was served and measured; None or empty = the source does not say.

    Args:
        line: line of the file, 1 is the header; of several lines the first.
        source_id, source, table_or_row: where it was published.
        gpu: accelerator.
        gpu_count: devices of all workers.
        gpus_per_node, cluster: see `validation.measurements.Measurement`.
        config: a Hugging Face config.json, its path (from the table's folder) or its text, where
            `model_name` is no model of the catalog.
        engine: what served, ``vLLM 0.18.0``.
        options: more of what its launch set, ``token_budget=16384``.
        deployment: workers in the notation of ``serve-simulate``, ``agg 4x(tp2)``; says all
            degrees.
        tp, dpa, ep, pp: of each of `replicas` equal workers: tensor parallel degree of attention,
            ranks with attention of their own, over how many devices the experts are spread,
            pipeline stages.
        workers: of prefill and decode, as InferenceX prints them: ``1x(tp4ep4dp)+5x(tp8ep8)``.
        degrees: ``as stated``, ``product of tp and ep`` (tp is printed times ep), ``inconsistent``
            (they do not fit one another).
        precision: words of the checkpoint, ``fp8``;
        checkpoint: its name, where it is published under one.
        kv_precision: of the cache.
        isl, osl: tokens of a prompt and an answer, the longest.
        shortest: the shortest's share of them, 1 = all alike.
        concurrency: requests in flight of a closed loop.
        request_rate: arrivals a second of a Poisson stream.
        requests: in all.
        protocol: ``inferencex`` (lengths from 0.8, 10 x concurrency requests, all of the first at
            once), ``fixed`` or ``maximum`` (all requests at once).
        spec_decoding: ``none``, ``mtp``, ``unknown``.
        guesses: tokens guessed ahead.
        acceptance: share of guesses that are right, given that all before them are.
        tpot_ms: per output token behind the first, the mean of requests.
        ttft_ms: to the first token, the mean of the run.
        output_tokens_per_s: of all workers together.
        duplicate_of: the row that holds the same measurement.
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


COLUMNS: Final = columns_of(ServingMeasurement)
_FORM: Final = Form(make=ServingMeasurement, columns=COLUMNS, required=REQUIRED)


def is_serving_table(path: str | Path) -> bool:
    """Whether a table's header has what serving alone has: a metric a row, or time per token, time
    to first token or an engine.

    Raises:
        DataError: it cannot be read as a table.
    """
    names, _ = table_lines(read_bytes(Path(path)), source=Path(path).name or str(path))
    return METRIC in names or not {"engine", *MEASURED}.isdisjoint(names)


def read_serving(path: str | Path) -> tuple[ServingMeasurement, ...]:
    """The rows of a CSV file, of either form. Raises DataError as
    `validation.measurements.read_measurements`.
    """
    found = parse_serving(read_bytes(Path(path)), source=Path(path).name or str(path))
    return tuple(_located(row, Path(path).parent) for row in found)


def parse_serving(content: bytes, *, source: str) -> tuple[ServingMeasurement, ...]:
    """The rows in `content` (CSV, UTF-8); `source` names them in errors.

    Raises:
        DataError: see `read_serving`.
    """
    names, lines = table_lines(content, source=source)
    if METRIC in names:
        names, lines = metric_rows(names, lines, source=source)
    return parse_rows(names, lines, form=_FORM, source=source)


def _located(row: ServingMeasurement, folder: Path) -> ServingMeasurement:
    """The row with the paths of its files seen from here."""
    config = (
        row.config
        if not row.config or row.config.lstrip().startswith("{")
        else str(folder / row.config)
    )
    cluster = str(folder / row.cluster) if row.cluster.endswith(FILES) else row.cluster
    return replace(row, config=config, cluster=cluster)
