"""JSON schemas of the project's files, generated from their readers' models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.errors import UsageError, nearest
from shardwright.files import chrome_trace_file_schema as trace_schema
from shardwright.files import plan_and_simulation_file_contents as stored_documents
from shardwright.files import profile_file
from shardwright.files.read_plan_and_simulation_files import PLAN, SIMULATION

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def _with_heading(
    schema: Mapping[str, Any], *, name: str, version: int, **more: Any
) -> dict[str, Any]:
    """JSON schema with required fields ``schema`` and ``version`` (and `more`) before its own."""
    heading = {"schema": {"const": name}, "version": {"const": version}, **more}
    return {
        **schema,
        "properties": {**heading, **schema["properties"]},
        "required": [*heading, *schema["required"]],
    }


def _stored_schema(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """JSON schema of a plan or simulation file: heading, digest of the question, and contents."""
    digest = {"type": "string", "description": f"SHA-256 of {', '.join(stored_documents.QUESTION)}"}
    return _with_heading(schema, name=name, version=stored_documents.VERSION, digest=digest)


def _trace_schema() -> dict[str, Any]:
    """JSON schema of a trace file."""
    body = trace_schema.TRACE.json_schema()
    events = body["properties"].pop("traceEvents")
    other = _with_heading(
        {**body, "required": ["traces"]}, name=trace_schema.SCHEMA, version=trace_schema.VERSION
    )
    definitions = other.pop("$defs")
    fields = {"displayTimeUnit": {"const": "ms"}, "otherData": other, "traceEvents": events}
    return {
        "title": "Trace",
        "type": "object",
        "properties": fields,
        "required": ["otherData", "traceEvents"],
        "$defs": definitions,
    }


SCHEMAS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "plan": lambda: _stored_schema(PLAN.schema, stored_documents.PLAN_SCHEMA),
    "simulation": lambda: _stored_schema(SIMULATION.schema, stored_documents.SIMULATION_SCHEMA),
    "profile": lambda: _with_heading(
        profile_file.PROFILE.schema, name=profile_file.SCHEMA, version=profile_file.VERSION
    ),
    "trace": _trace_schema,
}


def schema_of(kind: str) -> dict[str, Any]:
    """JSON schema of a kind of file: plan, simulation, profile or trace.

    Raises:
        UsageError: there is no such kind.
    """
    if kind not in SCHEMAS:
        raise UsageError(f"there is no schema of {kind[:40]!r}", hint=nearest(kind[:40], SCHEMAS))
    return {"$schema": _DIALECT, **SCHEMAS[kind]()}
