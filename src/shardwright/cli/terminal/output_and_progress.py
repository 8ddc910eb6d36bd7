"""Output of a verb: results to standard output or a file, progress to standard error.

rich is imported only where it draws.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Final

from shardwright.cli.terminal import standard_output
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from shardwright.cli.parsing.shared_options import AnswerForm

Report = Callable[[str, int, int], None]
"""Progress function of (phase, amount done, total); total 0 = unknown."""

WIDTH: Final = 118
SILENT_SECONDS: Final = 1.0
SIMULATING: Final = "simulate (the first run compiles kernels)"


def print_answer(
    form: AnswerForm,
    *,
    document: Callable[[], Mapping[str, Any]],
    line: Callable[[], str],
    picture: Callable[[], RenderableType | None],
    output: Path | None = None,
) -> None:
    """Print an answer as JSON, as the line of ``--quiet`` or as a screen; save JSON in `output`.

    Only the forms that are printed or saved are computed. A `picture` of None is not shown.
    """
    text = to_text(document()) if form.as_json or output is not None else ""
    if output is not None:
        save(output, text)
    if form.as_json:
        write(text)
    elif form.quiet:
        write(line())
    elif (renderable := picture()) is not None:
        show(renderable)


def print_lines(form: AnswerForm, *, document: Mapping[str, Any], text: str) -> None:
    """Print a short answer: `document` as JSON with --json, else `text`."""
    write(to_text(document) if form.as_json else text)


def show(renderable: RenderableType) -> None:
    """Print a screen: in colour on a terminal, else plain, COLUMNS or `WIDTH` characters wide."""
    if not import_module("shardwright.cli.terminal.rich_output").show_on_terminal(renderable):
        columns = os.environ.get("COLUMNS", "")
        standard_output.write(
            plain(renderable, width=int(columns) if columns.isdecimal() and int(columns) else WIDTH)
        )


def plain(renderable: RenderableType, *, width: int = WIDTH) -> str:
    """Render a screen to plain text `width` characters wide, without trailing spaces."""
    text: str = import_module("shardwright.cli.terminal.rich_output").plain(renderable, width=width)
    return text


def write(text: str) -> None:
    """Write text on standard output; raises ReaderGone or OutputError if that fails."""
    standard_output.write(text)


def note(line: str) -> None:
    """Write a line on standard error, which the progress bar does not erase."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def text_or_stdin(text: str) -> str:
    """`text` itself, or the text of standard input if `text` is ``-``.

    Raises:
        UsageError: standard input is no text.
    """
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except ValueError as error:
        raise UsageError("standard input is not text", hint="a strategy in notation") from error


def check_writable(path: Path | None) -> None:
    """Raise UsageError if `path` is a folder or its folder is missing; None is accepted.

    Raises:
        UsageError: its folder does not exist, or it is a folder itself.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}: there is no folder {path.parent}", hint="make the folder first"
        )


def output_ending(path: Path | None, *, forms: Sequence[str], what: str) -> str:
    """Ending of an output path in lower case; first of `forms` for a pipe; UsageError if no form.

    Args:
        forms: endings such as ``.svg``; a pipe or a device without an ending has the first.
        what: noun for the output in messages.

    Raises:
        UsageError: the name has another ending.
    """
    if path is None:
        return ""
    suffix = path.suffix.lower()
    if suffix in forms:
        return suffix
    if path.exists() and not path.is_file():
        return forms[0]
    said = (
        f"{path.suffix[:20]} is no form of {what}"
        if suffix
        else f"no ending says in which form {what} is to be"
    )
    raise UsageError(
        f"cannot write {path.name[:60]!r}: {said}", hint=f"end the name in {' or '.join(forms)}"
    )


def save(path: Path, text: str) -> None:
    """Write `text` to `path`, by replacing the file atomically where the system allows that.

    Raises:
        UsageError: the operating system refuses.
    """
    try:
        target = path.resolve()
        # A pipe or a device has no other file that could take its place; nor has a file that is
        # mounted by itself, as containers do, or stands in a folder where only it may be written.
        if (target.exists() and not target.is_file()) or not _replaced(target, text):
            target.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="choose another file with -o"
        ) from error


_NOT_REPLACED: Final = frozenset(
    (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY)
)


def _replaced(target: Path, text: str) -> bool:
    """Write `text` to a temporary file that replaces `target`; False if that is not allowed.

    On False, nothing has changed.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except OSError as error:
        if error.errno not in _NOT_REPLACED:
            raise
        return False
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


@contextmanager
def progress(
    form: AnswerForm | None = None,
    *,
    doing: str = "",
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report | None]:
    """Context with a progress function, or None if no bar can be seen; a bar after one second.

    No bar is drawn with --json or --quiet, nor on a standard error that is no terminal.

    Args:
        doing: the phase that the bar begins with.
        console: draws the bar; None = standard error.
    """
    silent = form is not None and (form.quiet or form.as_json)
    if silent or (console is None and not sys.stderr.isatty()):
        yield None
        return
    start, lock = clock(), Lock()
    last: tuple[str, int, int] = (doing, 0, 0)
    update: Report | None = None
    end_bar: Callable[[], None] = lambda: None  # noqa: E731  # there is no bar yet

    def show_bar(elapsed_s: float) -> None:
        """Start the progress bar if it is not shown yet."""
        nonlocal update, end_bar
        with lock:
            if update is None:
                update, end_bar = import_module("shardwright.cli.terminal.progress_bar").start_bar(
                    console, elapsed_s=elapsed_s
                )
                update(*last)

    def report(phase: str, done: int, total: int) -> None:
        """Store a phase's progress; show it once the bar has begun, after one second."""
        nonlocal last
        last = phase, done, total
        if update is not None:
            update(phase, done, total)
        elif (elapsed_s := clock() - start) >= SILENT_SECONDS:
            show_bar(elapsed_s)

    # What is reported once and then takes long, as compiling does, must be seen too.
    timer = Timer(SILENT_SECONDS, show_bar, (SILENT_SECONDS,))
    timer.daemon = True
    timer.start()
    try:
        yield report
    finally:
        timer.cancel()
        timer.join()
        end_bar()
