"""The wheel: it holds the package's modules and data and nothing else, and runs where no checkout
is.

It is built from a copy of the committed and new files, without a network and without compiled
kernels, which would take minutes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import shardwright

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shardwright"
# Files that a build writes into the package; everything else in it belongs to the source.
BUILT = re.compile(r"\.(?:so|pyd|pyc|nbc|nbi)$")


def package_files() -> set[str]:
    """Paths in the package as the wheel names them, without what a build or a run writes."""
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not BUILT.search(path.name)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    # A module of tests and a cache beside the package, as a checkout has them.
    (source / "tests").mkdir()
    (source / "tests" / "test_none.py").write_text("")
    system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    build = f"import {system['build-backend']} as made, sys; made.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, folder],
        cwd=source,
        env=os.environ | {"SHARDWRIGHT_BUILD_KERNELS": "no"},
        check=True,
        capture_output=True,
    )
    [made] = folder.glob("shardwright-*.whl")
    return made


def test_the_wheel_holds_the_package_and_its_records_only(wheel: Path) -> None:
    assert wheel.name.startswith(f"shardwright-{shardwright.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        records = {name for name in names if ".dist-info/" in name}
        metadata = next(name for name in records if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
        entry_points = next(name for name in records if name.endswith("entry_points.txt"))
        assert "shardwright = shardwright.__main__:main" in archive.read(entry_points).decode()
    missing = package_files() - names
    assert not missing, (
        f"add their endings to tool.setuptools.package-data in pyproject.toml: {missing}"
    )
    assert names - records == package_files()
    assert f"Version: {shardwright.__version__}\n" in text
    assert "Requires-Dist: numba" in text


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_installed(installed: Path, words: list[str], folder: Path) -> str:
    """Standard output of a command of the installed package.

    Python runs without site (-S), so that an editable installation of this checkout is not on the
    path; dependencies come from this environment.
    """
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    code = (
        "import sys, shardwright\n"
        f"assert shardwright.__file__.startswith({str(installed)!r}), shardwright.__file__\n"
        "from shardwright.__main__ import main\n"
        "sys.argv[0] = 'shardwright'\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code, *words],
        env={**kept, "PYTHONPATH": os.pathsep.join([str(installed), *sorted(dependencies)])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verbs_without_kernels_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    version = run_installed(installed, ["--version"], tmp_path)
    assert version == f"shardwright {shardwright.__version__}\n"
    assert "serve-simulate" in run_installed(installed, ["--help"], tmp_path)
    models = run_installed(installed, ["catalog", "models", "--quiet"], tmp_path).split()
    assert "llama-3.1-405b" in models
    drawn = run_installed(installed, ["draw", "tp2 pp4", "llama-2-7b", "--json"], tmp_path)
    assert json.loads(drawn)


@pytest.mark.proof
def test_the_wheel_plans_checks_exports_and_serves(installed: Path, tmp_path: Path) -> None:
    def run(line: str) -> str:
        return run_installed(installed, shlex.split(line), tmp_path)

    run("plan llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256 -o plan.json")
    assert "The plan and its certificate hold." in run("check plan.json")
    run("export plan.json --to megatron --allow-lossy -o exported")
    assert any((tmp_path / "exported").iterdir())
    run(
        "simulate llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256"
        ' --strategy "tp2 sp dp4 mbs1 zero1"'
    )
    run("serve-simulate llama-3.1-8b h100-sxm:1 --isl 64 --osl 4 --concurrency 2")
    run("simulate llama-3.1-8b h100-sxm:2 --seq-len 512 --global-batch 4 --strategy tp2 -o s.json")
    run("trace s.json -o trace.json")


@pytest.mark.proof
def test_the_first_command_of_the_readme_runs_from_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^shardwright (plan .*)$", readme, flags=re.M)
    answer = re.search(r"^Strategy  (\S.*)$", readme, flags=re.M)
    assert first is not None
    assert answer is not None
    assert answer[1] in run_installed(installed, shlex.split(first[1]), tmp_path)


PAGES = (
    "shardwright/api/guide/",
    "shardwright/api/report/",
    "shardwright/api/what_if/",
    "shardwright/report/guide/",
    "shardwright/report/page/",
    "shardwright/report/pictures/guide/",
    "shardwright/validation/training/predictions_of_published_runs.json",
    "shardwright/web/",
)
"""Reports, guide and web page, which a wheel before version 0.2 did not have."""


@pytest.mark.xfail(
    strict=True,
    reason=(
        "347 kB: views and browser scripts 138 (uPlot 23 of these), guide 79, content of reports"
        " 63, web 48, published runs 19; 226 kB before the guide's break-evens, the pages of other"
        " answers and the pictures"
    ),
)
def test_pages_add_less_than_300_kb(wheel: Path) -> None:
    """Compressed bytes of their files in the wheel, with the headers of each file in a zip."""
    with zipfile.ZipFile(wheel) as archive:
        members = [one for one in archive.infolist() if one.filename.startswith(PAGES)]
    assert len(members) > 150
    assert sum(one.compress_size + 76 + 2 * len(one.filename) for one in members) < 300_000
