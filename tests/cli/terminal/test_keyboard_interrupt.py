"""Ctrl-C ends a search with the best so far and exit code 130; a second one ends it at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.search.grid.best_first_search import Refinement
from shardwright.search.search_time_limit import STOP

ASKED = ("plan", "llama-3.1-8b", "h100-sxm:72", "--seq-len", "4096", "--global-batch", "64")


@pytest.fixture(autouse=True)
def _not_stopped() -> Iterator[None]:
    yield
    STOP.clear()


def pressed(times: int) -> Callable[..., Any]:
    """The run of a refinement at whose first report Ctrl-C is pressed so many times."""
    left, run = [times], Refinement.run

    def press(what: str, done: int, of: int) -> None:
        while left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGINT)

    return lambda *given, **named: run(*given, **named | {"progress": press})


def test_the_first_ends_the_search_with_an_honest_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    with monkeypatch.context() as patched:
        patched.setattr(Refinement, "run", pressed(1))
        assert run([*ASKED, "-o", str(file)]) == 130
    said = capsys.readouterr()
    assert "Not proven optimal" in said.out
    assert "Ctrl-C again ends at once" in said.err
    stored = json.loads(file.read_text())["certificate"]
    assert not stored["optimal"]
    assert 0 < stored["gap"] < 1
    assert stored["stopped_at"] > 0
    assert run(["check", str(file)]) == 0


def test_the_second_ends_it_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Refinement, "run", pressed(2))
    assert run(ASKED) == 130
    said = capsys.readouterr()
    assert not said.out
    assert said.err.endswith("interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


ENDED = """
import sys
from shardwright import __main__
from shardwright.cli import main
from shardwright.cli.terminal import keyboard_interrupt as interrupt

def run(words, **given):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return interrupt.report_interrupted()

def fail(words, **given):
    raise KeyboardInterrupt

main.run = fail if "import" in sys.argv else run
__main__.main()
"""


@pytest.mark.parametrize("where", ["exec", "import"])
def test_the_exit_code_is_ours_wherever_it_comes(where: str, tmp_path: Path) -> None:
    """`python -m` ends itself by the signal where it was raised inside of `exec`, as dataclasses
    are made, even if it was caught there."""
    (tmp_path / "ended.py").write_text(ENDED)
    done = subprocess.run(
        [sys.executable, "-m", "ended", where],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
