"""Size-limited reading of other programs' text: whole files, numbered lines, whole numbers."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

from shardwright.errors import ClusterError

MAX_BYTES: Final = 64 * 1024**2
MAX_LINES: Final = 2_000_000
MAX_LINE: Final = 1024**2
MAX_WORD: Final = 200
_HINT: Final = (
    "nvidia-smi topo -m or -L, rocm-smi --showtopo, an NCCL topology, topology.conf, scontrol show"
    " nodes, kubectl get nodes -o json, or nccl-tests' output"
)


def read_text_up_to_limit(path: Path) -> str:
    """Read a text file of at most 64 MiB; ClusterError if larger, unreadable or not UTF-8.

    Raises:
        ClusterError: the file cannot be read, is larger, or is no UTF-8 text.
    """
    name = str(path)[-80:]
    try:
        if not path.is_file():
            raise ClusterError(f"no file {name!r}", hint=_HINT)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(
            f"cannot read {name!r}", hint="is it a file that you may read?"
        ) from None
    if len(content) > MAX_BYTES:
        raise ClusterError(
            f"{name!r} is larger than {MAX_BYTES} bytes",
            hint="no more is read; a part of it may do",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ClusterError(f"{name!r} is not UTF-8 text", hint="save it as UTF-8") from None


def require_text(text: str, *, name: str) -> str:
    """Return `text`; ClusterError if it is empty, binary or over 2,000,000 lines long."""
    if not text.strip():
        raise ClusterError(f"{name} is empty", hint=_HINT)
    if "\0" in text:
        raise ClusterError(f"{name} is binary", hint=_HINT)
    if text.count("\n") > MAX_LINES:
        raise ClusterError(
            f"{name} has more than {MAX_LINES} lines", hint="no more are read; a part of it may do"
        )
    return text


def numbered_lines(text: str, *, name: str) -> Iterator[tuple[str, str]]:
    """Yield (``FILE:LINE``, line without surrounding spaces) for each line of a text.

    Raises:
        ClusterError: a line of more than 1,048,576 characters.
    """
    for number, line in enumerate(StringIO(text), start=1):
        if len(line) > MAX_LINE:
            raise ClusterError(
                f"{name}:{number}: a line of {len(line)} characters",
                hint=f"at most {MAX_LINE} are read",
            )
        yield f"{name}:{number}", line.strip()


def whole_number(text: str, *, what: str, where: str, most: int) -> int:
    """Parse a whole number from 1 to `most`; ClusterError if the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most):
        raise ClusterError(
            f"{where}: {what} is {text[:40]!r}", hint=f"a whole number from 1 to {most:,}"
        )
    return int(text)
