"""Shardwright plans how to spread an LLM over a cluster, and predicts step time and memory.

It proves that the plan is optimal in a stated space. Names are loaded on first use, so that
importing the package costs little.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shardwright.api.explain_why_not_other_strategy import why as why
    from shardwright.api.searches.grid_search import check as check
    from shardwright.api.searches.grid_search import plan as plan
    from shardwright.api.searches.joint_layer_cut_and_schedule_search import (
        plan_joint as plan_joint,
    )
    from shardwright.api.searches.mixed_search import plan_mixed as plan_mixed
    from shardwright.api.searches.robust_search_over_cluster_scenarios import (
        plan_robust as plan_robust,
    )
    from shardwright.api.simulate_deployment import serve_simulate as serve_simulate
    from shardwright.api.simulate_strategy_and_verify_stored import simulate as simulate
    from shardwright.api.simulate_strategy_and_verify_stored import simulation as simulation
    from shardwright.api.what_if.search_best_plans_along_axis import break_even as break_even
    from shardwright.api.what_if.search_best_plans_along_axis import what_if as what_if
    from shardwright.errors import ClusterError as ClusterError
    from shardwright.errors import DataError as DataError
    from shardwright.errors import InfeasibleError as InfeasibleError
    from shardwright.errors import ModelError as ModelError
    from shardwright.errors import RuntimeModelError as RuntimeModelError
    from shardwright.errors import ShardwrightError as ShardwrightError
    from shardwright.errors import StrategyError as StrategyError
    from shardwright.errors import UsageError as UsageError
    from shardwright.files.read_plan_and_simulation_files import read_plan_file as read_plan_file
    from shardwright.search.optimality_certificate import Certificate as Certificate
    from shardwright.search.search_answer import Answer as Answer
    from shardwright.search.search_request import Request as Request
    from shardwright.serving.simulation.serving_answer import ServingAnswer as ServingAnswer
    from shardwright.serving.unparsed_simulation_inputs import ServingRequest as ServingRequest
    from shardwright.simulator.prediction import Prediction as Prediction
    from shardwright.strategy.grid.parallelism_grid import Grid as Grid
    from shardwright.strategy.plan.plan import Plan as Plan
    from shardwright.validation.validate_tables import validate as validate

__version__: Final = "0.2.0"

_HOMES: Final = {
    "plan": "shardwright.api.searches.grid_search",
    "plan_joint": "shardwright.api.searches.joint_layer_cut_and_schedule_search",
    "plan_mixed": "shardwright.api.searches.mixed_search",
    "plan_robust": "shardwright.api.searches.robust_search_over_cluster_scenarios",
    "simulate": "shardwright.api.simulate_strategy_and_verify_stored",
    "simulation": "shardwright.api.simulate_strategy_and_verify_stored",
    "serve_simulate": "shardwright.api.simulate_deployment",
    "check": "shardwright.api.searches.grid_search",
    "why": "shardwright.api.explain_why_not_other_strategy",
    "what_if": "shardwright.api.what_if.search_best_plans_along_axis",
    "break_even": "shardwright.api.what_if.search_best_plans_along_axis",
    "validate": "shardwright.validation.validate_tables",
    "read_plan_file": "shardwright.files.read_plan_and_simulation_files",
    "Request": "shardwright.search.search_request",
    "Answer": "shardwright.search.search_answer",
    "ServingRequest": "shardwright.serving.unparsed_simulation_inputs",
    "ServingAnswer": "shardwright.serving.simulation.serving_answer",
    "Prediction": "shardwright.simulator.prediction",
    "Certificate": "shardwright.search.optimality_certificate",
    "Plan": "shardwright.strategy.plan.plan",
    "Grid": "shardwright.strategy.grid.parallelism_grid",
    "ShardwrightError": "shardwright.errors",
    "UsageError": "shardwright.errors",
    "ModelError": "shardwright.errors",
    "ClusterError": "shardwright.errors",
    "StrategyError": "shardwright.errors",
    "InfeasibleError": "shardwright.errors",
    "DataError": "shardwright.errors",
    "RuntimeModelError": "shardwright.errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def load_ipython_extension(ipython: Any) -> None:
    """Have notebooks show results as HTML cards (``%load_ext shardwright``)."""
    import_module(
        "shardwright.api.report.notebook_cards.register_notebook_formatters"
    ).register_formatters(ipython)


# In a notebook the import suffices: IPython is loaded then, and its shell exists.
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
