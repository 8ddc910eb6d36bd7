"""Everything that a search needs, loaded and used once when this module is imported.

A fork server imports it, so that processes of searches begin with the modules, compiled kernels and
tables in memory: a plan takes half the CPU time of the first one.
"""

from __future__ import annotations

from typing import Final

from shardwright.registry import load_target
from shardwright.search.search_request import Request
from shardwright.web.answer_events import AnswerTexts
from shardwright.web.question_bodies import PlanBody
from shardwright.web.search_process import ANSWER_FUNCTION, run_search_process

PROCESS: Final = run_search_process
"""Function of a process, which a fork need not import."""
FIRST_ANSWER: Final[AnswerTexts] = load_target(ANSWER_FUNCTION)(
    "plan",
    PlanBody.model_construct(
        request=Request(
            model="llama-3.1-70b", cluster="h100-sxm:1024", seq_len=8192, global_batch=1024
        ),
        files={},
        cluster_nodes=0,
        cluster_accelerator="",
    ),
    progress=lambda text, done, total: None,
)
"""Answer to a question of usual size; later searches use the tables that it filled."""
