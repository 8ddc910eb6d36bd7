"""Hooks of mkdocs that make the documentation's site of the files as they are (mkdocs.yml).

- The navigation is docs/README.md: its headings, and the pages that its tables link to.
- A link to a folder becomes a page that lists the folder's pages.
- A notebook becomes a page with its outputs.
- Pages outside of docs that a page links to, such as CONTRIBUTING.md, are part of the site.
- The reference of the Python API has every public name of the package, from its docstring.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tools.api_reference import api_page  # noqa: E402 - mkdocs loads this file by its path

DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!\!)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^## (.+)$", flags=re.MULTILINE)
TITLE = re.compile(r"^# (.+)$", flags=re.MULTILINE)
API_PAGE = "python-api.md"
OUTSIDE = "repository"
"""Folder of the site for pages that lie outside of docs."""


def site_path(source: str) -> str:
    """Path in the site's sources of a file of the repository."""
    if source.startswith("docs/"):
        path = source.removeprefix("docs/")
        return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path
    return f"{OUTSIDE}/{source}"


def relinked(text: str, *, source: str) -> str:
    """Markdown of a file of the repository with links as the site has them.

    A link to what the site does not have, such as a source file, becomes its words.
    """

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if target.startswith("#") or re.match(r"[a-z]+:", target):
            return match[0]
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (ROOT / file).is_dir() and file.startswith("docs/"):
            file += "/README.md"
        elif not file.startswith("docs/") and not file.endswith(".md"):
            return words
        here = posixpath.dirname(site_path(source)) or "."
        found = posixpath.relpath(site_path(file), here)
        return f"[{words}]({found}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`\](?!\()|(?<!\[)`[^`\n]+`)", text, flags=re.M | re.S)
    return "".join(part if place % 2 else LINK.sub(link, part) for place, part in enumerate(parts))


def linked_files(text: str, *, source: str) -> list[str]:
    """Files of the repository that a Markdown file links to."""
    folder = posixpath.dirname(source)
    return [
        posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        for _, target in LINK.findall(text)
        if not target.startswith("#") and not re.match(r"[a-z]+:", target)
    ]


@cache
def outside_pages() -> tuple[str, ...]:
    """Pages outside of docs that are linked to, directly or from one another."""
    found: list[str] = []
    waiting = [f"docs/{path.relative_to(DOCS).as_posix()}" for path in sorted(DOCS.rglob("*.md"))]
    while waiting:
        source = waiting.pop(0)
        text = (ROOT / source).read_text(encoding="utf-8")
        for file in linked_files(text, source=source):
            is_page = file.endswith(".md") and (ROOT / file).is_file()
            if is_page and not file.startswith("docs/") and file not in found:
                found.append(file)
                waiting.append(file)
    return tuple(found)


def title_of(text: str) -> str:
    """Title of a page."""
    match = TITLE.search(text)
    return match[1] if match else ""


def folder_page(folder: Path) -> str:
    """Page that lists the pages of a folder."""
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    rows = [f"- [{title_of(path.read_text(encoding='utf-8'))}]({path.name})" for path in pages]
    return f"# {folder.name.capitalize()}\n\n" + "\n".join(rows) + "\n"


def notebook_page(path: Path) -> str:
    """Page of an executed notebook."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            html = "".join(data.get("text/html", ""))
            parts.append(html or f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def navigation(readme: str) -> list[dict[str, Any]]:
    """Navigation from the tables of docs/README.md, a section for each heading."""
    sections: list[dict[str, Any]] = [{"Start": ["README.md"]}]
    seen: set[str] = set()
    heads = list(HEADING.finditer(readme))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(readme)
        pages: list[dict[str, Any]] = []
        for words, target in LINK.findall(readme[head.end() : end]):
            path = target.partition("#")[0]
            title = words[0].upper() + words[1:].replace("`", "")
            if path in seen:
                continue
            seen.add(path)
            if (DOCS / path).is_dir():
                inside = sorted(one.name for one in (DOCS / path).glob("*.md"))
                names = [name for name in inside if name != "README.md"]
                pages.append({title: [f"{path}/{name}" for name in ("README.md", *names)]})
            else:
                pages.append({title: site_path(f"docs/{path}")})
        sections.append({head[1]: pages})
    sections[-1][heads[-1][1]].append({"Python API": API_PAGE})
    notebooks = [
        site_path(f"docs/{path.relative_to(DOCS).as_posix()}") for path in notebook_paths()
    ]
    sections[1][heads[0][1]].append({"Notebooks": [one for one in notebooks if one not in seen]})
    outside = [site_path(file) for file in outside_pages()]
    sections[-1][heads[-1][1]].append({"Repository": outside})
    return sections


def notebook_paths() -> list[Path]:
    """The notebooks of docs."""
    return sorted(DOCS.rglob("*.ipynb"))


# Functions of these names are called by mkdocs.


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config.nav = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are no Markdown files of docs."""
    from mkdocs.structure.files import File

    made = {API_PAGE: api_page()}
    for path in notebook_paths():
        source = f"docs/{path.relative_to(DOCS).as_posix()}"
        made[site_path(source)] = notebook_page(path)
        if found := files.get_file_from_path(path.relative_to(DOCS).as_posix()):
            files.remove(found)
    for folder in sorted(path for path in DOCS.iterdir() if path.is_dir()):
        if any(folder.glob("*.md")) and not (folder / "README.md").exists():
            made[f"{folder.name}/README.md"] = folder_page(folder)
    for file in outside_pages():
        text = (ROOT / file).read_text(encoding="utf-8")
        made[site_path(file)] = relinked(text, source=file)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point the links of a page of docs at the site's pages; a diagram stays text."""
    if page.file.generated_by is None:
        markdown = relinked(markdown, source=f"docs/{page.file.src_uri}")
    return markdown.replace("```mermaid", "```text")
