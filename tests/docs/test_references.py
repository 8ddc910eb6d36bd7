"""What the pages name is there: modules and functions by their full names, files by their paths,
other pages by their links."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
DOTTED = re.compile(r"(?<![\w/.-])shardwright(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(
    r"(?<![\w/.-])(?:src|tests|tools|benchmarks|docs|examples)/[\w./-]+\.(?:py|md|csv|json|toml|svg|txt)\b"
)
PLACEHOLDER = re.compile(r"NAME|VERB")
"""In the path of a file that the reader is to write."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
TORCH = ("shardwright.execute", "shardwright.calibrate")
"""Packages whose modules may need PyTorch: only that the file is there is asked of them."""


def there(name: str) -> bool:
    """A module, or an attribute of one, of that name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT / "src" / Path(*parts[:length])
        if base.is_dir() or base.with_suffix(".py").is_file():
            if name.startswith(TORCH):
                return length == len(parts) or parts[length] in base.with_suffix(".py").read_text(
                    encoding="utf-8"
                )
            try:
                reduce(getattr, parts[length:], importlib.import_module(".".join(parts[:length])))
            except AttributeError:
                return False
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_paths_and_links_of_a_page_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    schemas = {
        "shardwright.plan",
        "shardwright.simulation",
        "shardwright.profile",
        "shardwright.trace",
        "shardwright.picture",
    }
    assert sorted({name for name in DOTTED.findall(text) if not there(name)} - schemas) == []
    paths = {path for path in PATH.findall(text) if not PLACEHOLDER.search(path)}
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    assert (
        sorted({link for link in LINK.findall(text) if not (page.parent / link.strip()).exists()})
        == []
    )


def test_a_name_that_is_not_there_is_seen() -> None:
    assert there("shardwright.cost.step.strategy_task_seconds.compose_step")
    assert not there("shardwright.cost.step.strategy_task_seconds.compose")
    assert not there("shardwright.cost.no_such_module")
    assert there("shardwright.execute.launch.start_ranks")
    assert not there("shardwright.execute.launch.start_ranks.no_such_function")
