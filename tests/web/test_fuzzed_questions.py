"""No question makes the server fail: every answer has a status below 500, and an error a line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `web`")
pytest.importorskip("uvicorn", reason="needs the extra `web`")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from tests.tiers import many, seeds
from tests.web.fuzzed_questions import fuzzed_question
from tests.web.running_server import SMALL, running_server

NUMBER = many(50, 150)
"""Questions of a seed."""


@pytest.mark.parametrize("seed", seeds(1, 700))
def test_no_question_makes_the_server_fail(seed: int) -> None:
    random = Random(seed)
    questions = [fuzzed_question(random) for _ in range(NUMBER)]
    headers = {"content-type": "application/json"}
    with (
        running_server("--seconds", "5") as server,
        httpx.Client(base_url=server.address, timeout=120) as client,
    ):

        def ask(question: tuple[str, bytes]) -> Any:
            verb, text = question
            return client.post(f"/api/{verb}", content=text, headers=headers)

        with ThreadPoolExecutor(8) as threads:
            responses = list(threads.map(ask, questions))
        assert client.post("/api/plan", json={"request": SMALL}).status_code == 200
    for (verb, text), response in zip(questions, responses, strict=True):
        assert response.status_code < 500, (verb, text[:500], response.text)
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["message"], (verb, text[:500])
            assert "\n" not in error["message"] + error["hint"]
            assert error["exit_code"] in range(2, 12)
    # Some are refused by the schema, some by the command line's own checks in a process.
    assert {400, 422} <= {response.status_code for response in responses}
