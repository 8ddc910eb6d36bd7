"""Answers of commands are those of tests/lock/locked.tsv (tools/behaviour_lock.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.registries import place, require_members
from tools import behaviour_lock as lock

SAMPLE = 25
"""Commands of `make test`; `make proof` has all."""
SEED = 41
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


def sample() -> list[str]:
    """Names of the commands that `make test` runs."""
    cheap = [
        line.name
        for line in LINES
        if not any(word in line.name for word in DEAR) and not lock.needed(line.words)
    ]
    return sorted(Random(SEED).sample(cheap, SAMPLE))


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
    assert f"{SAMPLE} of {SAMPLE} answers as recorded" in check("--jobs", "1", "--names", *sample())


@pytest.mark.proof
def test_all_answers_are_as_recorded() -> None:
    assert f"{len(LINES)} of {len(LINES)} answers as recorded" in check()


def test_the_lock_has_400_commands_of_all_verbs_with_their_answers() -> None:
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
    assert all(line.answer for line in LINES)


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
