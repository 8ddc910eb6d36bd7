"""The documentation's site: every page is in it, every link leads somewhere, nothing is loaded."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwright
from tools import documentation_site as site
from tools.api_reference import api_page, name_reference, parse_docstring

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def pages_of(entry: Any) -> Iterator[str]:
    """Pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inside in entry.values():
            yield from pages_of(inside)
    else:
        for inside in entry:
            yield from pages_of(inside)


def readme() -> str:
    return (DOCS / "README.md").read_text(encoding="utf-8")


def test_the_navigation_has_the_four_kinds_of_page() -> None:
    sections = [name for section in site.navigation(readme()) for name in section]
    assert sections == ["Start", "Tutorials", "How-to pages", "Explanations", "Reference"]


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that docs/README.md does not link to is found by nobody."""
    pages = list(pages_of(site.navigation(readme())))
    assert len(pages) == len(set(pages))
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(written - set(pages)) == []
    notebooks = {
        path.relative_to(DOCS).with_suffix(".md").as_posix() for path in DOCS.rglob("*.ipynb")
    }
    assert len(notebooks) == 2
    assert notebooks < set(pages)
    assert site.API_PAGE in pages


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/serving.md", "[a](engines.md#options)", "[a](engines.md#options)"),
        (
            "docs/notebooks.md",
            "[a](notebooks/plan-training.ipynb)",
            "[a](notebooks/plan-training.md)",
        ),
        ("docs/README.md", "[Decisions](decisions)", "[Decisions](decisions/README.md)"),
        ("docs/extending.md", "[a](../CONTRIBUTING.md)", "[a](repository/CONTRIBUTING.md)"),
        ("CONTRIBUTING.md", "[a](docs/space.md)", "[a](../space.md)"),
        ("CONTRIBUTING.md", "[a](src/shardwright/units.py)", "a"),
        ("docs/space.md", "[a](https://arxiv.org/abs/1)", "[a](https://arxiv.org/abs/1)"),
        ("docs/space.md", "[a](#bounds)", "[a](#bounds)"),
        ("docs/space.md", "`[a](../x.py)`", "`[a](../x.py)`"),
        ("docs/space.md", "```text\n[a](../x.py)\n```", "```text\n[a](../x.py)\n```"),
        ("docs/space.md", "[`x.y`](../src/x.py)", "`x.y`"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, link: str, expected: str) -> None:
    assert site.relinked(link, source=source) == expected


def test_the_reference_has_every_public_name() -> None:
    page = api_page()
    for name in shardwright.__all__:
        if name == "__version__":
            continue
        value = getattr(shardwright, name)
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert (value.__doc__ or "").strip().splitlines()[0] in section
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        for field in fields:
            assert f"\n| `{field.name}` | `" in section
        described = parse_docstring(value.__doc__ or "").sections
        for _, words in (*described.get("Args", []), *described.get("Raises", [])):
            assert words.replace("|", "\\|") in section


def test_a_docstring_is_read_in_its_parts() -> None:
    def example(first: int, *, second: str = "a|b") -> None:
        """Add numbers.

        The text goes on.

        Args:
            first, second: what is added,
                in order.

        Raises:
            UsageError: a number is odd. DataError: a file
                is not read.
        """

    text = name_reference("example", example)
    assert "Add numbers.\n\nThe text goes on." in text
    assert "    first: int,\n    *,\n    second: str = 'a|b',\n) -> None" in text
    assert "| `second` | what is added, in order. |" in text
    assert "- `UsageError`: a number is odd.\n- `DataError`: a file is not read." in text


def test_a_notebook_becomes_a_page_with_its_cards() -> None:
    page = site.notebook_page(DOCS / "notebooks" / "plan-training.ipynb")
    assert page.startswith("# How do I plan a training run in a notebook?")
    assert page.count('<div class="shardwright">') == 4
    assert "```python\nimport shardwright as sw" in page
    assert "```text\nMy strategy takes" in page


def test_the_site_builds_without_a_warning_and_loads_nothing(tmp_path: Path) -> None:
    """In strict mode, where a warning is an error; only links, which load nothing, name servers."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?!a\b)\w+\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>", text)
        assert not loaded, page.name
        assert 'class="mermaid"' not in text, "the theme loads a diagram's program from elsewhere"
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s)['\"]?(?:https?:)?//", style.read_text("utf-8"))
