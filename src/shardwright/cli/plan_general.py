"""``shardwright plan --space joint`` and ``--space exact``: the best general plan, with its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from shardwright.api.exact import plan_exact
from shardwright.api.joint import plan_joint
from shardwright.api.problems import problem_of
from shardwright.cli import screen
from shardwright.report.joint_face import General, joint_document, render_joint
from shardwright.report.json_face import to_text
from shardwright.search.joint.find import FOUND_ORDERS, NAMED_ORDERS
from shardwright.search.request import Request


def _general(
    search: Callable[..., General], request: Request, *, time_limit: float, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Search a space of general plans; the file is that of `simulate -o` with the certificate."""
    with screen.progress(quiet=quiet or as_json) as report:
        answer = search(replace(request, space="standard"), time_limit_s=time_limit, progress=report)
    document = joint_document(answer)
    if output is not None:
        screen.save(output, to_text(document))
    if as_json:
        screen.write(to_text({**document, "search_time_s": answer.search_time_s}))
    elif quiet:
        screen.write(f"{answer.step_time_s:.9g} s\n")
    else:
        screen.show(render_joint(answer, model=problem_of(request).model))


found = partial(_general, partial(plan_joint, orders=FOUND_ORDERS))
named = partial(_general, partial(plan_joint, orders=NAMED_ORDERS))
exact = partial(_general, plan_exact)
