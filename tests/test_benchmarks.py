"""Every module of the benchmarks can be imported: a renamed function is noticed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.sources import SOURCE

ROOT = SOURCE.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_is_imported(name: str) -> None:
    text = (ROOT / Path(*name.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    if "torch" in text:
        pytest.importorskip("torch")
    importlib.import_module(name)
