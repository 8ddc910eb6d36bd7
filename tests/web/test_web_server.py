"""The server answers as the command line does, streams, refuses, cancels, and survives."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="needs the extra `web`")
pytest.importorskip("uvicorn", reason="needs the extra `web`")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from shardwright.api.searches import grid_search
from shardwright.cli.main import run
from shardwright.errors import ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document
from shardwright.search.search_request import Request
from shardwright.web.answer_responses import STATUS
from shardwright.web.web_application import BODIES, FILES
from tests.hardware.inventory_files import topo_matrix
from tests.web.running_server import LONG, SMALL, RunningServer, events_of, running_server

TOPOLOGY = topo_matrix(8, lambda _one, _other: "NV18")
CONFIG = (Path(__file__).parents[1] / "model" / "configs" / "opt.json").read_text("utf-8")
BATCHES = count(64)
"""Global batches: each test asks a question that nobody asked before."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--workers", "2") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with httpx.Client(base_url=server.address, timeout=120) as found:
        yield found


def error(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert found["message"]
    return found


def long_request() -> dict[str, Any]:
    return {"request": {**LONG, "global_batch": 8 * next(BATCHES)}}


def wait_until(true: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen within a minute")


def test_a_plan_is_the_document_of_the_command_line(client: Any, tmp_path: Path) -> None:
    response = client.post("/api/plan", json={"request": SMALL})
    assert response.status_code == 200
    answer = json.loads(to_text(plan_document(grid_search.plan(Request(**SMALL)))))
    found = response.json()
    assert {name: found[name] for name in answer} == answer
    assert set(found) - set(answer) == {"search_time_s", "unsearched", "command"}
    # The text is a plan file that the command line reads.
    path = tmp_path / "plan.json"
    path.write_text(response.text)
    assert run(["explain", str(path), "--quiet"]) == 0
    for verb in ("explain", "report"):
        assert client.post(f"/api/{verb}", json={"plan": response.text}).status_code == 200
    changed = json.dumps({**found, "prediction": {}})
    assert error(client.post("/api/explain", json={"plan": changed}))["exit_code"] == 7


def test_events_show_the_best_plan_and_its_bound_before_the_answer(client: Any) -> None:
    request = {"request": {**SMALL, "global_batch": next(BATCHES)}}
    stream = {"accept": "text/event-stream"}
    text = client.post("/api/plan", json=request, headers=stream).text
    events = events_of(text)
    *progress, (last, document) = events
    assert last == "answer"
    assert {name for name, _ in progress} == {"progress"}
    told = [json.loads(data) for _, data in progress]
    best = [one["best_s"] for one in told if one["best_s"] is not None]
    certificate = json.loads(document)["certificate"]
    assert best
    assert min(best) == pytest.approx(certificate["best_s"], rel=1e-8)
    for one in told:
        if one["best_s"] is not None and one["lower_s"] is not None:
            assert one["lower_s"] <= one["best_s"]
    # The same question again is answered without a search, with the same text.
    assert events_of(client.post("/api/plan", json=request, headers=stream).text) == [events[-1]]
    assert client.post("/api/plan", json=request).json() == json.loads(document)


def test_a_report_is_a_page_in_an_origin_of_its_own(client: Any) -> None:
    plan = client.post("/api/plan", json={"request": SMALL}).text
    stream = client.post(
        "/api/report", json={"plan": plan}, headers={"accept": "text/event-stream"}
    ).text
    [digest] = [line[len("id: ") :] for line in stream.split("\n") if line.startswith("id: ")]
    page = client.get(f"/report/{digest}")
    assert page.text.startswith("<!doctype html>")
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    assert error(client.get("/report/none"))["kind"] == "DataError"


def test_a_guide_streams_its_progress_and_is_a_page(client: Any) -> None:
    body = {"request": {**SMALL, "cluster": "h100-sxm:2", "seq_len": 1024}}
    stream = client.post("/api/guide", json=body, headers={"accept": "text/event-stream"}).text
    *progress, (last, document) = events_of(stream)
    assert last == "answer"
    guide = json.loads(document)
    told = [json.loads(data) for _, data in progress]
    assert max(one["done"] for one in told if one["text"] == "search") > len(guide["rules"])
    assert min(one["best_s"] for one in told if one["best_s"]) == pytest.approx(
        guide["best"]["step_s"], rel=1e-8
    )
    [digest] = [line[len("id: ") :] for line in stream.split("\n") if line.startswith("id: ")]
    page = client.get(f"/report/{digest}")
    assert "What is the best plan?" in page.text
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    as_page = client.post("/api/guide", json=body, headers={"accept": "text/html"})
    assert as_page.text == page.text


def test_texts_take_the_place_of_files(client: Any) -> None:
    body = {
        "request": {**SMALL, "model": "", "cluster": ""},
        "files": {"model": CONFIG, "cluster": TOPOLOGY},
        "cluster_accelerator": "h100-sxm",
        "cluster_nodes": 2,
    }
    found = client.post("/api/plan", json=body).json()
    assert found["prediction"]["devices"] == 16
    assert (found["request"]["model"], found["request"]["cluster"]) == (
        "model.json",
        "cluster.yaml",
    )
    # Its report needs the files again; without them nothing is opened.
    plan = json.dumps(found)
    given = {"plan": plan, "files": body["files"], "cluster_accelerator": "h100-sxm"}
    assert client.post("/api/report", json={**given, "cluster_nodes": 2}).status_code == 200
    assert (
        "no request names a file"
        in error(client.post("/api/report", json={"plan": plan}))["message"]
    )
    both = {**body, "request": {**SMALL, "cluster": ""}}
    assert "both given" in error(client.post("/api/plan", json=both))["message"]
    neither = {"request": {**SMALL, "model": ""}}
    assert "has no model" in error(client.post("/api/plan", json=neither))["message"]


def test_a_launch_is_advised_and_reads_no_file_of_this_machine(client: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 3}}')
    script = (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 4096"
        " --global-batch-size 64 --micro-batch-size 1 --bf16 --use-distributed-optimizer"
        " --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    )
    request = {"model": "llama-3.1-8b", "cluster": "h100-sxm:16", "seq_len": 0, "global_batch": 0}
    body = {"request": request, "launch": {"pretrain.sh": script}}
    found = client.post("/api/advise", json=body).json()
    assert found["strategy"].startswith("tp2")
    assert found["best"]["step_time_s"] <= found["prediction"]["step_time_s"]
    # The report of an advice is made from its document, as `report` makes it from a file.
    assert client.post("/api/report", json={"plan": json.dumps(found)}).status_code == 200
    named = {"train.sh": f"deepspeed train.py --deepspeed_config {secret}"}
    refused = client.post("/api/advise", json={"request": {**request, **SMALL}, "launch": named})
    assert refused.status_code == 422
    assert "was not given" in error(refused)["message"]


@pytest.mark.parametrize("field", ["model", "teacher", "cluster", "profile", "scenarios"])
def test_a_path_is_refused(client: Any, field: str) -> None:
    path = "/etc/hosts.yaml"
    response = client.post("/api/plan", json={"request": {**SMALL, field: path}})
    assert response.status_code in (400, 422)
    assert "no request names a file" in error(response)["message"]


@pytest.mark.parametrize(
    ("change", "status", "exit_code"),
    [
        ({"model": "lama"}, 422, 3),
        ({"cluster": "h100-sxm:1000000000"}, 422, 4),
        ({"cluster": "x100:8"}, 422, 4),
        ({"model": "llama-3.1-405b", "cluster": "h100-sxm:8"}, 422, 6),
        ({"runtime": "none"}, 422, 8),
        ({"space": "all"}, 400, 2),
        ({"seq_len": "8192"}, 400, 2),
        ({"global_batch": 0}, 400, 2),
        ({"seq_len": 2**62, "global_batch": 2**62}, 400, 2),
        ({"unknown": 1}, 400, 2),
        ({"pins": {"tp": ["64"]}}, 422, None),
    ],
)
def test_errors_are_a_line_a_hint_and_a_status(
    client: Any, change: dict[str, Any], status: int, exit_code: int | None
) -> None:
    response = client.post("/api/plan", json={"request": {**SMALL, **change}})
    found = error(response)
    assert response.status_code == status or exit_code is None
    assert 400 <= response.status_code < 500
    assert exit_code in (None, found["exit_code"])
    assert "\n" not in found["message"] + found["hint"]


def test_every_exit_code_has_a_status() -> None:
    classes = [ShardwrightError]
    for one in classes:
        classes += one.__subclasses__()
    codes = {one.exit_code for one in classes if one.__module__ == "shardwright.errors"}
    assert codes - set(STATUS) == {9}, "9 is of standard output"


def test_bodies_that_are_too_large_or_compressed_are_refused(client: Any) -> None:
    as_json = {"content-type": "application/json"}
    large = client.post("/api/plan", content=b" " * (5 * 2**20), headers=as_json)
    assert (large.status_code, error(large)["message"]) == (
        413,
        "the body has more than 4,194,304 bytes",
    )

    def parts() -> Iterator[bytes]:
        yield from (b" " * 2**20 for _ in range(5))

    assert client.post("/api/plan", content=parts(), headers=as_json).status_code == 413
    bomb = gzip.compress(b" " * 2**26)
    compressed = {**as_json, "content-encoding": "gzip"}
    assert client.post("/api/plan", content=bomb, headers=compressed).status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "shardwright.example"}, 421),
        ({"origin": "http://elsewhere.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 400),
    ],
)
def test_other_sites_cannot_ask(client: Any, headers: dict[str, str], status: int) -> None:
    body = json.dumps({"request": SMALL})
    sent = {"content-type": "application/json", **headers}
    response = client.post("/api/plan", content=body, headers=sent)
    assert response.status_code == status
    assert error(response)["exit_code"] == 2


def test_every_response_has_a_policy_and_loads_nothing_from_elsewhere(client: Any) -> None:
    for address in (*FILES, "/api/catalog", "/openapi.json", "/none"):
        response = client.get(address)
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "unsafe-inline" not in response.headers["content-security-policy"]
        assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
    paths = client.get("/openapi.json").json()["paths"]
    assert {f"/api/{verb}" for verb in BODIES} <= set(paths)
    for verb in BODIES:
        answered = paths[f"/api/{verb}"]["post"]["responses"]["200"]["content"]
        schema = answered["application/json"]["schema"]
        has_command = verb in ("plan", "simulate", "compare", "guide")
        assert schema.get("required", []) == ["command"] * has_command


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes of Linux")


@needs_proc
def test_a_closed_connection_ends_the_search(server: RunningServer) -> None:
    address = urlsplit(server.address)
    body = json.dumps(long_request()).encode()
    head = (
        f"POST /api/plan HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)
        [process] = wait_until(server.searching)
    wait_until(lambda: process not in server.searching())


@needs_proc
def test_a_killed_process_is_one_failed_request(client: Any, server: RunningServer) -> None:
    ask = (
        "import httpx, json, sys; r = httpx.post(sys.argv[1] + '/api/plan',"
        " json=json.loads(sys.argv[2]), timeout=120); print(r.status_code, r.text)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", ask, server.address, json.dumps(long_request())],
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        [process] = wait_until(server.searching)
        os.kill(process, signal.SIGKILL)
        said, _ = asking.communicate()
    assert said.startswith("413")
    assert "was ended from outside" in said
    again = {"request": {**SMALL, "global_batch": next(BATCHES)}}
    assert client.post("/api/plan", json=again).status_code == 200


def test_a_search_that_takes_too_long_answers_with_its_best_plan_so_far() -> None:
    request = {**LONG, "space": "standard"}
    with running_server("--seconds", "0.1") as short:
        response = httpx.post(f"{short.address}/api/plan", json={"request": request}, timeout=120)
    assert response.status_code == 200
    assert response.json()["certificate"]["stopped_at"] > 0


@needs_proc
def test_memory_of_a_search_is_limited() -> None:
    with running_server("--memory", "0.1GiB") as short:
        response = httpx.post(f"{short.address}/api/plan", json=long_request(), timeout=120)
        assert response.status_code == 413
        assert "gives to a question" in error(response)["message"]
        small = httpx.post(f"{short.address}/api/plan", json={"request": SMALL}, timeout=120)
        assert small.status_code == 200


def test_elsewhere_than_on_this_machine_a_token_is_needed() -> None:
    with running_server("--host", "0.0.0.0") as found:
        shown = urlsplit(found.address)
        base = f"http://127.0.0.1:{shown.port}"
        token = shown.query.removeprefix("token=")
        assert len(token) >= 32
        body = {"request": SMALL}
        assert httpx.get(f"{base}/", timeout=120).status_code == 401
        assert httpx.post(f"{base}/api/plan", json=body, timeout=120).status_code == 401
        wrong = {"authorization": "Bearer wrong"}
        assert (
            httpx.post(f"{base}/api/plan", json=body, headers=wrong, timeout=120).status_code == 401
        )
        right = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{base}/api/catalog", headers=right, timeout=120).status_code == 200
        with httpx.Client(base_url=base, timeout=120) as browser:
            first = browser.get(f"/?token={token}&model=llama-3.1-8b")
            assert (first.status_code, first.headers["location"]) == (303, "/?model=llama-3.1-8b")
            assert browser.get(first.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": "a100-sxm-80gb:4+v100-sxm-32gb:4"},
        {"space": "joint-named", "cluster": "h100-sxm:4"},
        {"objective": "cost"},
    ],
    ids=["mixed", "joint", "cost"],
)
def test_every_kind_of_search_is_answered_with_a_report(
    client: Any, change: dict[str, Any]
) -> None:
    """Also those whose modules are imported in the process of the question."""
    plan = client.post("/api/plan", json={"request": {**SMALL, "global_batch": 8, **change}})
    assert plan.status_code == 200, plan.text
    assert json.loads(plan.text)["certificate"]["simulated"] >= 0
    report = client.post("/api/report", json={"plan": plan.text})
    assert report.status_code == 200, report.text
