"""docs/extending.md: every file, folder, table and test that a step names exists, and every
identifier is in a file that its chapter names."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_references import DOTTED, there
from tests.registries import ROOT, place

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PLACEHOLDER = re.compile(r"NAME|VERB|FILE|TABLE|TEST")
PATH = re.compile(r"(?<![\w/.-])(?:src|tests|tools|benchmarks|docs|examples)(?:/[\w.-]*\w)+")
IDENTIFIER = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
PAIR = re.compile(rf"(?:`(\w+)`|\b([A-Z][A-Z_]+)) (?:of|in)\s+`?({PATH.pattern})")


def chapters() -> dict[str, str]:
    """Text of each chapter by its heading."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


EACH = pytest.mark.parametrize("heading", chapters())


def paths(text: str) -> set[str]:
    return {path for path in PATH.findall(text) if not PLACEHOLDER.search(path)}


def identifiers(text: str) -> set[str]:
    """Names in backquotes that look like code: with a capital, an underscore or a dot."""
    found = {name for name in IDENTIFIER.findall(text) if not DOTTED.fullmatch(name)}
    return {
        name
        for name in found
        if re.search(r"[A-Z_]", name)
        and not PLACEHOLDER.search(name)
        and not re.search(r"\.(?:py|md|json|csv|tsv|txt|npz)$", name)
    }


def text_of(path: str) -> str:
    """Text of a file, or of all Python files of a folder."""
    file = ROOT / path
    files = sorted(file.rglob("*.py")) if file.is_dir() else [file]
    return "\n".join(one.read_text(encoding="utf-8") for one in files)


def files_of(dotted: str) -> set[str]:
    """The file or folder of a module that a dotted name begins with."""
    parts = dotted.split(".")
    for length in range(len(parts), 1, -1):
        base = ROOT / "src" / "/".join(parts[:length])
        for path in (base.with_suffix(".py"), base):
            if path.exists():
                return {path.relative_to(ROOT).as_posix()}
    return set()


@EACH
def test_a_chapter_is_numbered_and_names_its_tests(heading: str) -> None:
    text = chapters()[heading]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, flags=re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 3
    assert re.search(r"tests/\w+", text), "a chapter names the tests that hold it"


@EACH
def test_files_and_folders_exist(heading: str) -> None:
    text = chapters()[heading]
    assert sorted(path for path in paths(text) if not (ROOT / path).exists()) == []
    assert sorted(name for name in DOTTED.findall(text) if not there(name)) == []


@EACH
def test_tables_and_functions_are_in_the_file_that_a_step_names(heading: str) -> None:
    for quoted, capitals, path in PAIR.findall(chapters()[heading]):
        if not PLACEHOLDER.search(path):
            assert place(path, quoted or capitals)


@EACH
def test_identifiers_are_in_files_of_their_chapter(heading: str) -> None:
    text = chapters()[heading]
    named = set(paths(text)).union(*map(files_of, DOTTED.findall(text)))
    code = "\n".join(text_of(path) for path in named if (ROOT / path).exists())
    unknown = {
        name
        for name in identifiers(text)
        if not all(re.search(rf"\b{part}\b", code) for part in name.split("."))
    }
    assert sorted(unknown) == [], "name the file that has it in the step"


def test_a_table_that_was_renamed_is_seen() -> None:
    """`_ROWS` stood on the page, and the table was `ROWS`."""
    step = "Add its node to `_ROWS` of src/shardwright/hardware/catalog/default_node_table.py."
    [(name, _, path)] = PAIR.findall(step)
    with pytest.raises(AssertionError, match="_ROWS"):
        place(path, name)
    assert identifiers("`_ROWS`, `Given.meshes`, `plan`, `NAME`") == {"_ROWS", "Given.meshes"}
    assert paths("`tests/NAME/test_x.py` tests/docs/test_examples.py.") == {
        "tests/docs/test_examples.py"
    }


NEWCOMERS = ROOT / "docs" / "decisions" / "0035-newcomers.md"
FILES = 8


@pytest.mark.xfail(strict=True, reason="9, 10, 9 and 8 files; 0, 2, 2 and 1 questions")
def test_newcomers_change_few_files_and_ask_nothing() -> None:
    """The last round that decision 35 lists, against the aim."""
    rounds = re.findall(r"^\| \d+ \|.*$", NEWCOMERS.read_text("utf-8"), re.MULTILINE)
    found = re.findall(r"(\d+) files?, (\d+) questions?", rounds[-1])
    assert len(found) == 4
    assert all(int(files) <= FILES and int(questions) == 0 for files, questions in found)
