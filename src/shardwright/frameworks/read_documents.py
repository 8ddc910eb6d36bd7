"""Texts of files -> documents: the settings of each, and of a script those of its commands and of
the files that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import (
    settings_of_document,
    settings_of_python,
)
from shardwright.frameworks.documents.kubernetes_manifest import Manifest, manifest_of
from shardwright.frameworks.documents.python_recipes import settings_of_recipe
from shardwright.frameworks.launch.framework_claims import Document, FileKind
from shardwright.frameworks.launch.launch import ORDER
from shardwright.frameworks.registry import claimants
from shardwright.frameworks.shell.script import read_script
from shardwright.frameworks.shell.script_state import Sources
from shardwright.frameworks.shell.started_program import Started, started
from shardwright.runtime.launch_arguments import ON, Arguments, arguments_of, parse_arguments

ARGUMENTS: Final = "the arguments"
"""Name of arguments that are given in place of a file."""
MAX_BYTES: Final = 2_000_000
_KINDS: Final = {
    ".json": FileKind.JSON,
    ".yaml": FileKind.YAML,
    ".yml": FileKind.YAML,
    ".toml": FileKind.TOML,
    ".py": FileKind.PYTHON,
    ".csv": FileKind.CSV,
}


CONFIGURATION_SUFFIXES: Final = frozenset(_KINDS)
"""Endings of files that are no scripts."""


def documents_of(
    text: str, name: str, given: Mapping[str, str], sources: Sources | None = None
) -> Iterator[Document]:
    """The documents in a file: of a script, its commands with settings and each file that it
    writes.

    Args:
        name: of the file; its ending says what it is.
        given: values of a script's variables.
        sources: where scripts that it reads are.
    """
    kind = _KINDS.get(Path(name).suffix.lower())
    if name == ARGUMENTS:
        yield Document(
            name=name, kind=FileKind.COMMAND, settings=parse_arguments(text, keep_off=True)
        )
    elif kind is FileKind.CSV:
        yield Document(name=name, kind=kind, settings={ORDER: text})
    elif kind is FileKind.PYTHON:
        followed = settings_of_recipe(text, name, given=given)
        settings = settings_of_python(text, name) if followed is None else followed.settings
        yield Document(
            name=name, kind=kind, settings=settings, notes=followed.notes if followed else ()
        )
    elif (manifest := manifest_of(text, Path(name).suffix.lower(), name, given=given)) is not None:
        yield from _of_manifest(manifest, name, given, sources)
    elif kind is not None:
        yield Document(
            name=name,
            kind=kind,
            settings=settings_of_document(text, Path(name).suffix.lower(), name),
        )
    else:
        yield from _of_script(text, name, given, sources)


def _of_manifest(
    manifest: Manifest, file: str, given: Mapping[str, str], sources: Sources | None
) -> Iterator[Document]:
    """The commands of a manifest's containers, and the files of its ConfigMaps."""
    for name, body in manifest.files:
        suffix = Path(name).suffix.lower()
        if suffix in (".json", ".yaml", ".yml", ".toml"):
            yield Document(
                name=name,
                kind=_KINDS[suffix],
                named=False,
                settings=settings_of_document(body, suffix, name),
            )
    for container in manifest.containers:
        if container.script:
            found = _of_script(container.script, file, {**container.environment, **given}, sources)
            yield from (replace(one, devices=manifest.devices) for one in found)


def _of_script(
    text: str, file: str, given: Mapping[str, str], sources: Sources | None
) -> Iterator[Document]:
    script = read_script(text, given=given, sources=sources)
    for name, body in script.files:
        is_json = body.lstrip().startswith("{")
        suffix = ".json" if is_json else Path(name).suffix.lower()
        if suffix in (".json", ".yaml", ".yml", ".toml"):
            yield Document(
                name=Path(name).name,
                kind=_KINDS[suffix],
                named=False,
                settings=settings_of_document(body, suffix, name),
            )
    notes = tuple(f"not followed: {line}" for line in script.left_out)
    commands = [
        one for command in dict.fromkeys(script.commands) if (one := started(command)).words
    ]
    for command in commands or [Started(program="", launchers=(), words=())]:
        yield Document(
            name=file,
            kind=FileKind.COMMAND,
            settings=arguments_of(command.words, keep_off=True),
            program=command.program,
            launchers=frozenset(name for name, _ in command.launchers),
            launched=_launched(command),
            positional=_positional(command.words),
            is_script=True,
            environment=dict(script.environment),
            notes=notes,
            written=script.written,
            missing=script.missing,
        )


def _launched(command: Started) -> Arguments:
    """Settings of the launchers, each with the launcher's name before it."""
    found = {
        f"{launcher}.{name}": value
        for launcher, words in command.launchers
        for name, value in arguments_of(words).items()
    }
    # A command of a launcher, as of `accelerate launch`, says something without a setting.
    return found | {
        f"{launcher}.{words[0]}": ON
        for launcher, words in command.launchers
        if words[:1] == ("launch",)
    }


def _positional(words: Sequence[str]) -> tuple[str, ...]:
    first = next(
        (n for n, word in enumerate(words) if word.startswith("-") or "=" in word), len(words)
    )
    return tuple(words[:first])


def chosen(documents: Sequence[Document], framework: str) -> list[Document]:
    """Of the commands of a script the one that is best claimed, and of those claimed equally the
    one with most settings.
    """
    commands = [one for one in documents if one.kind is FileKind.COMMAND]
    candidates = [claimants()[framework]] if framework else list(claimants().values())

    def strength(document: Document) -> tuple[tuple[int, int, int], int]:
        return max(one.claims(document).strength for one in candidates), len(document.settings)

    best = max(commands, key=strength, default=None)
    return [one for one in documents if one.kind is not FileKind.COMMAND or one is best]


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DataError: it cannot be read, or is too long.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DataError(f"{path}: {size:,} bytes", hint=f"at most {MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "not text in UTF-8"
        )
        raise DataError(
            f"{path}: {reason}", hint="a launch script or a configuration file of a framework"
        ) from None
