"""The answer of ``shardwright plan`` on the screen and in a file: what a run with --quiet alone does not import."""

from __future__ import annotations

from pathlib import Path

from shardwright.cli import screen
from shardwright.files.stored import file_text, plan_document, stored_answer
from shardwright.files.text import to_text
from shardwright.report.terminal import render_answer
from shardwright.search.answer import Answer


def show(answer: Answer, *, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Save the answer to `output`, if there is one, and print it as JSON or as a screen."""
    if output is not None:
        screen.save(output, file_text(stored_answer(answer), output))
    if as_json:
        screen.write(to_text({**plan_document(answer), "search_time_s": answer.search_time_s}))
    elif not quiet:
        screen.show(render_answer(answer))
