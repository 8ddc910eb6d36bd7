"""Traces of requests that somebody logged, read strictly: every wrong line is one error that names
it.

Three forms, told apart by the first line::

    TIMESTAMP,ContextTokens,GeneratedTokens
        Azure LLM inference 2023: time of day, tokens of prompt and answer
    {"timestamp": ms, "input_length": ..., ...}
        Mooncake: JSON lines, with "hash_ids" of the prompt's blocks of 512 tokens
    arrival_s,input_tokens,output_tokens
        this project's own: seconds from any start

Requests have to stand in the order of their arrival. Those without an answer (0 tokens) are given
one of a token, as an engine does.

Sources: https://github.com/Azure/AzurePublicDataset/blob/master/AzureLLMInferenceDataset2023.md,
https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from shardwright.errors import DataError, nearest
from shardwright.job.serving import Trace

MAX_FILE_BYTES: Final = 2 * 1024**3
MAX_REQUESTS: Final = 10_000_000
MAX_TOKENS: Final = 2**31 - 1
MAX_BLOCKS: Final = 200_000_000
MAX_LINE: Final = 8 * 1024**2
MOONCAKE_BLOCK: Final = 512

_AZURE: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
_OWN: Final = "arrival_s,input_tokens,output_tokens"
_FORMS: Final = (
    f"forms: CSV '{_AZURE}', CSV '{_OWN}', JSON lines with timestamp, input_length, output_length"
)


@dataclass(slots=True)
class _Found:
    """Columns as they grow."""

    source: str
    arrival: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    num_blocks: int = 0


def read_trace(path: Path) -> Trace:
    """The trace in a file of at most `MAX_FILE_BYTES` bytes."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(
                f"{path.name} has {size:,} bytes",
                hint=f"a trace has at most {MAX_FILE_BYTES:,}: cut it",
            )
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}", hint="name a file of requests"
        ) from None
    return parse_trace(content, source=path.name)


def parse_trace(content: bytes, *, source: str) -> Trace:
    """The trace in a file's `content`; `source` names it in errors and in the result.

    Errors: DataError, with the number of the line and what is expected there.
    """
    lines = _lines(content, source)
    number, first = next(lines, (1, ""))
    found = _Found(source=source)
    if first.startswith("{"):
        _each(found, lines, _mooncake, start=(number, first))
    elif first in (_AZURE, _OWN):
        _each(found, lines, _azure if first == _AZURE else _own)
    else:
        hint = f"{nearest(first, [_AZURE, _OWN])}; {_FORMS}" if first else _FORMS
        raise DataError(f"{source}, line {number}: not a trace of requests", hint=hint)
    if not found.inputs:
        raise DataError(f"{source}: no request in it", hint="one request a line behind the header")
    arrival = np.array(found.arrival, dtype=np.float64)
    shared = any(found.blocks)
    return Trace(
        arrival_s=arrival - arrival[0],
        inputs=np.array(found.inputs, dtype=np.int64),
        outputs=np.array(found.outputs, dtype=np.int64),
        blocks=tuple(found.blocks) if shared else (),
        block_tokens=MOONCAKE_BLOCK if shared else 0,
        source=source,
    )


def _lines(content: bytes, source: str) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, from 1, without a copy of the whole."""
    number, start = 0, 3 if content.startswith(b"\xef\xbb\xbf") else 0
    while start < len(content):
        number += 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if end - start > MAX_LINE:
            _refuse(source, number, f"a line of {end - start:,} bytes", "one request a line")
        try:
            line = content[start:end].decode("utf-8").strip()
        except UnicodeDecodeError:
            _refuse(source, number, "not UTF-8", "save the file as UTF-8")
        start = end + 1
        if line:
            yield number, line


def _each(
    found: _Found,
    lines: Iterator[tuple[int, str]],
    read: Callable[[_Found, int, str], None],
    *,
    start: tuple[int, str] | None = None,
) -> None:
    if start is not None:
        read(found, *start)
    for number, line in lines:
        if len(found.inputs) >= MAX_REQUESTS:
            _refuse(found.source, number, f"more than {MAX_REQUESTS:,} requests", "cut the trace")
        read(found, number, line)


def _azure(found: _Found, number: int, line: str) -> None:
    when, inputs, outputs = _three(found, number, line)
    day, _, fraction = when.partition(".")
    try:
        seconds = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
        seconds += (
            float(f"0.{fraction}")
            if fraction.isascii() and fraction.isdigit()
            else 0.0
            if not fraction
            else math.nan
        )
    except (ValueError, OverflowError):
        seconds = math.nan
    _add(
        found,
        number,
        seconds,
        inputs,
        outputs,
        time=when,
        form="a time such as 2023-11-16 18:15:46.6805900",
    )


def _own(found: _Found, number: int, line: str) -> None:
    when, inputs, outputs = _three(found, number, line)
    _add(found, number, _seconds(when), inputs, outputs, time=when, form="seconds such as 12.75")


def _three(found: _Found, number: int, line: str) -> tuple[str, int, int]:
    cells = line.split(",")
    if len(cells) != 3:
        _refuse(
            found.source,
            number,
            f"{len(cells)} cells",
            "three: time, tokens of the prompt, tokens of the answer",
        )
    return cells[0].strip(), _whole(found, number, cells[1]), _whole(found, number, cells[2])


def _whole(found: _Found, number: int, cell: str) -> int:
    text = cell.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        _refuse(found.source, number, f"'{text[:40]}' is no number of tokens", "a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _mooncake(found: _Found, number: int, line: str) -> None:
    try:
        row: Any = json.loads(line, parse_constant=lambda word: word)
    except (ValueError, RecursionError):
        _refuse(found.source, number, "not JSON", "one object a line")
    if not isinstance(row, dict):
        _refuse(
            found.source,
            number,
            "not an object",
            "{'timestamp': 0, 'input_length': 1, 'output_length': 1, 'hash_ids': []}",
        )
    for name in ("timestamp", "input_length", "output_length"):
        if name not in row:
            _refuse(found.source, number, f"no {name}", nearest(name, row) or _FORMS)
    numbers = (row["timestamp"], row["input_length"], row["output_length"])
    if any(isinstance(value, bool) or not isinstance(value, int) for value in numbers[1:]):
        _refuse(found.source, number, "lengths are no whole numbers", "tokens")
    when = numbers[0]
    seconds = (
        float(when) / 1e3
        if isinstance(when, (int, float)) and not isinstance(when, bool) and abs(when) < 1e18
        else math.nan
    )
    blocks = _hashes(found, number, row.get("hash_ids", []), numbers[1])
    _add(found, number, seconds, numbers[1], numbers[2], time=str(when), form="milliseconds")
    found.blocks.append(blocks)


def _hashes(found: _Found, number: int, hashes: object, inputs: int) -> tuple[int, ...]:
    if not isinstance(hashes, list) or any(
        isinstance(h, bool) or not isinstance(h, int) or abs(h) >= 2**63 for h in hashes
    ):
        _refuse(
            found.source,
            number,
            "hash_ids are no list of whole numbers",
            "a hash for each block of 512 tokens",
        )
    if len(hashes) > -(-inputs // MOONCAKE_BLOCK):
        _refuse(
            found.source,
            number,
            f"{len(hashes)} hashes for {inputs} tokens",
            "one for each block of 512 tokens",
        )
    found.num_blocks += len(hashes)
    if found.num_blocks > MAX_BLOCKS:
        _refuse(found.source, number, f"more than {MAX_BLOCKS:,} hashes", "cut the trace")
    return tuple(hashes)


def _add(
    found: _Found, number: int, seconds: float, inputs: int, outputs: int, *, time: str, form: str
) -> None:
    if not math.isfinite(seconds):
        _refuse(found.source, number, f"'{time[:40]}' is no time", form)
    if found.arrival and seconds < found.arrival[-1]:
        _refuse(found.source, number, "earlier than the line before", "sort the trace by arrival")
    if not 1 <= inputs <= MAX_TOKENS:
        _refuse(found.source, number, f"a prompt of {inputs} tokens", f"from 1 to {MAX_TOKENS:,}")
    if not 0 <= outputs <= MAX_TOKENS:
        _refuse(found.source, number, f"an answer of {outputs} tokens", f"from 0 to {MAX_TOKENS:,}")
    found.arrival.append(seconds)
    found.inputs.append(inputs)
    found.outputs.append(max(1, outputs))


def _refuse(source: str, number: int, message: str, hint: str) -> NoReturn:
    raise DataError(f"{source}, line {number}: {message}", hint=hint)


__all__ = ["MOONCAKE_BLOCK", "parse_trace", "read_trace"]
