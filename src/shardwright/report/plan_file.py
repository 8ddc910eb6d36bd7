"""Plan files: what `plan -o` writes, read again, strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError, nearest
from shardwright.report.json_face import SCHEMA, VERSION
from shardwright.search.certificate import Certificate
from shardwright.search.request import Choices, Request
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_notation import parse_grid
from shardwright.strategy.plan import Plan
from shardwright.strategy.plan_json import plan_from_json

MAX_FILE_BYTES: Final = 64 * 1024**2
_HINT: Final = "write the file again with `shardwright plan ... -o FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """What a plan file says: what was asked, the strategy, its seconds a step and peak bytes, and the certificate.

    Args:
        plan: None if the file has the strategy only.
    """

    request: Request
    grid: Grid
    plan: Plan | None
    step_time_s: float
    allocated_bytes: int
    certificate: Certificate


def read_plan_file(path: Path) -> PlanFile:
    """The plan file at `path`.

    Raises:
        DataError: it cannot be read, is no plan file, or is of a later version.
        StrategyError: its strategy cannot be read.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="is it a plan file?")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(f"cannot read plan file {path}: {reason}", hint="`shardwright plan ... -o FILE` writes one") from error
    return parse_plan_file(text, name=str(path))


def parse_plan_file(text: str, *, name: str = "plan file") -> PlanFile:
    """The plan file with this text; `name` is for messages.

    Raises:
        DataError: it is no plan file, or is of a later version.
        StrategyError: its strategy cannot be read.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{name} is not JSON{where}", hint=_HINT) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DataError(f"{name} is not a plan file: its schema is not {SCHEMA}", hint=_HINT)
    if document.get("version") != VERSION:
        raise DataError(f"{name}: version {_shown(document.get('version'))} is not {VERSION}", hint="use the release that wrote it")
    top = _Fields(document, path=name)
    prediction = top.section("prediction")
    plan = document.get("plan")
    return PlanFile(
        request=_request(top.section("problem")),
        grid=parse_grid(top.text("strategy")),
        plan=plan_from_json(plan) if plan is not None else None,
        step_time_s=prediction.number("step_time_s"),
        allocated_bytes=prediction.section("peak_memory_bytes").integer("allocated"),
        certificate=_certificate(top.section("certificate")),
    )


def _request(fields: _Fields) -> Request:
    return Request(
        model=fields.text("model"),
        cluster=fields.text("cluster"),
        seq_len=fields.integer("seq_len", smallest=1),
        global_batch=fields.integer("global_batch", smallest=1),
        runtime=fields.text("runtime"),
        precision=fields.text("precision"),
        space=fields.text("space"),
        pins=fields.choices("pins"),
        excludes=fields.choices("excludes"),
        max_devices=None if fields.value("max_devices") is None else fields.integer("max_devices", smallest=1),
        memory_reserve_bytes=fields.integer("memory_reserve_bytes"),
        memory_reserve_fraction=fields.number("memory_reserve_fraction"),
        top=fields.integer("top"),
    )


def _certificate(fields: _Fields) -> Certificate:
    reasons = fields.section("infeasible_by_reason")
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
        infeasible_by_reason=tuple((reason, reasons.integer(reason)) for reason in reasons.names),
    )


def _shown(value: object) -> str:
    return repr(value)[:40]


class _Fields:
    """The fields of a JSON object; each reading says what is wrong and where."""

    def __init__(self, document: Mapping[str, Any], *, path: str) -> None:
        self._document = document
        self._path = path

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, in the file's order."""
        return tuple(self._document)

    def value(self, name: str) -> Any:
        """Whatever the field holds."""
        if name not in self._document:
            raise DataError(f"{self._path}: {name} is missing", hint=nearest(name, self._document) or _HINT)
        return self._document[name]

    def section(self, name: str) -> _Fields:
        """An object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return _Fields(value, path=f"{self._path}: {name}")

    def text(self, name: str) -> str:
        """A string."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def truth(self, name: str) -> bool:
        """A truth value."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integer(self, name: str, *, smallest: int = 0) -> int:
        """A whole number."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value < 2**63:
            raise self._wrong(name, f"a whole number of at least {smallest}", value)
        return value

    def number(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self.value(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (isinstance(value, int) or math.isfinite(value)) or not 0 <= value < 1e18:
            raise self._wrong(name, "a number of at least 0", value)
        return float(value)

    def choices(self, name: str) -> Choices:
        """An object of lists of strings."""
        section = self.section(name)
        found = []
        for axis in section.names:
            values = section.value(axis)
            if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
                raise section._wrong(axis, "a list of strings", values)
            found.append((axis, tuple(values)))
        return tuple(found)

    def _wrong(self, name: str, expected: str, value: object) -> DataError:
        return DataError(f"{self._path}: {name} is {_shown(value)}, not {expected}", hint=_HINT)
