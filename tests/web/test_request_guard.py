"""Requests are refused before their question is read: how many, how slow, how large, from whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shardwright.web.request_guard import Access, RequestGuard
from shardwright.web.server_limits import ServerLimits

LOCAL = Access(hosts=frozenset({"127.0.0.1"}))


class Connection:
    """A request whose messages a test gives one by one, and what the server sends."""

    def __init__(self, *messages: dict[str, Any], **headers: str) -> None:
        self.messages = [*messages]
        self.sent: list[Any] = []
        headers = {"host": "127.0.0.1:8765", **headers}
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "query_string": b"",
            "headers": [
                (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
            ],
        }

    async def receive(self) -> dict[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        found: int = self.sent[0]["status"]
        return found

    @property
    def message(self) -> str:
        found: str = json.loads(self.sent[1]["body"])["error"]["message"]
        return found


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that sends the body back."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def ask(
    connection: Connection,
    *,
    access: Access = LOCAL,
    limits: ServerLimits | None = None,
    app: Callable[..., Awaitable[None]] = answer,
) -> Connection:
    guard = RequestGuard(app, access=access, limits=limits or ServerLimits())
    asyncio.run(guard(connection.scope, connection.receive, connection.send))
    return connection


def test_a_body_in_parts_reaches_the_application_whole() -> None:
    found = ask(Connection(body(b"one ", more=True), body(b"two")))
    assert (found.status, found.sent[1]["body"]) == (200, b"one two")
    names = {name for name, _ in found.sent[0]["headers"]}
    assert {b"content-security-policy", b"x-content-type-options"} <= names


def test_a_header_of_the_application_is_kept() -> None:
    async def own(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    found = ask(Connection(body()), app=own)
    assert [value for name, value in found.sent[0]["headers"] if name == b"cache-control"] == [
        b"no-cache"
    ]


@pytest.mark.parametrize("length", ["11", "99999999999999999999", "-1", "ten"])
def test_a_length_beyond_the_limit_is_refused_unread(length: str) -> None:
    found = ask(Connection(content_length=length), limits=ServerLimits(body_bytes=10))
    assert (found.status, found.message) == (413, "the body has more than 10 bytes")
    assert (b"connection", b"close") in found.sent[0]["headers"]


def test_parts_beyond_the_limit_are_dropped_for_a_while_and_do_not_reach_the_application() -> None:
    """The client, which sends still, reads the response before the connection closes."""
    parts = [body(b"1" * 2**20, more=True) for _ in range(50)]
    found = ask(Connection(*parts), limits=ServerLimits(body_bytes=10))
    assert found.status == 413
    assert len(found.messages) == 50 - 1 - 32
    assert [message.get("more_body", False) for message in found.sent[1:]] == [True, False]


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    found = ask(Connection(body(b"1", more=True)), limits=ServerLimits(body_s=0.05))
    assert found.status == 408
    assert "did not arrive" in found.message


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "GZIP"])
def test_a_compressed_body_is_refused_unread(encoding: str) -> None:
    assert ask(Connection(content_encoding=encoding)).status == 415


def test_more_requests_at_once_than_the_limit_are_refused() -> None:
    async def scenario() -> None:
        going_on = asyncio.Event()

        async def wait(scope: Any, receive: Any, send: Any) -> None:
            await going_on.wait()
            await answer(scope, receive, send)

        guard = RequestGuard(wait, access=LOCAL, limits=ServerLimits(streams=3))
        open_ones = [Connection(body()) for _ in range(3)]
        tasks = [asyncio.create_task(guard(one.scope, one.receive, one.send)) for one in open_ones]
        await asyncio.sleep(0)
        further = Connection(body())
        await guard(further.scope, further.receive, further.send)
        assert (further.status, further.message) == (429, "3 requests are open already")
        going_on.set()
        await asyncio.gather(*tasks)
        assert [one.status for one in open_ones] == [200] * 3
        again = Connection(body())
        await guard(again.scope, again.receive, again.send)
        assert again.status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "[::1"}, 421),
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
    ],
)
def test_only_pages_of_this_server_may_ask(headers: dict[str, str], status: int) -> None:
    assert ask(Connection(body(), **headers)).status == status


def test_a_link_of_another_page_may_open_this_one() -> None:
    link = Connection(body(), sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    link.scope["method"] = "GET"
    assert ask(link).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer secret"}, 200),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer secret2"}, 401),
        ({"authorization": "Bearer \u00e9"}, 401),
        ({"cookie": "a=b; token=secret"}, 200),
        ({"cookie": "token=other"}, 401),
        ({"cookie": "\u0001=;;="}, 401),
    ],
)
def test_a_token_is_needed_where_there_is_one(headers: dict[str, str], status: int) -> None:
    access = Access(hosts=frozenset(), token="secret")
    assert ask(Connection(body(), **headers), access=access).status == status


def test_a_request_that_the_end_of_the_server_cancels_has_an_answer() -> None:
    async def scenario() -> None:
        async def wait(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.Event().wait()

        guard = RequestGuard(wait, access=LOCAL, limits=ServerLimits())
        connection = Connection(body())
        task = asyncio.create_task(guard(connection.scope, connection.receive, connection.send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task
        assert (connection.status, connection.message) == (408, "this server ends")

    asyncio.run(scenario())
