"""CHANGELOG.md has a section for the version of the package, and the fragments of changelog.d can
be collected into the next one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardwright

ROOT = Path(__file__).parents[2]
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "towncrier"
]
KINDS = [kind["directory"] for kind in TOWNCRIER["type"]]
FOLDER = ROOT / TOWNCRIER["directory"]
FRAGMENT = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")
TEMPLATE = ROOT / TOWNCRIER["template"]


def fragments() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path != TEMPLATE)


def test_fragments_have_a_topic_a_kind_and_one_paragraph() -> None:
    named = [path.name for path in fragments() if not FRAGMENT.fullmatch(path.name)]
    assert not named, f"name them TOPIC.KIND.md in changelog.d, where KIND is one of {KINDS}"
    for path in fragments():
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith((".", ")")), f"changelog.d/{path.name}: end the sentence with a period"
        assert "\n\n" not in text, f"changelog.d/{path.name}: one paragraph only"


def test_the_newest_release_is_the_version_of_the_package() -> None:
    text = (ROOT / TOWNCRIER["filename"]).read_text(encoding="utf-8")
    assert text.count(TOWNCRIER["start_string"]) == 1
    released = re.findall(r"^## (\d+)\.(\d+)\.(\d+) \(20\d\d-\d\d-\d\d\)$", text, flags=re.M)
    versions = [tuple(map(int, version)) for version in released]
    assert ".".join(map(str, versions[0])) == shardwright.__version__
    assert versions == sorted(set(versions), reverse=True)
    for release in re.split(r"^## ", text, flags=re.M)[1:]:
        headings = re.findall(r"^### (.+)$", release, flags=re.M)
        assert headings == [kind["name"] for kind in TOWNCRIER["type"] if kind["name"] in headings]


def test_towncrier_collects_fragments_by_kind_and_topic(tmp_path: Path) -> None:
    pytest.importorskip("towncrier", reason="towncrier (extra dev) is not installed")
    (tmp_path / "changelog.d").mkdir()
    for path in (ROOT / "pyproject.toml", ROOT / TOWNCRIER["filename"], TEMPLATE):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    for name, text in {
        "search-bound.fixed.md": "A bound is lower.\n",
        "cli-flag.fixed.md": "A flag is read.\n",
        "export.added.md": "A target,\non two lines.\n",
    }.items():
        (tmp_path / "changelog.d" / name).write_text(text, encoding="utf-8")
    before = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "99.0.0"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    head, start, tail = before.partition(TOWNCRIER["start_string"])
    after = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert after.startswith(head + start)
    assert after.endswith(tail.lstrip("\n"))
    section = after.removeprefix(head + start).removesuffix(tail.lstrip("\n"))
    assert re.sub(r"\(.*\)", "(day)", section).split("\n") == [
        *("", "## 99.0.0 (day)", ""),
        *("### Added", "", "- A target, on two lines.", ""),
        *("### Fixed", "", "- A flag is read.", "- A bound is lower.", "", ""),
    ]
    assert [path.name for path in (tmp_path / "changelog.d").iterdir()] == [TEMPLATE.name]
