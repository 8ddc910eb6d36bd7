"""The text of a page that a program makes is the text of that program: pages whose data take long
to make again are edited together with the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardwright.validation.errors.prediction_errors import Validation
from shardwright.validation.serving.accuracy_page import serving_page
from shardwright.validation.table_reader_and_fold_validation import Fitted, Study
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.accuracy_page import accuracy_page

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_accuracy_pages_begin_as_they_are_written_today() -> None:
    training = accuracy_page(
        Study(fitted=Fitted(), validations=(Validation(fold="none", rows=(), skipped=()),)),
        facts=TableFacts(),
    )
    serving = serving_page(
        Study(fitted=Fitted(), validations=(Validation(fold="none", rows=(), skipped=()),)),
        facts=TableFacts(),
    )
    for page, made in (("accuracy.md", training), ("serving-accuracy.md", serving)):
        assert text_of(page).startswith(made.partition("\n## ")[0].rstrip())


@pytest.mark.parametrize(
    ("page", "template"),
    [("serving-kernels.md", "serving_page.md"), ("kernels.md", "kernels_page.md")],
)
def test_pages_of_kernels_are_their_templates_with_tables(page: str, template: str) -> None:
    pieces = re.split(r"\{\w+\}", (ROOT / "tools" / template).read_text(encoding="utf-8"))
    assert len(pieces) > 3
    assert re.fullmatch("(?s:.+)".join(map(re.escape, pieces)), text_of(page))
