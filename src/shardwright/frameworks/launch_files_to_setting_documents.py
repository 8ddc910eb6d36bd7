"""Parser of launch files and scripts into documents of settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import (
    settings_of_document,
    settings_of_python,
)
from shardwright.frameworks.documents.parse_kubernetes_launch_manifest import Manifest, manifest_of
from shardwright.frameworks.documents.python_recipes import settings_of_recipe
from shardwright.frameworks.launch.framework_detection import Document, FileKind
from shardwright.frameworks.launch.training_launch_and_reader_types import ORDER
from shardwright.frameworks.registry import claimants
from shardwright.frameworks.shell.interpreter_state import Sources
from shardwright.frameworks.shell.run_script import read_script
from shardwright.frameworks.shell.split_launchers_from_program import Started, started
from shardwright.runtime.parse_launch_arguments import (
    ON,
    Arguments,
    arguments_from_words,
    parse_arguments,
)

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
"""Suffixes of configuration files; other files are scripts."""


def documents_of(
    text: str, name: str, given: Mapping[str, str], sources: Sources | None = None
) -> Iterator[Document]:
    """Parse a file into documents; of a script, one for each command and each file that it writes.

    Args:
        name: the file's name; the suffix gives the form.
        given: values of a script's variables.
        sources: function from a file's name to the text of scripts that the script reads.
    """
    kind = _KINDS.get(Path(name).suffix.lower())
    if name == ARGUMENTS:
        yield Document(
            name=name, kind=FileKind.COMMAND, settings=parse_arguments(text, keep_off=True)
        )
    elif kind is FileKind.CSV:
        yield Document(name=name, kind=kind, settings={ORDER: text})
    elif kind is FileKind.PYTHON:
        recipe = settings_of_recipe(text, name, given=given)
        settings = settings_of_python(text, name) if recipe is None else recipe.settings
        yield Document(
            name=name, kind=kind, settings=settings, notes=recipe.notes if recipe else ()
        )
    elif (manifest := manifest_of(text, Path(name).suffix.lower(), name, given=given)) is not None:
        yield from _manifest_documents(manifest, name, given, sources)
    elif kind is not None:
        yield Document(
            name=name,
            kind=kind,
            settings=settings_of_document(text, Path(name).suffix.lower(), name),
        )
    else:
        yield from _script_documents(text, name, given, sources)


def _manifest_documents(
    manifest: Manifest, file: str, given: Mapping[str, str], sources: Sources | None
) -> Iterator[Document]:
    """Documents of a Kubernetes manifest: commands of containers and files of ConfigMaps."""
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
            documents = _script_documents(
                container.script, file, {**container.environment, **given}, sources
            )
            yield from (replace(document, devices=manifest.devices) for document in documents)


def _script_documents(
    text: str, file: str, given: Mapping[str, str], sources: Sources | None
) -> Iterator[Document]:
    """Documents of a shell script: commands with settings and files that the script writes."""
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
        program for command in dict.fromkeys(script.commands) if (program := started(command)).words
    ]
    for command in commands or [Started(program="", launchers=(), words=())]:
        yield Document(
            name=file,
            kind=FileKind.COMMAND,
            settings=arguments_from_words(command.words, keep_off=True),
            program=command.program,
            launchers=frozenset(name for name, _ in command.launchers),
            launched=_launcher_settings(command),
            positional=_words_before_settings(command.words),
            is_script=True,
            environment=dict(script.environment),
            notes=notes,
            written=script.written,
            missing=script.missing,
        )


def _launcher_settings(command: Started) -> Arguments:
    """Settings of a command's launchers, each with the launcher's name as prefix."""
    settings = {
        f"{launcher}.{name}": value
        for launcher, words in command.launchers
        for name, value in arguments_from_words(words).items()
    }
    # A launcher's command, such as `accelerate launch`, counts as a setting of its own.
    return settings | {
        f"{launcher}.{words[0]}": ON
        for launcher, words in command.launchers
        if words[:1] == ("launch",)
    }


def _words_before_settings(words: Sequence[str]) -> tuple[str, ...]:
    """Words of a command before its first setting (``-x`` or ``a=b``)."""
    first = next(
        (n for n, word in enumerate(words) if word.startswith("-") or "=" in word), len(words)
    )
    return tuple(words[:first])


def documents_of_files(
    files: Iterable[tuple[str, str]],
    given: Mapping[str, str],
    framework: str = "",
    sources: Sources | None = None,
) -> list[Document]:
    """Parse files, given as (name, text), into documents, with the best command of each script.

    Args:
        given: values of a script's variables.
        framework: framework whose claims choose the command; empty = all.
        sources: function from a file's name to the text of scripts that a script reads.
    """
    return [
        document
        for name, text in files
        for document in _with_best_command(
            list(documents_of(text, name, given, sources)), framework
        )
    ]


def _with_best_command(documents: Sequence[Document], framework: str) -> list[Document]:
    """Documents without commands, save the most strongly claimed one (of equal: most settings).

    Of equal claims, the command with most settings is kept. Other documents are kept.
    """
    commands = [document for document in documents if document.kind is FileKind.COMMAND]
    candidates = [claimants()[framework]] if framework else list(claimants().values())

    def strength(document: Document) -> tuple[tuple[int, int, int], int]:
        """Strength of the strongest claim on a command, then the number of its settings."""
        return max(candidate.claims(document).strength for candidate in candidates), len(
            document.settings
        )

    best = max(commands, key=strength, default=None)
    return [
        document
        for document in documents
        if document.kind is not FileKind.COMMAND or document is best
    ]


def read_text(path: Path) -> str:
    """Text of a launch file; DataError if the file cannot be read or is too long."""
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
