"""`shardwright web`: what it announces, and what it says where it cannot serve."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.cli.verbs import web
from shardwright.web.server_limits import ServerLimits

SCREEN = ()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of the servers that would run."""
    found: list[dict[str, Any]] = []

    def serve(*, announce: Any, **more: Any) -> None:
        found.append(more)
        announce("http://127.0.0.1:1/")

    monkeypatch.setattr(web, "serve", serve)
    return found


def test_it_listens_on_this_machine_alone_unless_it_is_told_to(
    served: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["web"]) == 0
    assert "http://127.0.0.1:1/" in capsys.readouterr().out
    assert served == [{"host": "127.0.0.1", "port": 8765, "limits": ServerLimits()}]
    words = ["--host", "::1", "--port", "0", "--workers", "3", "--memory", "2", "--seconds", "9"]
    assert run(["web", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"address": "http://127.0.0.1:1/"}
    limits = ServerLimits(workers=3, memory_bytes=2 * 2**30, question_s=9.0)
    assert served[1] == {"host": "::1", "port": 0, "limits": limits}


@pytest.mark.parametrize("words", [["--port", "70000"], ["--workers", "0"], ["--memory", "much"]])
def test_wrong_options_are_refused(served: list[dict[str, Any]], words: list[str]) -> None:
    assert run(["web", *words]) == 2
    assert served == []


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None)
    assert run(["web"]) == 2
    error = capsys.readouterr().err
    assert "fastapi and uvicorn" in error
    assert "shardwright[web]" in error


def test_a_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi", reason="needs the extra `web`")
    pytest.importorskip("uvicorn", reason="needs the extra `web`")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["web", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_help_and_the_table_of_verbs_do_not_load_the_server() -> None:
    code = "import sys; from shardwright.cli.main import run; run(['web', '--help'])"
    code += "; print([name for name in sys.modules if name.startswith(('fastapi', 'uvicorn'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
