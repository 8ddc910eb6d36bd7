"""Command lines that are read without typer mean what typer says that they mean."""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cli.declare_engine_and_workers_options import EngineFlags
from shardwright.cli.parsing import declare_options_and_parse_command_lines as light_typer
from shardwright.cli.parsing import parse_with_typer as typer_command
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import parse_words
from shardwright.errors import UsageError
from tests.tiers import examples

VERBS = {
    name: import_module(f"shardwright.cli.verbs.{name}")
    for name in ("plan", "simulate", "serve_simulate", "why", "validate")
}
FUNCTIONS: dict[str, light_typer.Verb] = {
    "plan": VERBS["plan"].plan,
    "simulate": VERBS["simulate"].simulate,
    "serve_simulate": VERBS["serve_simulate"].serve_simulate,
    "why": VERBS["why"].why,
    "validate": VERBS["validate"].validate,
}


def noting(function: light_typer.Verb) -> tuple[light_typer.Verb, list[dict[str, Any]]]:
    """A verb with the parameters of `function`, and the arguments that it was called with."""
    seen: list[dict[str, Any]] = []

    @functools.wraps(function)
    def note(**named: Any) -> None:
        seen.append(named)

    return note, seen


def by_typer(function: light_typer.Verb, words: list[str]) -> dict[str, Any] | None:
    """What typer calls the function with; None where it refuses or prints help."""
    note, seen = noting(function)
    try:
        typer_command.run(note, "verb", words)
    except UsageError:
        return None
    return seen[0] if seen else None


def by_reader(function: light_typer.Verb, values: dict[str, Any]) -> dict[str, Any]:
    """What the verb is called with where its words were read without typer."""
    note, seen = noting(function)
    assert light_typer.call_verb(note, values) == 0
    return seen[0]


def names_of(function: light_typer.Verb) -> list[str]:
    return [name for one in light_typer.verb_parameters(function) for name in one.declared.names]


VALUES = [
    "1",
    "0",
    "-1",
    "8",
    "0.5",
    "1e3",
    "1_000",
    " 2",
    "3.0",
    "inf",
    "nan",
    "",
    "a=b",
    "x",
    "-",
    "--",
    "tp=4",
    "٣",
    "99999999999999999999",
]


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    verb = draw(st.sampled_from(sorted(FUNCTIONS)))
    names = names_of(FUNCTIONS[verb])
    value = st.sampled_from(VALUES)
    option = st.sampled_from([*names, "--absent", "-q", "-oq"])
    part = (
        value.map(lambda one: [one])
        | option.map(lambda one: [one])
        | st.tuples(option, value).map(list)
        | st.tuples(option, value).map(lambda pair: [f"{pair[0]}={pair[1]}"])
    )
    parts = draw(st.lists(part, max_size=6))
    begin = draw(st.lists(value, max_size=2))
    needed = ["--seq-len", "8k"] if draw(st.booleans()) and "--seq-len" in names else []
    return verb, [*begin, *needed, *(word for one in parts for word in one)]


@given(line=command_lines())
@examples(150, 3000)
def test_what_is_read_here_is_what_typer_reads(line: tuple[str, list[str]]) -> None:
    verb, words = line
    found = parse_words(FUNCTIONS[verb], words)
    if found is not None:
        said = by_typer(FUNCTIONS[verb], words)
        assert said is not None
        # As text, since nan is not itself.
        assert repr(sorted(by_reader(FUNCTIONS[verb], found).items())) == repr(sorted(said.items()))


JOB = ["llama-2-7b", "h100-sxm:8", "--seq-len", "4096", "--global-batch", "32"]


@pytest.mark.parametrize(
    ("verb", "words", "some"),
    [
        (
            "plan",
            JOB,
            {
                "model": "llama-2-7b",
                "cluster": "h100-sxm:8",
                "seq_len": "4096",
                "quiet": False,
                "pin": None,
                "top": 3,
            },
        ),
        (
            "plan",
            [*JOB, "--quiet", "--pin", "tp=2", "--pin=pp=1", "--top", "2"],
            {"quiet": True, "pin": ["tp=2", "pp=1"], "top": 2},
        ),
        (
            "plan",
            [*JOB, "-o", "plan.json", "--time-limit", "9.5"],
            {"output": Path("plan.json"), "time_limit": 9.5},
        ),
        ("plan", ["--json", *JOB], {"as_json": True}),
    ],
)
def test_ordinary_command_lines_need_no_typer(
    verb: str, words: list[str], some: dict[str, Any]
) -> None:
    found = parse_words(FUNCTIONS[verb], words)
    assert found is not None
    assert {name: found[name] for name in some} == some
    assert by_reader(FUNCTIONS[verb], found) == by_typer(FUNCTIONS[verb], words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        [*JOB, "--absent"],
        [*JOB, "extra"],
        [*JOB, "--top", "x"],
        [*JOB, "--top", "-1"],
        [*JOB, "--quiet=1"],
        [*JOB, "--top"],
        JOB[:3],
    ],
)
def test_all_else_is_typers(words: list[str]) -> None:
    assert parse_words(FUNCTIONS["plan"], words) is None


def test_the_options_of_a_group_reach_the_verb_together() -> None:
    found = parse_words(FUNCTIONS["plan"], [*JOB, "--engine", "serial", "--pin", "tp=2"])
    assert found is not None
    arguments = by_reader(FUNCTIONS["plan"], found)
    assert arguments["processes"] == EngineFlags(engine="serial")
    assert arguments["pins"] == shared_options.PinFlags(pin=["tp=2"])
    assert light_typer.values_by_flag(arguments["job"])["seq-len"] == "4096"


def test_a_paragraph_of_help_breaks_at_the_width_of_the_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    def verb(*, form: shared_options.AnswerForm) -> None:
        """First sentence.

        A second paragraph whose source is broken
        behind a short line.
        """

    assert typer_command.run(verb, "verb", ["--help"]) == 0
    words = " ".join(capsys.readouterr().out.split("Options")[0].split())
    lines = typer_command.one_line_paragraphs(verb.__doc__ or "").splitlines()
    assert lines == [
        "First sentence.",
        "",
        "A second paragraph whose source is broken behind a short line.",
    ]
    assert lines[-1] in words


def test_help_shows_each_option_under_the_title_of_its_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typer_command.run(FUNCTIONS["plan"], "plan", ["--help"]) == 0
    panels = capsys.readouterr().out.split("╭─ ")[1:]
    by_title = {panel.split(" ─")[0]: panel for panel in panels}
    assert "Options" not in by_title
    for title, option in {
        "What to train": "--seq-len",
        "Limits": "--time-limit",
        "Search": "--space",
        "Output": "--help",
    }.items():
        assert [name for name, panel in by_title.items() if f" {option} " in panel] == [title]
