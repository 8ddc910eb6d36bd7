"""Strict reader of plan and simulation files, which `plan -o` and `simulate -o` write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from shardwright.errors import DataError
from shardwright.files.canonical_json import parse_json, read_text
from shardwright.files.check_plan_file_list_lengths_match import require_lengths
from shardwright.files.plan_and_simulation_file_contents import (
    NAMES,
    PLAN_SCHEMA,
    SIMULATION_SCHEMA,
    VERSION,
    StoredPlan,
    StoredSimulation,
    question_digest,
    with_sources,
)
from shardwright.files.rewrite_request_paths_relative_to_folder import request_resolved_from
from shardwright.files.strict_pydantic_models_of_dataclasses import (
    DocumentModel,
    FromOne,
    Limits,
    Members,
    Signed,
    document_body,
)
from shardwright.search.mixed_cluster_certificate import GIVEN_UP, Dual, Floor, PoolAlone
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import Answer
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Prediction

COMMAND: Final = "command"
"""Field of the web API's answers with the command that gives the same answer."""
BESIDE: Final = ("search_time_s", "unsearched", "batches", "frameworks", "training", COMMAND)
"""Fields that `plan --json` and the web API add to those of the file: the time of the search,
answers to other options, and the command.
"""
_HINT: Final = "write the file again with `shardwright plan ... -o FILE`"
_SIMULATION_HINT: Final = "write the file again with `shardwright simulate ... -o FILE`"
_FATES: Final = (
    "enumerated",
    "illegal",
    "duplicates",
    "infeasible",
    "bounded_b0",
    "bounded_b1",
    "simulated",
)
LIMITS: Final[Limits] = {
    Prediction: {"capacity_bytes": FromOne},
    Request: {"seq_len": FromOne, "global_batch": FromOne},
    Certificate: dict.fromkeys(_FATES, Members),
    Dual: {"replicas": Signed, "samples": Signed},
    Floor: {"replicas": Signed},
    PoolAlone: {"stopped_at": Annotated[int, Field(ge=GIVEN_UP)]},
}
PLAN: Final = DocumentModel(kind=StoredPlan, names=NAMES, limits=LIMITS)
SIMULATION: Final = DocumentModel(kind=StoredSimulation, names=NAMES, limits=LIMITS)


def read_saved(path: Path) -> StoredSimulation:
    """Read a stored plan or simulation; paths in its request are resolved from its folder.

    Raises:
        DataError: the file cannot be read, is neither, is of another version, or its request was
            edited (the digest). StrategyError: its strategy cannot be read.
    """
    text = read_text(path, what="plan file", hint="`shardwright plan ... -o FILE` writes one")
    return parse_saved(text, name=str(path), folder=path.parent)


def parse_saved(
    text: str, *, name: str = "plan file", folder: Path | None = None
) -> StoredSimulation:
    """Parse the text of a plan or simulation file; see `read_saved`.

    Args:
        name: of the file, for messages.
        folder: folder of the file, from which paths in its request are resolved.
    """
    document = parse_json(text, name=name, hint=_HINT)
    simulated = isinstance(document, dict) and document.get("schema") == SIMULATION_SCHEMA
    schema, hint = (SIMULATION_SCHEMA, _SIMULATION_HINT) if simulated else (PLAN_SCHEMA, _HINT)
    body = document_body(
        document, schema=schema, version=VERSION, name=name, what="plan file", hint=hint
    )
    digest = body.pop("digest", None)
    for field in BESIDE:
        body.pop(field, None)
    mirror: DocumentModel[StoredSimulation] | DocumentModel[StoredPlan] = (
        SIMULATION if simulated else PLAN
    )
    found = with_sources(mirror.read(body, name=name, hint=hint))
    if found.grid is None and found.plan is None:
        raise DataError(f"{name}: it has neither a strategy nor a plan", hint=hint)
    require_lengths(found, name=name, hint=hint)
    if digest != question_digest(body):
        raise DataError(f"{name}: what was asked is not what its digest is of", hint=hint)
    request = found.request if folder is None else request_resolved_from(found.request, folder)
    return found if request is found.request else replace(found, request=request)


def read_plan_file(path: Path) -> tuple[Request, Answer]:
    """Read the request and the answer of a grid search from a plan file.

    Raises:
        DataError: as `read_saved`; or the file holds no answer of a grid search.
    """
    found = read_saved(path)
    answer = found.answer if isinstance(found, StoredPlan) else None
    if answer is None:
        raise DataError(
            f"{path} holds no answer of a grid search",
            hint="`shardwright explain` reads any plan file",
        )
    return found.request, answer


def require_breakdown_sum(saved: StoredSimulation, *, name: str = "plan file") -> None:
    """Raise DataError unless a stored step's breakdown sums to the step time, within 1e-6 of it.

    `check` recomputes every number; this function is for commands that only show the file.
    """
    parts, step = (
        sum(seconds for _, seconds in saved.prediction.breakdown_s),
        saved.prediction.step_time_s,
    )
    if not abs(parts - step) <= 1e-6 * step:
        raise DataError(
            f"{name}: the parts of the step are {parts:.6g} s and the step is {step:.6g} s",
            hint="`shardwright check` says more",
        )
