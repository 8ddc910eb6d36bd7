"""docs/architecture.md: its numbers are those that its functions give now."""

from __future__ import annotations

import pytest

from tools.number_walk import PAGE, walk, written


def test_the_walk_of_one_number_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert walk() in page, "run python tools/number_walk.py"


def test_only_the_section_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.number_walk.walk", lambda: "new\n")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- made by")
    assert written(before + "<!-- made by" + rest) == before + rest.replace(
        rest,
        "<!-- made by tools/number_walk.py -->\nnew\n<!-- end -->"
        + rest.partition("<!-- end -->")[2],
    )
