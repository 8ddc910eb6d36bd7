"""Checks of every HTTP request before its question is read, and the headers of every response.

An ASGI middleware. It refuses requests of other sites and hosts, without the token, with bodies
that are too large, compressed or slow, and more requests at once than the limit.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from shardwright.errors import UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.web.answer_event_types import error_text, failed
from shardwright.web.server_limits import ServerLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""Content security policy of every response that does not set another one."""
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_DROP_S: Final = 0.5
_DROP_BYTES: Final = 32 * 2**20
TOKEN: Final = "token"
"""Name of the query parameter and of the cookie of the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Names that a server answers to, and the token that its clients must send.

    Args:
        hosts: names of this server in the header Host, without the port; empty = any name.
        token: empty = none is needed, on the loopback interface.
    """

    hosts: frozenset[str]
    token: str = ""


class RefusedRequestError(UsageError):
    """A request that the server refuses before it reads the question.

    Args:
        status: HTTP status.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class RequestGuard:
    """ASGI middleware with the checks of this module."""

    def __init__(self, app: App, *, access: Access, limits: ServerLimits) -> None:
        self._app, self._access, self._limits = app, access, limits
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on with its whole body, or answer with an error."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        sending = _Sending(send)
        self._open += 1
        try:
            if await self._signed_in(scope, headers, sending):
                return
            self._check(scope, headers)
            body = await self._body(headers, receive)
            await self._app(scope, _receive_of(body, receive), sending)
        except RefusedRequestError as error:
            await _send_error(sending, error, unread=receive)
        except asyncio.CancelledError:
            if not sending.started:
                await _send_error(sending, RefusedRequestError("this server ends", status=408))
        finally:
            self._open -= 1

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise RefusedRequestError for a wrong Host, a foreign page, no token, or overload."""
        host = headers.get("host", "")
        if self._access.hosts and _host_name(host) not in self._access.hosts:
            raise RefusedRequestError(
                f"this server is not called {host[:60]!r}",
                hint=f"open http://{min(self._access.hosts)} with its port",
                status=421,
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if (origin not in (None, f"{scope['scheme']}://{host}")) or (
            site not in ("none", "same-origin") and not navigates
        ):
            raise RefusedRequestError(
                "a page of another site asked",
                hint="open the page of this server, or ask without a browser",
                status=403,
            )
        if self._access.token and not self._has_token(headers):
            raise RefusedRequestError(
                "the token of this server is missing",
                hint="open the address that `shardwright web` printed, or send it as"
                " Authorization: Bearer TOKEN",
                status=401,
            )
        if self._open > self._limits.streams:
            raise RefusedRequestError(
                f"{self._limits.streams} requests are open already",
                hint="close other tabs, or try again in some seconds",
                status=429,
            )

    def _has_token(self, headers: dict[str, str]) -> bool:
        """True if the Authorization header's bearer token or the cookie is the server's token."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(TOKEN)
        except CookieError:
            cookie = None
        given = (bearer if scheme.lower() == "bearer" else "", cookie.value if cookie else "")
        expected = self._access.token.encode()
        return any(hmac.compare_digest(one.encode(), expected) for one in given)

    async def _signed_in(self, scope: Scope, headers: dict[str, str], send: Send) -> bool:
        """Redirect a GET with the token in its query to ``/`` with a cookie; False without it."""
        if not self._access.token or scope["method"] != "GET":
            return False
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(pairs).get(TOKEN, "")
        if not hmac.compare_digest(token.encode(), self._access.token.encode()):
            return False
        rest = urlencode([pair for pair in pairs if pair[0] != TOKEN])
        location = "/" + (f"?{rest}" if rest else "")
        cookie = f"{TOKEN}={token}; HttpOnly; SameSite=Strict; Path=/"
        await send(
            {
                "type": "http.response.start",
                "status": 303,
                "headers": [
                    (b"location", location.encode()),
                    (b"set-cookie", cookie.encode()),
                    (b"content-length", b"0"),
                ],
            }
        )
        await send({"type": "http.response.body", "body": b""})
        return True

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """Read the whole body of a request; raise if it is encoded, too large, slow or cut off.

        Raises:
            RefusedRequestError: it is compressed, too large, or slow.
        """
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise RefusedRequestError(
                f"the body is encoded as {encoding[:20]!r}", hint="send it as it is", status=415
            )
        limit = self._limits.body_bytes
        too_large = RefusedRequestError(
            f"the body has more than {limit:,} bytes",
            hint="a question with its files is smaller",
            status=413,
        )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequestError("the client is gone", status=408)
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedRequestError(
                f"the body did not arrive within {self._limits.body_s:.0f} s",
                hint="ask again",
                status=408,
            ) from None


def _host_name(host: str) -> str:
    """Name in a header Host, without the port, in lower case; empty if malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _receive_of(body: bytes, receive: Receive) -> Receive:
    """ASGI function that gives a body which was read already, then what follows it."""
    given = False

    async def receive_again() -> Message:
        """The body at first, then the messages of the connection."""
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


class _Sending:
    """ASGI function that adds the headers of `HEADERS` where a response has none of that name.

    Args:
        send: of the connection.
    """

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        """Send a message; the start of a response has the headers."""
        if message["type"] == "http.response.start":
            self.started = True
            named = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(header for header in HEADERS if header[0] not in named),
            ]
        await self._send(message)


async def _send_error(
    send: Send, error: RefusedRequestError, *, unread: Receive | None = None
) -> None:
    """Send an error as JSON, drop the rest of an `unread` body, and close the connection.

    Args:
        unread: connection whose body may not be read to its end. Some of it is dropped before the
            connection is closed, as the client may lose the response otherwise.
    """
    text = error_text(failed(error)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(text)).encode()),
                (b"connection", b"close"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": text, "more_body": True})
    if unread is not None:
        await _drop_body(unread)
    await send({"type": "http.response.body", "body": b""})


async def _drop_body(receive: Receive) -> None:
    """Read and drop the rest of a body, for at most `_DROP_S` seconds and `_DROP_BYTES` bytes."""
    dropped = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROP_S):
            while dropped < _DROP_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
