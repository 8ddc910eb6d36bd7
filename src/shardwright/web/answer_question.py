"""Answer a question of the web API in the process of a search, as the command line answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.api.compare_strategies_and_clusters import compare
from shardwright.api.explain_why_not_other_strategy import why
from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.api.launches import launch_advice
from shardwright.api.read_cluster_inventories_or_compute_picture import (
    ALL_FORMATS,
    read_cluster,
)
from shardwright.api.report.report_content_of_answer_file import (
    add_what_if,
    make_report,
    report_document,
)
from shardwright.api.request_to_command import command_text, cost_options, strategy_options
from shardwright.api.request_to_problem import SearchMethod, load_cluster, method_of
from shardwright.api.searches import grid_search
from shardwright.api.searches.gain_of_unsearched_options import unsearched_of
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.table_of_general_plan_searches import SEARCHES
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import (
    StoredSimulation,
    document_of,
    plan_document,
    simulation_document,
)
from shardwright.files.read_comparison_advice_and_serving import parse_other_answer
from shardwright.files.read_plan_and_simulation_files import (
    COMMAND,
    read_saved,
    require_breakdown_sum,
)
from shardwright.hardware.inventories.cluster_from_inventories import ClusterRead
from shardwright.progress_callback import Progress
from shardwright.report.guide.guide_html_page import guide_html
from shardwright.report.page.report_page import report_html
from shardwright.report.screens.cluster_read_screen import cluster_facts_document
from shardwright.report.screens.launch_advice_screen import advice_document
from shardwright.report.screens.plan_against_strategy_screen import why_document
from shardwright.report.screens.strategy_comparison_screen import comparison_document
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from shardwright.web.answer_event_types import AnswerTexts
from shardwright.web.question_bodies import (
    AdviseBody,
    ClusterBody,
    CompareBody,
    GuideBody,
    PlanBody,
    PlanFileBody,
    QuestionBody,
    ReportBody,
    SimulateBody,
    WhyBody,
)
from shardwright.web.refuse_paths import FILE_NAMES, require_no_path, require_no_strategy_file

MOST_LETTERS_OF_STRATEGY: Final = 4096
"""Letters of a strategy up to which an answer has a command: more are no line to read or copy."""
_PLAN_FILE: Final = Path("plan.json")
_CLUSTER_TEXT: Final = Path("cluster.txt")


def answer_question(verb: str, body: Any, *, progress: Progress) -> AnswerTexts:
    """Answer a verb's question as JSON and any HTML page; its files go to the current folder.

    Raises:
        ShardwrightError: the errors of the verb on the command line.
    """
    return VERBS[verb](body, progress)


def _plan(body: PlanBody, progress: Progress) -> AnswerTexts:
    """JSON of the best plan of a request, seconds of its search, and options not searched."""
    request = _request_of(body, body.request)
    method = method_of(request)
    if method is SearchMethod.GRID:
        answer = grid_search.plan(request, progress=progress)
        document, search_time_s = plan_document(answer), answer.search_time_s
        unsearched = None if STOP.is_set() else unsearched_of(answer)
    else:
        search = SEARCHES[method]
        general = search.answer(request, progress=progress)
        document, search_time_s = document_of(stored_general(general)), general.search_time_s
        unsearched = None if STOP.is_set() else search.unsearched_options(general)
    searched = {
        "search_time_s": search_time_s,
        "unsearched": to_json_value(unsearched, names={}),
    }
    return _with_command({**document, **searched}, command_text(request))


def _simulate(body: SimulateBody, progress: Progress) -> AnswerTexts:
    """Simulate one strategy of a request; the answer is the document of a simulation file."""
    require_no_strategy_file(body.strategy)
    request = _request_of(body, body.request)
    progress("simulate", 0, 0)
    document = simulation_document(simulate_strategy.simulation(request, strategy=body.strategy))
    return _with_command(document, _strategy_command(request, [body.strategy], verb="simulate"))


def _compare(body: CompareBody, progress: Progress) -> AnswerTexts:
    """JSON of strategies simulated, or the best plan, on each cluster, with costs of training."""
    for strategy in body.strategies:
        require_no_strategy_file(strategy)
    request = _request_of(body, body.request)
    for cluster in body.clusters:
        require_no_path(replace(request, cluster=cluster), given=body.files)
    progress("simulate", 0, 0)
    rows = compare(
        request,
        clusters=(request.cluster, *body.clusters),
        strategies=body.strategies,
        tokens=body.tokens,
        prices=body.prices,
        progress=progress,
    )
    command = _strategy_command(
        request,
        body.strategies,
        verb="compare",
        clusters=body.clusters,
        costs=cost_options(body.prices, tokens=body.tokens),
    )
    return _with_command(comparison_document(rows), command)


def _with_command(document: Mapping[str, Any], command: str) -> AnswerTexts:
    """A document with the command that gives the same answer."""
    return AnswerTexts(document=to_text({**document, COMMAND: command}))


def _strategy_command(
    request: Request,
    strategies: Sequence[str],
    *,
    verb: str,
    clusters: Sequence[str] = (),
    costs: Sequence[str] = (),
) -> str:
    """Command of a verb with strategies; empty if a strategy is a plan of many lines.

    Args:
        clusters: further clusters.
        costs: words of the options for costs.
    """
    if any(len(text) > MOST_LETTERS_OF_STRATEGY for text in strategies):
        return ""
    options = (*strategy_options(strategies), *costs)
    return command_text(request, verb=verb, clusters=clusters, options=options)


def _guide(body: GuideBody, progress: Progress) -> AnswerTexts:
    """Judge rules of thumb for training or serving a request, as JSON and as an HTML page.

    Raises:
        UsageError: the tokens of an answer are given for a guide that is not for serving.
    """
    if body.answer_tokens and not body.serving:
        raise UsageError("answer_tokens is for serving", hint="leave it out, or set serving")
    request = _request_of(body, body.request)
    guide = (
        make_serving_guide(request, answer=body.answer_tokens or None, progress=progress)
        if body.serving
        else make_guide(request, progress=progress)
    )
    document = guide_document(guide)
    return AnswerTexts(document=to_text(document), page=guide_html(document))


def _advise(body: AdviseBody, progress: Progress) -> AnswerTexts:
    """Simulate a launch, given as texts, and search faster changes and its best strategy; JSON."""
    request = _request_of(body, body.request)
    launch, request = launch_advice.read_texts(
        list(body.launch.items()),
        request,
        cluster=load_cluster(request.cluster),
        framework=body.framework,
        given=body.variables,
    )
    advice = launch_advice.advise(launch, request, progress=progress)
    return AnswerTexts(document=to_text(advice_document(launch, advice)))


def _report(body: ReportBody, progress: Progress) -> AnswerTexts:
    """Make the report of a file, with what-if searches if asked, as JSON and as an HTML page."""
    progress("make the report", 0, 0)
    if parse_other_answer(body.plan, name=str(_PLAN_FILE)) is None:
        _saved_of(body)
    else:
        _PLAN_FILE.write_text(body.plan, encoding="utf-8")
    report = make_report(_PLAN_FILE, tokens=body.tokens, prices=body.prices, progress=progress)
    if body.what_if:
        report = add_what_if(report, _PLAN_FILE, prices=body.prices, progress=progress)
    document = report_document(report)
    return AnswerTexts(document=to_text(document), page=report_html(document))


def _explain(body: PlanFileBody, progress: Progress) -> AnswerTexts:
    """JSON document of a plan file; error if the parts of its step do not add up to the step."""
    saved = _saved_of(body)
    require_breakdown_sum(saved)
    return AnswerTexts(document=to_text(document_of(saved)))


def _why(body: WhyBody, progress: Progress) -> AnswerTexts:
    """Compare another strategy with the plan of a file, as JSON."""
    require_no_strategy_file(body.strategy)
    saved = _saved_of(body)
    require_breakdown_sum(saved)
    progress("simulate", 0, 0)
    return AnswerTexts(document=to_text(why_document(why(saved, body.strategy))))


def _cluster(body: ClusterBody, progress: Progress) -> AnswerTexts:
    """Read a cluster from a tool's output; JSON with the facts found and the assumptions."""
    reading = _read_inventory(body.text, nodes=body.nodes, accelerator=body.accelerator)
    return AnswerTexts(document=to_text(cluster_facts_document(reading)))


VERBS: Final[Mapping[str, Callable[[Any, Progress], AnswerTexts]]] = {
    "plan": _plan,
    "simulate": _simulate,
    "compare": _compare,
    "guide": _guide,
    "advise": _advise,
    "report": _report,
    "explain": _explain,
    "why": _why,
    "cluster": _cluster,
}
"""Function of each verb that the server answers."""


def _request_of(body: QuestionBody, request: Request) -> Request:
    """Write a question's files; return the request with their names, or refuse a path in it."""
    given: dict[str, Any] = {field: FILE_NAMES[field] for field in body.files}
    for field in given:
        if getattr(request, field):
            raise UsageError(
                f"{field} {getattr(request, field)[:60]!r} and files.{field} are both given",
                hint=f"leave {field} empty where its text is in files",
            )
    _write_files(body)
    request = replace(request, **given)
    if not (request.model and request.cluster):
        missing = "cluster" if request.model else "model"
        raise UsageError(
            f"the request has no {missing}",
            hint=f"a name or expression in request.{missing}, or a text in files.{missing}",
        )
    require_no_path(request, given=given)
    return request


def _write_files(body: QuestionBody) -> None:
    """Write a question's files under fixed names; a tool's output becomes a cluster file first."""
    for field, text in body.files.items():
        if field == "cluster" and any(form.found_in(text) for form in ALL_FORMATS):
            reading = _read_inventory(
                text, nodes=body.cluster_nodes, accelerator=body.cluster_accelerator
            )
            text = reading.text
        Path(FILE_NAMES[field]).write_text(text, encoding="utf-8")


def _read_inventory(text: str, *, nodes: int, accelerator: str) -> ClusterRead:
    """Read a cluster from a tool's output; `nodes` (0: unknown), `accelerator` if it names none."""
    _CLUSTER_TEXT.write_text(text, encoding="utf-8")
    return read_cluster(
        [_CLUSTER_TEXT], nodes=nodes, accelerators=[accelerator] if accelerator else []
    )


def _saved_of(body: PlanFileBody) -> StoredSimulation:
    """Write a question's plan file and read it; UsageError or ModelError if it names a path."""
    _write_files(body)
    _PLAN_FILE.write_text(body.plan, encoding="utf-8")
    saved = read_saved(_PLAN_FILE)
    require_no_path(saved.request, given=body.files)
    return saved
