"""The web API keeps its own OpenAPI document, for requests that schemathesis makes of it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `web`")
pytest.importorskip("uvicorn", reason="needs the extra `web`")
if find_spec("schemathesis") is None:
    pytest.skip("needs schemathesis", allow_module_level=True)

from tests.tiers import in_proof
from tests.web.running_server import running_server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def test_every_answer_is_one_that_the_schema_describes(tmp_path: Path) -> None:
    number = "200" if in_proof() else "10"
    options = ["--checks", ",".join(CHECKS), "--max-examples", number, "--phases", "fuzzing"]
    with running_server("--seconds", "5") as server:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from schemathesis.cli import schemathesis; schemathesis()",
                *("run", f"{server.address}/openapi.json", *options),
            ],
            capture_output=True,
            cwd=tmp_path,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
