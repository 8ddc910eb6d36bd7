"""Run the web server until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import quote

import uvicorn

from shardwright.errors import UsageError
from shardwright.web.request_guard import TOKEN, Access
from shardwright.web.server_limits import ServerLimits
from shardwright.web.web_application import web_application

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def run_server(
    *, host: str, port: int, limits: ServerLimits, announce: Callable[[str], None]
) -> None:
    """Announce the URL with any token, then serve the page on host and port until Ctrl-C.

    Args:
        host: address of an interface; every other one than the loopback needs a token, which is
            part of the announced address.
        port: 0 = any free one.
        announce: is called with the address of the page when the server listens.

    Raises:
        UsageError: the address cannot be used.
    """
    listener = _listener(host, port)
    found_port = listener.getsockname()[1]
    access = access_on(host)
    shown = f"[{host}]" if ":" in host else host
    token = f"?{TOKEN}={quote(access.token)}" if access.token else ""
    announce(f"http://{shown}:{found_port}/{token}")
    config = uvicorn.Config(
        web_application(limits=limits, access=access),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=64 * 1024,
        ws="none",
        http="h11",
    )
    # Ctrl-C is how the server ends; uvicorn raises it again when everything is closed.
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def access_on(host: str) -> Access:
    """Access to a server on an address: any client of this machine, else one with the token."""
    if is_loopback(host):
        return Access(hosts=LOOPBACK_NAMES | {host.lower()})
    return Access(hosts=frozenset(), token=secrets.token_urlsafe(24))


def is_loopback(host: str) -> bool:
    """True if a host is ``localhost`` or a loopback IP address; False for any other name."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    """Socket that listens on a host and port (0: any free one); UsageError if it cannot.

    Raises:
        UsageError: the address is not of this machine, or is in use.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(
            f"cannot listen on {host[:60]} port {port}: {error}",
            hint="another --port, or --port 0 for any free one",
        ) from error
