"""The web application: the page, its files, and the API of the command line's verbs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

import shardwright
from shardwright.errors import DataError, UsageError
from shardwright.files.read_plan_and_simulation_files import COMMAND
from shardwright.web.answer_event_types import AnswerTexts, failed
from shardwright.web.answer_responses import (
    AnswerResponse,
    EventStream,
    error_response,
    response_of,
)
from shardwright.web.catalog_lists import catalog_document
from shardwright.web.question_bodies import (
    AdviseBody,
    ClusterBody,
    CompareBody,
    GuideBody,
    PlanBody,
    PlanFileBody,
    ReportBody,
    SimulateBody,
    WhyBody,
)
from shardwright.web.request_guard import Access, RequestGuard
from shardwright.web.search_processes import SearchProcesses
from shardwright.web.server_limits import ServerLimits
from shardwright.web.shared_answers import SharedAnswers

BODIES: Final[dict[str, type[BaseModel]]] = {
    "plan": PlanBody,
    "simulate": SimulateBody,
    "compare": CompareBody,
    "guide": GuideBody,
    "advise": AdviseBody,
    "report": ReportBody,
    "explain": PlanFileBody,
    "why": WhyBody,
    "cluster": ClusterBody,
}
"""Body of each verb of the API."""
_WITH_PAGE: Final = frozenset({"report", "guide"})
"""Verbs whose answers are a page too."""
_WITH_COMMAND: Final = frozenset({"plan", "simulate", "compare", "guide"})
"""Verbs whose answers have the command that gives the same answer."""
_DOCUMENT: Final[dict[str, Any]] = {"type": "object"}
_DOCUMENT_WITH_COMMAND: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        COMMAND: {
            "type": "string",
            "description": (
                "The command that gives the same answer; empty where no command line can ask the"
                " question. Texts of files have the names of the answer's request in it."
            ),
        }
    },
    "required": [COMMAND],
}
"""Schemas of an answer's JSON document."""
_PAGE: Final = "shardwright.web.browser"
_REPORT: Final = "shardwright.report.page.browser"
_SCRIPT: Final = "text/javascript; charset=utf-8"
FILES: Final = {
    "/": (_PAGE, "index.html", "text/html; charset=utf-8"),
    "/page.css": (_PAGE, "page.css", "text/css; charset=utf-8"),
    "/page.js": (_PAGE, "page.js", _SCRIPT),
    "/question.js": (_PAGE, "question.js", _SCRIPT),
    "/answer.js": (_PAGE, "answer.js", _SCRIPT),
    "/answer_contents.js": (_PAGE, "answer_contents.js", _SCRIPT),
    "/elements.js": (_PAGE, "elements.js", _SCRIPT),
    "/number_formats.js": (_REPORT, "number_formats.js", _SCRIPT),
    "/icon.svg": (_PAGE, "icon.svg", "image/svg+xml"),
}
"""Package, file and media type of each address of the page."""
STREAM: Final = "text/event-stream"
_OF_THE_FRAMEWORK: Final = (400, 404, 405)
"""Statuses of errors that FastAPI raises itself."""


class ErrorFields(BaseModel):
    """An error: its kind, a line, a hint, and the exit code of the command line."""

    kind: str
    message: str
    hint: str
    exit_code: int


class ErrorBody(BaseModel):
    """Body of every response with an error."""

    error: ErrorFields


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorBody, "description": why}
    for status, why in {
        400: "The request is wrong (exit code 2).",
        401: "The token is missing.",
        403: "Another site asks.",
        404: "There is no such address.",
        408: "The question or the answer takes too long (exit code 11).",
        413: "The question or the answer is too large (exit code 10).",
        415: "The body is compressed.",
        421: "The server has another name.",
        422: "The model, cluster, strategy or file is wrong, or nothing fits (exit codes 3 to 8).",
        429: "Too many questions wait.",
    }.items()
}
"""Responses with errors that every question may have."""


def web_application(*, limits: ServerLimits, access: Access) -> RequestGuard:
    """The ASGI application of a web server.

    Args:
        limits: see `ServerLimits`.
        access: names of the server, and its token.
    """
    processes = SearchProcesses(limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Start the search processes before the server runs, and end them after it."""
        await processes.start()
        yield
        await processes.close()

    app = FastAPI(
        title="Shardwright",
        version=shardwright.__version__,
        description=(
            "The verbs of `shardwright`: plan and simulate answer with the document of the file"
            " that `-o` writes, the others with that of `--json`. plan, simulate and compare add"
            " the command that gives the same answer."
        ),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    answers = SharedAnswers(processes.events, cache_bytes=limits.cache_bytes)
    for address in FILES:
        _add_file(app, address)
    for verb, body in BODIES.items():
        _add_verb(app, answers, verb, body)
    _add_catalog(app)
    _add_report_page(app, answers)
    app.add_exception_handler(RequestValidationError, _wrong_body)
    for status in _OF_THE_FRAMEWORK:
        app.add_exception_handler(status, _refused_by_framework)
    return RequestGuard(app, access=access, limits=limits)


def _add_file(app: FastAPI, address: str) -> None:
    """Add a GET route at `address` that sends a packaged file of the page."""
    package, name, media_type = FILES[address]
    text = files(package).joinpath(name).read_text(encoding="utf-8")

    @app.get(address, include_in_schema=False)
    async def send_file() -> Response:
        return Response(text, media_type=media_type, headers={"cache-control": "no-cache"})


def _add_verb(app: FastAPI, answers: SharedAnswers, verb: str, body_type: Any) -> None:
    """Add the route POST ``/api/VERB``, which answers with JSON, a page or a stream of events."""
    described: dict[str, Any] = {
        "application/json": {
            "schema": _DOCUMENT_WITH_COMMAND if verb in _WITH_COMMAND else _DOCUMENT
        },
        STREAM: {"schema": {"type": "string"}},
    }
    if verb in _WITH_PAGE:
        described["text/html"] = {"schema": {"type": "string"}}
    answered = {"description": "The answer's document, or its events.", "content": described}

    async def ask(body: body_type, request: Request) -> Response:
        digest = question_digest(verb, await request.json())
        events = answers.events(digest, verb, body)
        accepted = request.headers.get("accept", "")
        if STREAM in accepted:
            return EventStream(events, digest=digest)
        return AnswerResponse(events, as_page="text/html" in accepted)

    ask.__annotations__["body"] = body_type
    app.post(
        f"/api/{verb}",
        summary=f"shardwright {verb}",
        description=body_type.__doc__,
        operation_id=verb,
        response_class=Response,
        responses={**ERRORS, 200: answered},
    )(ask)


def _add_catalog(app: FastAPI) -> None:
    """Add the route GET ``/api/catalog`` with the names of the catalogs as JSON."""
    text = json.dumps(catalog_document())

    @app.get(
        "/api/catalog",
        summary="shardwright catalog",
        operation_id="catalog",
        response_class=Response,
        responses={
            200: {
                "description": "Names of models, accelerators, clusters, instances and runtimes.",
                "content": {"application/json": {"schema": _DOCUMENT}},
            }
        },
    )
    async def catalog() -> Response:
        return Response(text, media_type="application/json")


def _add_report_page(app: FastAPI, answers: SharedAnswers) -> None:
    """Add the route GET ``/report/DIGEST``: kept page of a report or guide, 404 if not kept."""

    @app.get(
        "/report/{digest}",
        summary="The page of a report or a guide that was asked for before",
        operation_id="report_page",
        response_class=Response,
        responses={
            200: {
                "description": "The page.",
                "content": {"text/html": {"schema": {"type": "string"}}},
            },
            404: ERRORS[404],
        },
    )
    async def report_page(digest: str) -> Response:
        answer = answers.kept(digest)
        if isinstance(answer, AnswerTexts) and answer.page:
            return response_of(answer, as_page=True)
        error = DataError("this page is not kept any more", hint="ask for it again")
        return error_response(failed(error), status=404)


def question_digest(verb: str, body: Any) -> str:
    """SHA-256 of a question: of the verb and of the body, whatever the order of its fields."""
    text = json.dumps([verb, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def _wrong_body(_: Request, error: Exception) -> Response:
    """Error response to a body that the schema does not allow; it tells the first fault alone."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    fault = UsageError(
        f"{where[:120] or 'body'}: {str(first['msg'])[:200]}",
        hint="the schema of every question is in /openapi.json",
    )
    return error_response(failed(fault))


async def _refused_by_framework(_: Request, error: Exception) -> Response:
    """JSON error response instead of the framework's: unknown address or method, bad body."""
    status: int = getattr(error, "status_code", 404)
    fault = UsageError(
        str(getattr(error, "detail", error))[:200], hint="the addresses are in /openapi.json"
    )
    return error_response(failed(fault), status=status, headers=getattr(error, "headers", None))
