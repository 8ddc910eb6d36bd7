"""Strict readers of what `compare`, `advise` and `serve-simulate` write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.files.canonical_json import parse_json, to_text
from shardwright.files.comparison_advice_serving_document_classes import (
    BestChange,
    StoredAdvice,
    StoredChange,
    StoredComparison,
    StoredCost,
    StoredServing,
)
from shardwright.files.plan_and_simulation_file_contents import NAMES
from shardwright.files.read_plan_and_simulation_files import (
    COMMAND,
    LIMITS,
    parse_saved,
)
from shardwright.files.strict_pydantic_models_of_dataclasses import DocumentModel, Signed

COMPARE_HINT: Final = "write the file again with `shardwright compare ... -o FILE`"
ADVISE_HINT: Final = "write the file again with `shardwright advise ... -o FILE`"
SERVE_HINT: Final = "write the file again with `shardwright serve-simulate ... -o FILE`"
_SIGNED_GAIN: Final = {"gain": Signed}
_COST: Final = DocumentModel(kind=StoredCost, names=NAMES, limits={})
_ADVICE: Final = DocumentModel(
    kind=StoredAdvice,
    names=NAMES,
    limits={**LIMITS, StoredChange: _SIGNED_GAIN, BestChange: _SIGNED_GAIN},
)
_SERVING: Final = DocumentModel(kind=StoredServing, names=NAMES, limits={})
_FURTHER_SERVING: Final = ("sources", "execution")
"""Fields that `serve-simulate --explain` and `--execute` add; a report shows neither."""
OtherAnswer = StoredComparison | StoredAdvice | StoredServing


def parse_other_answer(text: str, *, name: str) -> OtherAnswer | None:
    """Parse a comparison, an advice or a serving result; None where the text is none of them.

    These documents name no schema, so their kind is told by their fields.

    Args:
        name: of the file, for messages.

    Raises:
        DataError: the text is no JSON, or has such fields but not the rest of such a document.
    """
    document = parse_json(text, name=name, hint="`shardwright plan ... -o FILE` writes a plan file")
    if not isinstance(document, dict) or "schema" in document:
        return None
    for required, read in _READERS:
        if required <= set(document):
            return read(document, name)
    if {"ttft_s", "tpot_s"} <= set(document):
        raise DataError(
            f"{name} is an estimate of means, which has no latencies of single requests",
            hint="run `shardwright serve-simulate` without --estimate, with -o FILE",
        )
    return None


def _read_comparison(document: dict[str, Any], name: str) -> StoredComparison:
    """Read a comparison; each strategy is a simulation document."""
    strategies, costs = document["strategies"], document["costs"]
    extra = sorted(set(document) - {"strategies", "costs", COMMAND})
    if extra:
        raise DataError(f"{name}: {extra[0][:40]!r} is no field of a comparison", hint=COMPARE_HINT)
    if not (isinstance(strategies, list) and isinstance(costs, list)) or not strategies:
        raise DataError(f"{name}: a comparison lists strategies and costs", hint=COMPARE_HINT)
    if len(strategies) != len(costs):
        raise DataError(
            f"{name}: {len(strategies)} strategies and {len(costs)} costs", hint=COMPARE_HINT
        )
    if not all(isinstance(strategy, dict) for strategy in strategies):
        raise DataError(f"{name}: a strategy is an object", hint=COMPARE_HINT)
    return StoredComparison(
        strategies=tuple(
            parse_saved(to_text(strategy), name=f"{name}, strategy {number}")
            for number, strategy in enumerate(strategies, start=1)
        ),
        costs=tuple(_COST.read(cost, name=name, hint=COMPARE_HINT) for cost in costs),
    )


def read_serving_document(document: dict[str, Any]) -> StoredServing:
    """Contents of the file of a serving result from its document."""
    name = "serving result"
    body = parse_json(to_text(document), name=name, hint=SERVE_HINT)
    assert isinstance(body, dict)
    return _read_serving(body, name)


def _read_advice(document: dict[str, Any], name: str) -> StoredAdvice:
    """Convert an advice document to its contents; DataError if a field is wrong."""
    return _ADVICE.read(document, name=name, hint=ADVISE_HINT)


def _read_serving(document: dict[str, Any], name: str) -> StoredServing:
    """Read a serving result; the fields that command options add are dropped."""
    body = {key: value for key, value in document.items() if key not in _FURTHER_SERVING}
    return _SERVING.read(body, name=name, hint=SERVE_HINT)


_READERS: Final[tuple[tuple[frozenset[str], Callable[[dict[str, Any], str], OtherAnswer]], ...]] = (
    (frozenset(("strategies", "costs")), _read_comparison),
    (frozenset(("framework", "settings", "changes")), _read_advice),
    (frozenset(("metrics", "pools", "engine")), _read_serving),
)
"""(fields that tell the kind, reader)."""
