"""Limits of the web server on processes, memory, time, requests and streams."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits that hold for every client of a web server together.

    Args:
        workers: searches that run at once, each in a process of its own; 0 = a CPU core each.
        waiting: questions that may wait for a process.
        streams: requests that may be answered at once; each open tab that searches is one.
        question_s: seconds after which a search stops with its best plan so far.
        grace_s: further seconds after which its process is killed.
        memory_bytes: address space of a process beyond the one that it begins with.
        body_bytes: size of a request's body.
        body_s: seconds in which a request's body must arrive.
        cache_bytes: size of the answers that are kept for equal questions.
    """

    workers: int = 0
    waiting: int = 64
    streams: int = 256
    question_s: float = 60.0
    grace_s: float = 10.0
    memory_bytes: int = 4 * GIB
    body_bytes: int = 4 * MIB
    body_s: float = 20.0
    cache_bytes: int = 64 * MIB
