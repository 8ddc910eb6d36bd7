"""The `explain` screen for deployments: engine facts, number formats, kernels and constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.hardware.catalog.fitted_serving_constants import ServingConstants
from shardwright.hardware.catalog.measured_serving_kernels import serving_tables
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    NumberFormat,
    OperatorPrecision,
)
from shardwright.report.terminal_table import plain_table
from shardwright.runtime.serving_engines.engine_options import flag_of
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.simulation.serving_answer import ServingAnswer

MAX_VALUE = 60
"""Most characters of a value; a longer value is cut."""


def render_sources(answer: ServingAnswer) -> RenderableType:
    """Screen of the engine's settings with sources, number formats, kernels and constants."""
    return Group(
        Text(f"{answer.engine}, on its workers:"),
        plain_table(("", "value", "says"), list(_engine_facts(answer.settled)), whole=(0,)),
        Text(),
        plain_table(
            ("products", "weights", "multiplied in"), list(_number_formats(answer)), whole=(0,)
        ),
        Text(),
        Text(_kernel_source_text(answer)),
        plain_table(
            ("constant", "value"),
            list(_serving_constants(answer.problem.constants)),
            right=(1,),
            whole=(0,),
        ),
    )


def sources_document(answer: ServingAnswer) -> dict[str, Any]:
    """JSON document of the engine's facts, number formats, kernels and constants."""
    return {
        "facts": [
            {"field": name, "value": value, "link": link}
            for name, value, link in _engine_facts(answer.settled)
        ],
        "formats": [
            {"products": name, "weights": weights, "multiplied_in": cast}
            for name, weights, cast in _number_formats(answer)
        ],
        "kernels": _kernel_source_text(answer),
        "constants": dict(_serving_constants(answer.problem.constants)),
    }


def _engine_facts(engine: Engine) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, source) of the engine's launch options and facts."""
    for option, value in engine.options:
        yield option.replace("_", " "), value, f"the launch: {flag_of(engine, option)}"
    for fact in engine.facts:
        value = _value_text(getattr(engine, fact.field))
        if value:
            yield (
                fact.field.replace("_", " "),
                value,
                fact.link if fact.checked else f"{fact.link} (from memory)",
            )


def _value_text(value: object) -> str:
    """Format a setting's value, cut at `MAX_VALUE` characters; empty if off, zero or unset."""
    if value in (None, False, 0, "", ()):
        return ""
    if value is True:
        return "yes"
    text = str(value.value) if isinstance(value, Enum) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def _number_formats(answer: ServingAnswer) -> Iterator[tuple[str, str, str]]:
    """Yield (operator class, weight format, multiplication format or dash for keys and values)."""
    precision = answer.problem.job.precision
    for field in fields(precision):
        value = getattr(precision, field.name)
        if isinstance(value, OperatorPrecision):
            yield field.name, value.weights.value, value.activations.value
        elif isinstance(value, NumberFormat):
            yield "keys and values", value.value, "-"


def _kernel_source_text(answer: ServingAnswer) -> str:
    """Sentence on the source of kernel times: measured tables or formulas."""
    device = answer.problem.cluster.node.accelerator.name
    if serving_tables(device) is None:
        return (
            f"Kernels of {device} are priced by formulas (docs/kernels.md); none was measured at"
            " the sizes of decoding."
        )
    return (
        f"Kernels of {device} are priced by measured tables (aiconfigurator-core 0.12.0,"
        " docs/kernels.md)."
    )


def _serving_constants(constants: ServingConstants) -> Iterator[tuple[str, str]]:
    """Yield (name, microseconds) of the serving constants."""
    for field in fields(constants):
        yield (
            field.name.removesuffix("_s").replace("_", " "),
            f"{getattr(constants, field.name) * 1e6:.3g} us",
        )
