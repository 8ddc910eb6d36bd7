"""Reader of the output of nccl-tests (all_reduce_perf and its like) into collective points.

Columns are found by their header, never by position.

The reader relies on, over the versions since 2019: a header line that begins with ``size`` and
``count`` and names each column, ``time`` once or twice (out-of-place and in-place, as the line
above it says); a line of units below it; the ranks under ``# Using devices``. `size` is the full
buffer in bytes in all versions (NVIDIA/nccl-tests, doc/PERFORMANCE.md and issue 45). Every line may
be prefixed by mpirun (``[1,0]<stdout>:``); rows may be cut short or say N/A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.hardware.profile.measured_rates import bus_share
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import scale_decimal

MAX_FILE_BYTES: Final = 64 * 1024**2
MAX_DEVICES: Final = 4_194_304
KINDS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send",
    "scatter": "scatter",
    "gather": "gather",
}
_PREFIX: Final = re.compile(r"^\[\d+,\s*\d+\]\s*<std\w+>\s*:?")
_TEST: Final = re.compile(
    r"\b(" + "|".join(sorted(KINDS, key=len, reverse=True)) + r")(?:_perf)(?:_mpi)?\b"
)
_RANK: Final = re.compile(r"^#?\s*Rank\s+(\d{1,9})\b.*\bdevice\b", re.IGNORECASE)
_POWERS: Final = {"(us)": -6, "(ms)": -3, "(s)": 0}
_WORDS: Final = ("type", "redop")
_NUMBER: Final = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_OUT, _IN = "out-of-place", "in-place"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPoint:
    """One row of nccl-tests: `volume` bytes of the full buffer took `seconds`.

    Args:
        collective: as in `CollectiveFit`.
        num_devices: number of devices.
        dtype: as nccl-tests prints it; empty = no such column.
        in_place: the row's in-place time, not the out-of-place one.
    """

    collective: str
    num_devices: int
    volume: int
    seconds: float
    dtype: str
    in_place: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Positions of a table's columns.

    Args:
        words: number of columns of words (type, redop) before the first time;
        has_type: type is one of them.
        times: (position of a time, of its algbw or -1, of its busbw or -1, in place).
        power: of ten, of the unit of times in seconds.
    """

    size: int
    words: int
    has_type: bool
    times: tuple[tuple[int, int, int, bool], ...]
    power: int = -6


def read_nccl_tests(path: Path) -> tuple[NcclPoint, ...]:
    """Measured points (collective, bytes, devices, seconds) of an nccl-tests output file.

    Raises:
        DataError: the file cannot be read, or holds no table of nccl-tests.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(
                f"{path} is larger than {MAX_FILE_BYTES} bytes",
                hint="is it the output of nccl-tests?",
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}",
            hint="the text that all_reduce_perf and its like print",
        ) from error
    return parse_nccl_tests(text, name=str(path))


def parse_nccl_tests(text: str, *, name: str = "nccl-tests output") -> tuple[NcclPoint, ...]:
    """Measured points of nccl-tests output text, which may hold the output of several tests.

    Args:
        name: for messages, and for the kind of collective where the text does not name its program
            (``all_gather_perf.txt``).

    The number of devices is that of the ranks listed, or, where none are, the number that follows
    from bus and algorithm bandwidth.

    Raises:
        DataError: no table, no kind of collective, or no number of devices.
    """
    named = _TEST.search(Path(name).name.replace("-", "_"))
    kind, ranks, header, above = named[1] if named else "", set[int](), None, ""
    points: list[NcclPoint] = []
    listing = False
    for line in _unprefixed_lines(text):
        test = _TEST.search(line)
        rank = _RANK.match(line)
        if test:
            kind = test[1]
        if rank:
            # A new list after a table belongs to the next test.
            ranks = ranks if listing else set()
            listing = True
            ranks.add(int(rank[1]))
            continue
        words = line.lstrip("#").split()
        if words[:2] == ["size", "count"] or (words[:1] == ["size"] and "time" in words):
            header, listing = _parse_header(words, above), False
        elif header is not None and words and words[0].isascii() and words[0].isdigit():
            points += _parse_row(
                words, header, kind=_required_kind(kind, name), num_devices=len(ranks), name=name
            )
        elif header is not None and words and words[0] == "(B)":
            header = replace(
                header, power=next((_POWERS[word] for word in words if word in _POWERS), -6)
            )
        if words:
            above = line
    if not points:
        raise DataError(
            f"{name} has no table of nccl-tests",
            hint="the text that all_reduce_perf and its like print, header included",
        )
    return tuple(points)


def points_by_group(
    points: Iterable[NcclPoint],
) -> dict[tuple[str, int], tuple[tuple[int, float], ...]]:
    """(collective, devices) -> (bytes, seconds) points, in-place only if none is out-of-place.

    In-place points count only where there are no others.
    """
    groups: dict[tuple[str, int], dict[bool, list[tuple[int, float]]]] = {}
    for point in points:
        groups.setdefault((point.collective, point.num_devices), {}).setdefault(
            point.in_place, []
        ).append((point.volume, point.seconds))
    return {
        key: tuple(by_place.get(False) or by_place[True])
        for key, by_place in sorted(groups.items())
    }


def _unprefixed_lines(text: str) -> Iterator[str]:
    """Yield lines without the prefixes of mpirun."""
    for line in text.splitlines():
        yield _PREFIX.sub("", line.strip())


def _required_kind(kind: str, name: str) -> str:
    """Collective of an nccl-tests program like `all_reduce`; DataError if the program is empty."""
    if not kind:
        known = ", ".join(f"{k}_perf" for k in KINDS)
        raise DataError(
            f"{name} does not say which collective it is",
            hint=f"name the file after its program: {known}",
        )
    return KINDS[kind]


def _parse_header(words: list[str], above: str) -> _Header:
    """Columns of an nccl-tests header (size, words, times, bandwidths); `above` marks in-place."""
    times, algorithm, bus = (
        [place for place, word in enumerate(words) if word == name]
        for name in ("time", "algbw", "busbw")
    )
    halves = re.findall(r"out-of-place|in-place", above) or [_OUT, _IN]
    columns = []
    for nth, place in enumerate(times):
        of_algorithm, of_bus = (
            others[nth] if len(others) == len(times) else -1 for others in (algorithm, bus)
        )
        columns.append((place, of_algorithm, of_bus, nth < len(halves) and halves[nth] == _IN))
    before = words[: times[0]] if times else words
    texts = sum(word in before for word in _WORDS)
    return _Header(
        size=words.index("size"), words=texts, has_type="type" in before, times=tuple(columns)
    )


def _parse_row(
    words: list[str], header: _Header, *, kind: str, num_devices: int, name: str
) -> list[NcclPoint]:
    """Points (size, seconds, devices) of a row of nccl-tests: out-of-place, then in-place.

    Collectives without a reduction leave `redop` empty in some versions: a row's columns after the
    words shift left by the missing ones.
    """
    texts = [
        word for word in words[: header.size + 2 + header.words] if not _NUMBER.fullmatch(word)
    ]
    shift = max(header.words - len(texts), 0)
    points = []
    for time, algorithm, bus, in_place in header.times:
        seconds = _positive_number(words, time - shift)
        if seconds is None or not 0 < len(words[header.size].lstrip("0")) < 19:
            continue
        implied = _implied_devices(
            kind,
            *(
                _positive_number(words, place - shift) if place >= 0 else None
                for place in (algorithm, bus)
            ),
        )
        devices = num_devices if num_devices > 1 else implied
        if not 1 < devices <= MAX_DEVICES:
            raise DataError(
                f"{name} does not say how many devices took part",
                hint="keep the lines under `# Using devices`",
            )
        dtype = texts[0] if header.has_type and texts else ""
        point = NcclPoint(
            collective=kind,
            num_devices=devices,
            volume=int(words[header.size]),
            seconds=scale_decimal(seconds, header.power),
            dtype=dtype,
            in_place=in_place,
        )
        points.append(point)
    return points


def _positive_number(words: list[str], place: int) -> float | None:
    """Finite number above 0 at a position; None for N/A, a zero or nothing."""
    try:
        value = float(words[place]) if 0 <= place < len(words) else 0.0
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _implied_devices(kind: str, algorithm: float | None, bus: float | None) -> int:
    """Number of devices that follows from bus over algorithm bandwidth; 0 where it does not.

    The ratio is 2 (n-1)/n for all_reduce and (n-1)/n for the others.
    """
    if (
        algorithm is None
        or bus is None
        or bus_share(kind, num_devices=2) == bus_share(kind, num_devices=4)
    ):
        return 0
    share = bus / algorithm / (2 if kind == "all_reduce" else 1)
    return round(1.0 / (1.0 - share)) if share < 0.9995 else 0
