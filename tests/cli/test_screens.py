"""Screens of every verb on narrow and wide terminals: golden, no wider than the terminal, and with
every number whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from shardwright.cli.main import help_text, run
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.cli.terminal.output_and_progress import show as show_on_screen
from shardwright.cli.verb_table import VERBS
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from tests.cli.screens import CATALOGS, SCREENS, answering, own_screens, write_files
from tests.golden.files import assert_golden
from tests.registries import place, require_files, require_same_members
from tests.tiers import examples

NARROW, WIDE, ENDLESS = 80, 140, 1000
LEFT_OUT = re.compile(
    r"(?:not\s+shown:\s+([^;]*);\s+)?(?:shortened:\s+[^;]*;\s+)?a\s+screen\s+of\s+\d+\s+columns\s+shows\s+all,\s+and\s+so\s+does\s+--json"
)
SHORTENED = re.compile(r"\b\d+ blocks?(?=\s)| \.\. |\+\d+ more\b")
"""What stands for longer words where a table has no room for them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("screens")
    write_files(found)
    return found


@pytest.fixture
def show(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> object:
    """What words print at a width."""

    def shown(words: tuple[str, ...], width: int) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", str(width))
        with answering():
            assert run(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return shown


def test_every_verb_has_a_screen() -> None:
    shown = {words[0] for words in SCREENS.values()}
    require_files(
        VERBS.targets.keys() - shown,
        "tests/cli/verbs/test_MODULE.py",
        "`SCREEN = (...)`, the words that follow `shardwright NAME` in a command",
    )
    require_same_members(shown, VERBS, place("tests/cli/screens.py", "SCENES"))


def test_own_screens_are_in_the_order_of_the_verbs() -> None:
    """Every process collects the same tests in the same order, which no set has."""
    own = [*own_screens({})]
    assert len(own) >= 5
    assert own == [verb for verb in VERBS if verb in own]


def flags(verb: str, show: Callable[[tuple[str, ...], int], str]) -> str:
    """The options of a verb, sorted."""
    text = show((*verb.split(), "--help"), NARROW)
    return " ".join(sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))))


def steady(text: str, words: tuple[str, ...]) -> str:
    """A screen without what every new member of a family changes: rows of a catalog, and numbers of
    its entries."""
    if words[0] != "catalog":
        return text
    if len(words) > 1:
        return text.splitlines()[0] + "\n"
    return re.sub(r" +\d+(?=  )", lambda count: "N".rjust(len(count[0])), text)


def test_screens_and_flags_are_golden(show) -> None:  # type: ignore[no-untyped-def]
    """One file, so that a new verb changes one: `SHARDWRIGHT_GOLDEN=write` writes it anew."""
    parts = [f"{verb}: {flags(verb, show)}\n" for verb in (*VERBS, "cluster read", "cluster show")]
    for width in (NARROW, WIDE):
        parts.append(f"\n==== {width} columns\n\n")
        parts += [
            f"$ shardwright {' '.join(words)}\n{steady(show(words, width), words)}\n"
            for words in SCREENS.values()
        ]
    assert_golden("screens.txt", "".join(parts))


@pytest.mark.parametrize("name", [*SCREENS, *CATALOGS])
def test_nothing_is_wider_than_the_terminal_and_no_word_is_cut(name: str, show) -> None:  # type: ignore[no-untyped-def]
    words = {**SCREENS, **CATALOGS}[name]
    narrow, endless = show(words, NARROW), show(words, ENDLESS)
    for line in narrow.splitlines():
        assert cell_len(line) <= NARROW or max(map(cell_len, line.split())) > NARROW // 2, line
    if words[0] == "draw":
        # A picture leaves columns out in its own way: see the tests of its content.
        return
    said, whole = set(SHORTENED.sub(" ", LEFT_OUT.sub("", narrow)).split()), set(endless.split())
    assert {word for word in said if set(word) != {"█"}} <= whole
    if "not shown" not in narrow and "shortened" not in narrow:
        assert whole <= said | {word for word in whole if set(word) == {"█"}}


def test_help_fits_the_terminal(show) -> None:  # type: ignore[no-untyped-def]
    texts = [help_text(), *(show((verb, "--help"), NARROW) for verb in VERBS)]
    assert max(cell_len(line) for text in texts for line in text.splitlines()) <= NARROW


@pytest.mark.parametrize(
    "name", [name for name in SCREENS if name not in ("schema", "catalog", "catalog schedules")]
)
def test_quiet_is_one_line(name: str, show) -> None:  # type: ignore[no-untyped-def]
    line = show((*SCREENS[name], "--quiet"), NARROW)
    assert line.count("\n") == 1, f"--quiet of {name} prints {line!r}, not one line with its end"
    if name.split(",")[0] in ("plan", "simulate", "compare", "explain", "trace", "run"):
        assert re.fullmatch(r"[0-9.e-]+ s\t\S.*\n", line)


CELLS = st.text(st.sampled_from("ab 7"), max_size=24)
TABLES = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.tuples(*[CELLS] * size),
        st.lists(st.tuples(*[CELLS] * size), max_size=4),
        st.sets(st.integers(0, size - 1)),
        st.permutations(range(size)),
        st.integers(20, 90),
    )
)


@examples(25, 1000)
@given(TABLES)
def test_a_table_keeps_its_words(
    table: tuple[tuple[str, ...], list[tuple[str, ...]], set[int], list[int], int],
) -> None:
    header, rows, right, spare, width = table
    text = plain(plain_table(header, rows, right=sorted(right), spare=spare[:-1]), width=width)
    kept = [column for column in range(len(header)) if column not in _left_out(header, text)]
    words = {word for row in (header, *rows) for cell in row for word in cell.split()}
    assert set(LEFT_OUT.sub("", text).split()) <= words
    assert {
        word
        for row in rows
        for column in kept
        if header[column].strip()
        for word in row[column].split()
    } <= set(text.split())
    longest = max((cell_len(cell) for row in (header, *rows) for cell in row), default=0)
    assert all(cell_len(line) <= max(width, longest) for line in text.splitlines())


def _left_out(header: tuple[str, ...], text: str) -> set[int]:
    found = LEFT_OUT.search(text)
    names = [name.strip() for name in found[1].split(",")] if found and found[1] else []
    return {
        column
        for column, title in enumerate(header)
        if " ".join(title.split()) in [" ".join(n.split()) for n in names]
    }


def test_a_terminal_gets_whole_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is wider than the terminal goes on in its next line, and is copied as one."""
    name, file = "a-name-without-blanks/" * 5, StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout", file)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    show_on_screen(plain_table(("name", "number"), [(name, "123,456.7")], right=(1,)))
    show_on_screen(section("Names", Text(f"one {name}")))
    assert file.getvalue().count(name) == 2
    assert "123,456.7" in file.getvalue()
