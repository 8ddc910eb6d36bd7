"""From a row of a table of served configurations to a problem and the deployment that ran, or to
the reason why not.

Nothing is guessed: a cell that is empty in the table and in the facts beside it makes the row
incomplete, or is judged apart (`Doubt`). What filled a cell is listed in
``ServingCase.assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Final

from shardwright.dtype import Dtype
from shardwright.errors import ModelError, RuntimeModelError, StrategyError
from shardwright.hardware.catalog.catalog import find_accelerator
from shardwright.hardware.catalog.nodes import node_of
from shardwright.hardware.cluster import Cluster
from shardwright.job.checkpoints import find_checkpoint, plain_precision
from shardwright.job.serving import (
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
from shardwright.model.catalog.catalog import catalog_entry, load_model
from shardwright.model.families.huggingface_config import (
    load_config,
    model_from_config,
    parse_config,
)
from shardwright.model.ir.graph import Model
from shardwright.runtime.engines.engine import Engine
from shardwright.runtime.engines.registry import load_engine, version_notice
from shardwright.units import MILLI
from shardwright.validation.rows.cluster_of_row import row_cluster
from shardwright.validation.rows.fill_cells import told
from shardwright.validation.rows.model_names import catalogued
from shardwright.validation.rows.table_spellings import number_format
from shardwright.validation.serving.launch_options import joined, of_all, told_workers
from shardwright.validation.serving.measured_deployment import Doubt, ServingCase, ServingSkip
from shardwright.validation.serving.measured_rows import COLUMNS, ServingMeasurement
from shardwright.validation.serving.worker_degrees import INCONSISTENT, row_deployment
from shardwright.validation.tables.measured_rows import Measurement
from shardwright.validation.tables.measured_run import SkipReason
from shardwright.validation.tables.table_facts import Facts

SHORTEST: Final = {"inferencex": 0.8}
REQUESTS_IN_FLIGHT: Final = 10
"""Requests of a run for each that is in flight, as InferenceX and most clients take."""
_NEVER_VERSIONS: Final = re.compile(r"(nightly.*|[(].*|[0-9]{4}\b.*)$")
_WORDS: Final = {
    "int4": "int4",
    "uint4": "int4",
    "int8": "int8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


class _Unusable(Exception):  # noqa: N818 - control flow inside this file, not an error
    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def to_serving_case(
    row: ServingMeasurement, *, facts: Facts, engine: str = ""
) -> ServingCase | ServingSkip:
    """The case of a row, or why it is skipped.

    Args:
        facts: what is known of its table.
        engine: of rows for which neither they nor their facts name one.
    """
    try:
        if row.duplicate_of:
            raise _Unusable(SkipReason.DUPLICATE, f"row {row.duplicate_of} is the same measurement")
        if "LOW QUALITY" in row.notes:
            raise _Unusable(SkipReason.LOW_QUALITY)
        said = told(row, facts=facts, columns=COLUMNS)
        if said.skip is not None:
            raise _Unusable(*said.skip)
        whole = replace(row, **said.given)
        return _case(
            row,
            whole=replace(whole, options=joined(said.options, whole.options)),
            assumptions=[*said.assumptions],
            otherwise=engine,
        )
    except _Unusable as unusable:
        return ServingSkip(measurement=row, reason=unusable.reason, detail=unusable.detail)
    except StrategyError as error:
        return ServingSkip(
            measurement=row, reason=SkipReason.UNSUPPORTED_STRATEGY, detail=error.message
        )
    except RuntimeModelError as error:
        return ServingSkip(
            measurement=row, reason=SkipReason.UNSUPPORTED_RUNTIME, detail=error.message
        )


def _case(
    row: ServingMeasurement, *, whole: ServingMeasurement, assumptions: list[str], otherwise: str
) -> ServingCase:
    if not (whole.tpot_ms or whole.ttft_ms or whole.output_tokens_per_s):
        raise _Unusable(SkipReason.NO_MEASUREMENT)
    model = _model(whole)
    engine, version = _engine(whole, otherwise=otherwise, assumptions=assumptions)
    speculation = _speculation(whole, guesses=whole.guesses or engine.guesses)
    deployment = told_workers(
        row_deployment(whole, guesses=speculation.tokens if speculation else 0),
        engine=engine,
        options=whole.options,
    )
    cluster = _cluster(whole, devices=deployment.devices)
    precision, known = _precision(whole, model=model, cluster=cluster, assumptions=assumptions)
    if not whole.kv_precision and not engine.kv_from_checkpoint:
        # What the launch sets is put on where the engine meets its devices.
        precision = replace(precision, kv=NumberFormat.BF16)
    doubt = (
        Doubt.DEGREES
        if whole.degrees == INCONSISTENT
        else Doubt.MTP
        if whole.spec_decoding == "unknown"
        else Doubt.NONE
    )
    return ServingCase(
        measurement=row,
        model=model,
        cluster=cluster,
        job=ServingJob(
            arrivals=_arrivals(whole, assumptions=assumptions),
            lengths=_lengths(whole),
            precision=precision,
            speculation=speculation,
        ),
        engine=engine,
        version=version,
        deployment=deployment,
        tpot_s=whole.tpot_ms * MILLI if whole.tpot_ms else None,
        ttft_s=whole.ttft_ms * MILLI if whole.ttft_ms else None,
        tokens_per_s=whole.output_tokens_per_s or None,
        doubt=doubt if known else Doubt.PRECISION,
        assumptions=tuple(assumptions),
    )


def _model(row: ServingMeasurement) -> Model:
    try:
        if row.config:
            if not row.config.lstrip().startswith("{"):
                return replace(load_config(row.config), name=row.model_name)
            return model_from_config(
                parse_config(row.config.encode(), source="config"), name=row.model_name
            )
        return _catalog_model(catalogued(row.model_name) or row.model_name)
    except ModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_MODEL, error.message) from None


@cache
def _catalog_model(name: str) -> Model:
    return load_model(name)


def _cluster(row: ServingMeasurement, *, devices: int) -> Cluster:
    """Whole usual nodes of the row's accelerator that hold so many devices, or what its column
    `cluster` says.
    """
    device = find_accelerator(row.gpu)
    node = row.gpus_per_node or (node_of(device).num_devices if device else 1)
    asked = Measurement(
        line=row.line,
        source_id=row.source_id,
        table_or_row=row.table_or_row,
        model_name=row.model_name,
        gpu=row.gpu,
        gpu_count=(
            None if row.cluster else devices if devices < node else ceil(devices / node) * node
        ),
        gpus_per_node=row.gpus_per_node,
        cluster=row.cluster,
    )
    found = row_cluster(asked, facts=Facts())
    if isinstance(found, tuple):
        raise _Unusable(*found)
    if found.num_devices < devices:
        raise _Unusable(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{devices} devices of workers on a cluster of {found.num_devices}",
        )
    return found


def _engine(
    row: ServingMeasurement, *, otherwise: str, assumptions: list[str]
) -> tuple[Engine, str]:
    """The engine with the options that its launch set, and what the row calls it; a version that is
    not described is answered for.
    """
    words = _NEVER_VERSIONS.sub("", row.engine or otherwise).strip().lower()
    try:
        engine = load_engine(f"{words} {of_all(row.options)}")
    except RuntimeModelError as error:
        raise _Unusable(SkipReason.UNSUPPORTED_RUNTIME, error.message) from None
    if version_notice(engine):
        assumptions.append(version_notice(engine))
    version = words.split()[-1] if any(letter.isdigit() for letter in words) else ""
    return engine, f"{engine.engine} {version}".strip()


def _speculation(row: ServingMeasurement, *, guesses: int) -> Speculation | None:
    if row.spec_decoding in ("", "none", "unknown") and not guesses:
        return None
    if not guesses:
        raise _Unusable(
            SkipReason.INCOMPLETE_CONFIGURATION, "guesses: tokens that are guessed ahead"
        )
    if not row.acceptance or row.acceptance > 1:
        raise _Unusable(
            SkipReason.INCOMPLETE_CONFIGURATION, "acceptance: share of guesses that are right"
        )
    return Speculation(tokens=guesses, acceptance=row.acceptance)


def _lengths(row: ServingMeasurement) -> Lengths:
    if not row.isl or not row.osl:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "isl" if not row.isl else "osl")
    shortest = row.shortest or SHORTEST.get(row.protocol, 1.0)
    if shortest > 1:
        raise _Unusable(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"shortest {shortest:g} is no share of the longest",
        )
    inputs, outputs = (
        TokenRange(low=max(ceil(shortest * longest), 1), high=longest)
        for longest in (row.isl, row.osl)
    )
    return Lengths(inputs=inputs, outputs=outputs)


def _arrivals(row: ServingMeasurement, *, assumptions: list[str]) -> Arrivals:
    if row.request_rate:
        if not row.requests:
            raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "requests")
        return Poisson(per_second=row.request_rate, requests=row.requests)
    if row.protocol == "maximum" and not row.concurrency:
        if not row.requests:
            raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "requests")
        return ClosedLoop(concurrency=row.requests, requests=row.requests)
    if not row.concurrency:
        raise _Unusable(SkipReason.INCOMPLETE_CONFIGURATION, "concurrency")
    requests = row.requests or REQUESTS_IN_FLIGHT * row.concurrency
    if not row.requests and row.protocol != "inferencex":
        assumptions.append(f"requests {requests}: ten for each in flight, as usual")
    return ClosedLoop(concurrency=row.concurrency, requests=max(requests, row.concurrency))


def _precision(
    row: ServingMeasurement, *, model: Model, cluster: Cluster, assumptions: list[str]
) -> tuple[Precision, bool]:
    """Formats of the row's checkpoint, and whether anything says them; 16 bits where nothing
    does.
    """
    words = _format_words(row.precision or row.model_name)
    checkpoint = find_checkpoint(_catalog_name(model), words=words, name=row.checkpoint)
    device = cluster.node.accelerator
    if checkpoint is not None:
        found, known = (
            checkpoint.formats(fp4_units=device.peak(Dtype.FP4) > 0),
            bool(words or row.checkpoint),
        )
        assumptions.append(
            f"{words or row.checkpoint} is {checkpoint.names[0]}: {checkpoint.source}"
        )
    else:
        plain = plain_precision(words)
        found, known = plain or Precision(), plain is not None
        if not known and row.precision:
            raise _Unusable(
                SkipReason.INCOMPLETE_CONFIGURATION,
                f"precision {row.precision[:40]}: which products of {row.model_name[:60]}",
            )
        assumptions.append(
            f"{words} in all products but the head" if known else "precision bf16: nothing says it"
        )
    if row.kv_precision:
        kv = _format_words(row.kv_precision)
        if kv not in set(NumberFormat):
            raise _Unusable(
                SkipReason.INCOMPLETE_CONFIGURATION, f"kv_precision {row.kv_precision[:40]}"
            )
        found = replace(found, kv=NumberFormat(kv))
    return found, known


def _format_words(words: str) -> str:
    """``nvfp4``, ``int4``, ``fp8``, .. of a table's words; empty where they name none."""
    text = words.lower()
    return next((name for word, name in _WORDS.items() if word in text), "") or number_format(text)


def _catalog_name(model: Model) -> str:
    try:
        return catalog_entry(model.name).names[0]
    except ModelError:
        return model.name
