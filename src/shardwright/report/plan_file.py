"""Plan files: what `plan -o` writes, read again, strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.hardware.device import Evidence, Origin
from shardwright.report.fields import HINT, Fields, shown
from shardwright.report.json_face import SCHEMA, VERSION
from shardwright.search.answer import Alternative, Answer, Goodput, Sensitivity
from shardwright.search.certificate import Certificate
from shardwright.search.request import Request
from shardwright.simulator.prediction import Doubt, Prediction, Source, StageMemory
from shardwright.strategy.grid_notation import parse_grid
from shardwright.strategy.plan_json import plan_from_json

MAX_FILE_BYTES: Final = 64 * 1024**2


def read_plan_file(path: Path) -> tuple[Request, Answer]:
    """The plan file at `path`.

    Raises:
        DataError: it cannot be read, is no plan file, or is of a later version.
        StrategyError: its strategy cannot be read.
    """
    return parse_plan_file(read_text(path), name=str(path))


def read_text(path: Path) -> str:
    """The text of a plan file.

    Raises:
        DataError: it cannot be read, is too large or no text.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="is it a plan file?")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(f"cannot read plan file {path}: {reason}", hint="`shardwright plan ... -o FILE` writes one") from error


def parse_plan_file(text: str, *, name: str = "plan file") -> tuple[Request, Answer]:
    """The plan file with this text; `name` is for messages.

    Raises:
        DataError: it is no plan file, or is of a later version.
        StrategyError: its strategy cannot be read.
    """
    document = decoded(text, name=name)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DataError(f"{name} is not a plan file: its schema is not {SCHEMA}", hint=HINT)
    if document.get("version") != VERSION:
        raise DataError(f"{name}: version {shown(document.get('version'))} is not {VERSION}", hint="use the release that wrote it")
    top = Fields(document, path=name)
    request = request_of(top.section("problem"))
    plan = document.get("plan")
    answer = Answer(
        grid=parse_grid(top.text("strategy")),
        prediction=prediction_of(top.section("prediction")),
        certificate=_certificate(top.section("certificate")),
        alternatives=tuple(_alternative(fields) for fields in top.sections("alternatives")),
        search_time_s=0.0,
        sensitivity=None if top.value("sensitivity") is None else _sensitivity(top.section("sensitivity")),
        goodput=None if top.value("goodput") is None else _goodput(top.section("goodput")),
        plan=plan_from_json(plan) if plan is not None else None,
        request=request,
    )
    return request, answer


def decoded(text: str, *, name: str) -> object:
    """The value of a JSON text; DataError if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{name} is not JSON{where}", hint=HINT) from None
    return value


def request_of(fields: Fields) -> Request:
    """What was asked, as a file keeps it."""
    return Request(
        model=fields.text("model"),
        cluster=fields.text("cluster"),
        seq_len=fields.integer("seq_len", smallest=1),
        global_batch=fields.integer("global_batch", smallest=1),
        encoder_len=fields.integer("encoder_len"),
        image_tokens=fields.integer("image_tokens"),
        runtime=fields.text("runtime"),
        precision=fields.text("precision"),
        space=fields.text("space"),
        pins=fields.choices("pins"),
        excludes=fields.choices("excludes"),
        max_devices=fields.integer("max_devices"),
        reserve_bytes=fields.integer("reserve_bytes"),
        reserve_fraction=fields.number("reserve_fraction"),
        top=fields.integer("top"),
        # Files written before profiles existed have no such field.
        profile=fields.text("profile") if "profile" in fields.names and fields.value("profile") is not None else "",
    )


def _certificate(fields: Fields) -> Certificate:
    return Certificate(
        space=fields.text("space"),
        digest=fields.text("digest"),
        enumerated=fields.integer("enumerated"),
        illegal=fields.integer("illegal"),
        duplicates=fields.integer("duplicates"),
        infeasible=fields.integer("infeasible"),
        bounded_b0=fields.integer("bounded_b0"),
        bounded_b1=fields.integer("bounded_b1"),
        simulated=fields.integer("simulated"),
        best_s=fields.number("best_s"),
        lower_bound_s=fields.number("lower_bound_s"),
        gap=fields.number("gap"),
        optimal=fields.truth("optimal"),
        universal_gap=fields.number("universal_gap"),
        infeasible_by_reason=fields.section("infeasible_by_reason").integers(),
    )


def prediction_of(fields: Fields) -> Prediction:
    """A prediction, as a file keeps it."""
    peak = fields.section("peak_memory_bytes")
    interval = fields.value("interval_s")
    if not isinstance(interval, list) or len(interval) != 2:
        raise fields.wrong("interval_s", "a list of two numbers", interval)
    bounds = Fields({"interval_s low": interval[0], "interval_s high": interval[1]}, path="prediction")
    return Prediction(
        step_time_s=fields.number("step_time_s"),
        interval_s=(bounds.number("interval_s low"), bounds.number("interval_s high")),
        tokens_per_s=fields.number("tokens_per_s"),
        tokens_per_s_per_device=fields.number("tokens_per_s_per_device"),
        mfu_causal=fields.number("mfu_causal"),
        mfu_full=fields.number("mfu_full"),
        allocated_bytes=peak.integer("allocated"),
        reserved_bytes=peak.integer("reserved"),
        capacity_bytes=fields.integer("capacity_bytes"),
        stages=tuple(_stage(stage) for stage in fields.sections("stages")),
        breakdown_s=fields.section("breakdown_s").numbers(signed=True),
        sources=tuple(_source(source) for source in fields.sections("sources")),
        doubts=tuple(Doubt(name=name, share=share) for name, share in fields.section("doubts").numbers()),
    )


def _stage(fields: Fields) -> StageMemory:
    return StageMemory(
        rank=fields.integer("rank"),
        devices=fields.integer("devices"),
        layers=fields.text("layers"),
        items=fields.section("memory_bytes").integers(),
        allocated=fields.integer("allocated_bytes"),
        reserved=fields.integer("reserved_bytes"),
        # Only where devices differ.
        capacity=fields.integer("capacity_bytes") if "capacity_bytes" in fields.names else 0,
    )


def _source(fields: Fields) -> Source:
    evidence = fields.text("evidence")
    if evidence not in tuple(Evidence):
        raise fields.wrong("evidence", " or ".join(Evidence), evidence)
    return Source(
        quantity=fields.text("quantity"),
        value=fields.text("value"),
        origin=Origin(evidence=Evidence(evidence), reference=fields.text("reference")),
    )


def _alternative(fields: Fields) -> Alternative:
    return Alternative(
        grid=parse_grid(fields.text("strategy")),
        step_time_s=fields.number("step_time_s"),
        allocated_bytes=fields.integer("allocated_bytes"),
        loses=fields.section("loses_s").numbers(signed=True),
        indistinguishable=fields.truth("indistinguishable"),
    )


def _sensitivity(fields: Fields) -> Sensitivity:
    return Sensitivity(
        change=fields.text("change"),
        same_plan_s=fields.number("same_plan_s"),
        best_s=fields.number("best_s"),
        best_grid=parse_grid(fields.text("best_strategy")),
    )


def _goodput(fields: Fields) -> Goodput:
    return Goodput(
        failures_per_day=fields.number("failures_per_day"),
        checkpoint_interval_s=fields.number("checkpoint_interval_s"),
        goodput=fields.number("goodput"),
        assumptions=fields.texts("assumptions"),
    )
