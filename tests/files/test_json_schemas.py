"""The schemas that are printed: what is written has their fields, and they change only on
purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from shardwright.files.json_schemas import SCHEMAS, schema_of
from shardwright.files.plan_and_simulation_file_contents import simulation_document
from shardwright.files.profile_file import parse_profile, profile_document
from shardwright.files.read_plan_and_simulation_files import parse_saved
from shardwright.files.trace_file import parse_traces
from tests.calibrate.profiles import profile
from tests.cli.answers import simulated
from tests.files.saved import KINDS, text_of_kind
from tests.files.test_trace_file import TEXT as TRACE
from tests.golden.files import assert_golden

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def wrong(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """Where a value is not what the parts of a schema that pydantic writes ask for."""
    if "$ref" in schema:
        return wrong(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            found = [wrong(value, one, root, path) for one in schema[several]]
            return [] if any(not errors for errors in found) else min(found, key=len)
    if "const" in schema or "enum" in schema:
        return [] if value in schema.get("enum", [schema.get("const")]) else [f"{path}: {value!r}"]
    if "type" in schema and (
        not isinstance(value, TYPES[schema["type"]])
        or (isinstance(value, bool) and schema["type"] != "boolean")
    ):
        return [f"{path}: {value!r} is no {schema['type']}"]
    errors = []
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        errors += [
            f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value
        ]
        for name, item in value.items():
            if name not in known and rest is False:
                errors.append(f"{path}.{name} is unknown")
            else:
                errors += wrong(
                    item,
                    known.get(name, rest if isinstance(rest, dict) else {}),
                    root,
                    f"{path}.{name}",
                )
    if isinstance(value, list):
        fixed = schema.get("prefixItems", [])
        for place, item in enumerate(value):
            errors += wrong(
                item,
                fixed[place] if place < len(fixed) else schema.get("items", {}),
                root,
                f"{path}.{place}",
            )
    least, most = schema.get("minimum"), schema.get("maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        errors.append(f"{path}: {value!r} is not within {least} and {most}")
    return errors


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_changes_only_on_purpose(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", kind]) == 0
    assert_golden(f"schema-{kind}.json", capsys.readouterr().out)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_has_the_schema(kind: str) -> None:
    text = text_of_kind(kind)
    document = json.loads(text)
    schema = schema_of("simulation" if kind.endswith("simulation") else "plan")
    assert wrong(document, schema, schema) == []
    assert parse_saved(text)


def test_profiles_and_traces_have_the_schema() -> None:
    for kind, text, parse in (
        ("profile", to_text(profile_document(profile())), parse_profile),
        ("trace", TRACE, parse_traces),
    ):
        schema = schema_of(kind)
        assert wrong(json.loads(text), schema, schema) == []
        assert parse(text)


def test_what_a_schema_refuses_the_reader_refuses() -> None:
    schema, good = schema_of("simulation"), json.loads(to_text(simulation_document(simulated())))
    for name, value in (
        ("prediction", 1),
        ("runtime", 1),
        ("classes", [1]),
        ("request", {}),
        ("more", 1),
    ):
        bad = {**good, name: value}
        assert wrong(bad, schema, schema)
        with pytest.raises(ValueError, match=name):
            parse_saved(json.dumps(bad))


def test_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "plam"]) == 2
    assert (
        capsys.readouterr().err == "error: there is no schema of 'plam'\nhint: did you mean plan?\n"
    )
