"""HTML of a result in a notebook: the card of the report's first view, without scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardwright.api.report.notebook_cards.general_plan_notation_card_content import plan_card
from shardwright.api.report.notebook_cards.step_trace_content import step_trace_card
from shardwright.api.report.predicted_step_cost_memory_proof_content import (
    answer_card,
    prediction_card,
)
from shardwright.api.report.serving_latencies_content import latencies_of_requests
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import (
    StoredSimulation,
    stored_answer,
    stored_plan,
    stored_simulation,
)
from shardwright.files.read_comparison_advice_and_serving import read_serving_document
from shardwright.program.step_trace import StepTrace
from shardwright.report.page.markup.notebook_fragment import fragment_html
from shardwright.report.page.markup.view import View
from shardwright.report.page.views.answer_card_view import answer_view
from shardwright.report.page.views.general_plan_lane_table_and_notation_view import plan_view
from shardwright.report.page.views.serving_card_view import serving_card_view
from shardwright.report.page.views.traced_device_times_view import step_trace_view
from shardwright.report.serving.deployment_screen import serving_document
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.simulated_strategy import Simulation
from shardwright.serving.simulation.serving_answer import ServingAnswer
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.plan.plan import Plan

_VIEWS: Final[dict[str, Callable[[Any], View]]] = {
    "answer": answer_view,
    "plan": plan_view,
    "serving": serving_card_view,
    "trace": step_trace_view,
}


def notebook_document(result: object) -> dict[str, Any] | None:
    """JSON document of a result's card: one part, by its view's name; None if it has no card."""
    name, card = _named_card(result)
    return None if card is None else {name: to_json_value(card, names={})}


def notebook_html(result: object) -> str | None:
    """HTML fragment of a result for a notebook; None if it has no card."""
    document = notebook_document(result)
    if document is None:
        return None
    [name] = document
    return fragment_html(document, _VIEWS[name](document))


def _named_card(result: object) -> tuple[str, object | None]:
    """(name of the view of a result, contents of its card; None if it has no card)."""
    if isinstance(result, Plan):
        return "plan", plan_card(result)
    if isinstance(result, StepTrace):
        return "trace", step_trace_card(result) if result.devices else None
    if isinstance(result, ServingAnswer):
        saved = read_serving_document(serving_document(result))
        return "serving", latencies_of_requests(saved, result.latencies)
    if isinstance(result, Prediction):
        return "answer", prediction_card(result)
    stored = _stored(result)
    return "answer", None if stored is None else answer_card(stored)


def _stored(result: object) -> StoredSimulation | None:
    """Contents of the file of an answer or simulation; None where its request is not known."""
    if isinstance(result, Simulation):
        return stored_simulation(result)
    if isinstance(result, Answer) and result.request is not None:
        return stored_answer(result)
    if isinstance(result, GeneralAnswer) and result.simulation is not None:
        return stored_plan(result.simulation, result.certificate)
    return None
