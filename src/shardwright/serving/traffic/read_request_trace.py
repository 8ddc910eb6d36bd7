"""Reader of request trace files (Azure, Mooncake, or this project's CSV).

Every malformed line is an error that names the line. Three forms, told apart by the first line::

    TIMESTAMP,ContextTokens,GeneratedTokens
        Azure LLM inference 2023: time of day, tokens of prompt and answer
    {"timestamp": ms, "input_length": ..., ...}
        Mooncake: JSON lines, with "hash_ids" of the prompt's blocks of 512 tokens
    arrival_s,input_tokens,output_tokens
        this project's form: seconds from any start

Requests must be in the order of their arrival. A request without an answer (0 tokens) is
given an answer of one token, as an engine does.

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
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Trace

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
class _TraceColumns:
    """Columns of a trace while its lines are read."""

    source: str
    arrival: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    num_blocks: int = 0


def read_trace(path: Path) -> Trace:
    """Read a request trace from a file; DataError if it is unreadable, malformed or too large."""
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
    """Parse the request trace in a file's content, CSV or JSON lines; DataError names the line.

    Args:
        source: name of the file in errors and in the result.

    Raises:
        DataError: with the number of the line and the expected form.
    """
    lines = _numbered_lines(content, source)
    number, first_line = next(lines, (1, ""))
    columns = _TraceColumns(source=source)
    if first_line.startswith("{"):
        _read_lines(columns, lines, _read_mooncake, start=(number, first_line))
    elif first_line in (_AZURE, _OWN):
        _read_lines(columns, lines, _read_azure if first_line == _AZURE else _read_plain)
    else:
        hint = f"{nearest(first_line, [_AZURE, _OWN])}; {_FORMS}" if first_line else _FORMS
        raise DataError(f"{source}, line {number}: not a trace of requests", hint=hint)
    if not columns.inputs:
        raise DataError(f"{source}: no request in it", hint="one request a line behind the header")
    arrival = np.array(columns.arrival, dtype=np.float64)
    shared = any(columns.blocks)
    return Trace(
        arrival_s=arrival - arrival[0],
        inputs=np.array(columns.inputs, dtype=np.int64),
        outputs=np.array(columns.outputs, dtype=np.int64),
        blocks=tuple(columns.blocks) if shared else (),
        block_tokens=MOONCAKE_BLOCK if shared else 0,
        source=source,
    )


def _numbered_lines(content: bytes, source: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, stripped text) unless empty; DataError if long or not UTF-8.

    Without a copy of the whole content.
    """
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


def _read_lines(
    columns: _TraceColumns,
    lines: Iterator[tuple[int, str]],
    read: Callable[[_TraceColumns, int, str], None],
    *,
    start: tuple[int, str] | None = None,
) -> None:
    """Read `start` and each line into the columns by `read`; raises beyond `MAX_REQUESTS` lines."""
    if start is not None:
        read(columns, *start)
    for number, line in lines:
        if len(columns.inputs) >= MAX_REQUESTS:
            _refuse(columns.source, number, f"more than {MAX_REQUESTS:,} requests", "cut the trace")
        read(columns, number, line)


def _read_azure(columns: _TraceColumns, number: int, line: str) -> None:
    """Append the request of an Azure trace line: time of day, prompt tokens, answer tokens."""
    time_text, inputs, outputs = _three_cells(columns, number, line)
    day, _, fraction = time_text.partition(".")
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
    _add_request(
        columns,
        number,
        seconds,
        inputs,
        outputs,
        time=time_text,
        form="a time such as 2023-11-16 18:15:46.6805900",
    )


def _read_plain(columns: _TraceColumns, number: int, line: str) -> None:
    """Append the request of a line in this project's form: seconds, prompt and answer tokens."""
    time_text, inputs, outputs = _three_cells(columns, number, line)
    _add_request(
        columns,
        number,
        _seconds(time_text),
        inputs,
        outputs,
        time=time_text,
        form="seconds such as 12.75",
    )


def _three_cells(columns: _TraceColumns, number: int, line: str) -> tuple[str, int, int]:
    """(time text, prompt tokens, answer tokens) of a CSV line; DataError unless three cells."""
    cells = line.split(",")
    if len(cells) != 3:
        _refuse(
            columns.source,
            number,
            f"{len(cells)} cells",
            "three: time, tokens of the prompt, tokens of the answer",
        )
    return (
        cells[0].strip(),
        _token_count(columns, number, cells[1]),
        _token_count(columns, number, cells[2]),
    )


def _token_count(columns: _TraceColumns, number: int, cell: str) -> int:
    """Read a whole number of tokens in a trace cell; DataError for other text."""
    text = cell.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        _refuse(columns.source, number, f"'{text[:40]}' is no number of tokens", "a whole number")
    return int(text)


def _seconds(text: str) -> float:
    """Read a number of seconds without a unit; nan for other text."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _read_mooncake(columns: _TraceColumns, number: int, line: str) -> None:
    """Append the request of a Mooncake JSON line: time in milliseconds, lengths, block hashes."""
    try:
        row: Any = json.loads(line, parse_constant=lambda word: word)
    except (ValueError, RecursionError):
        _refuse(columns.source, number, "not JSON", "one object a line")
    if not isinstance(row, dict):
        _refuse(
            columns.source,
            number,
            "not an object",
            "{'timestamp': 0, 'input_length': 1, 'output_length': 1, 'hash_ids': []}",
        )
    for name in ("timestamp", "input_length", "output_length"):
        if name not in row:
            _refuse(columns.source, number, f"no {name}", nearest(name, row) or _FORMS)
    numbers = (row["timestamp"], row["input_length"], row["output_length"])
    if any(isinstance(length, bool) or not isinstance(length, int) for length in numbers[1:]):
        _refuse(columns.source, number, "lengths are no whole numbers", "tokens")
    timestamp = numbers[0]
    seconds = (
        float(timestamp) / 1e3
        if isinstance(timestamp, (int, float))
        and not isinstance(timestamp, bool)
        and abs(timestamp) < 1e18
        else math.nan
    )
    blocks = _hashes(columns, number, row.get("hash_ids", []), numbers[1])
    _add_request(
        columns, number, seconds, numbers[1], numbers[2], time=str(timestamp), form="milliseconds"
    )
    columns.blocks.append(blocks)


def _hashes(columns: _TraceColumns, number: int, hashes: object, inputs: int) -> tuple[int, ...]:
    """Block hashes of a prompt as a tuple; DataError unless integers, up to one per 512 tokens."""
    if not isinstance(hashes, list) or any(
        isinstance(block_hash, bool) or not isinstance(block_hash, int) or abs(block_hash) >= 2**63
        for block_hash in hashes
    ):
        _refuse(
            columns.source,
            number,
            "hash_ids are no list of whole numbers",
            "a hash for each block of 512 tokens",
        )
    if len(hashes) > -(-inputs // MOONCAKE_BLOCK):
        _refuse(
            columns.source,
            number,
            f"{len(hashes)} hashes for {inputs} tokens",
            "one for each block of 512 tokens",
        )
    columns.num_blocks += len(hashes)
    if columns.num_blocks > MAX_BLOCKS:
        _refuse(columns.source, number, f"more than {MAX_BLOCKS:,} hashes", "cut the trace")
    return tuple(hashes)


def _add_request(
    columns: _TraceColumns,
    number: int,
    seconds: float,
    inputs: int,
    outputs: int,
    *,
    time: str,
    form: str,
) -> None:
    """Append a request, its answer 1 token at least; DataError if out of time order or of range."""
    if not math.isfinite(seconds):
        _refuse(columns.source, number, f"'{time[:40]}' is no time", form)
    if columns.arrival and seconds < columns.arrival[-1]:
        _refuse(columns.source, number, "earlier than the line before", "sort the trace by arrival")
    if not 1 <= inputs <= MAX_TOKENS:
        _refuse(columns.source, number, f"a prompt of {inputs} tokens", f"from 1 to {MAX_TOKENS:,}")
    if not 0 <= outputs <= MAX_TOKENS:
        _refuse(
            columns.source, number, f"an answer of {outputs} tokens", f"from 0 to {MAX_TOKENS:,}"
        )
    columns.arrival.append(seconds)
    columns.inputs.append(inputs)
    columns.outputs.append(max(1, outputs))


def _refuse(source: str, number: int, message: str, hint: str) -> NoReturn:
    """Raise a DataError that names the file `source` and the line, with a hint."""
    raise DataError(f"{source}, line {number}: {message}", hint=hint)


__all__ = ["MOONCAKE_BLOCK", "parse_trace", "read_trace"]
