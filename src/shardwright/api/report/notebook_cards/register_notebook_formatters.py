"""Registration of results' HTML cards with IPython, by the names of their types.

IPython imports neither the types nor the cards before it shows one. So the modules of the results
know nothing of notebooks, and registration costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

RESULT_TYPES: Final = {
    "Answer": "shardwright.search.search_answer",
    "GeneralAnswer": "shardwright.search.search_answer",
    "Simulation": "shardwright.search.simulated_strategy",
    "Prediction": "shardwright.simulator.prediction",
    "Plan": "shardwright.strategy.plan.plan",
    "StepTrace": "shardwright.program.step_trace",
    "ServingAnswer": "shardwright.serving.simulation.serving_answer",
}
"""Module of each type that a notebook shows as a card."""


def register_formatters(ipython: Any) -> None:
    """Have an IPython shell show results as HTML cards."""
    formatter = ipython.display_formatter.formatters["text/html"]
    for name, module in RESULT_TYPES.items():
        formatter.for_type_by_name(module, name, _html)


def _html(result: object) -> str | None:
    """HTML of a result, with the modules loaded on the first one."""
    found: str | None = import_module(
        "shardwright.api.report.notebook_cards.notebook_html"
    ).notebook_html(result)
    return found
