"""Notation of serving deployments: parser and printer.

``agg 4x(tp2 seqs256 chunk8192)``, ``prefill 3x(tp4) decode 2x(dpa8 ep8 seqs64 mtp3)``. A pool is
its role, its number of workers, and a worker's words in brackets: ``tp2`` and ``tp=2`` are the
same. One worker needs neither number nor brackets: ``tp8``, ``agg tp8``. Options of the engine
follow the degrees as ``kv=fp8``. The printer is canonical.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from shardwright.errors import StrategyError, nearest
from shardwright.serving.deployments.worker_pools import Deployment, Worker, WorkerPool, WorkerRole

_MAX_TEXT: Final = 1000
_MAX_NUMBER: Final = 2**20
# word -> (field, smallest value); printed in this order
_NUMBERS: Final[dict[str, tuple[str, int]]] = {
    "tp": ("tp", 1),
    "dpa": ("dpa", 1),
    "ep": ("ep", 1),
    "cp": ("cp", 1),
    "pp": ("pp", 1),
    "seqs": ("sequences", 0),
    "chunk": ("chunk", 0),
    "mtp": ("draft_tokens", 0),
}
_ROLES: Final = tuple(role.value for role in WorkerRole)
_WORD: Final = re.compile(
    r"(?P<name>[a-z][a-z_]*?)(?:=(?P<value>[a-z0-9._,:/-]+)|(?P<number>[0-9][0-9,]*))", re.ASCII
)
_COUNT: Final = re.compile(r"([0-9]+)x", re.ASCII)
_HINT: Final = "such as 'agg 4x(tp2 seqs256)' or 'prefill 3x(tp4) decode 2x(dpa8 ep8)'"


def print_deployment(deployment: Deployment) -> str:
    """Canonical text of a deployment, which parses to the same deployment."""
    return " ".join(
        f"{pool.role.value} {pool.count}x({print_worker(pool.worker)})" for pool in deployment.pools
    )


def print_worker(worker: Worker) -> str:
    """Words of a worker without those at their defaults; ``tp1`` for a worker of one device."""
    words = []
    for word, (field, smallest) in _NUMBERS.items():
        value = getattr(worker, field)
        if value > smallest:
            words.append(f"{word}{value}")
    words += [f"{name}={value}" for name, value in worker.options]
    return " ".join(words) or "tp1"


def parse_deployment(text: str) -> Deployment:
    """Parse ``prefill 2x(tp8) decode 4x(tp4)`` to a deployment; StrategyError if it is not legal.

    Raises:
        StrategyError: an unknown word or number, a degree that does not fit the others, or roles
            that do not go together.
    """
    if not text.strip() or len(text) > _MAX_TEXT:
        raise StrategyError(
            f"a deployment is 1 to {_MAX_TEXT} characters of words, not {len(text)}", hint=_HINT
        )
    pools = tuple(_pools(text))
    roles = [pool.role for pool in pools]
    if roles not in ([WorkerRole.AGGREGATED], [WorkerRole.PREFILL, WorkerRole.DECODE]):
        given_roles = " and ".join(role.value for role in roles)
        raise StrategyError(
            f"a deployment has a pool 'agg', or 'prefill' and then 'decode', not {given_roles}",
            hint=_HINT,
        )
    return Deployment(pools=pools)


def _pools(text: str) -> Iterator[WorkerPool]:
    """Yield the worker pools of a text: each role with its words.

    Words before any role belong to aggregated workers.
    """
    parts = re.split(rf"(?<![^\s)])({'|'.join(_ROLES)})(?![^\s])", text.strip())
    if parts[0].strip():
        parts = ["", WorkerRole.AGGREGATED.value, *parts]
    for role, words in zip(parts[1::2], parts[2::2], strict=True):
        yield _pool(WorkerRole(role), words.strip())


def _pool(role: WorkerRole, text: str) -> WorkerPool:
    """The pool of one role from text such as ``2x(tp8)``; StrategyError if it is not legal."""
    count, count_match = 1, _COUNT.match(text)
    if count_match:
        count, text = (
            _number(count_match[1], word=count_match[0], smallest=1),
            text[count_match.end() :].strip(),
        )
    if text.startswith("(") != text.endswith(")") or text.count("(") > 1:
        raise StrategyError(f"{role.value}: brackets in {text[:40]!r} do not close", hint=_HINT)
    return WorkerPool(
        role=role,
        count=count,
        worker=parse_worker(text.removeprefix("(").removesuffix(")"), role=role),
    )


def parse_worker(text: str, *, role: WorkerRole = WorkerRole.AGGREGATED) -> Worker:
    """Parse words such as ``tp8`` and ``name=value`` to a worker; StrategyError if not legal."""
    fields: dict[str, Any] = {}
    options: dict[str, str] = {}
    if not text.split():
        raise StrategyError(f"{role.value} has no worker", hint=_HINT)
    for word in text.split():
        match = _WORD.fullmatch(word)
        name = match["name"] if match else word
        if match is None or (name not in _NUMBERS and match["number"]):
            raise StrategyError(
                f"unknown word {word[:40]!r} in a deployment",
                hint=nearest(word[:40], [f"{n}N" for n in _NUMBERS]),
            )
        if name in options or (name in _NUMBERS and _NUMBERS[name][0] in fields):
            raise StrategyError(f"{name!r} is said twice in {role.value}", hint="keep one of them")
        if name in _NUMBERS:
            field, smallest = _NUMBERS[name]
            fields[field] = _number(match["number"] or match["value"], word=word, smallest=smallest)
        else:
            options[name] = match["value"]
    worker = Worker(**fields, options=tuple(sorted(options.items())))
    _require_legal(worker, role)
    return worker


def _number(text: str, *, word: str, smallest: int) -> int:
    """Read a whole number, commas allowed, from `smallest` to 2**20; StrategyError otherwise."""
    digits = text.replace(",", "")
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > 10
        or not smallest <= int(digits) <= _MAX_NUMBER
    ):
        raise StrategyError(
            f"{word[:40]!r}: {text[:20]!r} is not a whole number of at least {smallest}",
            hint="write a degree as tp8 or tp=8",
        )
    return int(digits)


def _require_legal(worker: Worker, role: WorkerRole) -> None:
    """Raise StrategyError where a worker's degrees do not fit each other or its role."""
    if worker.stage_devices % worker.ep:
        raise StrategyError(
            f"{role.value}: ep {worker.ep} does not divide the {worker.stage_devices} devices of a"
            f" stage (tp x dpa x cp = {worker.tp} x {worker.dpa} x {worker.cp})",
            hint="experts are spread over a stage's devices; etp = devices of the stage / ep",
            rule="worker.experts",
        )
    if worker.cp > 1 and role is WorkerRole.DECODE:
        raise StrategyError(
            "decode: cp cuts the positions of prompts, which this pool has none of",
            hint="dpa for more caches",
            rule="worker.cp",
        )
