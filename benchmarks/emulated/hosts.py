"""Hosts in network namespaces: each with a card to its node's switch and one to the core, all
shaped, rates changed while they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

MTU: Final = 9000
NEAR, FAR = "near0", "far0"
"""Cards of a host: to the switch of its node, to the core."""

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Names of the namespaces.

    Args:
        prefix: of all names, at most eight letters.
        count: hosts.
        node: hosts that share a node's switch.
    """

    prefix: str
    count: int
    node: int = 2

    def name(self, host: int) -> str:
        """Namespace of a host."""
        return f"{self.prefix}-{host}"

    @property
    def switch(self) -> str:
        """Namespace of all switches."""
        return f"{self.prefix}-sw"

    @staticmethod
    def address(host: int) -> str:
        """Where a host is reached, by either card."""
        return f"10.77.0.{host + 1}"


def unusable() -> str:
    """Why no namespaces can be made here; empty if they can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) not found"
    if os.geteuid() != 0:
        return "namespaces and shaped links need root"
    probe = f"probe-{os.getpid()}"
    made = subprocess.run(
        ("ip", "netns", "add", probe), capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"no namespace can be made here: {made.stderr.strip()[:200]}"
    subprocess.run(("ip", "netns", "del", probe), capture_output=True, check=False)
    return ""


def making(hosts: Hosts) -> Iterator[Command]:
    """Commands that make all hosts and switches, unshaped, all traffic through the core."""
    yield ("ip", "netns", "add", hosts.switch)
    switches = ["core", *(f"node{n}" for n in range(-(-hosts.count // hosts.node)))]
    for switch in switches:
        yield ("ip", "-n", hosts.switch, "link", "add", switch, "mtu", str(MTU), "type", "bridge")
        yield ("ip", "-n", hosts.switch, "link", "set", switch, "up")
    for host in range(hosts.count):
        name = hosts.name(host)
        yield ("ip", "netns", "add", name)
        yield ("ip", "-n", name, "link", "set", "lo", "up")
        for card, switch in ((FAR, "core"), (NEAR, f"node{host // hosts.node}")):
            port = _port(card, host)
            yield (
                *("ip", "-n", name, "link", "add", card, "mtu", str(MTU), "type", "veth"),
                *("peer", "name", port, "mtu", str(MTU), "netns", hosts.switch),
            )
            yield ("ip", "-n", hosts.switch, "link", "set", port, "master", switch, "up")
            yield ("ip", "-n", name, "link", "set", card, "up")
        yield ("ip", "-n", name, "addr", "add", f"{hosts.address(host)}/24", "dev", FAR)
    for host in range(hosts.count):
        yield from routing(hosts, host, near=False)


def routing(hosts: Hosts, host: int, *, near: bool) -> Iterator[Command]:
    """Commands that lead a host's traffic within its node by the node's switch (`near`), or by the
    core."""
    for other in range(hosts.count):
        if other != host:
            card = NEAR if near and other // hosts.node == host // hosts.node else FAR
            yield (
                "ip",
                "-n",
                hosts.name(host),
                "route",
                "replace",
                f"{hosts.address(other)}/32",
                "dev",
                card,
                "congctl",
                "cubic",
            )


def shaping(hosts: Hosts, host: int, *, card: str, mbit: float) -> Iterator[Command]:
    """Commands that set the rate of a card, out of the host and into it."""
    # A burst holds two packets at least, and what the line carries between two ticks of the shaper.
    burst = max(2 * MTU + 2000, round(mbit * 1e6 / 8 * 0.0005))
    for name, device in ((hosts.name(host), card), (hosts.switch, _port(card, host))):
        yield (
            *("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{round(mbit * 1e6)}bit", "burst", str(burst), "latency", "200ms"),
        )


def _port(card: str, host: int) -> str:
    return f"{card[0]}{host}"


def run(commands: Iterator[Command] | Sequence[Command]) -> None:
    """Run commands one after another.

    Raises:
        RuntimeError: one fails; what it said.
    """
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def hosts_up(count: int) -> Iterator[Hosts]:
    """Hosts for as long as the context lasts."""
    hosts = Hosts(prefix=f"e{os.getpid() % 100000}", count=count)
    try:
        run(making(hosts))
        yield hosts
    finally:
        for name in (*(hosts.name(h) for h in range(count)), hosts.switch):
            with suppress(OSError):
                subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)


def shape(hosts: Hosts, *, rates: Mapping[str, Sequence[float]]) -> None:
    """Set rates: by card, Mb/s of every host."""
    for card, mbits in rates.items():
        for host, mbit in enumerate(mbits):
            run(shaping(hosts, host, card=card, mbit=mbit))
