"""Messages of commits: what the hook refuses, and that git asks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.commit_message import LINES_WITHOUT_BODY, ROOT, areas, faults

AREAS = frozenset({"search", "mixed", "docs", "launch_files", "build"})


@pytest.mark.parametrize(
    "subject",
    [
        "search: bound the step of the last stage",
        "search/mixed: name what was not searched",
        "docs, search: explain how a bound is proven",
        "launch_files: embed the reader of YAML anchors",
        "build: compile kernels on two cores",
    ],
)
def test_a_good_subject_has_no_fault(subject: str) -> None:
    assert faults(subject + "\n", changed_lines=3, known_areas=AREAS) == ()


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("search: x", "the subject has 9 characters"),
        ("search: " + "bound " * 11 + "it", "the subject has 76 characters"),
        ("bound the step of the last stage", 'must read "area: effect"'),
        ("Search: bound the last stage", 'must read "area: effect"'),
        ("look: bound the last stage", "'look' is no folder"),
        ("search/deep: bound the last stage", "'deep' is no folder"),
        ("search: a bound of the last stage", 'not with "a"'),
        ("search: bounding of the last stage", 'not with "bounding"'),
        ("search: bounded the last stage", 'not with "bounded"'),
        ("search: Bound the last stage", 'not with "Bound"'),
        ("search: bound the last stage.", "must not end with a full stop"),
    ],
)
def test_a_bad_subject_is_named(subject: str, fault: str) -> None:
    (found,) = faults(subject, changed_lines=3, known_areas=AREAS)
    assert fault in found


def test_a_large_change_needs_a_body() -> None:
    subject = "search: bound the last stage"
    large = LINES_WITHOUT_BODY + 1
    (found,) = faults(subject + "\n\n# comment\n", changed_lines=large, known_areas=AREAS)
    assert f"{large} lines change" in found
    assert faults(subject + "\n\nWhy.\n", changed_lines=large, known_areas=AREAS) == ()
    assert faults(subject, changed_lines=large - 1, known_areas=AREAS) == ()
    (found,) = faults(subject + "\nWhy.\n", changed_lines=3, known_areas=AREAS)
    assert "must be empty" in found


def test_git_refuses_what_the_hook_refuses(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for part in (".githooks/commit-msg", "tools/commit_message.py"):
        target = tmp_path / part
        target.parent.mkdir(parents=True)
        shutil.copy(ROOT / part, target)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        hooks = ("-c", "core.hooksPath=.githooks")
        return subprocess.run(
            ["git", *identity, *hooks, *words], cwd=tmp_path, capture_output=True, text=True
        )

    assert git("init", "--quiet").returncode == 0
    assert git("add", "tools", ".githooks").returncode == 0
    refused = git("commit", "-m", "A tool.")
    assert refused.returncode == 1
    assert 'commit message: the subject must read "area: effect"' in refused.stderr
    assert "lines change: say why in a body" in refused.stderr
    kept = git("commit", "-m", "tools: check messages of commits", "-m", "A body.")
    assert kept.returncode == 0, kept.stderr
    assert "tools" in areas(tmp_path)
