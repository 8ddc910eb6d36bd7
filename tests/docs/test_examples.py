"""Every code block of the README and of the pages is executed: commands, Python, notation.

A block says what it is: `console` is commands of this tool, run one after the other in a folder of
the page's own; `python` is run, both only in proofs if `slow`; `grid` and `plan` are read; `sh` is
what lies outside this tool (pip, make, another machine), and `text`, `ebnf`, `mermaid` are no code.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INERT = {"sh", "text", "ebnf", "mermaid", "yaml", "toml", "json"}
"""`yaml` of clusters is loaded by the tests of the cluster files; one with the name of a file is
saved where the commands run."""
CASES = {"grid": parse_grid, "plan": parse_plan}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what follows the fence, its text, and where it stands."""

    page: Path
    words: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def commands(self) -> list[list[str]]:
        """Arguments of each command."""
        lines = [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]
        return [shlex.split(line, comments=True) for line in lines]


def blocks(page: Path) -> list[Block]:
    found = re.finditer(
        r"^```([^\n`]*)\n(.*?)^```$",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [Block(page, tuple(match[1].split()), match[2]) for match in found]


def runs(page: Path, *, slow: bool) -> bool:
    return any(
        block.kind in ("console", "python") and ("slow" in block.words) == slow
        for block in blocks(page)
    )


def pages(*, slow: bool) -> list[object]:
    return [pytest.param(page, id=page.stem) for page in PAGES if runs(page, slow=slow)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        assert block.kind in {"console", "python", *CASES, *INERT}, block.text[:60]
        if block.kind in CASES:
            CASES[block.kind](block.text)
        if block.kind == "console":
            assert all(words[0] == "shardwright" for words in block.commands), block.text
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(
        r"^(?:    |\t)(?:shardwright |import |from ).*$", outside, flags=re.MULTILINE
    )
    assert not [line for line in indented if line not in MADE], "code is fenced"


MADE = {
    "    shardwright simulate llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256 --strategy"
    ' "tp2 sp dp4 mbs1 zero1"'
}
"""Written, and walked through, by tools/number_walk.py."""


def execute(
    page: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    slow: bool,
) -> None:
    """All that are not slow, or all, in the order of the page."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    monkeypatch.chdir(folder)
    for block in blocks(page):
        if "slow" in block.words and not slow:
            continue
        if block.kind == "yaml" and len(block.words) > 1:
            (folder / block.words[1]).write_text(block.text, encoding="utf-8")
        if block.kind == "python":
            exec(compile(block.text, str(page), "exec"), {})
        if block.kind != "console":
            continue
        wanted = int(block.words[block.words.index("exits") + 1]) if "exits" in block.words else 0
        for words in block.commands:
            code = run(words[1:])
            said = capsys.readouterr()
            assert code == wanted, f"{shlex.join(words)}: {code}\n{said.err}"


@pytest.mark.parametrize("page", pages(slow=False))
def test_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(page, tmp_path, monkeypatch, capsys, slow=False)


@pytest.mark.proof
@pytest.mark.parametrize("page", pages(slow=True))
def test_the_slow_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(page, tmp_path, monkeypatch, capsys, slow=True)
