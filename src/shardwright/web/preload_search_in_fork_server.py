"""Load all modules of a search and answer a question once, when this module is imported.

A fork server imports it, so that processes of searches begin with the modules, compiled kernels and
tables in memory: a plan takes half the CPU time of the first one.
"""

from __future__ import annotations

from typing import Final

from shardwright.web.answer_event_types import AnswerTexts
from shardwright.web.answer_one_question_in_process import run_search_process
from shardwright.web.answer_question import answer_question
from shardwright.web.question_bodies import PlanBody

PROCESS: Final = run_search_process
"""Function of a process, which a fork need not import."""
FIRST_ANSWER: Final[AnswerTexts] = answer_question(
    "plan",
    PlanBody.model_validate(
        {
            "request": {
                "model": "llama-3.1-70b",
                "cluster": "h100-sxm:1024",
                "seq_len": 8192,
                "global_batch": 1024,
            }
        }
    ),
    progress=lambda text, done, total: None,
)
"""Answer to a question of usual size; later searches use the tables that it filled."""
