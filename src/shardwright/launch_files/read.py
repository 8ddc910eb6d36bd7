"""Files of a launch -> the launch: which framework they are of, their settings, and what these say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from shardwright.errors import DataError, UsageError, nearest
from shardwright.launch_files.claims import Document, FileKind, best_claimant, joined, parts_of
from shardwright.launch_files.degrees import variables_that_set
from shardwright.launch_files.documents import settings_of_document, settings_of_python
from shardwright.launch_files.launch import ORDER, Launch, LaunchReader, Verdict, Written
from shardwright.launch_files.registry import CLAIMANTS, READERS
from shardwright.launch_files.shell import read_script
from shardwright.launch_files.started import Started, started
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import arguments_of, parse_arguments
from shardwright.runtime.registry import load_runtime

MAX_BYTES: Final = 2_000_000
ARGUMENTS: Final = "the arguments"
"""Name of arguments that are given in place of a file."""
LEAST_UNDERSTOOD: Final = 0.6
"""Least share of the settings of a file that a reader has to understand."""
_KINDS: Final = {
    ".json": FileKind.JSON,
    ".yaml": FileKind.YAML,
    ".yml": FileKind.YAML,
    ".toml": FileKind.TOML,
    ".py": FileKind.PYTHON,
    ".csv": FileKind.CSV,
}


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
    files = [(ARGUMENTS, path) if path.lstrip().startswith("--") else (Path(path).name, _text(Path(path))) for path in paths]
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
        files: name, whose ending says what it is, and text of each; `ARGUMENTS` is the name of arguments.
    """
    if framework and framework not in READERS:
        raise UsageError(f"unknown framework {framework[:40]!r}", hint=nearest(framework[:40], READERS))
    documents = [one for name, text in files for one in _chosen(list(documents_of(text, name, given or {})), framework)]
    reader = _reader(documents, framework)
    read = _of_the_launch(documents, reader)
    merged = {name: value for one in read for name, value in one.settings.items()}
    runtime = runtime or reader.runtime
    environment = {name: value for one in read for name, value in one.environment.items()}
    merged |= variables_that_set(load_runtime(runtime), environment)
    notes = tuple(note for one in read for note in one.notes)
    launch = reader.read(Written(arguments=merged, notes=notes), model=model, devices=devices, runtime=runtime)
    for document in read:
        _require_understood(launch, document, reader)
    return launch


def settings_of_files(files: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The settings of files by their names and texts.

    Raises:
        DataError: one cannot be read.
    """
    found = [one for file, text in files for one in _chosen(list(documents_of(text, file, {})), "")]
    return {name: value for one in found for name, value in one.settings.items()}


def _reader(documents: Sequence[Document], framework: str) -> LaunchReader:
    """The reader of the framework that the files are of, or that the user names.

    Raises:
        DataError: they are of none that is read, or of the named one they have nothing.
    """
    if framework:
        reader = READERS[framework]
        parts = parts_of(framework, CLAIMANTS)
        if not any(CLAIMANTS[part].claims(one).evidence for part in parts if part in CLAIMANTS for one in documents):
            raise DataError(
                f"{', '.join(one.name for one in documents)[:80]}: no setting that is {framework}'s", hint="leave --from out to see of what"
            )
        return reader
    best = best_claimant(documents, CLAIMANTS)
    if best in READERS:
        return READERS[best]
    evidence = joined(CLAIMANTS[best].claims(one) for one in documents).evidence
    raise DataError(
        f"{', '.join(one.name for one in documents)[:80]}: files of {best} ({', '.join(evidence[:3])[:80]}), which are not read",
        hint=f"read are those of {', '.join(READERS)}",
    )


def _of_the_launch(documents: Sequence[Document], reader: LaunchReader) -> list[Document]:
    """The files that are of a reader's launch: those that it or a framework that it includes claims, and those that nobody claims.

    Raises:
        DataError: a file that the user names is claimed by another framework alone.
    """
    parts = parts_of(reader.name, CLAIMANTS)
    found = []
    for document in documents:
        claims = {name: claim for name, one in CLAIMANTS.items() if (claim := one.claims(document)).evidence}
        others = sorted(name for name, claim in claims.items() if claim.programs or claim.own)
        if claims.keys() & parts or (document.named and not others):
            found.append(document)
        elif document.named:
            raise DataError(
                f"{document.name[:60]} is {' or '.join(others)}'s, the other files are {reader.name}'s",
                hint="give the files of one launch alone",
            )
    return found


def _require_understood(launch: Launch, document: Document, reader: LaunchReader) -> None:
    """Check that of the settings of a file that is the framework's own at least `LEAST_UNDERSTOOD` are understood.

    Raises:
        DataError: fewer are; it names those that are not.
    """
    claims = [CLAIMANTS[name].claims(document) for name in parts_of(reader.name, CLAIMANTS) if name in CLAIMANTS]
    if not any(claim.programs or claim.own for claim in claims):
        return
    unknown = [one.name for one in launch.of(Verdict.UNKNOWN) if one.name in document.settings]
    if len(unknown) > (1 - LEAST_UNDERSTOOD) * len(document.settings):
        raise DataError(
            f"{document.name[:60]}: {len(document.settings) - len(unknown)} of {len(document.settings)} settings are understood as "
            f"{reader.name}'s; not {', '.join(unknown)[:200]}",
            hint=f"at least {LEAST_UNDERSTOOD:.0%} have to be; is it a file of another framework, or of a fork?",
        )


def documents_of(text: str, name: str, given: Mapping[str, str]) -> Iterator[Document]:
    """What a file says: of a script its commands with settings, and each file that it writes."""
    kind = _KINDS.get(Path(name).suffix.lower())
    if name == ARGUMENTS:
        yield Document(name=name, kind=FileKind.COMMAND, settings=parse_arguments(text))
    elif kind is FileKind.CSV:
        yield Document(name=name, kind=kind, settings={ORDER: text})
    elif kind is FileKind.PYTHON:
        yield Document(name=name, kind=kind, settings=settings_of_python(text, name))
    elif kind is not None:
        yield Document(name=name, kind=kind, settings=settings_of_document(text, Path(name).suffix.lower(), name))
    else:
        yield from _of_script(text, name, given)


def _of_script(text: str, file: str, given: Mapping[str, str]) -> Iterator[Document]:
    script = read_script(text, given=given)
    for name, body in script.files:
        is_json = body.lstrip().startswith("{")
        suffix = ".json" if is_json else Path(name).suffix.lower()
        if suffix in (".json", ".yaml", ".yml", ".toml"):
            yield Document(name=name, kind=_KINDS[suffix], named=False, settings=settings_of_document(body, suffix, name))
    notes = tuple(f"not followed: {line}" for line in script.left_out)
    commands = [one for command in script.commands if (one := started(command)).words] or [Started(program="", launchers=(), words=())]
    for command in commands:
        yield Document(
            name=file,
            kind=FileKind.COMMAND,
            settings=arguments_of(command.words),
            program=command.program,
            launchers=frozenset(command.launchers),
            environment=dict(script.environment),
            notes=notes,
        )


def _chosen(documents: Sequence[Document], framework: str) -> list[Document]:
    """Of the commands of a script the one that is best claimed, and of those claimed equally the one with most settings."""
    commands = [one for one in documents if one.kind is FileKind.COMMAND]
    claimants = [CLAIMANTS[framework]] if framework else list(CLAIMANTS.values())

    def strength(document: Document) -> tuple[tuple[int, int, int], int]:
        return max(one.claims(document).strength for one in claimants), len(document.settings)

    best = max(commands, key=strength, default=None)
    return [one for one in documents if one.kind is not FileKind.COMMAND or one is best]


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path}: {size:,} bytes", hint=f"at most {MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not text in UTF-8"
        raise DataError(f"{path}: {reason}", hint="a launch script or a configuration file of a framework") from None
