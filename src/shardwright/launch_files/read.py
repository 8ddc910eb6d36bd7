"""Files of a launch -> the launch: which framework they are of, their settings, and what these say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from shardwright.errors import DataError, UsageError, nearest
from shardwright.launch_files.degrees import variables_that_set
from shardwright.launch_files.documents import settings_of_document, settings_of_python
from shardwright.launch_files.launch import ORDER, Launch, LaunchReader, Written
from shardwright.launch_files.registry import READERS
from shardwright.launch_files.shell import read_script
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import arguments_of, parse_arguments
from shardwright.runtime.registry import load_runtime

MAX_BYTES: Final = 2_000_000
_REDIRECTED: Final = re.compile(r"[0-9&]?>>?|[0-9]?>&[0-9]|\d?>{1,2}.*|<.*")


def read_launch(
    paths: Sequence[str], *, model: Model, devices: int, framework: str = "", runtime: str = "", given: Mapping[str, str] | None = None
) -> Launch:
    """The launch that files say together; a later file's settings come before an earlier one's.

    Args:
        paths: shell scripts, JSON, YAML, TOML or Python files; or arguments as text, which begin with ``--``.
        framework: word of a reader; empty = the one whose settings are found. runtime: catalog name; empty = the reader's.
        given: values of a script's variables.

    Raises:
        DataError: a file cannot be read, or is of no framework that is known. UsageError: there is no such framework.
    """
    files = [("--", path) if path.lstrip().startswith("--") else (Path(path).name, _text(Path(path))) for path in paths]
    return launch_of_files(files, model=model, devices=devices, framework=framework, runtime=runtime, given=given)


def launch_of_files(
    files: Sequence[tuple[str, str]],
    *,
    model: Model,
    devices: int,
    framework: str = "",
    runtime: str = "",
    given: Mapping[str, str] | None = None,
) -> Launch:
    """See `read_launch`.

    Args:
        files: name, whose ending says what it is, and text of each; ``--`` is the name of arguments.
    """
    if framework and framework not in READERS:
        raise UsageError(f"unknown framework {framework[:40]!r}", hint=nearest(framework[:40], READERS))
    found, notes = [one for name, text in files for one in _of_text(text, name, given or {})], list[str]()
    merged: dict[str, str] = {}
    marks = READERS[framework].marks if framework else frozenset(mark for one in READERS.values() for mark in one.marks)
    for written in found:
        # Of what a script writes for others nothing is read.
        if written.whole or written.arguments.keys() & marks:
            merged |= written.arguments
        notes += written.notes
    reader = READERS[framework] if framework else _reader(merged, [name for name, _ in files])
    runtime = runtime or reader.runtime
    environment = {name: value for written in found for name, value in written.environment.items()}
    merged |= variables_that_set(load_runtime(runtime), environment)
    return reader.read(Written(arguments=merged, notes=tuple(notes)), model=model, devices=devices, runtime=runtime)


def settings_of_files(files: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The settings of files by their names and texts.

    Raises:
        DataError: one cannot be read.
    """
    return {name: value for file, text in files for one in _of_text(text, file, {}) for name, value in one.arguments.items()}


def _reader(arguments: Mapping[str, str], paths: Sequence[str]) -> LaunchReader:
    counts = {name: len(arguments.keys() & reader.marks) for name, reader in READERS.items()}
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        raise DataError(
            f"{', '.join(paths)[:80]}: no setting of a framework that is known", hint=f"--from {'|'.join(READERS)} names the framework"
        )
    return READERS[best]


def _of_text(text: str, name: str, given: Mapping[str, str]) -> Iterator[Written]:
    """What a file says: of a script the command that has most arguments, and each file that it writes."""
    suffix = Path(name).suffix.lower()
    if name == "--":
        yield Written(arguments=parse_arguments(text))
    elif suffix == ".csv":
        yield Written(arguments={ORDER: text})
    elif suffix in (".json", ".yaml", ".yml", ".toml"):
        yield Written(arguments=settings_of_document(text, suffix, name))
    elif suffix == ".py":
        yield Written(arguments=settings_of_python(text, name))
    else:
        yield from _of_script(text, given)


def _of_script(text: str, given: Mapping[str, str]) -> Iterator[Written]:
    script = read_script(text, given=given)
    for name, body in script.files:
        if Path(name).suffix.lower() in (".json", ".yaml", ".yml") or body.lstrip().startswith("{"):
            yield Written(whole=False, arguments=settings_of_document(body, ".json" if body.lstrip().startswith("{") else ".yaml", name))
    best = max((_flags(command) for command in script.commands), key=len, default=())
    notes = tuple(f"not followed: {line}" for line in script.left_out)
    yield Written(arguments=arguments_of(best), notes=notes, environment=dict(script.environment))


def _flags(command: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a command's program, not of the launchers before it; words that are commands themselves are opened."""
    words = [piece for word in command for piece in (_opened(word) if " --" in f" {word}" and " " in word.strip() else (word,))]
    # The last program is the one that is started; launchers stand before it.
    programs = [n for n, word in enumerate(words) if word.endswith(".py") or words[n - 1 : n] == ["-m"]]
    started = [n for n in programs if not words[n].startswith("torch.distributed") and not words[n].endswith("launch.py")]
    rest = words[started[0] + 1 :] if started else words
    # What the script is called with is not known here.
    return tuple(word for word in rest if not _REDIRECTED.fullmatch(word) and word not in ("$@", "$*"))


def _opened(word: str) -> Sequence[str]:
    """The words of a command in a word, as of ``bash -c``."""
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path}: {size:,} bytes", hint=f"at most {MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not text in UTF-8"
        raise DataError(f"{path}: {reason}", hint="a launch script or a configuration file of a framework") from None
