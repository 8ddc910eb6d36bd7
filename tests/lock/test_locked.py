"""Answers of commands are those of tests/lock/locked.tsv (tools/behaviour_lock.py)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.registries import place, require_members
from tools import behaviour_lock as lock

SAMPLE = 25
"""Commands of `make test` beside `LISTS`; `make proof` has all."""
SEED = 41
LISTS = (
    "mixed-small",
    "plan-exact",
    "plan-joint",
    "refused-strategy-schedule",
)
"""Commands beside those of `catalog` whose answers list the members of a registry: schedules, or
the export targets that accept a plan. A new member changes them, so `make test` runs them all."""
DEAR = (
    "large",
    "mixed",
    "joint",
    "exact",
    "scenarios",
    "cost",
    "compare",
    "advise",
    "export",
    "check",
    "explain",
    "why",
    "trace",
    "validate",
)
"""Words in the names of commands that take long, or whose plans do: they are in the proof alone."""
LINES = lock.read_lock()


def sample(lines: Sequence[lock.Locked] = LINES) -> list[str]:
    """Names of the commands that `make test` runs: those that list registries, and others.

    The others have the lowest digests of seed and name, so that a new command replaces at most one.
    """
    lists = {line.name for line in lines if line.words.split()[0] == "catalog"} | set(LISTS)
    cheap = [
        line.name
        for line in lines
        if line.name not in lists
        and not any(word in line.name for word in DEAR)
        and not lock.needed(line.words)
    ]
    drawn = sorted(cheap, key=lambda name: hashlib.sha256(f"{SEED} {name}".encode()).hexdigest())
    return sorted({*lists, *drawn[:SAMPLE]})


def check(*more: str) -> str:
    """What the tool prints; an error of the test where an answer differs."""
    done = subprocess.run(
        [sys.executable, str(Path(lock.__file__)), "--check", *more],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample_of_the_answers_is_as_recorded() -> None:
    names = sample()
    assert f"{len(names)} of {len(names)} answers as recorded" in check(
        "--jobs", "1", "--names", *names
    )


def test_a_new_command_replaces_at_most_one_of_the_sample() -> None:
    names = set(sample())
    for number in range(50):
        new = replace(LINES[-1], name=f"new-{number}", words="schema")
        assert len(names - set(sample([*LINES, new]))) <= 1
    catalog = replace(LINES[-1], name="catalog-new", words="catalog new")
    assert set(sample([*LINES, catalog])) == names | {"catalog-new"}


def test_a_difference_names_the_command_that_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [replace(LINES[0], name=name, words="catalog") for name in ("same", "other")]

    def run_all(asked: object, found: dict[str, lock.Ran], **_: object) -> None:
        for line in lines:
            answer = line.answer if line.name == "same" else "0" * 32
            found[line.name] = lock.Ran(line=replace(line, answer=answer), text="{}\n", cpu_s=0.0)

    monkeypatch.setattr(lock, "read_lock", lambda: lines)
    monkeypatch.setattr(lock, "run_all", run_all)
    monkeypatch.setattr(lock, "prepare_environment", lambda: None)
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(lock, "KEPT", tmp_path / "build")
    monkeypatch.setattr(lock, "LOCKED", tmp_path / "locked.tsv")
    assert lock.main(["--check"]) == 1
    printed = capsys.readouterr().out
    told = (
        "If your change should change these answers, record them in locked.tsv:"
        " python tools/behaviour_lock.py --record --names other"
    )
    assert printed.splitlines()[-2] == told
    assert "--check --names other. Where it differs there too" in printed.splitlines()[-3]
    assert "copy its build/recorded here" in printed.splitlines()[-1]
    (tmp_path / "build" / "recorded").mkdir()
    (tmp_path / "build" / "recorded" / "other.json").write_text("[]\n")
    assert lock.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == told
    assert "1 of 2 answers as recorded" in printed


@pytest.mark.proof
def test_all_answers_are_as_recorded() -> None:
    assert f"{len(LINES)} of {len(LINES)} answers as recorded" in check()


def test_the_lock_has_at_least_400_commands_of_all_verbs_with_their_answers() -> None:
    from shardwright.cli.verb_table import VERBS

    assert len(LINES) >= 400
    require_members(
        {line.words.split()[0] for line in LINES},
        VERBS,
        f"{place('tests/lock/locked.tsv')} (a line with a name and the words of a command, then"
        " `python tools/behaviour_lock.py --record --names NAME`)",
    )
    assert {line.exit_code for line in LINES} == {"0", "2", "3", "4", "5", "6", "7", "8"}, (
        "an unexpected error (1) is no answer"
    )
    unrecorded = [line.name for line in LINES if not line.answer]
    assert not unrecorded, lock.how_to_record(unrecorded)


def test_another_answer_is_told() -> None:
    line = LINES[0]
    other = lock.Ran(line=replace(line, answer="0" * 32, texts="1" * 32), text="{}\n", cpu_s=0.0)
    told = lock.compared([line], {line.name: other})
    assert told[0] == f"{line.name}: answer, texts"
    assert line.words in told[1]
    assert lock.differences(line, replace(line, texts="1" * 32), texts=False) == []
    assert lock.compared([line], {line.name: replace(other, line=line)}) == []


def test_clocks_are_left_out_and_sentences_are_apart() -> None:
    sentences: list[str] = []
    value = {
        "search_time_s": 0.5,
        "step_time_s": 2.0,
        "notes": ["a sentence"],
        "rows": [{"hint": "another"}],
        "reference": 3,
    }
    assert lock.without(value, sentences) == {"step_time_s": 2.0, "rows": [{}], "reference": 3}
    assert sentences == ["a sentence", "another"]


def test_commands_run_after_those_whose_files_they_read() -> None:
    rounds = [{line.name for line in ready} for ready in lock.in_rounds(LINES)]
    assert set().union(*rounds) == {line.name for line in LINES}
    for number, names in enumerate(rounds):
        before = set().union(*rounds[:number])
        assert all(
            before.issuperset(lock.needed(line.words)) for line in LINES if line.name in names
        )
    one = next(line for line in LINES if lock.needed(line.words))
    assert {line.name for line in lock.chosen(LINES, lambda line: line.name == one.name)} >= {
        one.name,
        *lock.needed(one.words),
    }
    with pytest.raises(SystemExit, match="no command writes"):
        list(lock.in_rounds([one]))
