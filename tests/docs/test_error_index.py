"""docs/errors.md is what the source says, and the index sees through the ways in which errors are
made."""

from __future__ import annotations

import os
import re
from errno import ENOENT
from pathlib import Path

import pytest

from shardwright.strategy.grid.grid_rules import RULES
from tests.sources import trees
from tests.strategy.rule_ids import PLAN_RULES
from tools.error_index import PAGE, Found, index, page, parsed, read

GOLDEN = Path(__file__).parents[1] / "golden" / "errors.txt"


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return index(read(trees()))


def test_the_page_is_up_to_date(found: list[Found]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(found), (
        "docs/errors.md is not up to date: run python tools/error_index.py"
    )


def test_every_declared_rule_is_in_the_index(found: list[Found]) -> None:
    rules = {one.rule for one in found}
    assert {rule.rule for rule in RULES} <= rules
    assert len(PLAN_RULES) >= 36
    assert set(PLAN_RULES) <= rules


def test_every_error_that_the_command_line_shows_is_in_the_index(found: list[Found]) -> None:
    """All messages of the golden file but those in the words of typer, whose hint is to ask for
    help, or of the system."""
    patterns = [
        re.compile(".*".join(map(re.escape, one.message.split("…"))))
        for one in found
        if re.search(r"\w{3}", one.message)
    ]
    said = re.findall(
        r"^error: (.*)\nhint: (.*)$", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    shown = [
        message
        for message, hint in said
        if not hint.endswith("lists what it takes") and os.strerror(ENOENT) not in message
    ]
    unknown = [
        text
        for text in shown
        if not any(p.fullmatch(re.sub(r" \[[a-z.-]+\]$", "", text)) for p in patterns)
    ]
    assert len(shown) > 15
    assert unknown == []


def test_messages_and_rules_that_a_function_is_handed_are_found_at_its_callers(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.py").write_text(
        "class Sizes:\n"
        "    def refuse(self, message: str, *, rule: str) -> StrategyError:\n"
        '        return StrategyError(f"{self.name} {message}", rule=f"order.{rule}")\n'
    )
    (tmp_path / "two.py").write_text(
        'from one import Sizes\ndef legal(sizes: Sizes) -> None:\n    raise sizes.refuse(f"needs'
        ' {sizes.ranks} ranks" if sizes.few else "needs more", rule="ranks")\n'
    )
    assert index(read(parsed(tmp_path))) == [
        Found("StrategyError", "order.ranks", "… needs more", "two.legal"),
        Found("StrategyError", "order.ranks", "… needs … ranks", "two.legal"),
    ]


def test_unknown_names_of_a_registry_are_found_where_the_registry_is_made(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        'VERBS: Final = Registry[object]("verb", {})\n'
        'FRUIT = Registry("fruit", {}, error=partial(StrategyError, rule="order.fruit"))\n'
    )
    assert index(read(parsed(tmp_path))) == [
        Found("StrategyError", "order.fruit", "unknown fruit …", "one.FRUIT"),
        Found("UsageError", "", "unknown verb …", "one.VERBS"),
    ]
