"""Convert a row of a serving table to a run to predict, or to the reason why the row is skipped.

Nothing is guessed. A cell that is empty, both in the table and in the facts beside it, makes the
row incomplete, or puts it in a category that is judged apart. Cells that were filled are listed in
``ServingRun.assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Final

from shardwright.dtype import Dtype
from shardwright.errors import ModelError, RuntimeModelError, StrategyError
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster import Cluster
from shardwright.job.number_formats_of_published_checkpoints import find_checkpoint, plain_precision
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    Arrivals,
    ClosedLoop,
    Lengths,
    NumberFormat,
    Poisson,
    Precision,
    ServingJob,
    Speculation,
    TokenRange,
)
from shardwright.model.catalog.load_model_by_name import catalog_entry, load_model
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.serving_engines.engine_registry import load_engine, version_notice
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.units import MILLI
from shardwright.validation.serving.deployment_of_row import INCONSISTENT, row_deployment
from shardwright.validation.serving.launch_options_by_role import (
    engine_options,
    joined_options,
    with_role_options,
)
from shardwright.validation.serving.measured_deployment import Category, ServingRun, ServingValues
from shardwright.validation.serving.serving_table_columns import SERVING_TABLE, ServingMeasurement
from shardwright.validation.tables.apply_facts_to_row import facts_of_row
from shardwright.validation.tables.skipped_rows import (
    SkippedRow,
    SkipReason,
    UnusableRowError,
    skip_of,
)
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.cluster_of_row import row_cluster
from shardwright.validation.training.model_of_row_name import catalog_name
from shardwright.validation.training.parse_sharding_recompute_schedule_format_cells import (
    number_format,
)
from shardwright.validation.training.row_model_from_config_catalog_or_sizes import model_of_config
from shardwright.validation.training.training_table_columns import TrainingMeasurement

SHORTEST: Final = {"inferencex": 0.8}
"""Protocol -> shortest length over the longest."""
REQUESTS_IN_FLIGHT: Final = 10
"""Requests of a run for each request in flight, as in InferenceX and most clients."""
_NEVER_VERSIONS: Final = re.compile(r"(nightly.*|[(].*|[0-9]{4}\b.*)$")
_FORMATS: Final = {
    "int4": "int4",
    "uint4": "int4",
    "int8": "int8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


def to_serving_run(
    row: ServingMeasurement, *, facts: TableFacts, default: str = ""
) -> ServingRun | SkippedRow:
    """Convert a row to a run to predict or to a skipped row; `default` = engine if none is named.

    Args:
        default: engine for rows if neither the row nor the facts name an engine.
    """
    try:
        return _usable_run(row, facts=facts, default=default)
    except (UnusableRowError, StrategyError, RuntimeModelError) as error:
        return skip_of(row, error)


def _usable_run(published: ServingMeasurement, *, facts: TableFacts, default: str) -> ServingRun:
    """Convert a row to a run to predict; raises UnusableRowError for a row that must be skipped."""
    if published.duplicate_of:
        raise UnusableRowError(
            SkipReason.DUPLICATE, f"row {published.duplicate_of} is the same measurement"
        )
    if "LOW QUALITY" in published.notes:
        raise UnusableRowError(SkipReason.LOW_QUALITY)
    row_facts = facts_of_row(published, facts=facts, columns=SERVING_TABLE.columns)
    row = replace(published, **row_facts.cells)
    row = replace(row, options=joined_options(row_facts.options, row.options))
    assumptions = [*row_facts.assumptions]
    if not (row.tpot_ms or row.ttft_ms or row.output_tokens_per_s):
        raise UnusableRowError(SkipReason.NO_MEASUREMENT)
    model = _row_model(row)
    engine, version = _row_engine(row, default=default, assumptions=assumptions)
    speculation = _row_speculation(row, draft_tokens=row.guesses or engine.guesses)
    deployment = with_role_options(
        row_deployment(row, draft_tokens=speculation.tokens if speculation else 0),
        engine=engine,
        options=row.options,
    )
    cluster = _row_cluster(row, devices=deployment.devices)
    precision, known = _row_precision(row, model=model, cluster=cluster, assumptions=assumptions)
    if not row.kv_precision and not engine.kv_from_checkpoint:
        # The launch's own option is applied where the engine meets its devices.
        precision = replace(precision, kv=NumberFormat.BF16)
    return ServingRun(
        measurement=published,
        model=model,
        cluster=cluster,
        job=ServingJob(
            arrivals=_row_arrivals(row, assumptions=assumptions),
            lengths=_row_lengths(row),
            precision=precision,
            speculation=speculation,
        ),
        engine=engine,
        version=version,
        deployment=deployment,
        values=ServingValues(
            tpot_s=row.tpot_ms * MILLI if row.tpot_ms else None,
            ttft_s=row.ttft_ms * MILLI if row.ttft_ms else None,
            tokens_per_s=row.output_tokens_per_s or None,
        ),
        category=_open_property(row, precision_known=known),
        assumptions=tuple(assumptions),
    )


def _open_property(row: ServingMeasurement, *, precision_known: bool) -> Category:
    """Property that a row leaves open: number formats, degrees, draft tokens; else KNOWN."""
    if not precision_known:
        return Category.PRECISION
    if row.degrees == INCONSISTENT:
        return Category.DEGREES
    return Category.MTP if row.spec_decoding == "unknown" else Category.KNOWN


def _row_model(row: ServingMeasurement) -> Model:
    """Model of a row, from its config cell or the catalog; UnusableRowError if unknown."""
    try:
        if row.config:
            return model_of_config(row.config, name=row.model_name)
        return _catalog_model(catalog_name(row.model_name) or row.model_name)
    except ModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_MODEL, error.message) from None


@cache
def _catalog_model(name: str) -> Model:
    """Catalog model of a name, loaded once."""
    return load_model(name)


def _row_cluster(row: ServingMeasurement, *, devices: int) -> Cluster:
    """Cluster of the cell `cluster`, else whole nodes of the row's accelerator for `devices`."""
    accelerator = find_accelerator(row.gpu)
    per_node = row.gpus_per_node or (default_node(accelerator).num_devices if accelerator else 1)
    in_whole_nodes = devices if devices < per_node else ceil(devices / per_node) * per_node
    training_row = TrainingMeasurement(
        line=row.line,
        source_id=row.source_id,
        table_or_row=row.table_or_row,
        model_name=row.model_name,
        gpu=row.gpu,
        gpu_count=None if row.cluster else in_whole_nodes,
        gpus_per_node=row.gpus_per_node,
        cluster=row.cluster,
    )
    cluster = row_cluster(training_row, facts=TableFacts())
    if cluster.num_devices < devices:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{devices} devices of workers on a cluster of {cluster.num_devices}",
        )
    return cluster


def _row_engine(
    row: ServingMeasurement, *, default: str, assumptions: list[str]
) -> tuple[Engine, str]:
    """(engine with launch options, its name and written version); notes if a near version serves.

    If a version is not described, the nearest version before it is used.


    """
    words = _NEVER_VERSIONS.sub("", row.engine or default).strip().lower()
    try:
        engine = load_engine(f"{words} {engine_options(row.options)}")
    except RuntimeModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_RUNTIME, error.message) from None
    if version_notice(engine):
        assumptions.append(version_notice(engine))
    version = words.split()[-1] if any(letter.isdigit() for letter in words) else ""
    return engine, f"{engine.engine} {version}".strip()


def _row_speculation(row: ServingMeasurement, *, draft_tokens: int) -> Speculation | None:
    """Speculative decoding of a row; None without, an error if its numbers are missing."""
    if row.spec_decoding in ("", "none", "unknown") and not draft_tokens:
        return None
    if not draft_tokens:
        raise UnusableRowError(
            SkipReason.INCOMPLETE_CONFIGURATION, "guesses: tokens that are guessed ahead"
        )
    if not row.acceptance or row.acceptance > 1:
        raise UnusableRowError(
            SkipReason.INCOMPLETE_CONFIGURATION, "acceptance: share of guesses that are right"
        )
    return Speculation(tokens=draft_tokens, acceptance=row.acceptance)


def _row_lengths(row: ServingMeasurement) -> Lengths:
    """Token ranges: inputs from `shortest` (or the protocol's share) x isl to isl; osl alike."""
    if not row.isl or not row.osl:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "isl" if not row.isl else "osl")
    shortest = row.shortest or SHORTEST.get(row.protocol, 1.0)
    if shortest > 1:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"shortest {shortest:g} is no share of the longest",
        )
    inputs, outputs = (
        TokenRange(low=max(ceil(shortest * longest), 1), high=longest)
        for longest in (row.isl, row.osl)
    )
    return Lengths(inputs=inputs, outputs=outputs)


def _row_arrivals(row: ServingMeasurement, *, assumptions: list[str]) -> Arrivals:
    """Poisson arrivals if there is a request rate, else a closed loop; ``maximum``: all at once."""
    if row.request_rate:
        if not row.requests:
            raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "requests")
        return Poisson(per_second=row.request_rate, requests=row.requests)
    if row.protocol == "maximum" and not row.concurrency:
        if not row.requests:
            raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "requests")
        return ClosedLoop(concurrency=row.requests, requests=row.requests)
    if not row.concurrency:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, "concurrency")
    requests = row.requests or REQUESTS_IN_FLIGHT * row.concurrency
    if not row.requests and row.protocol != "inferencex":
        assumptions.append(f"requests {requests}: ten for each in flight, as usual")
    return ClosedLoop(concurrency=row.concurrency, requests=max(requests, row.concurrency))


def _row_precision(
    row: ServingMeasurement, *, model: Model, cluster: Cluster, assumptions: list[str]
) -> tuple[Precision, bool]:
    """(number formats of checkpoint and KV cache, True if the row names them, False if assumed)."""
    name = _format_name(row.precision or row.model_name)
    checkpoint = find_checkpoint(_entry_name(model), number_format=name, name=row.checkpoint)
    if checkpoint is not None:
        known = bool(name or row.checkpoint)
        has_fp4 = cluster.node.accelerator.peak(Dtype.FP4) > 0
        precision = checkpoint.formats(fp4_units=has_fp4)
        assumptions.append(
            f"{name or row.checkpoint} is {checkpoint.names[0]}: {checkpoint.source}"
        )
    else:
        plain = plain_precision(name)
        precision, known = plain or Precision(), plain is not None
        if not known and row.precision:
            raise UnusableRowError(
                SkipReason.INCOMPLETE_CONFIGURATION,
                f"precision {row.precision[:40]}: which products of {row.model_name[:60]}",
            )
        assumptions.append(
            f"{name} in all products but the head" if known else "precision bf16: nothing says it"
        )
    if row.kv_precision:
        cache_format = _format_name(row.kv_precision)
        if cache_format not in set(NumberFormat):
            raise UnusableRowError(
                SkipReason.INCOMPLETE_CONFIGURATION, f"kv_precision {row.kv_precision[:40]}"
            )
        precision = replace(precision, kv=NumberFormat(cache_format))
    return precision, known


def _format_name(cell: str) -> str:
    """Number format that a cell names, such as ``nvfp4``, ``int4`` or ``fp8``; empty for none."""
    text = cell.lower()
    name = next((name for word, name in _FORMATS.items() if word in text), "")
    return name or number_format(text)


def _entry_name(model: Model) -> str:
    """Catalog name of a model that the catalog has, else the model's own name."""
    try:
        return catalog_entry(model.name).names[0]
    except ModelError:
        return model.name
