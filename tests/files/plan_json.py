"""A general plan as JSON values, by itself, as it stands in a plan file."""

from __future__ import annotations

from typing import Any, Final

from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.strict_pydantic_models_of_dataclasses import DocumentModel
from shardwright.strategy.plan.plan import Plan

PLAN: Final = DocumentModel(kind=Plan, names={}, limits={})


def plan_to_json(plan: Plan) -> Any:
    return to_json_value(plan, names={})


def plan_from_json(value: object) -> Plan:
    return PLAN.read(value, name="plan", hint="such as shardwright itself writes")
