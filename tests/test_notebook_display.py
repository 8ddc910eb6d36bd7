"""Results in a notebook: cards without scripts, whose numbers are those of the result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest

import shardwright
from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.api.report.notebook_cards.notebook_html import notebook_document, notebook_html
from shardwright.api.report.notebook_cards.register_notebook_formatters import (
    RESULT_TYPES,
    register_formatters,
)
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.simulate_deployment import serve_simulate
from shardwright.api.trace_simulated_step import trace
from shardwright.cost.step.dollars_and_joules import Spending
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import stored_answer
from shardwright.program.step_trace import Origin, StepTrace
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.simulator.prediction import Prediction
from shardwright.units import GIB
from tests.cli.answers import ANSWER, CERTIFICATE, PREDICTION, simulated
from tests.report.page.page_numbers import PageNumbers, read_page, require_page_numbers

DEVICE = Request(model="llama-3.2-1b", cluster="h100-sxm:1", seq_len=512, global_batch=4)
PIPELINE = Request(
    model="llama-3.1-8b",
    cluster="h100-sxm:8",
    seq_len=2048,
    global_batch=16,
    pins=(("pp", ("4",)),),
)
TRAFFIC = ServingRequest(
    model="llama-3.1-8b", cluster="h100-sxm:1", isl="256", osl="8", concurrency=4, requests=12
)


def searched_trace() -> StepTrace:
    return trace(stored_plan(stored_answer(plan(PIPELINE))))


RESULTS: dict[str, Callable[[], Any]] = {
    "answer": lambda: ANSWER,
    "searched answer": lambda: plan(DEVICE),
    "simulation": simulated,
    "strategy that does not fit": lambda: simulated(
        prediction=replace(PREDICTION, fits=False, reserved_bytes=90 * GIB)
    ),
    "prediction": lambda: PREDICTION,
    "general answer": lambda: plan_joint(replace(DEVICE, cluster="h100-sxm:2"), time_limit_s=1),
    "plan": lambda: stored_plan(stored_answer(plan(PIPELINE))).plan,
    "trace": searched_trace,
    "serving": lambda: serve_simulate(TRAFFIC),
    "serving with targets": lambda: serve_simulate(replace(TRAFFIC, slo="ttft=1s,share=0.9")),
    "serving of one token": lambda: serve_simulate(replace(TRAFFIC, osl="1")),
}


@cache
def result_of(name: str) -> Any:
    return RESULTS[name]()


def card_of(result: Any) -> tuple[Any, PageNumbers]:
    """The JSON document of a result's card as it is written, and the card's numbers."""
    html = notebook_html(result)
    assert html is not None
    document = json.loads(to_text(notebook_document(result)))
    page = read_page(html)
    require_page_numbers(page, document)
    return document, page


@pytest.mark.parametrize("name", RESULTS)
def test_numbers_of_a_card_are_values_of_its_json(name: str) -> None:
    document, page = card_of(result_of(name))
    assert len(document) == 1
    assert len(page.leaves) >= 5


@pytest.mark.parametrize("name", RESULTS)
def test_a_card_has_no_script_and_no_identifier(name: str) -> None:
    """A notebook shows many cards, and its trust in scripts is the user's to give."""
    html = notebook_html(result_of(name)) or ""
    assert html.startswith('<div class="shardwright">')
    assert html.count("<style>") == 1
    for word in ("<script", " id=", "javascript:", "http", "src="):
        assert word not in html, word
    assert not re.search(r"<[^>]* on\w+=", html)


def text_at(page: PageNumbers, pointer: str) -> str:
    [text] = {text for where, _, text in page.leaves if where == pointer}
    return text


def test_the_card_of_an_answer_has_its_numbers() -> None:
    _, page = card_of(ANSWER)
    assert text_at(page, "/answer/step_s") == "2 s"
    assert text_at(page, "/answer/tokens_per_s") == "524.3 k"
    assert text_at(page, "/answer/memory_share") == "40 %"
    assert text_at(page, "/answer/proof/strategies") == "300"
    assert any(words.startswith("Proven best of") for words in page.words)


def test_a_prediction_shows_what_its_answer_shows() -> None:
    spending = Spending(
        usd=4.0,
        usd_per_billion_tokens=5000.0,
        usd_per_hour=7200.0,
        joules=None,
        egress_usd=0.0,
        paid_devices=(8,),
        working_devices=(8,),
    )
    prediction = replace(PREDICTION, spending=spending)
    of_prediction = card_of(prediction)[0]["answer"]
    of_answer = card_of(replace(ANSWER, prediction=prediction))[0]["answer"]
    unknown = ("cluster", "runtime", "strategy", "sequences", "sequence_tokens", "proof")
    priced = ("usd_per_million_tokens",)
    assert of_prediction["usd_per_million_tokens"] == 5.0
    for name in set(of_answer) - {*unknown, *priced}:
        assert of_prediction[name] == of_answer[name], name


def test_a_trace_names_the_device_that_waits_longest() -> None:
    document, page = card_of(result_of("trace"))
    rows = document["trace"]["rows"]
    longest = max(rows, key=lambda row: row["waiting_s"])
    assert len(rows) == 4
    assert longest["waiting_s"] > 0
    assert rows[document["trace"]["idlest"]] == longest
    assert text_at(page, f"/trace/rows/{document['trace']['idlest']}/device") == str(
        longest["device"]
    )


def test_results_without_a_request_have_no_card() -> None:
    """Nor has a trace without devices; their text is shown."""
    general: GeneralAnswer[None] = GeneralAnswer(
        strategy=ANSWER.grid, certificate=CERTIFICATE, detail=None
    )
    empty = StepTrace(plan="p", origin=Origin.MEASURED, devices=(), spans=(), step_s=0.0)
    for result in (general, replace(ANSWER, request=None), empty, 3, "text"):
        assert notebook_html(result) is None


class Formatter:
    """IPython's register of formatters by type, as far as it is used."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], Callable[[Any], str | None]] = {}

    def for_type_by_name(self, module: str, name: str, function: Any) -> None:
        self.functions[module, name] = function


class Shell:
    """An IPython shell with one formatter."""

    def __init__(self) -> None:
        self.formatter = Formatter()
        self.display_formatter = self
        self.formatters = {"text/html": self.formatter}


def test_formatters_are_registered_for_the_types_by_their_names() -> None:
    shell = Shell()
    register_formatters(shell)
    types = {(module, name) for name, module in RESULT_TYPES.items()}
    assert set(shell.formatter.functions) == types
    for module, name in types:
        kind = getattr(import_module(module), name)
        assert (kind.__module__, kind.__name__) == (module, name)
    show = shell.formatter.functions[Answer.__module__, "Answer"]
    assert show(ANSWER) == notebook_html(ANSWER)
    assert {Answer, Prediction} <= {getattr(import_module(m), n) for m, n in types}


def test_loading_the_extension_registers() -> None:
    shell = Shell()
    shardwright.load_ipython_extension(shell)
    assert len(shell.formatter.functions) == len(RESULT_TYPES)


IPYTHON = """
import sys, types
calls = []
shell = types.SimpleNamespace(display_formatter=types.SimpleNamespace(formatters={
    "text/html": types.SimpleNamespace(for_type_by_name=lambda *words: calls.append(words[1]))}))
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: SHELL)
import shardwright
loaded = sorted(m for m in sys.modules if m.startswith("shardwright.") or m == "numpy")
print(sorted(calls), loaded)
"""


@pytest.mark.parametrize("running", [True, False])
def test_the_import_registers_where_ipython_runs(running: bool) -> None:
    """It loads the module that registers and no other."""
    code = IPYTHON.replace("SHELL", "shell" if running else "None")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [
        "shardwright.api",
        "shardwright.api.report",
        "shardwright.api.report.notebook_cards",
        "shardwright.api.report.notebook_cards.register_notebook_formatters",
    ]
    expected = (sorted(RESULT_TYPES), loaded) if running else ([], [])
    assert done.stdout == f"{expected[0]} {expected[1]}\n"


def test_ipython_shows_the_card() -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    html = formatters.HTMLFormatter()
    shell = Shell()
    shell.formatters["text/html"] = html
    register_formatters(shell)
    assert html(ANSWER) == notebook_html(ANSWER)
    assert html(replace(ANSWER, request=None)) is None
