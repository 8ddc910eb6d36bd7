"""What a plan file and a simulation file hold, in one shape, and their documents."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from shardwright.files.dataclass_schemas import Names, to_json_value
from shardwright.files.document_text import document_digest, to_text
from shardwright.files.relative_paths import request_relative_to
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.certificate import Certificate
from shardwright.search.search_answer import Alternative, Answer, Goodput, Nearby, Sensitivity
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import HostMemory, Prediction, Source, StageMemory
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.plan import Plan

PLAN_SCHEMA: Final = "shardwright.plan"
SIMULATION_SCHEMA: Final = "shardwright.simulation"
VERSION: Final = 3
QUESTION: Final = ("request", "name", "strategy", "plan", "notes")
"""What the digest of a file is of: what its numbers are about. Nothing in it can be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSimulation:
    """One simulated strategy.

    Args:
        name: of the strategy, in words.
        grid: the grid that says it, None if none does.
        plan: the general plan; None where the grid was lowered as it is.
        runtime: by its own name.
        classes: devices of each class of a general plan.
        notes: what was done to the strategy.
        fitting: changes that would fit, where it does not.
        sources: where the prediction's inputs come from.
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
        """What `simulate` returns."""
        return Simulation(**{field.name: getattr(self, field.name) for field in fields(Simulation)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(StoredSimulation):
    """The answer of a search: the best strategy, and why it is best.

    Args:
        space: that was searched.
        certificate: every member accounted for.
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
        """What `plan` returns of a space of grids; None of another one, and of several states of
        the cluster.
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
    """What a file holds of a simulation."""
    prediction = simulation.prediction
    given = {field.name: getattr(simulation, field.name) for field in fields(simulation)}
    return StoredSimulation(
        runtime=load_runtime(simulation.request.runtime).name, sources=prediction.sources, **given
    )


def stored_answer(answer: Answer) -> StoredPlan:
    """What a file holds of a grid search's answer."""
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
    """What a file holds of the best strategy of a space."""
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
    """The document of a file; `files.text.to_text` makes its text. No clock value is in it."""
    body = to_json_value(stored, names=NAMES)
    schema = PLAN_SCHEMA if isinstance(stored, StoredPlan) else SIMULATION_SCHEMA
    return {"schema": schema, "version": VERSION, "digest": question_digest(body), **body}


def file_text(stored: StoredSimulation, path: Path) -> str:
    """What is written at `path`: the document, with the files that its question names as they are
    found from there.
    """
    return to_text(
        document_of(replace(stored, request=request_relative_to(stored.request, path.parent)))
    )


def plan_document(answer: Answer) -> dict[str, Any]:
    """The plan file of a grid search's answer."""
    return document_of(stored_answer(answer))


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """The simulation file of one strategy."""
    return document_of(stored_simulation(simulation))


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """What stands under ``prediction`` in a file: ``simulate --json``."""
    found = to_json_value(prediction, names=NAMES)
    assert isinstance(found, dict)
    return found


def question_digest(body: dict[str, Any]) -> str:
    """The digest of a file's question, and of what repeats its search: where it was stopped, and
    whether it looked further, at another network and at other batches and numbers of devices
    (`has_further_answers`).
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
    """Whether a file holds what searches beside its own found:
    its sensitivity, or what is nearby.
    """
    return body.get("sensitivity") is not None or bool(body.get("nearby"))


def with_sources(stored: StoredSimulation) -> StoredSimulation:
    """`stored` with the sources in its prediction too, as a simulation has them."""
    return replace(stored, prediction=replace(stored.prediction, sources=stored.sources))
