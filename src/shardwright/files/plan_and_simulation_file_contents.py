"""Contents of plan and simulation files, and their JSON documents."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from shardwright.files.canonical_json import document_digest, to_text
from shardwright.files.dataclass_to_json import Names, to_json_value
from shardwright.files.rewrite_request_paths_relative_to_folder import request_relative_to
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import Alternative, Answer, Goodput, Nearby, Sensitivity
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import HostMemory, Prediction, Source, StageMemory
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan

PLAN_SCHEMA: Final = "shardwright.plan"
SIMULATION_SCHEMA: Final = "shardwright.simulation"
VERSION: Final = 3
QUESTION: Final = ("request", "name", "strategy", "plan", "notes")
"""Fields that a file's digest covers: the request and strategy behind its numbers, which cannot be
recomputed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSimulation:
    """Contents of a simulation file: one simulated strategy.

    Args:
        name: of the strategy, for a person.
        grid: the strategy as a grid, None if it is none.
        plan: the general plan; None where the grid was lowered unchanged.
        runtime: name with options.
        classes: devices of each class of a general plan.
        notes: changes that were made to the strategy.
        fitting: changes that would fit, where it does not.
        sources: of the prediction's inputs.
    """

    request: Request
    name: str
    grid: Grid | None
    plan: Plan | None
    runtime: str
    prediction: Prediction
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    fitting: tuple[str, ...]
    sources: tuple[Source, ...]

    @property
    def simulation(self) -> Simulation:
        """Answer of `simulate` that the file was written from."""
        return Simulation(**{field.name: getattr(self, field.name) for field in fields(Simulation)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(StoredSimulation):
    """Contents of a plan file: the best strategy of a search, and the certificate.

    Args:
        space: name of the searched space.
        certificate: account of every member of the space.
        alternatives: next best, in rank.
    """

    space: str
    certificate: Certificate
    alternatives: tuple[Alternative, ...]
    sensitivity: Sensitivity | None
    goodput: Goodput | None
    nearby: tuple[Nearby, ...]

    @property
    def answer(self) -> Answer | None:
        """Answer of a grid search that the file was written from; None for other searches.

        None too for a search over several cluster conditions.
        """
        if (
            self.grid is None
            or self.certificate.joint is not None
            or self.certificate.scenarios is not None
            or self.request.space == "exact"
        ):
            return None
        return Answer(
            grid=self.grid,
            prediction=self.prediction,
            certificate=self.certificate,
            alternatives=self.alternatives,
            search_time_s=0.0,
            sensitivity=self.sensitivity,
            goodput=self.goodput,
            nearby=self.nearby,
            plan=self.plan,
            request=self.request,
        )


NAMES: Final[Names] = {
    StoredSimulation: {"grid": "strategy"},
    StoredPlan: {"grid": "strategy"},
    Prediction: {
        "allocated_bytes": "peak_memory_bytes.allocated",
        "reserved_bytes": "peak_memory_bytes.reserved",
        "sources": "",
    },
    StageMemory: {
        "items": "memory_bytes",
        "allocated": "allocated_bytes",
        "reserved": "reserved_bytes",
        "capacity": "capacity_bytes",
    },
    HostMemory: {"items": "memory_bytes", "need": "needed_bytes", "capacity": "capacity_bytes"},
    Alternative: {"grid": "strategy", "changes": "changes_s"},
    Sensitivity: {"best_grid": "best_strategy"},
}


def stored_simulation(simulation: Simulation) -> StoredSimulation:
    """Convert a simulation to the contents of its file."""
    prediction = simulation.prediction
    given = {field.name: getattr(simulation, field.name) for field in fields(simulation)}
    return StoredSimulation(
        runtime=load_runtime(simulation.request.runtime).name, sources=prediction.sources, **given
    )


def stored_answer(answer: Answer) -> StoredPlan:
    """Convert the answer of a grid search to the contents of a plan file."""
    assert answer.request is not None
    found = Simulation(
        request=answer.request,
        name="",
        grid=answer.grid,
        plan=answer.plan,
        prediction=answer.prediction,
    )
    return stored_plan(
        found,
        answer.certificate,
        alternatives=answer.alternatives,
        sensitivity=answer.sensitivity,
        goodput=answer.goodput,
        nearby=answer.nearby,
    )


def stored_plan(
    simulation: Simulation,
    certificate: Certificate,
    *,
    alternatives: tuple[Alternative, ...] = (),
    sensitivity: Sensitivity | None = None,
    goodput: Goodput | None = None,
    nearby: tuple[Nearby, ...] = (),
) -> StoredPlan:
    """Contents of a plan file from the simulated best strategy and its certificate."""
    found = stored_simulation(simulation)
    return StoredPlan(
        **{field.name: getattr(found, field.name) for field in fields(found)},
        space=simulation.request.space,
        certificate=certificate,
        alternatives=alternatives,
        sensitivity=sensitivity,
        goodput=goodput,
        nearby=nearby,
    )


def document_of(stored: StoredSimulation) -> dict[str, Any]:
    """JSON document of a file's contents, with kind, version and digest, and no clock value."""
    body = to_json_value(stored, names=NAMES)
    schema = PLAN_SCHEMA if isinstance(stored, StoredPlan) else SIMULATION_SCHEMA
    return {"schema": schema, "version": VERSION, "digest": question_digest(body), **body}


def file_text(stored: StoredSimulation, path: Path) -> str:
    """Text of a file at `path`, with its request's paths relative to the file's folder."""
    return to_text(
        document_of(replace(stored, request=request_relative_to(stored.request, path.parent)))
    )


def plan_document(answer: Answer) -> dict[str, Any]:
    """JSON document of a grid search's answer, as a plan file holds it."""
    return document_of(stored_answer(answer))


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """JSON document of a simulated strategy, as a simulation file holds it."""
    return document_of(stored_simulation(simulation))


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """JSON value of a prediction, as files hold it under ``prediction``."""
    found = to_json_value(prediction, names=NAMES)
    assert isinstance(found, dict)
    return found


def question_digest(body: dict[str, Any]) -> str:
    """SHA-256 of the request, the limits at which the search stopped, and its further searches.

    It covers the searches beside it, too: at another network, and at other batches and numbers of
    devices (`has_further_answers`).
    """
    certificate = body.get("certificate") or {}
    joint, mixed = (certificate.get(part) or {} for part in ("joint", "mixed"))
    search = [certificate.get("stopped_at"), joint.get("grid_stopped_at"), joint.get("tolerance")]
    if mixed:
        alone = [one.get("stopped_at") for one in mixed.get("alone", ())]
        search += [mixed.get("composed_stopped_at"), mixed.get("tolerance"), alone]
    search.append(has_further_answers(body))
    return document_digest({"search": search, **{field: body.get(field) for field in QUESTION}})


def has_further_answers(body: dict[str, Any]) -> bool:
    """True if a document holds a sensitivity or nearby answers."""
    return body.get("sensitivity") is not None or bool(body.get("nearby"))


def with_sources(stored: StoredSimulation) -> StoredSimulation:
    """Copy of a file's contents whose prediction has the file's sources, as a simulation's has."""
    return replace(stored, prediction=replace(stored.prediction, sources=stored.sources))
