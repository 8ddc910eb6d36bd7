"""``shardwright plan --space joint`` and ``--space exact``, on mixed clusters and for several
scenarios: search for the best general plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardwright.api.problems import Method
from shardwright.cli import interrupt, screen
from shardwright.errors import UsageError
from shardwright.search.engine.protocol import Engine
from shardwright.search.request import Request

if TYPE_CHECKING:
    from shardwright.api.general import GeneralAnswer
    from shardwright.cli.beside import Beside
    from shardwright.search.simulation import Simulation

SEARCHES: Final[Mapping[Method, str]] = {
    Method.JOINT: "shardwright.api.joint:plan_joint",
    Method.EXACT: "shardwright.api.exact:plan_exact",
    Method.MIXED: "shardwright.api.mixed:plan_mixed",
    Method.ROBUST: "shardwright.api.robust:plan_robust",
}
"""The function of each search, as ``module:attribute``: a search imports its own modules alone."""


def plan(
    request: Request,
    method: Method,
    *,
    time_limit: float,
    engine: Engine,
    cost: Callable[[Simulation], Beside] | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search the space of general plans that the request names, and show the answer."""
    if method is Method.ROBUST and isfinite(time_limit):
        raise UsageError("a search over scenarios ends by itself", hint="drop --time-limit")
    module, attribute = SEARCHES[method].split(":")
    search: Callable[..., GeneralAnswer] = getattr(import_module(module), attribute)
    # What several searches have shown when they are stopped cannot be made again.
    stopping = nullcontext() if method is Method.ROBUST else interrupt.stopping()
    with stopping, screen.progress(quiet=quiet or as_json) as report:
        given: dict[str, Any] = {} if method is Method.EXACT else {"engine": engine}
        given |= {} if method is Method.ROBUST else {"time_limit_s": time_limit}
        answer = search(request, progress=report, **given)
    interrupt.note(waited=answer.waited)
    # The modules that show an answer are imported behind the search.
    import_module("shardwright.cli.plan_general_screen").show(
        request, answer, cost=cost, output=output, as_json=as_json, quiet=quiet
    )
