"""Pages of the documentation's site open from files without a message or a request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "python-api", "notebooks/plan-training", "physics"])
def test_a_page_opens_from_its_file(
    page_at: Callable[..., Any], site: Path, name: str, scheme: str
) -> None:
    uri = (site / f"{name}.html").as_uri()
    page = page_at(uri, allowed=site.as_uri(), scheme=scheme)
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)
    assert page.inner_text("h1").strip()
